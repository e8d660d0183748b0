//go:build !linux

package controlplane

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// processAttributes makes a child run in its own session, so that an interrupt from the terminal does not reach it.
// Only Linux can kill a child when its parent ends. On other systems, the control plane continues to run after a
// test binary was killed.
func processAttributes(bool) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// readProcessStart returns the start time of a process as ps prints it. It also reports whether the process runs; a
// zombie process does not run.
func readProcessStart(pid int) (started string, running bool) {
	state, started, ok := readStat(pid)
	return started, ok && !strings.HasPrefix(state, "Z")
}

// isProcessStopped reports whether a process is stopped.
func isProcessStopped(pid int) bool {
	state, _, ok := readStat(pid)
	return ok && strings.HasPrefix(state, "T")
}

// readStat reads the state and start time of a process from the output of ps.
func readStat(pid int) (state, started string, ok bool) {
	out, err := exec.Command("ps", "-o", "state=,lstart=", "-p", strconv.Itoa(pid)).Output()
	state, started, found := strings.Cut(strings.TrimSpace(string(out)), " ")
	return state, strings.TrimSpace(started), err == nil && found
}
