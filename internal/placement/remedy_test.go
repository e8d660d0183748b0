package placement_test

import (
	"testing"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
)

func TestANodeThatIsHeldForRoomOrProtectedIsToldWhatWouldHelp(t *testing.T) {
	told := map[string]int{}
	for seed := range uint64(300) {
		c := placementtest.Random(seed)
		s, err := c.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		o := placement.Options{
			Unmanaged: true, LocalStorage: true, Protected: map[string]string{c.Nodes[0].Name: "is not evictable"},
			Reserved: map[string]placement.PodKey{c.Nodes[1].Name: {Namespace: "red", Name: "waiting"}},
		}
		for _, n := range c.Nodes {
			e, err := s.Evacuate(n.Name, placement.LeastPods, o)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range e.Refusals {
				if r.Rule != "no-room" && r.Rule != "protected" {
					continue
				}
				decided := len(r.Nodes) == 0
				for _, tally := range r.Nodes {
					decided = decided || tally.Reason.Scheduler != ""
				}
				if decided != (r.Remedy != "") {
					t.Errorf("seed %d, %s: %s: remedy %q", seed, n.Name, r, r.Remedy)
				}
				told[r.Remedy]++
			}
		}
	}
	if len(told) < 12 {
		t.Errorf("of all remedies only these were given: %v", told)
	}
}
