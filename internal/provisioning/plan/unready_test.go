package plan

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

func TestManyUnreadyNodesPauseLaunches(t *testing.T) {
	for name, c := range map[string]struct {
		unready, nodes int
		limit          UnreadyLimit
		braked         bool
	}{
		"none":                       {0, 10, UnreadyLimit{45, 3}, false},
		"at the absolute limit":      {3, 4, UnreadyLimit{45, 3}, false},
		"above the absolute limit":   {4, 4, UnreadyLimit{45, 3}, true},
		"at the percentage":          {45, 100, UnreadyLimit{45, 3}, false},
		"above the percentage":       {46, 100, UnreadyLimit{45, 3}, true},
		"without a limit":            {100, 100, UnreadyLimit{}, false},
		"all, with a limit of 100 %": {100, 100, UnreadyLimit{100, 0}, false},
	} {
		g := newGroup(newNodeGroup("web", 10), newKind(newNodeGroup("web", 10), "m4", "4", "16Gi"))
		w := newWorld(t, []Group{g}, nil, newPendingPods(1, "1", "1Gi"))
		w.UnreadyNodes, w.NodeCount, w.UnreadyLimit = c.unready, c.nodes, c.limit
		d := decideUp(t, w)
		if braked := len(d.Launches) == 0; braked != c.braked {
			t.Errorf("%s: paused %t, want %t", name, braked, c.braked)
		}
		if r := d.Pods[0].Reasons; c.braked && (r[0].Rule != TooManyUnready || !strings.Contains(r[0].Message, "not Ready")) {
			t.Errorf("%s: the pod gets %v, want %s", name, r, TooManyUnready)
		}
	}
}

func TestAnotherProcessesSinceAnnotationDoesNotCount(t *testing.T) {
	for name, c := range map[string]struct {
		observed time.Duration // ago
		want     string
	}{
		"the node was observed before": {2 * time.Hour, "Due"},
		"it was observed since":        {time.Minute, "CoolingDown"},
	} {
		g := newNodeGroup("web", 10, func(g *v1alpha1.NodeGroup) {
			g.Spec.ScaleDown = &v1alpha1.ScaleDown{Underutilized: &v1alpha1.UnderutilizedRule{}}
		})
		n := newNode("web", "a", machineResources("4", "16Gi"), func(n *corev1.Node) {
			n.Annotations = map[string]string{UnderutilizedSinceAnnotation: formatTime(start.Add(-time.Hour))}
		})
		other := newNode("web", "b", machineResources("4", "16Gi"), func(n *corev1.Node) { n.Labels[groupLabel] = "other" })
		group := newGroup(g)
		group.ObservedSince = map[string]time.Time{"a": start.Add(-c.observed)}
		all, err := DecideScaleDown(newWorld(t, []Group{group}, []*corev1.Node{n, other}, nil))
		if err != nil {
			t.Fatal(err)
		}
		if len(all) != 1 || string(all[0].Verdict) != c.want {
			t.Errorf("%s: %+v, want %s", name, all, c.want)
		}
		if c.want == "CoolingDown" && !all[0].Since.Equal(start) {
			t.Errorf("%s: it could go since %s, want now", name, all[0].Since)
		}
	}
}

// TestNodeFromTheFutureStopsStartingAfterJoinTimeout sets the clock back by a day after the Node was created.
func TestNodeFromTheFutureStopsStartingAfterJoinTimeout(t *testing.T) {
	for observed, arrives := range map[time.Duration]bool{time.Minute: true, time.Hour: false} {
		g := newGroup(newNodeGroup("web", 10))
		n := newNode("web", "a", machineResources("4", "16Gi"), func(n *corev1.Node) {
			n.CreationTimestamp = metav1.NewTime(start.Add(24 * time.Hour))
			n.Status.Conditions = nil
		})
		g.ObservedSince = map[string]time.Time{"a": start.Add(-observed)}
		if got := g.IsProvisioning(n, start); got != arrives {
			t.Errorf("observed %s ago: provisioning %t, want %t", observed, got, arrives)
		}
	}
}
