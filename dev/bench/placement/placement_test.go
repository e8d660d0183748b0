package placement

import (
	"flag"
	"os"
	"testing"

	"github.com/slipway-dev/slipway/dev/bench/result"
)

var results = flag.String("results", "", "folder to write placement.json to; without it the benchmark does not run")

// TestRun measures once when a folder for the results is given. Figures that were missed are printed and are no failure
// of the test: the machine may be busy. An answer that is wrong is.
func TestRun(t *testing.T) {
	if *results == "" {
		t.Skip("measures only when asked to: -results DIR")
	}
	measured, err := Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := result.Print(os.Stdout, "placement", measured); err != nil {
		t.Fatal(err)
	}
	if err := result.Write(*results, "placement", measured); err != nil {
		t.Fatal(err)
	}
}
