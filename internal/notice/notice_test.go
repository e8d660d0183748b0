package notice

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/slipway-dev/slipway/internal/testing/check"
)

func TestI7NoticeEndsOnlyWithoutUnreadableCandidates(t *testing.T) {
	unreadable := errors.New("unreadable")
	for _, tc := range []struct {
		name     string
		snapshot Snapshot
		over     bool
	}{
		{"nothing listed", Snapshot{}, true},
		{"still listed", Snapshot{Notices: []Notice{{ID: "A"}}}, false},
		{"only another is listed", Snapshot{Notices: []Notice{{ID: "B"}}}, true},
		{"listed but unreadable", Snapshot{Unreadable: []Problem{{ID: "A", Err: unreadable}}}, false},
		{"another is unreadable", Snapshot{Unreadable: []Problem{{ID: "B", Err: unreadable}}}, true},
		{"an entry without an ID is unreadable", Snapshot{Unreadable: []Problem{{Err: unreadable}}}, false},
		{"only warned of", Snapshot{Warnings: []Problem{{ID: "A", Err: unreadable}}}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			check.Is(t, tc.over, tc.snapshot.HasEnded("A"))
		})
	}
}

// The event names this instance, or others, thousands of times.
func TestRecordOfANoticeIsSmall(t *testing.T) {
	own, other := strings.Repeat("x", 79)+"1", strings.Repeat("x", 79)+"2"
	for name, tc := range map[string]struct {
		resources []string
		others    bool
	}{
		"once":                          {[]string{own}, false},
		"in another letter case":        {[]string{strings.ToUpper(own), own}, false},
		"often":                         {slices.Repeat([]string{own}, 5000), false},
		"another name often":            {append(slices.Repeat([]string{other}, 5000), own), true},
		"both names often":              {slices.Repeat([]string{own, other}, 5000), true},
		"often, in another letter case": {slices.Repeat([]string{own, strings.ToUpper(own)}, 5000), false},
	} {
		t.Run(name, func(t *testing.T) {
			n := Notice{ID: "E", Resources: tc.resources}
			kept := n.TrimForRecord(own)
			raw, err := json.Marshal(kept)
			if err != nil || len(raw) > 1024 || len(kept.Resources) != 1 {
				t.Errorf("%d bytes, %d names, %v", len(raw), len(kept.Resources), err)
			}
			if again := kept.TrimForRecord(own); again.InstanceCount != kept.InstanceCount || again.CountOtherInstances(own) != kept.CountOtherInstances(own) {
				t.Errorf("second record: %+v, first: %+v", again, kept)
			}
			if n.CountOtherInstances(own) > 0 != tc.others || kept.CountOtherInstances(own) > 0 != tc.others {
				t.Errorf("others: %d, recorded %d; want some: %t", n.CountOtherInstances(own), kept.CountOtherInstances(own), tc.others)
			}
		})
	}
}
