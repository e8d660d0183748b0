//go:build unix

package plugin

import (
	"os"
	"os/exec"
	"syscall"
)

// setProcessGroup makes the program the leader of its own process group. So signals from the terminal reach only
// Slipway, and the program's children can be killed with the program.
func setProcessGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// killGroup kills a process and its children. The caller must not have waited for the process yet, so that its ID is
// still valid.
func killGroup(p *os.Process) error {
	if err := syscall.Kill(-p.Pid, syscall.SIGKILL); err != syscall.ESRCH {
		return err
	}
	return os.ErrProcessDone
}
