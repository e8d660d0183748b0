package openstack

import (
	"os"
	"path/filepath"
	"testing"
)

func TestTestAfterDeadlineIsSkippedAndRecorded(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(DirVariable, dir)
	t.Setenv(DeadlineVariable, "1")
	for _, name := range []string{"one", "another"} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if !t.Skipped() {
					t.Error("the test was not skipped")
				}
			}()
			RequireForTest(t)
		})
	}
	got, err := os.ReadFile(filepath.Join(dir, skippedTestsFile))
	if want := t.Name() + "/one\n" + t.Name() + "/another\n"; err != nil || string(got) != want {
		t.Errorf("recorded %q, %v, want %q", got, err, want)
	}
}
