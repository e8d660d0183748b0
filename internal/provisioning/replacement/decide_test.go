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
	unschedulable := []UnschedulablePod{{Pod: "shop/web-1", Why: "fits on no other node"}}
	for what, tt := range map[string]struct {
		need Need
		want Outcome
		why  string
	}{
		"it exists and its pods fit elsewhere":       {Need{Policy: always, Instance: InstanceExists}, Wait, RoomElsewhere},
		"it exists and a pod fits nowhere else":      {Need{Policy: always, Instance: InstanceExists, UnschedulablePods: unschedulable}, Launch, NoRoom},
		"it exists and the group would be too small": {Need{Policy: always, Instance: InstanceExists, StayingNodes: 1, MinSize: 2}, Launch, BelowMinimum},
		"it exists and placement is unknown":         {Need{Policy: always, Instance: InstanceExists, PlacementErr: errors.New("no")}, Wait, RoomUnknown},
		"it is gone":                                 {Need{Policy: always, Instance: InstanceGone}, Launch, MachineGone},
		"it is stopped and kept":                     {Need{Policy: always, Instance: InstanceStopped}, Launch, MachineKept},
		"it is gone and not needed":                  {Need{Policy: needed, Instance: InstanceGone, StayingNodes: 3, MinSize: 3}, None, NobodyNeedsIt},
		"it is gone and a pod needs a node":          {Need{Policy: needed, Instance: InstanceGone, UnschedulablePods: unschedulable}, Launch, NoRoom},
		"it is gone and placement is unknown":        {Need{Policy: needed, Instance: InstanceGone, PlacementErr: errors.New("no")}, Wait, RoomUnknown},
		"the policy is Never":                        {Need{Policy: v1alpha1.ReplaceNever, Instance: InstanceGone, UnschedulablePods: unschedulable}, None, PolicyNever},
		"the notice ended and it exists":             {Need{Policy: always, Instance: InstanceExists, NothingToReplace: "over", UnschedulablePods: unschedulable}, None, NoticeOver},
		"an older NodeGroup without a policy":        {Need{Instance: InstanceGone}, Launch, MachineGone},
	} {
		if got := DecideWanted(tt.need); got.Outcome != tt.want || joinCodes(got) != tt.why {
			t.Errorf("%s: %s because of %s, want %s because of %s", what, got.Outcome, joinCodes(got), tt.want, tt.why)
		}
	}
}

func TestI5InstanceIsLaunchedOnlyIfTheCloudDoesNot(t *testing.T) {
	for what, tt := range map[string]struct {
		bounds LaunchBounds
		want   Outcome
		why    string
	}{
		"no bounds":                      {LaunchBounds{Instance: InstanceExists, Size: 3, Present: 3}, Launch, ""},
		"below the size once it is gone": {LaunchBounds{Instance: InstanceGone, Size: 2, Present: 2}, Launch, ""},
		"the cloud fills the group up":   {LaunchBounds{Instance: InstanceGone, Size: 3, Present: 2}, LeaveToCloud, CloudReplaces},
		"the missing one is launched":    {LaunchBounds{Instance: InstanceGone, Size: 3, Present: 2, Provisioning: 1}, Launch, ""},
		"another launch is unanswered":   {LaunchBounds{Instance: InstanceGone, Size: 2, Present: 2, UnansweredLaunch: "a"}, Wait, LaunchPending},
		"more instances than the size":   {LaunchBounds{Instance: InstanceGone, Size: 2, Present: 3}, Launch, ""},
	} {
		if got := DecideLaunchNow(tt.bounds); got.Outcome != tt.want || joinCodes(got) != tt.why {
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
		s := GroupSnapshot{Group: cloud.Group{Size: tt.size}, Instances: tt.machines}
		if got := DecideIfAlreadyReplaced("n", others, s.WithoutInstance("own"), tt.coming, tt.least); got.Outcome != tt.want {
			t.Errorf("%s: %s, want %s", what, got.Outcome, tt.want)
		}
	}
}

// TestI5RecordOfAnEarlierVersionIsFinal has states without the instance.
func TestI5RecordOfAnEarlierVersionIsFinal(t *testing.T) {
	for _, state := range []v1alpha1.ReplacementState{"Ordering", "Ordered", "LeftToCloud", "Arrived"} {
		before := v1alpha1.NodeRetirement{Spec: v1alpha1.NodeRetirementSpec{NodeUID: "n"}}
		before.Status.Replacement = &v1alpha1.Replacement{State: state}
		if !state.IsFinal() {
			t.Errorf("%s is not final: its launch would be repeated", state)
		}
		if got := DecideIfAlreadyReplaced("n", []v1alpha1.NodeRetirement{before}, GroupSnapshot{}, 0, 0); got.Outcome != None {
			t.Errorf("%s: another notice of the node comes to %s, want none", state, got.Outcome)
		}
	}
}
