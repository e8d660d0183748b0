//go:build !linux

package plugin

// limitMemory does nothing, because RLIMIT_DATA needs Linux. On other systems only GOMEMLIMIT limits a plugin, if the
// plugin is written in Go.
func limitMemory(int, uint64) error { return nil }
