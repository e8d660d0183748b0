//go:build !unix

package external

import "os/exec"

// killGroup does nothing: the end of the command's context kills the program alone.
func killGroup(*exec.Cmd) {}

// reapGroup does nothing: there are no process groups.
func reapGroup(int) (running bool) { return false }
