package condition

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/azure"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

var _ MetadataSource = (*azure.Source)(nil)

// fakeMetadata is a service that is read each second unless it is away.
type fakeMetadata struct {
	mu   sync.Mutex
	away time.Time // since when; zero is available
	asks int
}

func (m *fakeMetadata) RequestPoll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asks++
}

func (m *fakeMetadata) asked() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asks
}

func (m *fakeMetadata) LastRead() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away.IsZero() {
		return time.Now()
	}
	return m.away
}

// setAway makes the service unavailable since a time; zero makes it available.
func (m *fakeMetadata) setAway(since time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.away = since
}

// fixture runs a source in a synctest bubble.
type fixture struct {
	*Source

	t         *testing.T
	metadata  *fakeMetadata
	mu        sync.Mutex
	now       []string // the IDs of the latest snapshot
	snapshots int
	since     map[string]time.Time
	status    map[string]string
}

func newFixture(t *testing.T, rules ...Rule) *fixture {
	t.Helper()
	s := &fixture{t: t, metadata: &fakeMetadata{}, since: map[string]time.Time{}, status: map[string]string{}}
	var err error
	if s.Source, err = NewSource(Options{Rules: rules, Metadata: s.metadata}); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *fixture) run() {
	ctx, stop := context.WithCancel(s.t.Context())
	s.t.Cleanup(stop)
	go s.Run(ctx, func(snapshot notice.Snapshot) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.snapshots++
		s.now = nil
		for _, n := range snapshot.Notices {
			s.now = append(s.now, n.ID)
		}
	})
}

// setCondition sets a condition of the node; an empty status removes it.
func (s *fixture) setCondition(kind, status string) {
	s.status[kind], s.since[kind] = status, time.Now()
	s.sendNode()
}

func (s *fixture) sendNode() {
	n := &kubeapi.Node{}
	for kind, status := range s.status {
		if status != "" {
			n.Status.Conditions = append(n.Status.Conditions, kubeapi.Condition{
				Type: kind, Status: status, LastTransitionTime: s.since[kind],
			})
		}
	}
	s.ObserveNode(n)
	synctest.Wait()
}

// emitted returns the number of snapshots.
func (s *fixture) emitted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.snapshots
}

func (s *fixture) wantNotices(ids ...string) {
	s.t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.now, ids) {
		s.t.Errorf("notices %v, want %v", s.now, ids)
	}
}

// pass lets time pass, and waits for what is due at its end.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func newRule(kind string, hold, release time.Duration) Rule {
	return Rule{Type: kind, Action: "drain", HoldDown: (*Duration)(&hold), Release: (*Duration)(&release)}
}

func TestNoticeStartsAfterHoldDownAndEndsAfterRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFixture(t, newRule("KernelDeadlock", time.Minute, 5*time.Minute))
		s.run()
		s.setCondition("KernelDeadlock", "False")
		s.wantNotices()
		check.Is(t, 1, s.emitted())
		s.setCondition("KernelDeadlock", "True")
		pass(59 * time.Second)
		s.wantNotices()
		pass(time.Second)
		s.wantNotices("KernelDeadlock")
		s.setCondition("KernelDeadlock", "False")
		pass(4 * time.Minute)
		s.setCondition("KernelDeadlock", "True") // the condition flaps
		pass(time.Minute)
		s.setCondition("KernelDeadlock", "False")
		pass(5*time.Minute - time.Second)
		s.wantNotices("KernelDeadlock")
		pass(time.Second)
		s.wantNotices()
		check.Is(t, 3, s.emitted())
	})
}

// M8: a flapping condition must not cordon and uncordon the node repeatedly.
func TestM8FlappingConditionIsNoNotice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFixture(t, newRule("KubeletProblem", time.Minute, time.Minute))
		s.run()
		for range 20 {
			s.setCondition("KubeletProblem", "True")
			pass(50 * time.Second)
			s.setCondition("KubeletProblem", "False")
			pass(10 * time.Second)
		}
		check.Is(t, 1, s.emitted())
	})
}

func TestI7UnknownNeitherStartsNorEndsANotice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFixture(t, newRule("KernelDeadlock", time.Minute, time.Minute))
		s.run()
		s.setCondition("KernelDeadlock", "Unknown")
		pass(time.Hour)
		s.wantNotices()
		s.setCondition("KernelDeadlock", "True")
		pass(time.Minute)
		s.setCondition("KernelDeadlock", "Unknown")
		pass(time.Hour)
		s.wantNotices("KernelDeadlock")
		s.setCondition("KernelDeadlock", "")
		pass(time.Minute)
		s.wantNotices()
	})
}

func TestConditionTrueBeforeStartCountsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFixture(t, newRule("KernelDeadlock", 10*time.Minute, time.Minute))
		s.status["KernelDeadlock"], s.since["KernelDeadlock"] = "True", time.Now().Add(-time.Hour)
		s.run()
		s.sendNode()
		s.wantNotices("KernelDeadlock")
	})
}

func TestI8NoticeOfEarlierProcessEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFixture(t, newRule("KernelDeadlock", time.Minute, 5*time.Minute))
		s.ResumeNotices([]notice.Notice{{ID: "KernelDeadlock"}})
		s.status["KernelDeadlock"], s.since["KernelDeadlock"] = "False", time.Now().Add(-2*time.Minute)
		s.run()
		s.sendNode()
		s.wantNotices("KernelDeadlock")
		pass(3 * time.Minute)
		s.wantNotices()
	})
}

func TestRuleMayMatchAnotherStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRule("NetworkReady", 0, 0)
		r.Status = "False"
		s := newFixture(t, r)
		s.run()
		s.setCondition("NetworkReady", "True")
		s.wantNotices()
		s.setCondition("NetworkReady", "False")
		s.wantNotices("NetworkReady-False")
	})
}

// M14: the detector's scripts raise hints without an event.
func TestM14HintIsNoNoticeWhileMetadataAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFixture(t)
		s.run()
		s.setCondition("Ready", "True")
		if s.metadata.asked() != 0 {
			t.Error("read the metadata service without a hint")
		}
		s.setCondition("VMEventScheduled", "True")
		s.setCondition("RebootScheduled", "True")
		s.sendNode()
		if s.metadata.asked() != 2 {
			t.Errorf("%d reads of the metadata service, want one for each hint", s.metadata.asked())
		}
		pass(24 * time.Hour)
		s.wantNotices()
		check.Is(t, 1, s.emitted())
	})
}

func TestHintsCountWithoutTheMetadataService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFixture(t)
		s.run()
		s.setCondition("PreemptionScheduled", "True")
		s.metadata.setAway(time.Now())
		pass(DefaultUnconfirmedDelay - time.Second)
		s.wantNotices()
		pass(2 * time.Second)
		s.wantNotices("PreemptionScheduled")
		s.setCondition("RebootScheduled", "True")
		s.wantNotices("PreemptionScheduled", "RebootScheduled")
		s.setCondition("PreemptionScheduled", "False")
		s.wantNotices("RebootScheduled")
		s.metadata.setAway(time.Time{}) // and lists no reboot
		pass(metadataPollInterval)
		s.wantNotices()
	})
}

func TestSilentMetadataServiceIsGivenTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFixture(t)
		s.metadata.setAway(time.Unix(0, 0))
		s.run()
		s.setCondition("RebootScheduled", "True")
		s.wantNotices()
		pass(DefaultUnconfirmedDelay)
		s.wantNotices("RebootScheduled")
	})
}

// The agent restarts while the metadata service does not answer.
func TestI7RestartEndsNoHintsNotice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFixture(t)
		s.ResumeNotices([]notice.Notice{{ID: "RebootScheduled"}, {ID: "VMEventScheduled"}})
		s.metadata.setAway(time.Now().Add(-time.Hour))
		s.status["RebootScheduled"], s.status["VMEventScheduled"], s.status["PreemptScheduled"] = "True", "False", "True"
		pass(time.Minute)
		s.run()
		s.sendNode()
		s.wantNotices("RebootScheduled")
		s.metadata.setAway(time.Now().Add(time.Second)) // it answers once, and lists no reboot
		pass(2 * time.Second)
		s.wantNotices()
		pass(DefaultUnconfirmedDelay)
		s.wantNotices("PreemptScheduled", "RebootScheduled")
	})
}

func TestLongMessageIsClipped(t *testing.T) {
	n := newNotice("X", "X", &kubeapi.Condition{Status: "True", Message: strings.Repeat("é", 10_000)})
	if len(n.Description) > maxMessageBytes+40 || !strings.HasSuffix(n.Description, "…") {
		t.Errorf("%d bytes: %.40q", len(n.Description), n.Description)
	}
}

func TestRuleWaitsForTheMetadataServiceOnDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFixture(t, Rule{Type: "KernelDeadlock", Action: "drain", HoldDown: new(Duration(10 * time.Second))})
		s.options.RequireMetadata = true
		s.run()
		time.Sleep(time.Minute)
		s.metadata.setAway(time.Now())
		time.Sleep(time.Minute)
		s.setCondition("KernelDeadlock", "True")
		time.Sleep(time.Minute)
		s.wantNotices()
		s.metadata.setAway(time.Time{})
		time.Sleep(2 * time.Second)
		s.wantNotices("KernelDeadlock")
		s.metadata.setAway(time.Now())
		time.Sleep(time.Minute)
		s.wantNotices("KernelDeadlock") // an active notice does not end
	})
}
