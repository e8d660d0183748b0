package observe

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// userHz is the unit of times in /proc, in 1/s: USER_HZ, which is 100 on every architecture that Go supports.
const userHz = 100

// addProcessMetrics defines the metrics from /proc (proc_pid_stat(5), proc_stat(5), proc_pid_fd(5)).
func (r *Registry) addProcessMetrics() {
	fromStat := func(of func(processStat) float64) func() (float64, bool) {
		return func() (float64, bool) {
			s, err := readProcessStat()
			return of(s), err == nil
		}
	}
	r.addFuncMetric("gauge", "process_resident_memory_bytes", "Bytes of memory that are resident.",
		fromStat(func(s processStat) float64 { return s.residentPages * float64(os.Getpagesize()) }))
	r.addFuncMetric("counter", "process_cpu_seconds_total", "Seconds of CPU time spent, by the process and the kernel for it.",
		fromStat(func(s processStat) float64 { return s.cpuTicks / userHz }))
	r.addFuncMetric("gauge", "process_open_fds", "Number of open file descriptors.", countOpenFiles)

	boot, bootErr := bootTime()
	stat, statErr := readProcessStat()
	r.addFuncMetric("gauge", "process_start_time_seconds", "When the process started, in seconds since 1970.",
		func() (float64, bool) { return boot + stat.startTicks/userHz, bootErr == nil && statErr == nil })
}

// processStat holds the used fields of /proc/self/stat.
type processStat struct {
	cpuTicks      float64 // in user and kernel mode together
	startTicks    float64 // after the machine booted
	residentPages float64
}

func readProcessStat() (processStat, error) {
	raw, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return processStat{}, err
	}
	return parseProcessStat(raw)
}

// parseProcessStat reads the fields by their numbers in proc_pid_stat(5). The second field, a command in parentheses, may
// contain spaces and parentheses.
func parseProcessStat(raw []byte) (processStat, error) {
	end := bytes.LastIndexByte(raw, ')')
	fields := strings.Fields(string(raw[end+1:]))
	if end < 0 || len(fields) < 22 {
		return processStat{}, errors.New("/proc/self/stat: want a command in parentheses and 22 fields after it")
	}
	var values [4]float64
	for i, number := range []int{14, 15, 22, 24} {
		v, err := strconv.ParseUint(fields[number-3], 10, 64)
		if err != nil {
			return processStat{}, fmt.Errorf("/proc/self/stat: field %d: %w", number, err)
		}
		values[i] = float64(v)
	}
	return processStat{cpuTicks: values[0] + values[1], startTicks: values[2], residentPages: values[3]}, nil
}

// bootTime returns when the machine booted, in seconds since 1970.
func bootTime() (float64, error) {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	return parseBootTime(string(raw))
}

func parseBootTime(stat string) (float64, error) {
	for line := range strings.Lines(stat) {
		if seconds, ok := strings.CutPrefix(line, "btime "); ok {
			v, err := strconv.ParseUint(strings.TrimSpace(seconds), 10, 64)
			return float64(v), err
		}
	}
	return 0, errors.New("/proc/stat: want a line btime")
}

func countOpenFiles() (count float64, known bool) {
	d, err := os.Open("/proc/self/fd")
	if err != nil {
		return 0, false
	}
	defer func() { _ = d.Close() }()
	names, err := d.Readdirnames(-1)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, false
	}
	return float64(len(names) - 1), true // without the directory itself
}
