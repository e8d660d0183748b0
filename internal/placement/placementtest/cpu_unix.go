//go:build unix

package placementtest

import (
	"syscall"
	"time"
)

// CPUTime is the processor time that the process has used so far. On a machine shared with others it tells more of the
// cost of a computation than the clock does.
func CPUTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
