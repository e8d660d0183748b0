package replacement

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
)

func codes(v Verdict) string {
	var all []string
	for _, r := range v.Reasons {
		all = append(all, r.Code)
	}
	return strings.Join(all, " ")
}

func TestAMachineIsWantedWhenItIsMissed(t *testing.T) {
	always, needed := v1alpha1.ReplaceAlways, v1alpha1.ReplaceWhenNeeded
	homeless := []Homeless{{Pod: "shop/web-1", Why: "fits on no other node"}}
	for what, tt := range map[string]struct {
		need Need
		want Outcome
		why  string
	}{
		"it lives and its pods fit elsewhere":        {Need{Policy: always, Machine: Lives}, Wait, RoomElsewhere},
		"it lives and a pod fits nowhere else":       {Need{Policy: always, Machine: Lives, Homeless: homeless}, Order, NoRoom},
		"it lives and the group would be too small":  {Need{Policy: always, Machine: Lives, Stay: 1, Minimum: 2}, Order, BelowMinimum},
		"it lives and the room is not known":         {Need{Policy: always, Machine: Lives, RoomUnknown: errors.New("no")}, Wait, RoomUnknown},
		"it is gone":                                 {Need{Policy: always, Machine: Gone}, Order, MachineGone},
		"it is stopped and kept":                     {Need{Policy: always, Machine: Kept}, Order, MachineKept},
		"it is gone and nobody needs it":             {Need{Policy: needed, Machine: Gone, Stay: 3, Minimum: 3}, None, NobodyNeedsIt},
		"it is gone and a pod needs one":             {Need{Policy: needed, Machine: Gone, Homeless: homeless}, Order, NoRoom},
		"it is gone and who needs it is not known":   {Need{Policy: needed, Machine: Gone, RoomUnknown: errors.New("no")}, Wait, RoomUnknown},
		"somebody else grows the group":              {Need{Policy: v1alpha1.ReplaceNever, Machine: Gone, Homeless: homeless}, None, PolicyNever},
		"the notice is over and it lives":            {Need{Policy: always, Machine: Lives, Over: "over", Homeless: homeless}, None, NoticeOver},
		"an older NodeGroup that says no policy yet": {Need{Machine: Gone}, Order, MachineGone},
	} {
		if got := Wanted(tt.need); got.Outcome != tt.want || codes(got) != tt.why {
			t.Errorf("%s: %s because of %s, want %s because of %s", what, got.Outcome, codes(got), tt.want, tt.why)
		}
	}
}

func TestI5AMachineIsOrderedOnlyWithinBoundsAndWhereTheCloudBringsNone(t *testing.T) {
	for what, tt := range map[string]struct {
		bounds Bounds
		want   Outcome
		why    string
	}{
		"no bounds":                              {Bounds{Machine: Lives, Size: 3, Present: 3}, Order, ""},
		"at the maximum while it lives":          {Bounds{Machine: Lives, Size: 3, Present: 3, Full: "at 3"}, Wait, AtMaximum},
		"below it once it is gone":               {Bounds{Machine: Gone, Size: 2, Present: 2}, Order, ""},
		"the cloud fills the group up":           {Bounds{Machine: Gone, Size: 3, Present: 2}, Leave, CloudReplaces},
		"what is missing is on order":            {Bounds{Machine: Gone, Size: 3, Present: 2, Coming: 1}, Order, ""},
		"an order before is not settled":         {Bounds{Machine: Gone, Size: 2, Present: 2, Unsettled: "a"}, Wait, OrderPending},
		"more machines than the group should be": {Bounds{Machine: Gone, Size: 2, Present: 3}, Order, ""},
	} {
		if got := Allowed(tt.bounds); got.Outcome != tt.want || codes(got) != tt.why {
			t.Errorf("%s: %s because of %s, want %s because of %s", what, got.Outcome, codes(got), tt.want, tt.why)
		}
	}
}

// TestWhetherAnOrderWasTakenIsToldFromWhatIsLeft lets machines leave in any way between an order and the look at it.
func TestWhetherAnOrderWasTakenIsToldFromWhatIsLeft(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 8).Draw(t, "machines")
		var before []string
		for i := range n {
			before = append(before, string(rune('a'+i)))
		}
		size := n + rapid.IntRange(0, 2).Draw(t, "missing")
		r := &v1alpha1.Replacement{Size: int32(size), Machines: before}
		s := Survey{Group: cloud.Group{Size: size}}
		for _, name := range before {
			if rapid.Bool().Draw(t, "leaves") {
				s.Size-- // as a deletion does
				continue
			}
			s.Machines = append(s.Machines, cloud.Instance{Name: name})
		}
		if Taken(r, s) {
			t.Fatalf("taken, and was not: %+v, %+v", r, s)
		}
		s.Size++
		if rapid.Bool().Draw(t, "is listed") {
			s.Machines = append(s.Machines, cloud.Instance{Name: "z"})
		}
		if !Taken(r, s) {
			t.Fatalf("not taken, and was: %+v, %+v", r, s)
		}
	})
}

// TestI5AMachineOnOrderCountsOnce has the group's minimum be two, and the node's own machine be the third.
func TestI5AMachineOnOrderCountsOnce(t *testing.T) {
	came := v1alpha1.NodeRetirement{Spec: v1alpha1.NodeRetirementSpec{NodeUID: "n"}}
	came.Status.Replacement = &v1alpha1.Replacement{State: v1alpha1.ReplacementArrived, Machine: "a"}
	ordered := v1alpha1.NodeRetirement{Spec: v1alpha1.NodeRetirementSpec{NodeUID: "o"}}
	ordered.Status.Replacement = &v1alpha1.Replacement{State: v1alpha1.ReplacementOrdered}
	a, b := cloud.Instance{Name: "a", ProviderID: "a"}, cloud.Instance{Name: "b", ProviderID: "b"}
	own := cloud.Instance{Name: "own", ProviderID: "own"}
	stopped := cloud.Instance{Name: "c", ProviderID: "c", State: cloud.Stopped}
	for what, tt := range map[string]struct {
		size     int
		machines []cloud.Instance
		others   []v1alpha1.NodeRetirement
		least    int
		want     Outcome
	}{
		"there are enough": {3, []cloud.Instance{a, b, own}, []v1alpha1.NodeRetirement{came}, 2, None},
		"there are not":    {2, []cloud.Instance{a, own}, []v1alpha1.NodeRetirement{came}, 2, Order},
		"one is on order":  {3, []cloud.Instance{a, own}, []v1alpha1.NodeRetirement{came, ordered}, 2, None},
		"one on order is there, and is not claimed": {3, []cloud.Instance{a, b, own}, []v1alpha1.NodeRetirement{came, ordered}, 3, Order},
		"one is stopped": {3, []cloud.Instance{a, stopped, own}, []v1alpha1.NodeRetirement{came}, 2, Order},
		"one failed that the size is without": {
			3, []cloud.Instance{a, b, own, {Name: "d", ProviderID: "d", State: cloud.Failed}}, []v1alpha1.NodeRetirement{came}, 2, None,
		},
		"the cloud is to bring one": {3, []cloud.Instance{a, own}, []v1alpha1.NodeRetirement{came}, 2, Order},
	} {
		s := Survey{Group: cloud.Group{Size: tt.size}, Machines: tt.machines}
		if got := Replaced("n", tt.others, s.Without("own"), tt.least); got.Outcome != tt.want {
			t.Errorf("%s: %s, want %s", what, got.Outcome, tt.want)
		}
	}
}

func TestANewcomerIsClaimedByOneOrderOnly(t *testing.T) {
	s := Survey{Machines: []cloud.Instance{{Name: "a"}, {Name: "b"}, {Name: "c"}}}
	r := &v1alpha1.Replacement{Machines: []string{"a"}}
	if m, ok := Newcomer(r, s, []string{"b"}); !ok || m.Name != "c" {
		t.Errorf("%+v, %t", m, ok)
	}
	if m, ok := Newcomer(r, s, []string{"b", "c"}); ok {
		t.Errorf("%+v is claimed twice", m)
	}
}

func TestThePauseAfterARefusalIsDoubledUpToTenMinutes(t *testing.T) {
	var pauses []time.Duration
	for attempts := int32(1); attempts < 8; attempts++ {
		pauses = append(pauses, backoff(30*time.Second, attempts))
	}
	if !slices.IsSorted(pauses) || pauses[0] != 30*time.Second || pauses[1] != time.Minute || pauses[6] != 10*time.Minute ||
		backoff(time.Hour, 1000) != 10*time.Minute {
		t.Error(pauses)
	}
}
