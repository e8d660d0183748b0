package start

import (
	"bufio"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// releaseProgramPages unmaps the pages of the program file from this process. The kernel maps a page again when it is used
// (madvise(2), MADV_DONTNEED on a file). Most of the program is used only at the start, and the memory of an agent counts
// on every node. Without /proc it does nothing.
func releaseProgramPages() {
	program, err := os.Executable()
	if err != nil {
		return
	}
	mappings, err := os.Open("/proc/self/maps")
	if err != nil {
		return
	}
	defer mappings.Close() //nolint:errcheck // it was only read
	for lines := bufio.NewScanner(mappings); lines.Scan(); {
		// The fields are address, permissions, offset, device, inode and path (proc_pid_maps(5)). A writable mapping has
		// changes that are not in the file.
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || fields[5] != program || strings.Contains(fields[1], "w") {
			continue
		}
		from, to, _ := strings.Cut(fields[0], "-")
		begin, errBegin := strconv.ParseUint(from, 16, 64)
		end, errEnd := strconv.ParseUint(to, 16, 64)
		if errBegin == nil && errEnd == nil {
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(begin), uintptr(end-begin), unix.MADV_DONTNEED) // only an optimization
		}
	}
}
