//go:build !unix

package external

import "os/exec"

// killGroup does nothing: the end of the command's context kills the program alone.
func killGroup(*exec.Cmd) {}
