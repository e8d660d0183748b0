package start

import (
	"testing"

	"github.com/slipway-dev/slipway/internal/testing/check"
)

func TestLinkerSetsTheBuild(t *testing.T) {
	before := []string{version, commit, commitDate}
	defer func() { version, commit, commitDate = before[0], before[1], before[2] }()
	version, commit, commitDate = "v1.2.3", "0a1b", "2026-01-31T12:00:00Z"
	check.Equal(t, Build{Version: "v1.2.3", Commit: "0a1b", CommitDate: "2026-01-31T12:00:00Z"}, BuildInfo())
}
