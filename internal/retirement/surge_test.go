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
)

// countingSurger needs no surge, and counts the decisions.
type countingSurger struct{ decisions *atomic.Int32 }

func (s countingSurger) Decide(context.Context, kubeapi.Pod, []*kubeapi.PodDisruptionBudget, time.Time, time.Time) (surge.Decision, error) {
	s.decisions.Add(1)
	return surge.Decision{Verdict: surge.NotNeeded, Reason: surge.ReasonOthersReady}, nil
}

func (countingSurger) Run(context.Context, surge.Request) surge.Result { return surge.Result{} }

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
