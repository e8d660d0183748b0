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

var _ Metadata = (*azure.Source)(nil)

// metadata is a service that answers each second unless it is away.
type metadata struct {
	mu   sync.Mutex
	away time.Time // since when; zero is not
	asks int
}

func (m *metadata) Ask() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asks++
}

func (m *metadata) asked() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asks
}

func (m *metadata) LastRead() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away.IsZero() {
		return time.Now()
	}
	return m.away
}

// gone since a moment; zero is not.
func (m *metadata) gone(since time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.away = since
}

// stage runs a source in a bubble of synctest.
type stage struct {
	*Source

	t         *testing.T
	metadata  *metadata
	mu        sync.Mutex
	now       []string // the IDs of the latest snapshot
	snapshots int
	since     map[string]time.Time
	status    map[string]string
}

func newStage(t *testing.T, rules ...Rule) *stage {
	t.Helper()
	s := &stage{t: t, metadata: &metadata{}, since: map[string]time.Time{}, status: map[string]string{}}
	var err error
	if s.Source, err = New(Options{Rules: rules, Metadata: s.metadata}); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *stage) run() {
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

// set has the node say something from now on; an empty status takes the condition off.
func (s *stage) set(kind, status string) {
	s.status[kind], s.since[kind] = status, time.Now()
	s.show()
}

func (s *stage) show() {
	n := &kubeapi.Node{}
	for kind, status := range s.status {
		if status != "" {
			n.Status.Conditions = append(n.Status.Conditions, kubeapi.Condition{
				Type: kind, Status: status, LastTransitionTime: s.since[kind],
			})
		}
	}
	s.See(n)
	synctest.Wait()
}

// emitted is how many snapshots there were.
func (s *stage) emitted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.snapshots
}

func (s *stage) wants(ids ...string) {
	s.t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.now, ids) {
		s.t.Errorf("notices %v, want %v", s.now, ids)
	}
}

// pass lets some time go by, and what is due at its end be done.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func rule(kind string, hold, release time.Duration) Rule {
	return Rule{Type: kind, Action: "drain", HoldDown: (*Duration)(&hold), Release: (*Duration)(&release)}
}

func TestConditionCountsFromHoldToGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, rule("KernelDeadlock", time.Minute, 5*time.Minute))
		s.run()
		s.set("KernelDeadlock", "False")
		s.wants()
		check.Is(t, 1, s.emitted())
		s.set("KernelDeadlock", "True")
		pass(59 * time.Second)
		s.wants()
		pass(time.Second)
		s.wants("KernelDeadlock")
		s.set("KernelDeadlock", "False")
		pass(4 * time.Minute)
		s.set("KernelDeadlock", "True") // it flaps
		pass(time.Minute)
		s.set("KernelDeadlock", "False")
		pass(5*time.Minute - time.Second)
		s.wants("KernelDeadlock")
		pass(time.Second)
		s.wants()
		check.Is(t, 3, s.emitted())
	})
}

// M8: one that comes and goes must not cordon and uncordon the node by turns.
func TestM8AConditionThatFlapsIsNoNotice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, rule("KubeletProblem", time.Minute, time.Minute))
		s.run()
		for range 20 {
			s.set("KubeletProblem", "True")
			pass(50 * time.Second)
			s.set("KubeletProblem", "False")
			pass(10 * time.Second)
		}
		check.Is(t, 1, s.emitted())
	})
}

func TestI7UnknownIsNeitherComeNorGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, rule("KernelDeadlock", time.Minute, time.Minute))
		s.run()
		s.set("KernelDeadlock", "Unknown")
		pass(time.Hour)
		s.wants()
		s.set("KernelDeadlock", "True")
		pass(time.Minute)
		s.set("KernelDeadlock", "Unknown")
		pass(time.Hour)
		s.wants("KernelDeadlock")
		s.set("KernelDeadlock", "")
		pass(time.Minute)
		s.wants()
	})
}

func TestConditionHeldBeforeTheStartCountsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, rule("KernelDeadlock", 10*time.Minute, time.Minute))
		s.status["KernelDeadlock"], s.since["KernelDeadlock"] = "True", time.Now().Add(-time.Hour)
		s.run()
		s.show()
		s.wants("KernelDeadlock")
	})
}

func TestI8EarlierProcessesNoticeEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, rule("KernelDeadlock", time.Minute, 5*time.Minute))
		s.Resume([]notice.Notice{{ID: "KernelDeadlock"}})
		s.status["KernelDeadlock"], s.since["KernelDeadlock"] = "False", time.Now().Add(-2*time.Minute)
		s.run()
		s.show()
		s.wants("KernelDeadlock")
		pass(3 * time.Minute)
		s.wants()
	})
}

func TestAnotherStatusThanTrueCanBeAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rule("NetworkReady", 0, 0)
		r.Status = "False"
		s := newStage(t, r)
		s.run()
		s.set("NetworkReady", "True")
		s.wants()
		s.set("NetworkReady", "False")
		s.wants("NetworkReady-False")
	})
}

// M14: the detector's scripts raise hints that no event is behind.
func TestM14HintIsNoNoticeWhileMetadataAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.run()
		s.set("Ready", "True")
		if s.metadata.asked() != 0 {
			t.Error("asked without a hint")
		}
		s.set("VMEventScheduled", "True")
		s.set("RebootScheduled", "True")
		s.show()
		if s.metadata.asked() != 2 {
			t.Errorf("asked %d times, want once for each hint", s.metadata.asked())
		}
		pass(24 * time.Hour)
		s.wants()
		check.Is(t, 1, s.emitted())
	})
}

func TestHintsCountWhileTheMetadataServiceIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.run()
		s.set("PreemptionScheduled", "True")
		s.metadata.gone(time.Now())
		pass(DefaultUnconfirmedAfter - time.Second)
		s.wants()
		pass(2 * time.Second)
		s.wants("PreemptionScheduled")
		s.set("RebootScheduled", "True")
		s.wants("PreemptionScheduled", "RebootScheduled")
		s.set("PreemptionScheduled", "False")
		s.wants("RebootScheduled")
		s.metadata.gone(time.Time{}) // and says nothing of a reboot
		pass(lookAgain)
		s.wants()
	})
}

func TestSilentMetadataServiceIsGivenTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.metadata.gone(time.Unix(0, 0))
		s.run()
		s.set("RebootScheduled", "True")
		s.wants()
		pass(DefaultUnconfirmedAfter)
		s.wants("RebootScheduled")
	})
}

func TestALongMessageIsCutShort(t *testing.T) {
	n := noticeOf("X", "X", &kubeapi.Condition{Status: "True", Message: strings.Repeat("é", 10_000)})
	if len(n.Description) > longestText+40 || !strings.HasSuffix(n.Description, "…") {
		t.Errorf("%d bytes: %.40q", len(n.Description), n.Description)
	}
}

func TestRuleWaitsForTheMetadataServiceOnDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, Rule{Type: "KernelDeadlock", Action: "drain", HoldDown: new(Duration(10 * time.Second))})
		s.o.NeedsMetadata = true
		s.run()
		time.Sleep(time.Minute)
		s.metadata.gone(time.Now())
		time.Sleep(time.Minute)
		s.set("KernelDeadlock", "True")
		time.Sleep(time.Minute)
		s.wants()
		s.metadata.gone(time.Time{})
		time.Sleep(2 * time.Second)
		s.wants("KernelDeadlock")
		s.metadata.gone(time.Now())
		time.Sleep(time.Minute)
		s.wants("KernelDeadlock") // what has begun does not end by it
	})
}
