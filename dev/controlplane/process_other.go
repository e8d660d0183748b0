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
	out, err := exec.Command("ps", "-o", "state=,lstart=", "-p", strconv.Itoa(pid)).Output()
	state, started, found := strings.Cut(strings.TrimSpace(string(out)), " ")
	if err != nil || !found || strings.HasPrefix(state, "Z") {
		return "", false
	}
	return strings.TrimSpace(started), true
}
