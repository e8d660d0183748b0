package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestVersionPrintsCommitAndDate(t *testing.T) {
	for name, tt := range map[string]struct {
		client clientVersion
		want   string
	}{
		"commit and date": {clientVersion{Commit: "0a1b", CommitDate: "2026-01-31T12:00:00Z", Modified: true}, "commit 0a1b, with uncommitted changes; commit date 2026-01-31T12:00:00Z; "},
		"only a commit":   {clientVersion{Commit: "0a1b"}, "commit 0a1b; "},
		"neither":         {clientVersion{}, ""},
	} {
		var out bytes.Buffer
		must.NoError(t, (&versions{Client: tt.client}).printTable(&out, false))
		got := ""
		for line := range strings.Lines(out.String()) {
			if strings.HasPrefix(line, "commit") {
				got += strings.Join(strings.Fields(line), " ") + "; "
			}
		}
		check.Is(t, tt.want, got, name)
	}
}
