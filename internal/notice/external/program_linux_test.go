package external

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slipway-dev/slipway/internal/testing/must"
)

// TestKilledChildrenLeaveNoZombies lets the test adopt orphans, as the agent does in its container.
func TestKilledChildrenLeaveNoZombies(t *testing.T) {
	must.NoError(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }()
	hanging := newProgram(t, `sleep 600 & sleep 600 & wait`, 200*time.Millisecond)
	later := newProgram(t, `echo '{"notices": []}'`, time.Minute)
	later.children = hanging.children
	for range 3 {
		_, err := hanging.read(t.Context())
		must.Not(t, err == nil, "the program did not hang")
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		_, err := later.read(t.Context())
		must.NoError(t, err)
		zombies := listZombies(t)
		if len(zombies) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("zombies: %v", zombies)
		}
	}
}

// listZombies returns the process IDs of this process's children that have ended.
func listZombies(t *testing.T) (all []string) {
	t.Helper()
	for _, path := range must.Get(filepath.Glob("/proc/[0-9]*/stat"))(t) {
		stat, _ := os.ReadFile(path) // the process may be gone
		_, rest, _ := strings.Cut(string(stat), ") ")
		if f := strings.Fields(rest); len(f) > 1 && f[0] == "Z" && f[1] == strconv.Itoa(os.Getpid()) {
			all = append(all, path)
		}
	}
	return all
}
