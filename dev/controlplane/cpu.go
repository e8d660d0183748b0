package controlplane

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// CPUTime returns the processor time of the process since its latest start, in user and kernel mode. The resolution
// is 10 ms. CPUTime works only on Linux, and only while the process exists.
func (p *Process) CPUTime() (time.Duration, error) { return readCPUTime(p.PID()) }

// OwnCPUTime returns the processor time of the calling process.
func OwnCPUTime() (time.Duration, error) { return readCPUTime(os.Getpid()) }

func readCPUTime(pid int) (time.Duration, error) {
	path := fmt.Sprintf("/proc/%d/stat", pid)
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	// Field 2 is the command in parentheses; 14 and 15 are utime and stime in 1/100 s (proc_pid_stat(5)).
	fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	const utime, stime = 14 - 3, 15 - 3
	if len(fields) <= stime {
		return 0, fmt.Errorf("%s: want at least 15 fields", path)
	}
	var ticks int64
	for _, i := range []int{utime, stime} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: field %d: %w", path, i+3, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}
