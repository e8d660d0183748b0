//go:build unix

package plugin

import (
	"os"
	"os/exec"
	"syscall"
)

// ownGroup makes a program the head of a process group: a signal from the terminal is Slipway's to act on, and the
// program's children can be ended with it.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// killGroup ends a process that has not been waited for, and its children.
func killGroup(p *os.Process) error {
	if err := syscall.Kill(-p.Pid, syscall.SIGKILL); err != syscall.ESRCH {
		return err
	}
	return os.ErrProcessDone
}
