package planner_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// The tests of this file are named after faults of kubeaware-cloudpool-proxy. Package kubeaware has the full list.

// requireNodeAffinity sets the required node affinity of a pod to these terms.
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
		"the first of two terms":    {[]corev1.NodeSelectorTerm{here, elsewhere}, true},
		"the second of two terms":   {[]corev1.NodeSelectorTerm{elsewhere, here}, true},
		"no term of two":            {[]corev1.NodeSelectorTerm{elsewhere, elsewhere}, false},
		"one half of a term":        {[]corev1.NodeSelectorTerm{{MatchExpressions: append(newInRequirement(corev1.LabelTopologyZone, "zone-a"), newInRequirement("disk", "ssd")...)}}, false},
		"an empty term and another": {[]corev1.NodeSelectorTerm{{}, here}, true},
	} {
		c := placementtest.NewTwoNodeCluster()
		requireNodeAffinity(c.Pods[0], tt.terms...)
		if e := planEvacuation(t, c, planner.Options{}); e.IsFeasible() != tt.goes {
			t.Errorf("%s matches: feasible is %t (%v), want %t", name, e.IsFeasible(), e.Refusals, tt.goes)
		}
	}
}

// TestFaultMatchFieldsOfNodeAffinityAreUnknown has pods as a DaemonSet creates them since Kubernetes 1.12. With the
// fault, a node with such a pod could never be removed.
func TestFaultMatchFieldsOfNodeAffinityAreUnknown(t *testing.T) {
	to := func(node string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchFields: newInRequirement("metadata.name", node)}
	}
	c := placementtest.NewTwoNodeCluster()
	daemon := placementtest.NewPod("daemon", 0, "first", 100, 128)
	daemon.OwnerReferences[0].Kind = "DaemonSet"
	requireNodeAffinity(daemon, to("first"))
	c.Pods = append(c.Pods, daemon)
	if e := planEvacuation(t, c, planner.Options{}); !e.IsFeasible() || len(e.DeletedPods) != 1 || len(e.Moves) != 1 {
		t.Errorf("the DaemonSet pod blocks its node: %v; %d pods move, %d stay", e.Refusals, len(e.Moves), len(e.DeletedPods))
	}
	for node, goes := range map[string]bool{"second": true, "third": false} { // the fields are evaluated
		c := placementtest.NewTwoNodeCluster()
		requireNodeAffinity(c.Pods[0], to(node))
		if e := planEvacuation(t, c, planner.Options{}); e.IsFeasible() != goes {
			t.Errorf("a pod that requires node %s: feasible is %t (%v), want %t", node, e.IsFeasible(), e.Refusals, goes)
		}
	}
}

func TestFaultFinishedPodsCountAsLoad(t *testing.T) {
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		c := placementtest.NewTwoNodeCluster()
		c.Nodes = append(c.Nodes, placementtest.NewNode("third", "zone-a", 4, 16, 10))
		// Finished pods fill the only free node, and also the node with the least work.
		c.Pods = append(c.Pods, placementtest.NewPod("busy", 0, "third", 3900, 15<<10))
		over := placementtest.NewPod("job", 0, "second", 4000, 16<<10)
		over.Status.Phase = phase
		c.Pods = append(c.Pods, over)
		if e := planEvacuation(t, c, planner.Options{}); !e.IsFeasible() {
			t.Errorf("%s: finished pods use capacity: %v", phase, e.Refusals)
		}
		s, err := c.BuildSnapshot()
		must.NoError(t, err)
		chosen, err := planner.SelectVictims(s, 1, planner.LeastLoaded, planner.Options{})
		if err != nil || len(chosen.Victims) != 1 || chosen.Victims[0].Node != "second" || chosen.Victims[0].Cost != 0 {
			t.Errorf("%s: %+v, %v; want the node without running pods, at cost 0", phase, chosen.Victims, err)
		}
		// A finished pod is not recreated, and needs no controller.
		over.Spec.NodeName, over.OwnerReferences = "first", nil
		if e := planEvacuation(t, c, planner.Options{}); !e.IsFeasible() || len(e.Moves) != 1 {
			t.Errorf("%s: a finished pod blocks its node: %v, %d moves", phase, e.Refusals, len(e.Moves))
		}
	}
}
