package planner_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// The tests of this file are named after faults of kubeaware-cloudpool-proxy; package kubeaware has the list of all.

// requireNodeAffinity has a pod want a node of one of some terms.
func requireNodeAffinity(p *corev1.Pod, terms ...corev1.NodeSelectorTerm) {
	p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
	}}
}

func newInRequirement(key string, values ...string) []corev1.NodeSelectorRequirement {
	return []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}}
}

func TestFaultAllNodeAffinityTermsMustMatch(t *testing.T) {
	elsewhere := corev1.NodeSelectorTerm{MatchExpressions: newInRequirement(corev1.LabelTopologyZone, "zone-z")}
	here := corev1.NodeSelectorTerm{MatchExpressions: newInRequirement(corev1.LabelTopologyZone, "zone-a")}
	for name, tt := range map[string]struct {
		terms []corev1.NodeSelectorTerm
		goes  bool
	}{
		"the first of two":               {[]corev1.NodeSelectorTerm{here, elsewhere}, true},
		"the second of two":              {[]corev1.NodeSelectorTerm{elsewhere, here}, true},
		"neither of two":                 {[]corev1.NodeSelectorTerm{elsewhere, elsewhere}, false},
		"one half of a term":             {[]corev1.NodeSelectorTerm{{MatchExpressions: append(newInRequirement(corev1.LabelTopologyZone, "zone-a"), newInRequirement("disk", "ssd")...)}}, false},
		"one that is empty, and another": {[]corev1.NodeSelectorTerm{{}, here}, true},
	} {
		c := placementtest.Small()
		requireNodeAffinity(c.Pods[0], tt.terms...)
		if e := planEvacuation(t, c, planner.Options{}); e.Feasible() != tt.goes {
			t.Errorf("%s matches: the pod has a place elsewhere: %t (%v), want %t", name, e.Feasible(), e.Refusals, tt.goes)
		}
	}
}

// TestFaultMatchFieldsOfNodeAffinityAreUnknown has the pods that a DaemonSet has since Kubernetes 1.12, for which no
// node with one of them could ever go.
func TestFaultMatchFieldsOfNodeAffinityAreUnknown(t *testing.T) {
	to := func(node string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchFields: newInRequirement("metadata.name", node)}
	}
	c := placementtest.Small()
	daemon := placementtest.Pod("daemon", 0, "first", 100, 128)
	daemon.OwnerReferences[0].Kind = "DaemonSet"
	requireNodeAffinity(daemon, to("first"))
	c.Pods = append(c.Pods, daemon)
	if e := planEvacuation(t, c, planner.Options{}); !e.Feasible() || len(e.Stays) != 1 || len(e.Moves) != 1 {
		t.Errorf("the pod of a DaemonSet holds its node: %v; %d pods move, %d stay", e.Refusals, len(e.Moves), len(e.Stays))
	}
	for node, goes := range map[string]bool{"second": true, "third": false} { // and they are matched
		c := placementtest.Small()
		requireNodeAffinity(c.Pods[0], to(node))
		if e := planEvacuation(t, c, planner.Options{}); e.Feasible() != goes {
			t.Errorf("a pod that wants the node %s: it has a place: %t (%v), want %t", node, e.Feasible(), e.Refusals, goes)
		}
	}
}

func TestFaultFinishedPodsCountAsLoad(t *testing.T) {
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		c := placementtest.Small()
		c.Nodes = append(c.Nodes, placementtest.Node("third", "zone-a", 4, 16, 10))
		// The only free node is full of what is over, and so is the one that has the least to do.
		c.Pods = append(c.Pods, placementtest.Pod("busy", 0, "third", 3900, 15<<10))
		over := placementtest.Pod("job", 0, "second", 4000, 16<<10)
		over.Status.Phase = phase
		c.Pods = append(c.Pods, over)
		if e := planEvacuation(t, c, planner.Options{}); !e.Feasible() {
			t.Errorf("%s: pods that are over leave no room: %v", phase, e.Refusals)
		}
		s, err := c.Snapshot()
		must.NoError(t, err)
		chosen, err := planner.Victims(s, 1, planner.LeastLoaded, planner.Options{})
		if err != nil || len(chosen.Victims) != 1 || chosen.Victims[0].Node != "second" || chosen.Victims[0].Cost != 0 {
			t.Errorf("%s: %+v, %v; want the node on which nothing runs any more, at no cost", phase, chosen.Victims, err)
		}
		// It is not created anew, either, and no controller is missed.
		over.Spec.NodeName, over.OwnerReferences = "first", nil
		if e := planEvacuation(t, c, planner.Options{}); !e.Feasible() || len(e.Moves) != 1 {
			t.Errorf("%s: a pod that is over holds its node: %v, %d moves", phase, e.Refusals, len(e.Moves))
		}
	}
}
