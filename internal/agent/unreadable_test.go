package agent

import (
	"context"
	"errors"
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
				{ID: "E1", Err: errors.New(`Events[0].EventType: "HostRepair": want Freeze or another`)},
			}}}}
		})
		time.Sleep(time.Minute)
		if n := m.times("NoticeUnreadable"); n != 1 || m.empty() || m.see().Spec.Unschedulable {
			t.Errorf("said %d times, Events %v; the node is empty: %t", n, m.events, m.empty())
		}
		m.crash()
	})
}
