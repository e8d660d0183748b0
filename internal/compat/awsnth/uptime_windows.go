package awsnth

import (
	"time"

	"golang.org/x/sys/windows"
)

// readUptime returns the time since the boot of the machine, also in a container.
func readUptime() (time.Duration, error) { return windows.DurationSinceBoot(), nil }
