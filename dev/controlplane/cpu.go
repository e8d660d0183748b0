package controlplane

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// CPU is the processor time that the process has used since its latest start, its own and the kernel's for it, to a
// hundredth of a second. It is known while the process is there, on Linux.
func (p *Process) CPU() (time.Duration, error) { return cpuOf(p.PID()) }

// OwnCPU is the same of the process that calls it.
func OwnCPU() (time.Duration, error) { return cpuOf(os.Getpid()) }

func cpuOf(pid int) (time.Duration, error) {
	path := fmt.Sprintf("/proc/%d/stat", pid)
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	// Field 2 is the command in parentheses, 14 and 15 are utime and stime in 1/100 s (proc_pid_stat(5)).
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
