package controlplane

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

// processAttributes puts a child in a session of its own, where a terminal's interrupt does not reach it, and, unless
// it is detached, has the kernel kill it when its parent dies.
func processAttributes(detached bool) *syscall.SysProcAttr {
	attributes := &syscall.SysProcAttr{Setsid: true}
	if !detached {
		attributes.Pdeathsig = syscall.SIGKILL
	}
	return attributes
}

// processStart returns when a process started, in clock ticks since boot, and whether it runs. One that has ended but
// was not yet waited for by its parent does not.
func processStart(pid int) (started string, running bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", false
	}
	// The second field is the command in parentheses and may hold anything; see proc_pid_stat(5).
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	const state, startTime = 3 - 3, 22 - 3
	if len(fields) <= startTime || fields[state] == "Z" || fields[state] == "X" {
		return "", false
	}
	return fields[startTime], true
}
