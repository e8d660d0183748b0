//go:build !linux

package observe

// standardRanges are the bounds of what the process of a test can be.
func standardRanges() map[string][2]float64 {
	return map[string][2]float64{
		"go_goroutines":                {1, 1000},
		"go_info":                      {1, 1},
		"slipway_build_info":           {1, 1},
		"go_memstats_heap_alloc_bytes": {10 << 10, 1 << 30},
	}
}
