package retirement_test

import (
	"flag"
	"fmt"
	"testing"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/faultproxy"
)

var (
	seeds     = flag.Int("seeds", 4, "how many schedules of faults to run")
	firstSeed = flag.Uint64("first-seed", 1, "the first of them")
)

// TestWhateverFailsEveryRetirementEndsAndNoInvariantIsBroken retires nodes while the API server and the cloud answer
// late, with 429, 500 and 503, not at all although they have done what was asked, or half; watches are dropped.
func TestWhateverFailsEveryRetirementEndsAndNoInvariantIsBroken(t *testing.T) {
	t.Parallel()
	for i := range *seeds {
		seed := *firstSeed + uint64(i)
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, fmt.Sprint("fault", seed), 3)
			f.run(f.app("web", 0, 2).Deployment(), f.app("db", 1, 1).StatefulSet())
			proxy := faultproxy.New(kindOf)
			proxy.Faults(faultproxy.Schedule(seed, 15))
			nodes := []string{f.retire(0), f.retire(1)}
			f.keepAlive(f.manage(proxy))
			for _, node := range nodes {
				f.awaitPhase(node, v1alpha1.Succeeded)
			}
			f.left(3, 0, 1)
		})
	}
}
