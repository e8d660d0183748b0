package replacement

import (
	"errors"
	"strings"
	"testing"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
)

func joinCodes(v Verdict) string {
	var all []string
	for _, r := range v.Reasons {
		all = append(all, r.Code)
	}
	return strings.Join(all, " ")
}

func TestReplacementIsWantedWhenTheInstanceIsMissed(t *testing.T) {
	always, needed := v1alpha1.ReplaceAlways, v1alpha1.ReplaceWhenNeeded
	homeless := []Homeless{{Pod: "shop/web-1", Why: "fits on no other node"}}
	for what, tt := range map[string]struct {
		need Need
		want Outcome
		why  string
	}{
		"it exists and its pods fit elsewhere":       {Need{Policy: always, Machine: Lives}, Wait, RoomElsewhere},
		"it exists and a pod fits nowhere else":      {Need{Policy: always, Machine: Lives, Homeless: homeless}, Launch, NoRoom},
		"it exists and the group would be too small": {Need{Policy: always, Machine: Lives, Stay: 1, Minimum: 2}, Launch, BelowMinimum},
		"it exists and placement is unknown":         {Need{Policy: always, Machine: Lives, RoomUnknown: errors.New("no")}, Wait, RoomUnknown},
		"it is gone":                                 {Need{Policy: always, Machine: Gone}, Launch, MachineGone},
		"it is stopped and kept":                     {Need{Policy: always, Machine: Kept}, Launch, MachineKept},
		"it is gone and not needed":                  {Need{Policy: needed, Machine: Gone, Stay: 3, Minimum: 3}, None, NobodyNeedsIt},
		"it is gone and a pod needs a node":          {Need{Policy: needed, Machine: Gone, Homeless: homeless}, Launch, NoRoom},
		"it is gone and placement is unknown":        {Need{Policy: needed, Machine: Gone, RoomUnknown: errors.New("no")}, Wait, RoomUnknown},
		"the policy is Never":                        {Need{Policy: v1alpha1.ReplaceNever, Machine: Gone, Homeless: homeless}, None, PolicyNever},
		"the notice ended and it exists":             {Need{Policy: always, Machine: Lives, Over: "over", Homeless: homeless}, None, NoticeOver},
		"an older NodeGroup without a policy":        {Need{Machine: Gone}, Launch, MachineGone},
	} {
		if got := Wanted(tt.need); got.Outcome != tt.want || joinCodes(got) != tt.why {
			t.Errorf("%s: %s because of %s, want %s because of %s", what, got.Outcome, joinCodes(got), tt.want, tt.why)
		}
	}
}

func TestI5InstanceIsLaunchedOnlyIfTheCloudDoesNot(t *testing.T) {
	for what, tt := range map[string]struct {
		bounds Bounds
		want   Outcome
		why    string
	}{
		"no bounds":                      {Bounds{Machine: Lives, Size: 3, Present: 3}, Launch, ""},
		"below the size once it is gone": {Bounds{Machine: Gone, Size: 2, Present: 2}, Launch, ""},
		"the cloud fills the group up":   {Bounds{Machine: Gone, Size: 3, Present: 2}, Leave, CloudReplaces},
		"the missing one is launched":    {Bounds{Machine: Gone, Size: 3, Present: 2, Coming: 1}, Launch, ""},
		"another launch is unanswered":   {Bounds{Machine: Gone, Size: 2, Present: 2, Unsettled: "a"}, Wait, LaunchPending},
		"more instances than the size":   {Bounds{Machine: Gone, Size: 2, Present: 3}, Launch, ""},
	} {
		if got := Allowed(tt.bounds); got.Outcome != tt.want || joinCodes(got) != tt.why {
			t.Errorf("%s: %s because of %s, want %s because of %s", what, got.Outcome, joinCodes(got), tt.want, tt.why)
		}
	}
}

// TestI5OpenLaunchInstanceCountsOnce has a group with a minimum of two. The node's own instance is the third.
func TestI5OpenLaunchInstanceCountsOnce(t *testing.T) {
	came := v1alpha1.NodeRetirement{Spec: v1alpha1.NodeRetirementSpec{NodeUID: "n"}}
	came.Status.Replacement = &v1alpha1.Replacement{State: v1alpha1.ReplacementReady, Instance: "a"}
	others := []v1alpha1.NodeRetirement{came}
	a, b := cloud.Instance{Name: "a", ProviderID: "a"}, cloud.Instance{Name: "b", ProviderID: "b"}
	own := cloud.Instance{Name: "own", ProviderID: "own"}
	stopped := cloud.Instance{Name: "c", ProviderID: "c", State: cloud.Stopped}
	for what, tt := range map[string]struct {
		size          int
		machines      []cloud.Instance
		coming, least int
		want          Outcome
	}{
		"enough instances exist":          {3, []cloud.Instance{a, b, own}, 0, 2, None},
		"too few instances exist":         {2, []cloud.Instance{a, own}, 0, 2, Launch},
		"one is launched":                 {3, []cloud.Instance{a, own}, 1, 2, None},
		"the launched one exists already": {3, []cloud.Instance{a, b, own}, 1, 3, Launch},
		"one is stopped":                  {3, []cloud.Instance{a, stopped, own}, 0, 2, Launch},
		"the size excludes a failed one":  {3, []cloud.Instance{a, b, own, {Name: "d", ProviderID: "d", State: cloud.Failed}}, 0, 2, None},
		"the cloud may launch one itself": {3, []cloud.Instance{a, own}, 0, 2, Launch},
	} {
		s := Survey{Group: cloud.Group{Size: tt.size}, Machines: tt.machines}
		if got := Replaced("n", others, s.Without("own"), tt.coming, tt.least); got.Outcome != tt.want {
			t.Errorf("%s: %s, want %s", what, got.Outcome, tt.want)
		}
	}
}

// TestI5RecordOfAnEarlierVersionIsFinal has states without the instance.
func TestI5RecordOfAnEarlierVersionIsFinal(t *testing.T) {
	for _, state := range []v1alpha1.ReplacementState{"Ordering", "Ordered", "LeftToCloud", "Arrived"} {
		before := v1alpha1.NodeRetirement{Spec: v1alpha1.NodeRetirementSpec{NodeUID: "n"}}
		before.Status.Replacement = &v1alpha1.Replacement{State: state}
		if !state.Final() {
			t.Errorf("%s is not final: its launch would be repeated", state)
		}
		if got := Replaced("n", []v1alpha1.NodeRetirement{before}, Survey{}, 0, 0); got.Outcome != None {
			t.Errorf("%s: another notice of the node comes to %s, want none", state, got.Outcome)
		}
	}
}
