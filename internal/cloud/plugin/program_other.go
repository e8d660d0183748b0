//go:build !unix

package plugin

import (
	"os"
	"os/exec"
)

func setProcessGroup(*exec.Cmd) {}

func killGroup(p *os.Process) error { return p.Kill() }
