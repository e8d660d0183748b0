package observe

import (
	"math"
	"os"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/testing/must"
)

// standardRanges are the bounds of what the process of a test can be.
func standardRanges() map[string][2]float64 {
	now := float64(time.Now().Unix())
	return map[string][2]float64{
		"go_goroutines":                 {1, 1000},
		"go_info":                       {1, 1},
		"slipway_build_info":            {1, 1},
		"go_memstats_heap_alloc_bytes":  {10 << 10, 1 << 30},
		"process_resident_memory_bytes": {1 << 20, 4 << 30},
		"process_cpu_seconds_total":     {0, 3600},
		"process_start_time_seconds":    {now - 3600, now + 2},
		"process_open_fds":              {3, 1000},
	}
}

func TestEachOpenFileCounts(t *testing.T) {
	before, ok := countOpenFiles()
	if !ok {
		t.Fatal("not known")
	}
	f, err := os.Open("/proc/self/stat")
	must.NoError(t, err)
	defer func() { _ = f.Close() }()
	if after, _ := countOpenFiles(); after != before+1 {
		t.Errorf("%v files open before another was opened, %v after", before, after)
	}
}

func TestStatOfACommandWithAnyName(t *testing.T) {
	const rest = " S 1 1 1 0 -1 4194560 1 2 3 4 250 50 7 8 20 0 9 0 123456 1073741824 2048 18446744073709551615 1"
	want := processStat{cpuTicks: 300, startTicks: 123456, residentPages: 2048}
	for _, command := range []string{"(slipway)", "(a b)", "(a) S 9 (b)", "())", "(\n)"} {
		if got, err := parseProcessStat([]byte("42 " + command + rest)); err != nil || got != want {
			t.Errorf("%s: %+v and %v", command, got, err)
		}
	}
	for _, bad := range []string{"", "42", "42 (x", "42 (x) S 1 2 3", "42 (x) S 1 1 1 0 -1 0 1 2 3 4 x 50 7 8 20 0 9 0 1 2 3 4 5"} {
		if got, err := parseProcessStat([]byte(bad)); err == nil {
			t.Errorf("%q is read as %+v", bad, got)
		}
	}
}

func FuzzStat(f *testing.F) {
	f.Add([]byte("42 (x) S 1 1 1 0 -1 4194560 1 2 3 4 250 50 7 8 20 0 9 0 123456 1073741824 2048 1"))
	f.Add([]byte(")"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := parseProcessStat(raw)
		if err != nil {
			return
		}
		for _, v := range []float64{s.cpuTicks, s.startTicks, s.residentPages} {
			if v < 0 || math.IsNaN(v) || math.IsInf(v, 0) {
				t.Errorf("%+v", s)
			}
		}
	})
}

func TestBootTime(t *testing.T) {
	if got, err := parseBootTime("cpu  1 2\nintr 5 btime 9\nbtime 1700000000\nprocesses 4\n"); err != nil || got != 1700000000 {
		t.Errorf("%v and %v", got, err)
	}
	for _, bad := range []string{"", "cpu 1\n", "btime x\n", "btime -1\n"} {
		if got, err := parseBootTime(bad); err == nil {
			t.Errorf("%q is read as %v", bad, got)
		}
	}
}
