package start

import (
	"os"
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
