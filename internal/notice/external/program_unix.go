//go:build unix

package external

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// killGroup makes the end of the command's context kill the program and all its children.
func killGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
}

// reapGroup removes the ended children of this process in a process group. It reports whether others still run.
func reapGroup(group int) (running bool) {
	for {
		pid, err := syscall.Wait4(-group, nil, syscall.WNOHANG, nil)
		switch {
		case err == syscall.EINTR: // Wait4 returns a plain Errno
		case err != nil:
			return false // there is no child
		case pid == 0:
			return true
		}
	}
}
