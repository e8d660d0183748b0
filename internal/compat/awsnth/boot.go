package awsnth

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// ReadBootTime returns when the machine was booted. It reads the file of -uptime-from-file, or else asks the operating
// system.
func (o *Options) ReadBootTime(now time.Time) (time.Time, error) {
	var uptime time.Duration
	var err error
	if path := o.UptimeFromFile; path == "" {
		uptime, err = readUptime()
	} else if uptime, err = readUptimeFile(path); err != nil {
		err = fmt.Errorf("%s: %w", o.describeSource("uptime-from-file"), err)
	}
	if err != nil {
		return time.Time{}, err
	}
	return now.Add(-uptime), nil
}

// readUptimeFile reads a file in the format of /proc/uptime. Its first number is the time since the boot in seconds.
func readUptimeFile(path string) (time.Duration, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	text, _, _ := strings.Cut(strings.TrimSpace(string(raw)), " ")
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || !(seconds >= 0 && seconds < maxUptimeSeconds) {
		return 0, fmt.Errorf("%s: %q: want the time since the boot in seconds", path, text)
	}
	return time.Duration(seconds * float64(time.Second)), nil
}

// maxUptimeSeconds is a hundred years.
const maxUptimeSeconds = 100 * 365 * 24 * 3600
