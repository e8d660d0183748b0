package condition

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func newDuration(d time.Duration) *Duration { return (*Duration)(&d) }

func TestRuleIsReadFromFlagAndFile(t *testing.T) {
	for flag, tt := range map[string]struct {
		file string
		want Rule
		id   string
	}{
		"KernelDeadlock=drain": {
			`{"type": "KernelDeadlock", "action": "drain"}`, Rule{Type: "KernelDeadlock", Action: "drain"}, "KernelDeadlock",
		},
		"Ready:Unknown=cordon,release=10m,hold=90s": {
			`{"type": "Ready", "status": "Unknown", "action": "cordon", "holdDown": "90s", "release": "10m"}`,
			Rule{Type: "Ready", Status: "Unknown", Action: "cordon", HoldDown: newDuration(90 * time.Second), Release: newDuration(10 * time.Minute)},
			"Ready-Unknown",
		},
		"KubeletProblem=ignore,hold=0s": {
			`{"type": "KubeletProblem", "action": "ignore", "holdDown": "0s"}`,
			Rule{Type: "KubeletProblem", Action: "ignore", HoldDown: newDuration(0)},
			"KubeletProblem",
		},
	} {
		got, err := ParseRule(flag)
		must.NoError(t, err)
		var read Rule
		must.NoError(t, json.Unmarshal([]byte(tt.file), &read))
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", flag, diff)
		}
		if diff := cmp.Diff(tt.want, read); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.file, diff)
		}
		if got.ID() != tt.id {
			t.Errorf("%s: ID %q, want %q", flag, got.ID(), tt.id)
		}
	}
}

func TestI10BadRuleIsRefusedByFieldAndRange(t *testing.T) {
	for flag, want := range map[string]string{
		"KernelDeadlock":                   "want TYPE[:STATUS]=ACTION",
		"=drain":                           `type: "": want`,
		"a b=drain":                        `type: "a b": want`,
		"RebootScheduled=drain":            "confirmed with the metadata service",
		"Drained=cordon":                   `type: "Drained": want a condition that the agent does not set itself`,
		"KernelDeadlock:Maybe=drain":       `status: "Maybe": want True, False or Unknown`,
		"KernelDeadlock=reboot":            `action: "reboot": want one of ignore, cordon, drain-marked, drain`,
		"KernelDeadlock=drain,hold=soon":   `hold: "soon": want a duration`,
		"KernelDeadlock=drain,hold=25h":    "holdDown: 25h0m0s: want 0 to 24h0m0s",
		"KernelDeadlock=drain,release=-1s": "release: -1s: want 0 to",
		"KernelDeadlock=drain,for=1m":      `"for=1m": want TYPE`,
		"X=drain,hold=1m,hold=2m":          `"hold=2m": want TYPE`,
	} {
		if _, err := ParseRule(flag); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want it to contain %q", flag, err, want)
		}
	}
	twice := []Rule{{Type: "A", Action: "drain"}, {Type: "A", Status: "False", Action: "drain"}, {Type: "A", Status: "True", Action: "cordon"}}
	check.ErrorContains(t, ValidateRules(twice), "[2]: A is there twice")
	if err := ValidateRules(twice[:2]); err != nil {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"KernelDeadlock=drain", "Ready:Unknown=cordon,hold=90s,release=10m", "=,=", "a:b=c,hold="} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRule(text)
		if err != nil {
			return
		}
		if err := r.Validate(); err != nil {
			t.Errorf("%q was parsed as %+v, which is invalid: %v", text, r, err)
		}
		if r.ID() == "" {
			t.Errorf("%q has no ID", text)
		}
	})
}
