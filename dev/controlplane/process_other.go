//go:build !linux

package controlplane

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// processAttributes puts a child in its own session, so that a terminal's interrupt does not reach it. Only Linux can
// end a child with its parent. Elsewhere a killed test binary leaves its control plane running.
func processAttributes(bool) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// readProcessStart returns the start time of a process, and whether it runs. A zombie does not run.
func readProcessStart(pid int) (started string, running bool) {
	state, started, ok := readStat(pid)
	return started, ok && !strings.HasPrefix(state, "Z")
}

// isProcessStopped reports whether a process is stopped.
func isProcessStopped(pid int) bool {
	state, _, ok := readStat(pid)
	return ok && strings.HasPrefix(state, "T")
}

// readStat reads the state and the start time of a process.
func readStat(pid int) (state, started string, ok bool) {
	out, err := exec.Command("ps", "-o", "state=,lstart=", "-p", strconv.Itoa(pid)).Output()
	state, started, found := strings.Cut(strings.TrimSpace(string(out)), " ")
	return state, strings.TrimSpace(started), err == nil && found
}
