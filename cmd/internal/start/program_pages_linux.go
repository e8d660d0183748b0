package start

import (
	"bufio"
	"encoding/binary"
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
	static := isStatic(program)
	mappings, err := os.Open("/proc/self/maps")
	if err != nil {
		return
	}
	defer mappings.Close() //nolint:errcheck // it was only read
	for lines := bufio.NewScanner(mappings); lines.Scan(); {
		// The fields are address, permissions, offset, device, inode and path (proc_pid_maps(5)). A writable mapping has
		// changes that are not in the file. Without a static link, a mapping without code may have them too: the dynamic
		// linker writes addresses into it, and then makes it read-only.
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || fields[5] != program || strings.Contains(fields[1], "w") || !static && !strings.Contains(fields[1], "x") {
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

// isStatic reports whether nothing relocates a program at its start: it has no segment for the dynamic linker (elf(5),
// PT_DYNAMIC). This is the default of Go without cgo. It returns false for programs of 32 bits.
func isStatic(program string) bool {
	const (
		class64, dynamic                     = 2, 2
		classAt, offsetAt, sizeAt, segmentAt = 4, 32, 54, 56
	)
	file, err := os.Open(program)
	if err != nil {
		return false
	}
	defer file.Close() //nolint:errcheck // it was only read
	head := make([]byte, 4096)
	if n, _ := file.ReadAt(head, 0); n < len(head) || head[classAt] != class64 {
		return false
	}
	first, size := binary.NativeEndian.Uint64(head[offsetAt:]), uint64(binary.NativeEndian.Uint16(head[sizeAt:]))
	for i := range uint64(binary.NativeEndian.Uint16(head[segmentAt:])) {
		at := first + i*size
		if at+4 > uint64(len(head)) || binary.NativeEndian.Uint32(head[at:]) == dynamic {
			return false
		}
	}
	return true
}
