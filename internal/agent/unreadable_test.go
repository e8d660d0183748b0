package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/azure"
	"github.com/slipway-dev/slipway/internal/testing/must"
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

func TestUnreadableEntryIsReportedOnceOnTheNode(t *testing.T) {
	onMachine(t, 10*time.Second, func(t *testing.T, m *machine) {
		m.start(t, 0, func(o *Options) {
			o.Sources = []Source{&garbled{notice.Snapshot{Unreadable: []notice.Problem{
				{ID: "E1", Named: true, Err: errors.New(`Events[0].EventType: "HostRepair": want Freeze or another`)},
			}}}}
		})
		time.Sleep(time.Minute)
		if n := m.times("NoticeUnreadable"); n != 1 || m.empty() || m.see().Spec.Unschedulable {
			t.Errorf("said %d times, Events %v; the node is empty: %t", n, m.events, m.empty())
		}
	})
}

// TestOtherEventsRepeatNoReportOfUnreadableEntries has the entry move in the list, and others beside it.
func TestOtherEventsRepeatNoReportOfUnreadableEntries(t *testing.T) {
	onMachine(t, 10*time.Second, func(t *testing.T, m *machine) {
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

// fixed is a service that always answers the same document.
type fixed struct{ document azure.Document }

func (f fixed) Fetch(context.Context) (azure.Document, error) { return f.document, nil }

// TestMissingDetailNeverPreventsAPreemptDrain has every combination of optional fields be missing or be of another type.
func TestMissingDetailNeverPreventsAPreemptDrain(t *testing.T) {
	fields := map[string]any{
		"EventId": "E", "EventStatus": "Scheduled", "EventSource": "Platform", "NotBefore": "Mon, 03 Jan 2000 00:00:00 GMT",
		"Description": "", "DurationInSeconds": -1,
	}
	names := slices.Sorted(maps.Keys(fields))
	for _, wrong := range []any{"missing", "", nil, 7, map[string]any{"a": 1}, []string{"Scheduled"}} {
		for combination := range 1 << len(names) {
			event := map[string]any{"EventType": "Preempt", "ResourceType": "VirtualMachine", "Resources": []string{"n"}}
			for i, name := range names {
				switch {
				case combination&(1<<i) == 0:
					event[name] = fields[name]
				case wrong != "missing":
					event[name] = wrong
				}
			}
			raw, err := json.Marshal(map[string]any{"DocumentIncarnation": 1, "Events": []any{event}})
			must.NoError(t, err)
			synctest.Test(t, func(t *testing.T) {
				source, err := azure.NewSource(azure.SourceOptions{Fetcher: fixed{raw}, Resource: "n"})
				must.NoError(t, err)
				m := newMachine(newCluster(), "n", time.Second)
				m.start(t, 0, func(o *Options) { o.Sources = []Source{source} })
				time.Sleep(time.Second)
				if m.asked().IsZero() || !m.see().Spec.Unschedulable {
					t.Errorf("nothing is done about %s: Events %v", raw, m.events)
				}
				m.crash()
			})
		}
	}
}

func TestMissingStatusDoesNotUndoStarted(t *testing.T) {
	onMachine(t, time.Second, func(t *testing.T, m *machine) {
		grace := int64(1)
		m.pod.Spec.TerminationGracePeriodSeconds = &grace
		m.denied("web")
		n := announced(notice.Reboot, "e", 15*time.Minute)
		m.start(t, 0, nil)
		m.source.say(n)
		time.Sleep(time.Minute)
		n.Status, n.NotBefore = notice.Started, time.Time{}
		m.source.say(n)
		time.Sleep(time.Second)
		n.Status = notice.Scheduled // as what is missing is taken to be
		m.source.say(n)
		time.Sleep(15 * time.Second)
		if !m.empty() {
			t.Error("a pod was left to die with the machine")
		}
	})
}

// TestPlaceholderTimePreventsNothing has the service name the last second that .NET knows, on a machine whose clock is
// ahead: no record can hold the sum.
func TestPlaceholderTimePreventsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		document := azure.Document(`{"DocumentIncarnation": 1, "Events": [{"EventId": "E", "EventType": "Preempt", "EventStatus": "Scheduled",
			"EventSource": "Platform", "Resources": ["n"], "NotBefore": "Fri, 31 Dec 9999 23:59:59 GMT"}]}`)
		source, err := azure.NewSource(azure.SourceOptions{
			Fetcher: fixed{document}, Resource: "n", ClockAhead: func() time.Duration { return 5 * time.Second },
		})
		must.NoError(t, err)
		m := newMachine(newCluster(), "n", time.Second)
		m.start(t, 0, func(o *Options) { o.Sources = []Source{source} })
		time.Sleep(time.Second)
		if m.asked().IsZero() || !m.see().Spec.Unschedulable {
			t.Errorf("nothing is done: Events %v", m.events)
		}
		m.crash()
	})
}
