package plugin

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// limitMemory limits the data of a process in bytes. 0 means unlimited. RLIMIT_DATA counts writable memory. It does not
// count address space that a runtime such as Go's only reserves.
func limitMemory(pid int, limit uint64) error {
	if limit == 0 {
		return nil
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_DATA, &unix.Rlimit{Cur: limit, Max: limit}, nil); err != nil {
		return fmt.Errorf("memoryLimit: %d bytes: %w", limit, err)
	}
	return nil
}
