package agent

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
)

// garbled is a source that says the same each second: in part it cannot be understood.
type garbled struct{ snapshot notice.Snapshot }

func (garbled) Name() string        { return "azure" }
func (garbled) LastRead() time.Time { return time.Now() }

func (g *garbled) Run(ctx context.Context, emit func(notice.Snapshot)) {
	for ctx.Err() == nil {
		s := g.snapshot
		s.At = time.Now()
		emit(s)
		time.Sleep(time.Second)
	}
}

func TestWhatCannotBeUnderstoodIsSaidOnceOnTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(newCluster(), "n", 10*time.Second)
		m.start(t, 0, func(o *Options) {
			o.Sources = []Source{&garbled{notice.Snapshot{Unreadable: []notice.Problem{
				{ID: "E1", Named: true, Err: errors.New(`Events[0].EventType: "HostRepair": want Freeze or another`)},
			}}}}
		})
		time.Sleep(time.Minute)
		if n := m.times("NoticeUnreadable"); n != 1 || m.empty() || m.see().Spec.Unschedulable {
			t.Errorf("said %d times, Events %v; the node is empty: %t", n, m.events, m.empty())
		}
		m.crash()
	})
}

// TestWhatCannotBeUnderstoodIsNotSaidAgainWhenAnotherEventComesOrGoes has the entry move in the list, and others beside it.
func TestWhatCannotBeUnderstoodIsNotSaidAgainWhenAnotherEventComesOrGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(newCluster(), "n", 10*time.Second)
		problem := func(id string, at int, named bool) notice.Problem {
			return notice.Problem{ID: id, Named: named, Err: fmt.Errorf(`Events[%d].EventType: "HostRepair": want Freeze or another`, at)}
		}
		var all atomic.Pointer[[]notice.Problem]
		m.start(t, 0, func(o *Options) { o.Sources = []Source{&changing{problems: &all}} })
		for _, tt := range []struct {
			problems []notice.Problem
			said     int
		}{
			{[]notice.Problem{problem("E0", 0, false), problem("", 1, false)}, 0}, // nobody knows whose they are
			{[]notice.Problem{problem("E1", 0, true)}, 1},
			{[]notice.Problem{problem("E1", 3, true), problem("E0", 4, false)}, 1},
			{[]notice.Problem{problem("E2", 0, true), problem("E1", 1, true)}, 2},
			{[]notice.Problem{problem("E1", 0, true), problem("E2", 1, true)}, 2},
			{[]notice.Problem{problem("E2", 0, true)}, 2},
			{nil, 2},
			{[]notice.Problem{problem("E1", 2, true)}, 3},
		} {
			all.Store(&tt.problems)
			time.Sleep(10 * time.Second)
			if n := m.times("NoticeUnreadable"); n != tt.said {
				t.Errorf("%v: said %d times, want %d", tt.problems, n, tt.said)
			}
		}
		m.crash()
	})
}

// changing is a source whose problems change.
type changing struct {
	garbled
	problems *atomic.Pointer[[]notice.Problem]
}

func (c *changing) Run(ctx context.Context, emit func(notice.Snapshot)) {
	for ctx.Err() == nil {
		s := notice.Snapshot{At: time.Now()}
		if all := c.problems.Load(); all != nil {
			s.Unreadable = *all
		}
		emit(s)
		time.Sleep(time.Second)
	}
}
