//go:build unix

package plugin

import (
	"os"
	"os/exec"
	"syscall"
)

// setProcessGroup makes the program the leader of a process group. Terminal signals then reach only Slipway, and the program's
// children can be killed with it.
func setProcessGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// killGroup kills a process that has not been waited for, and its children.
func killGroup(p *os.Process) error {
	if err := syscall.Kill(-p.Pid, syscall.SIGKILL); err != syscall.ESRCH {
		return err
	}
	return os.ErrProcessDone
}
