//go:build !linux

package main

import (
	"os/exec"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// inside starts an image's command.
func inside(root string, config v1.Config, args ...string) *exec.Cmd {
	return exec.Command(filepath.Join(root, config.Entrypoint[0]), args...)
}
