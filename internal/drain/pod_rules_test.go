package drain

import (
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// drainOnly returns a function for Options.ShouldDrainPod.
func drainOnly(name string) func(kubeapi.Pod) bool {
	return func(p kubeapi.Pod) bool { return p.Name == name }
}

func TestNewRulesAwaitPodsThatAreStopping(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addPod("stopping", withStopTime(2*time.Minute), asDeleted(0, 3*time.Minute))
		s.addBlockedPod("web")
		s.changeAfter(30*time.Second, func() { s.pdbs[0].minHealthy = 0; s.wakeWatchers() })
		limits := timeoutIn(5 * time.Minute)
		d, wait := startDrain(t.Context(), t, s, Options{ShouldDrainPod: drainOnly("web"), TimeLimits: limits})
		time.Sleep(20 * time.Second)
		d.SetPodRules(PodRules{}, limits)
		r, err := wait()
		must.NoError(t, err)
		checkTookAbout(t, r, 2*time.Minute)
	})
}

func TestNewRulesExcludePodWithRequestInFlight(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		web := s.addPod("web")
		s.addPod("slow", withStopTime(25*time.Second))
		s.failWhen(fault{err: newDenial("not now"), delay: 10 * time.Second}, func(c call) bool { return c.verb == "evict" && c.Name == "web" })
		limits := timeoutIn(5 * time.Minute)
		d, wait := startDrain(t.Context(), t, s, Options{TimeLimits: limits})
		time.Sleep(5 * time.Second)
		d.SetPodRules(PodRules{ShouldDrainPod: drainOnly("slow")}, limits)
		r, err := wait()
		must.NoError(t, err)
		checkTookAbout(t, r, 25*time.Second)
		check.Len(t, 1, s.findRequests("evict", web))
	})
}
