package poll

import (
	"fmt"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
)

var plannerStart = time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)

const (
	hour = time.Hour
	day  = 24 * time.Hour
)

func newTestPlanner() *Planner {
	return NewPlanner(Leads{Retirement: day, Maintenance: 15 * time.Minute})
}

// split returns where a single notice is after some time.
func split(p *Planner, kind notice.Type, notBefore, after time.Duration) string {
	n := notice.Notice{ID: "E", Type: kind, NotBefore: plannerStart.Add(notBefore)}
	due, planned, _ := p.Split([]notice.Notice{n}, plannerStart.Add(after))
	return fmt.Sprintf("%d due, %d planned", len(due), len(planned))
}

func TestPlannedNoticeIsGivenByItsLead(t *testing.T) {
	for _, tt := range []struct {
		kind          notice.Type
		in            time.Duration // from the first read to the interruption
		last, firstly time.Duration // the last time it is planned, and the first it is due
	}{
		{notice.Terminate, 14 * day, 13*day - time.Second, 13 * day},
		{notice.Terminate, 10 * hour, 5*hour - time.Second, 5 * hour},
		{notice.Terminate, 20 * time.Minute, 5*time.Minute - time.Second, 5 * time.Minute},
		{notice.Reboot, 14 * day, 14*day - 15*time.Minute - time.Second, 14*day - 15*time.Minute},
		{notice.Freeze, hour, 45*time.Minute - time.Second, 45 * time.Minute},
	} {
		p := newTestPlanner()
		for _, at := range []time.Duration{0, tt.last} {
			if got := split(p, tt.kind, tt.in, at); got != "0 due, 1 planned" {
				t.Errorf("%s in %s, after %s: %s, want it planned", tt.kind, tt.in, at, got)
			}
		}
		if got := split(p, tt.kind, tt.in, tt.firstly); got != "1 due, 0 planned" {
			t.Errorf("%s in %s, after %s: %s, want it due", tt.kind, tt.in, tt.firstly, got)
		}
	}
	if got := split(newTestPlanner(), notice.Reboot, 10*time.Minute, 0); got != "1 due, 0 planned" {
		t.Errorf("a reboot in 10 min: %s, want it due", got)
	}
	if due, _, _ := newTestPlanner().Split([]notice.Notice{{ID: "E", Type: notice.Terminate}}, plannerStart); len(due) != 1 {
		t.Error("a notice without a time is not due")
	}
	started := notice.Notice{ID: "E", Type: notice.Reboot, Status: notice.Started, NotBefore: plannerStart.Add(day)}
	if due, _, _ := newTestPlanner().Split([]notice.Notice{started}, plannerStart); len(due) != 1 {
		t.Error("a started notice is not due")
	}
}

func TestMovedEventIsTakenBackAndGivenAgain(t *testing.T) {
	p := newTestPlanner()
	for _, step := range []struct {
		what             string
		notBefore, after time.Duration
		want             string
	}{
		{"planned", 2 * day, 0, "0 due, 1 planned"},
		{"due", 2 * day, day, "1 due, 0 planned"},
		{"moved by an hour", 2*day + hour, day, "1 due, 0 planned"},
		{"moved by two weeks: the node is restored", 16 * day, day, "0 due, 0 planned"},
		{"still later", 16 * day, 2 * day, "0 due, 0 planned"},
		{"due again", 16 * day, 15 * day, "1 due, 0 planned"},
		{"time passed, machine alive", 16 * day, 17 * day, "1 due, 0 planned"},
	} {
		if got := split(p, notice.Terminate, step.notBefore, step.after); got != step.want {
			t.Errorf("%s: %s, want %s", step.what, got, step.want)
		}
	}
}

func TestI3RestartKeepsGivenNoticesGiven(t *testing.T) {
	p := newTestPlanner()
	given := notice.Notice{ID: "E", Type: notice.Terminate, NotBefore: plannerStart.Add(10 * hour)}
	p.Resume([]notice.Notice{given})
	if got := split(p, notice.Terminate, 10*hour, hour); got != "1 due, 0 planned" {
		t.Errorf("after a restart: %s, want it due", got)
	}
	fresh := newTestPlanner()
	_, planned, next := fresh.Split([]notice.Notice{given}, plannerStart)
	if s := (notice.Snapshot{Planned: planned}); s.HasEnded("E") {
		t.Error("a planned notice counts as ended")
	}
	if want := plannerStart.Add(5 * hour); !next.Equal(want) {
		t.Errorf("next %s, want %s", next, want)
	}
}
