package agent

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/surge"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

// fakeSurger refuses no surge, and fails each. It counts what runs.
type fakeSurger struct{ surges, restorers atomic.Int32 }

func (*fakeSurger) Decide(context.Context, kubeapi.Pod, []*kubeapi.PodDisruptionBudget, time.Time, time.Time) (surge.Decision, error) {
	return surge.Decision{Verdict: surge.Needed, Reason: surge.ReasonLastReady, Owner: surge.Owner{UID: "web"}, StartupSeconds: 1}, nil
}

func (s *fakeSurger) Run(context.Context, surge.Request) surge.Result {
	s.surges.Add(1)
	return surge.Result{Reason: surge.ReasonNotReadyInTime, StartedAt: time.Now(), EndedAt: time.Now()}
}

func (s *fakeSurger) RestoreExpired(ctx context.Context) {
	s.restorers.Add(1)
	defer s.restorers.Add(-1)
	<-ctx.Done()
}

func TestAgentSurgesAndRestoresUntilItEnds(t *testing.T) {
	withTestNode(t, time.Second, func(t *testing.T, m *testNode) {
		s := &fakeSurger{}
		m.startAgent(t, 0, func(o *Options) { o.Surger = s })
		synctest.Wait()
		if n := s.restorers.Load(); n != 1 {
			t.Errorf("%d restorers of an idle agent, want 1", n)
		}
		m.source.setNotices(newNotice(notice.Redeploy, "1", time.Hour))
		time.Sleep(50 * time.Minute)
		synctest.Wait()
		if n := s.surges.Load(); n == 0 {
			t.Error("no surge of the pod")
		}
		if m.evictedAt.IsZero() {
			t.Error("the pod was not evicted after its surge had failed")
		}
		m.crashAgent()
		if n := s.restorers.Load(); n != 0 {
			t.Errorf("%d restorers after the end of the agent", n)
		}
	})
}

// slowSurger needs a time to restore a size. It refuses each surge after the first.
type slowSurger struct {
	fakeSurger

	restore time.Duration
	started atomic.Int32
}

func newSlowSurger() *slowSurger { return &slowSurger{restore: 15 * time.Second} }

func (s *slowSurger) Decide(ctx context.Context, pod kubeapi.Pod, pdbs []*kubeapi.PodDisruptionBudget, deniedSince, until time.Time) (surge.Decision, error) {
	d, err := s.fakeSurger.Decide(ctx, pod, pdbs, deniedSince, until)
	if s.started.Load() > 0 {
		d.Verdict, d.Reason = surge.Refused, surge.ReasonNoTime
	}
	return d, err
}

func (s *slowSurger) Run(ctx context.Context, r surge.Request) surge.Result {
	s.started.Add(1)
	<-ctx.Done()
	time.Sleep(s.restore)
	return s.fakeSurger.Run(ctx, r)
}

func TestUrgentNoticeDoesNotWaitForRestoredSizes(t *testing.T) {
	withTestNode(t, time.Second, func(t *testing.T, m *testNode) {
		s := newSlowSurger()
		m.startAgent(t, 0, func(o *Options) { o.Surger = s })
		first := newNotice(notice.Redeploy, "1", time.Hour)
		m.source.setNotices(first)
		for s.started.Load() == 0 {
			time.Sleep(time.Second)
		}
		began := time.Now()
		m.source.setNotices(first, newNotice(notice.Preempt, "2", 30*time.Second))
		time.Sleep(20 * time.Second)
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.evictedAt.IsZero() || m.evictedAt.Sub(began) > 2*time.Second {
			t.Errorf("the pod was evicted at %s, after the notice at %s", m.evictedAt, began)
		}
	})
}

// timeOutWithSurge lets the drain for a Freeze end with a surge that still restores a size.
func (m *testNode) timeOutWithSurge(t *testing.T, s *slowSurger) notice.Notice {
	t.Helper()
	grace := int64(5)
	m.pod.Spec.TerminationGracePeriodSeconds = &grace
	m.denyEvictions("web")
	m.startAgent(t, 0, func(o *Options) { o.Surger = s })
	n := newNotice(notice.Freeze, "1", 10*time.Minute)
	m.source.setNotices(n)
	time.Sleep(10*time.Minute + time.Second)
	check.Is(t, 1, s.started.Load())
	check.Is(t, 0, s.surges.Load())
	return n
}

func TestMovedLimitContinuesDrainThatRestoresSizes(t *testing.T) {
	withTestNode(t, time.Second, func(t *testing.T, m *testNode) {
		n := m.timeOutWithSurge(t, newSlowSurger())
		n.NotBefore = n.NotBefore.Add(10 * time.Minute)
		m.source.setNotices(n)
		time.Sleep(3 * time.Second)
		m.denyEvictions("")
		time.Sleep(10 * time.Second)
		check.Not(t, m.evictionTime().IsZero(), "the pod was not evicted within 13 s after the limit was moved")
	})
}

func TestEndingAgentAwaitsSurgesOfFailedDrain(t *testing.T) {
	withTestNode(t, time.Second, func(t *testing.T, m *testNode) {
		s := newSlowSurger()
		s.restore = time.Minute // longer than its drain waits
		m.timeOutWithSurge(t, s)
		time.Sleep(30 * time.Second)
		check.Is(t, NotDrained, recordedPhase(m))
		m.crashAgent()
		check.Is(t, 1, s.surges.Load())
	})
}

func TestNewNoticeTypeKeepsRunningSurges(t *testing.T) {
	withTestNode(t, time.Second, func(t *testing.T, m *testNode) {
		s := newSlowSurger()
		m.startAgent(t, 0, func(o *Options) { o.Surger = s })
		first := newNotice(notice.Redeploy, "1", time.Hour)
		m.source.setNotices(first)
		for s.started.Load() == 0 {
			time.Sleep(time.Second)
		}
		m.source.setNotices(first, newNotice(notice.Reboot, "2", time.Hour))
		time.Sleep(time.Minute)
		if started, ended := s.started.Load(), s.surges.Load(); started != 1 || ended != 0 {
			t.Errorf("%d surges started and %d ended, want the first one to run", started, ended)
		}
		m.source.setNotices()
		time.Sleep(5 * time.Second)
		if !m.isRestored() {
			t.Error("the node is not restored 5 s after the notices, while the surge restores a size")
		}
		time.Sleep(time.Minute)
		if ended := s.surges.Load(); ended != 1 {
			t.Errorf("%d surges ended after the notices, want 1", ended)
		}
	})
}
