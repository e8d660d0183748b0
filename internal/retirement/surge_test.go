package retirement

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/surge"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

// countingSurger needs no surge, and counts the decisions.
type countingSurger struct{ decisions *atomic.Int32 }

func (s countingSurger) Decide(context.Context, kubeapi.Pod, []*kubeapi.PodDisruptionBudget, time.Time, time.Time) (surge.Decision, error) {
	s.decisions.Add(1)
	return surge.Decision{Verdict: surge.NotNeeded, Reason: surge.ReasonOthersReady}, nil
}

func (countingSurger) Run(context.Context, surge.Request) surge.Result { return surge.Result{} }

// slowSurger makes each pod leave at once. Its first surge then restores the size for 30 s.
type slowSurger struct {
	*sim
	surges atomic.Int32
}

func (*slowSurger) Decide(context.Context, kubeapi.Pod, []*kubeapi.PodDisruptionBudget, time.Time, time.Time) (surge.Decision, error) {
	return surge.Decision{Verdict: surge.Needed, Reason: surge.ReasonLastReady}, nil
}

func (s *slowSurger) Run(_ context.Context, r surge.Request) surge.Result {
	s.removePod(r.Pod.UID)
	if s.surges.Add(1) == 1 {
		time.Sleep(30 * time.Second)
	}
	return surge.Result{PodLeft: true}
}

// TestI1PodsAreListedAgainAfterSlowRestore binds a pod while the drain no longer watches the node, but waits for a surge.
func TestI1PodsAreListedAgainAfterSlowRestore(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.groups[0].Spec.Drain.Surge = v1alpha1.AlwaysSurge
		s.addPod("a", "web", nil)
		time.AfterFunc(25*time.Second, func() { s.addPod("a", "late", nil) })
		s.interceptRequests(func(moment, request string) error {
			if moment == "before" && request == "delete node" {
				check.Len(t, 0, s.listPodsOn("a"))
			}
			return nil
		})
		c, surger := s.newController(t), &slowSurger{sim: s}
		c.options.NewSurger = func(surge.Mode) drain.Surger { return surger }
		s.runController(ctx, t, c)
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		time.Sleep(time.Hour)
		requirePhase(t, s.getRetirement("r"), v1alpha1.Succeeded)
		check.Is(t, 2, surger.surges.Load(), "surges")
	})
}

// restoringSurger makes no pod leave. After the end of ctx it restores the size for 10 s.
type restoringSurger struct {
	countingSurger
	restored *atomic.Bool
}

func (restoringSurger) Decide(context.Context, kubeapi.Pod, []*kubeapi.PodDisruptionBudget, time.Time, time.Time) (surge.Decision, error) {
	return surge.Decision{Verdict: surge.Needed, Reason: surge.ReasonLastReady}, nil
}

func (s restoringSurger) Run(ctx context.Context, _ surge.Request) surge.Result {
	<-ctx.Done()
	time.Sleep(10 * time.Second)
	s.restored.Store(true)
	return surge.Result{Reason: surge.ReasonCancelled}
}

func TestManagerEndsAfterItsSurgesRestoredSizes(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.groups[0].Spec.Drain.Surge = v1alpha1.AlwaysSurge
		s.addPod("a", "web", nil)
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.newController(t)
		var restored atomic.Bool
		c.options.NewSurger = func(surge.Mode) drain.Surger { return restoringSurger{restored: &restored} }
		lifetime, stop := context.WithCancel(ctx)
		wait := s.runController(lifetime, t, c)
		time.Sleep(time.Minute)
		requirePhase(t, s.getRetirement("r"), v1alpha1.Draining)
		stop()
		wait()
		check.Not(t, !restored.Load(), "the manager has ended before the size was restored")
	})
}

func TestRetirementSurgesInModeOfItsGroup(t *testing.T) {
	for mode, want := range map[v1alpha1.SurgeMode][]surge.Mode{
		"": nil, v1alpha1.NeverSurge: nil, v1alpha1.SurgeAnnotated: {surge.Annotated}, v1alpha1.AlwaysSurge: {surge.On},
	} {
		t.Run(string(mode), groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			s.groups[0].Spec.Drain.Surge = mode
			s.addPod("a", "web", nil)
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
			c := s.newController(t)
			var decisions atomic.Int32
			var got []surge.Mode
			c.options.NewSurger = func(m surge.Mode) drain.Surger {
				got = append(got, m)
				return countingSurger{&decisions}
			}
			requirePhase(t, s.reconcileUntilDone(ctx, c, "r", time.Hour), v1alpha1.Succeeded, "")
			if !slices.Equal(got, want) || (decisions.Load() > 0) != (len(want) > 0) {
				t.Errorf("Surgers in the modes %v with %d decisions, want %v", got, decisions.Load(), want)
			}
		}))
	}
}
