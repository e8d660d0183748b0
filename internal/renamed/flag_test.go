package renamed_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/slipway-dev/slipway/internal/renamed"
)

func TestOldFlagSetsNewOneAndWarns(t *testing.T) {
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	var said bytes.Buffer
	fs.SetOutput(&said)
	size := fs.Int("min-size", 1, "the lowest number of nodes")
	renamed.Flag(fs, "minimum", "min-size")
	if err := fs.Parse([]string{"--minimum", "3"}); err != nil {
		t.Fatal(err)
	}
	if *size != 3 || !strings.Contains(said.String(), "use --min-size") {
		t.Errorf("size %d, output %q; want 3 and the new name", *size, said.String())
	}
	if strings.Contains(fs.FlagUsages(), "minimum") {
		t.Error("the old name is in the help")
	}
}
