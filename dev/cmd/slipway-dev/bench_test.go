package main

import (
	"io"
	"strings"
	"testing"
)

func TestBenchRefusesFlagsOfOtherGroups(t *testing.T) {
	for _, args := range []string{"agent --nodes 10", "--peer /bin/true", "cloudpool --only x", "peers --pods 3"} {
		cmd := newBenchCommand()
		cmd.SetArgs(strings.Fields(args))
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "requires the group") {
			t.Errorf("bench %s: %v; want an error that names the group of the flag", args, err)
		}
	}
}
