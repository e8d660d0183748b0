//go:build unix

package placementtest

import (
	"syscall"
	"time"
)

// MeasureCPUTime returns the processor time that the process has used. On a shared machine it measures the cost of a
// computation better than the elapsed time.
func MeasureCPUTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
