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

// unreadableSource emits the same snapshot with an unreadable part every second.
type unreadableSource struct{ snapshot notice.Snapshot }

func (unreadableSource) Name() string        { return "azure" }
func (unreadableSource) LastRead() time.Time { return time.Now() }

func (g *unreadableSource) Run(ctx context.Context, emit func(notice.Snapshot)) {
	for ctx.Err() == nil {
		s := g.snapshot
		s.At = time.Now()
		emit(s)
		time.Sleep(time.Second)
	}
}

func TestUnreadableEntryIsReportedOnceOnTheNode(t *testing.T) {
	withTestNode(t, 10*time.Second, func(t *testing.T, m *testNode) {
		m.startAgent(t, 0, func(o *Options) {
			o.Sources = []Source{&unreadableSource{notice.Snapshot{Unreadable: []notice.Problem{
				{ID: "E1", NamesInstance: true, Err: errors.New(`Events[0].EventType: "HostRepair": want Freeze or another`)},
			}}}}
		})
		time.Sleep(time.Minute)
		if n := m.countEvents("NoticeUnreadable"); n != 1 || m.isEmpty() || m.currentNode().Spec.Unschedulable {
			t.Errorf("%d Events NoticeUnreadable, all Events %v; the node is empty: %t", n, m.eventReasons, m.isEmpty())
		}
	})
}

// The entry moves in the list, and other entries come and go.
func TestOtherEventsRepeatNoReportOfUnreadableEntries(t *testing.T) {
	withTestNode(t, 10*time.Second, func(t *testing.T, m *testNode) {
		problem := func(id string, at int, named bool) notice.Problem {
			return notice.Problem{ID: id, NamesInstance: named, Err: fmt.Errorf(`Events[%d].EventType: "HostRepair": want Freeze or another`, at)}
		}
		var all atomic.Pointer[[]notice.Problem]
		m.startAgent(t, 0, func(o *Options) { o.Sources = []Source{&changingSource{problems: &all}} })
		for _, tt := range []struct {
			problems []notice.Problem
			said     int
		}{
			{[]notice.Problem{problem("E0", 0, false), problem("", 1, false)}, 0}, // they may be for other instances
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
			if n := m.countEvents("NoticeUnreadable"); n != tt.said {
				t.Errorf("%v: %d Events, want %d", tt.problems, n, tt.said)
			}
		}
	})
}

// changingSource is a source with problems that change.
type changingSource struct {
	unreadableSource
	problems *atomic.Pointer[[]notice.Problem]
}

func (c *changingSource) Run(ctx context.Context, emit func(notice.Snapshot)) {
	for ctx.Err() == nil {
		s := notice.Snapshot{At: time.Now()}
		if all := c.problems.Load(); all != nil {
			s.Unreadable = *all
		}
		emit(s)
		time.Sleep(time.Second)
	}
}

// fixedFetcher always returns the same document.
type fixedFetcher struct{ document azure.Document }

func (f fixedFetcher) Fetch(context.Context) (azure.Document, error) { return f.document, nil }

// The test runs every combination of missing or malformed optional fields.
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
				source, err := azure.NewSource(azure.SourceOptions{Fetcher: fixedFetcher{raw}, Resource: "n"})
				must.NoError(t, err)
				m := newTestNode(newFakeCluster(), "n", time.Second)
				m.startAgent(t, 0, func(o *Options) { o.Sources = []Source{source} })
				time.Sleep(time.Second)
				if m.evictionTime().IsZero() || !m.currentNode().Spec.Unschedulable {
					t.Errorf("no action for %s: Events %v", raw, m.eventReasons)
				}
				m.crashAgent()
			})
		}
	}
}

func TestMissingStatusDoesNotUndoStarted(t *testing.T) {
	withTestNode(t, time.Second, func(t *testing.T, m *testNode) {
		grace := int64(1)
		m.pod.Spec.TerminationGracePeriodSeconds = &grace
		m.denyEvictions("web")
		n := newNotice(notice.Reboot, "e", 15*time.Minute)
		m.startAgent(t, 0, nil)
		m.source.setNotices(n)
		time.Sleep(time.Minute)
		n.Status, n.NotBefore = notice.Started, time.Time{}
		m.source.setNotices(n)
		time.Sleep(time.Second)
		n.Status = notice.Scheduled // the default for a missing status
		m.source.setNotices(n)
		time.Sleep(15 * time.Second)
		if !m.isEmpty() {
			t.Error("the pod was not evicted before the deadline")
		}
	})
}

// NotBefore is the last second that .NET supports, and the instance's clock is ahead. No record can hold the sum.
func TestPlaceholderTimePreventsNoDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		document := azure.Document(`{"DocumentIncarnation": 1, "Events": [{"EventId": "E", "EventType": "Preempt", "EventStatus": "Scheduled",
			"EventSource": "Platform", "Resources": ["n"], "NotBefore": "Fri, 31 Dec 9999 23:59:59 GMT"}]}`)
		source, err := azure.NewSource(azure.SourceOptions{
			Fetcher: fixedFetcher{document}, Resource: "n", ClockAhead: func() time.Duration { return 5 * time.Second },
		})
		must.NoError(t, err)
		m := newTestNode(newFakeCluster(), "n", time.Second)
		m.startAgent(t, 0, func(o *Options) { o.Sources = []Source{source} })
		time.Sleep(time.Second)
		if m.evictionTime().IsZero() || !m.currentNode().Spec.Unschedulable {
			t.Errorf("no action: Events %v", m.eventReasons)
		}
		m.crashAgent()
	})
}
