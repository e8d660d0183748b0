package awsnth

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// defaultUptimeFile holds the time since the boot of the machine, also in a container.
const defaultUptimeFile = "/proc/uptime"

// ReadBootTime returns when the machine was booted. It reads the file of -uptime-from-file, or else the kernel's. The first
// number in it is the time since the boot in seconds.
func (o *Options) ReadBootTime(now time.Time) (time.Time, error) {
	path := defaultUptimeFile
	if o.UptimeFromFile != "" {
		path = o.UptimeFromFile
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return time.Time{}, fmt.Errorf("%s: %w", o.describeSource("uptime-from-file"), err)
	}
	text, _, _ := strings.Cut(strings.TrimSpace(string(raw)), " ")
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || !(seconds >= 0 && seconds < maxUptimeSeconds) {
		return time.Time{}, fmt.Errorf("%s: %s: %q: want the time since the boot in seconds", o.describeSource("uptime-from-file"), path, text)
	}
	return now.Add(-time.Duration(seconds * float64(time.Second))), nil
}

// maxUptimeSeconds is a hundred years.
const maxUptimeSeconds = 100 * 365 * 24 * 3600
