//go:build !unix

package placementtest

import "time"

var started = time.Now()

// MeasureCPUTime returns the time since the process started, because the processor time is not available here.
func MeasureCPUTime() time.Duration { return time.Since(started) }
