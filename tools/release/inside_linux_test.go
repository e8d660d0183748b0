package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// inside starts an image's command. As root it runs in a chroot with the image's files and the image's user, so that a
// missing library or permission is detected.
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
