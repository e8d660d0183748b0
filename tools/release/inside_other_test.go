//go:build !linux

package main

import (
	"os/exec"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// inside starts what an image's configuration says.
func inside(root string, config v1.Config, args ...string) *exec.Cmd {
	return exec.Command(filepath.Join(root, config.Entrypoint[0]), args...)
}
