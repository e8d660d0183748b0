package start

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestReleasedProgramPagesAreNotResident(t *testing.T) {
	before := residentFileKiB(t)
	releaseProgramPages()
	if after := residentFileKiB(t); after > before*3/4 {
		t.Errorf("%d KiB of files are resident after the release, and %d before: want at most three quarters", after, before)
	}
}

// TestRelocatedProgramIsNotStatic covers programs with addresses that are only in memory. Their release would crash.
func TestRelocatedProgramIsNotStatic(t *testing.T) {
	own := must.Get(os.ReadFile("/proc/self/exe"))(t)[:4096]
	for want, segment := range map[bool]byte{true: 1, false: 2} { // PT_LOAD and PT_DYNAMIC
		first := binary.NativeEndian.Uint64(own[32:])
		own[first] = segment
		path := filepath.Join(t.TempDir(), "program")
		must.NoError(t, os.WriteFile(path, own, 0o600))
		if got := isStatic(path); got != want && !(want && !isStatic("/proc/self/exe")) {
			t.Errorf("a program with a segment of type %d: %t, want %t", segment, got, want)
		}
	}
}

// residentFileKiB returns how much of the process's files is resident.
func residentFileKiB(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	must.NoError(t, err)
	found := regexp.MustCompile(`RssFile:\s+(\d+) kB`).FindSubmatch(status)
	if found == nil {
		t.Fatalf("no RssFile in /proc/self/status:\n%s", status)
	}
	kib, err := strconv.Atoi(string(found[1]))
	must.NoError(t, err)
	return kib
}
