//go:build !linux

package controlplane

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// processAttributes puts a child in a session of its own, where a terminal's interrupt does not reach it. Only Linux
// can tie its life to its parent's: elsewhere a test binary that is killed leaves its control plane running.
func processAttributes(bool) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// processStart returns when a process started, and whether it runs. One that has ended but was not yet waited for by
// its parent does not.
func processStart(pid int) (started string, running bool) {
	state, started, ok := readStat(pid)
	return started, ok && !strings.HasPrefix(state, "Z")
}

// processStopped reports whether a process is stopped.
func processStopped(pid int) bool {
	state, _, ok := readStat(pid)
	return ok && strings.HasPrefix(state, "T")
}

// readStat asks for the state and the start time of a process.
func readStat(pid int) (state, started string, ok bool) {
	out, err := exec.Command("ps", "-o", "state=,lstart=", "-p", strconv.Itoa(pid)).Output()
	state, started, found := strings.Cut(strings.TrimSpace(string(out)), " ")
	return state, strings.TrimSpace(started), err == nil && found
}
