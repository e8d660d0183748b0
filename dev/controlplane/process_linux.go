package controlplane

import (
	"os"
	"path/filepath"
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
	state, started, ok := readStat("/proc/" + strconv.Itoa(pid) + "/stat")
	return started, ok && state != "Z" && state != "X"
}

// processStopped reports whether every thread of a process is stopped.
func processStopped(pid int) bool {
	threads, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/stat")
	if err != nil {
		return false
	}
	for _, thread := range threads {
		// One that has ended since the listing does no more.
		if state, _, ok := readStat(thread); ok && state != "T" {
			return false
		}
	}
	return len(threads) > 0
}

// readStat reads the state and the start time of a process or thread.
func readStat(path string) (state, started string, ok bool) {
	stat, err := os.ReadFile(path)
	if err != nil {
		return "", "", false
	}
	// The second field is the command in parentheses and may hold anything, the third is the state, the 22nd the time;
	// see proc_pid_stat(5).
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	const stateField, startField = 0, 19
	if len(fields) <= startField {
		return "", "", false
	}
	return fields[stateField], fields[startField], true
}
