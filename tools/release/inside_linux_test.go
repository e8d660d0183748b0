package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// inside starts what an image's configuration says. Where the test may, that has the image's files alone to see and is
// the image's user, so that a library or a right that it lacks is noticed.
func inside(root string, config v1.Config, args ...string) *exec.Cmd {
	program := config.Entrypoint[0]
	if os.Geteuid() != 0 {
		return exec.Command(filepath.Join(root, program), args...)
	}
	return &exec.Cmd{
		Path: program, Args: append([]string{program}, args...), Env: config.Env, Dir: config.WorkingDir,
		SysProcAttr: &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}},
	}
}
