//go:build !windows

package awsnth

import "time"

// readUptime returns the time since the boot of the machine, also in a container.
func readUptime() (time.Duration, error) { return readUptimeFile("/proc/uptime") }
