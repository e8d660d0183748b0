package controlplane

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// processAttributes puts a child in its own session, so that a terminal's interrupt does not reach it. Unless detached
// is set, the kernel kills the child when its parent dies.
func processAttributes(detached bool) *syscall.SysProcAttr {
	attributes := &syscall.SysProcAttr{Setsid: true}
	if !detached {
		attributes.Pdeathsig = syscall.SIGKILL
	}
	return attributes
}

// readProcessStart returns the start time of a process in clock ticks since boot, and whether it runs. A zombie does not
// run.
func readProcessStart(pid int) (started string, running bool) {
	state, started, ok := readProcessStat("/proc/" + strconv.Itoa(pid) + "/stat")
	return started, ok && state != "Z" && state != "X"
}

// isProcessStopped reports whether every thread of a process is stopped.
func isProcessStopped(pid int) bool {
	threads, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/stat")
	if err != nil {
		return false
	}
	for _, thread := range threads {
		// A thread that ended after the listing is ignored.
		if state, _, ok := readProcessStat(thread); ok && state != "T" {
			return false
		}
	}
	return len(threads) > 0
}

// readProcessStat reads the state and the start time of a process or thread.
func readProcessStat(path string) (state, started string, ok bool) {
	stat, err := os.ReadFile(path)
	if err != nil {
		return "", "", false
	}
	// Field 2 is the command in parentheses and may contain anything. Field 3 is the state, field 22 the start time
	// (proc_pid_stat(5)).
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	const stateField, startField = 0, 19
	if len(fields) <= startField {
		return "", "", false
	}
	return fields[stateField], fields[startField], true
}
