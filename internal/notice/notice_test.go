package notice

import (
	"errors"
	"testing"
)

func TestI7ANoticeIsOverOnlyWhenNothingUnreadableCouldBeIt(t *testing.T) {
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
			if got := tc.snapshot.Over("A"); got != tc.over {
				t.Errorf("Over(A) = %v, want %v", got, tc.over)
			}
		})
	}
}
