// Package golden compares results with stored files.
package golden

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "update the golden files")

// Check reports an error with the differences if got differs from the content of the file. With the flag -update it
// first writes got into the file.
func Check[S string | []byte](t *testing.T, file string, got S) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got, update with -update):\n%s", file, diff)
	}
}
