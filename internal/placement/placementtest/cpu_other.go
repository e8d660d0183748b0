//go:build !unix

package placementtest

import "time"

var started = time.Now()

// CPUTime is the time that has passed since the process started: where the processor's cannot be had, the clock's.
func CPUTime() time.Duration { return time.Since(started) }
