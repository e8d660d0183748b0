package plan

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
)

func TestLaunchRequestIsLimitedLikeEveryLaunch(t *testing.T) {
	for name, c := range map[string]struct {
		wish    LaunchRequest
		maximum int32
		most    int // of the cluster
		closed  bool
		want    map[string]int
		granted int
		missing int
		rule    string
	}{
		"in full":                   {wish: LaunchRequest{Count: 3}, maximum: 5, want: map[string]int{"web/m4": 3}, granted: 3},
		"of the requested template": {wish: LaunchRequest{Count: 1, Template: "M8"}, maximum: 5, want: map[string]int{"web/m8": 1}, granted: 1},
		"up to the maximum":         {wish: LaunchRequest{Count: 3}, maximum: 2, want: map[string]int{"web/m4": 2}, granted: 2, missing: 1, rule: AtMaximum},
		"up to the cluster's maximum": {
			wish: LaunchRequest{Count: 3}, maximum: 5, most: 1, want: map[string]int{"web/m4": 1}, granted: 1, missing: 2, rule: AtClusterMaximum,
		},
		"of the next template": {wish: LaunchRequest{Count: 1}, maximum: 5, closed: true, want: map[string]int{"web/m8": 1}, granted: 1},
		"not of a backed-off template": {
			wish: LaunchRequest{Count: 1, Template: "m4"}, maximum: 5, closed: true, want: map[string]int{}, missing: 1, rule: BackedOff,
		},
		"not of an unknown template": {wish: LaunchRequest{Count: 1, Template: "huge"}, maximum: 5, want: map[string]int{}, missing: 1, rule: NoTemplate},
		"not of an unknown group":    {wish: LaunchRequest{Count: 1, Group: "other"}, maximum: 5, want: map[string]int{}, missing: 1, rule: NoTemplate},
	} {
		t.Run(name, func(t *testing.T) {
			g := newNodeGroup("web", c.maximum)
			gr := newGroup(g, newKind(g, "m4", "4", "16Gi"), newKind(g, "m8", "8", "32Gi"))
			if c.closed {
				gr.Templates[0].ClosedReason = &Reason{Rule: BackedOff}
			}
			w := newWorld(t, []Group{gr}, nil, nil)
			if c.most > 0 {
				w.MaxNodes = &c.most
			}
			if c.wish.Group == "" {
				c.wish.Group = "web"
			}
			w.LaunchRequests = []LaunchRequest{c.wish}
			d := decideUp(t, w)
			if diff := cmp.Diff(c.want, launchCounts(d)); diff != "" {
				t.Error(diff)
			}
			v := d.LaunchRequests[0]
			if v.Launched != c.granted || v.Missing != c.missing || (len(v.Reasons) > 0) != (c.rule != "") {
				t.Errorf("the verdict is %+v", v)
			}
			if c.rule != "" && v.Reasons[0].Rule != c.rule {
				t.Errorf("the reason is %s, want %s", v.Reasons[0], c.rule)
			}
		})
	}
}

func TestLaunchRequestForAServedPodLaunchesNothing(t *testing.T) {
	g := newNodeGroup("web", 5)
	wish := LaunchRequest{Group: "web", Count: 1, Pod: placement.PodKey{Namespace: "apps", Name: "web-0"}}
	for name, awaited := range map[string][]launch.ProvisioningInstance{"it is ordered now": nil, "it is on its way": {{ID: "1", Template: "m4"}}} {
		t.Run(name, func(t *testing.T) {
			gr := newGroup(g, newKind(g, "m4", "4", "16Gi"))
			gr.Provisioning, gr.Size = awaited, len(awaited)
			w := newWorld(t, []Group{gr}, nil, newPendingPods(1, "1", "1Gi"))
			w.LaunchRequests = []LaunchRequest{wish}
			d := decideUp(t, w)
			if v := d.LaunchRequests[0]; !v.PodServed || v.Launched != 0 || v.Missing != 0 {
				t.Errorf("the verdict is %+v", v)
			}
			if n := launchCounts(d)["web/m4"] + len(awaited); n != 1 {
				t.Errorf("%d instances come for one pod", n)
			}
		})
	}
}
