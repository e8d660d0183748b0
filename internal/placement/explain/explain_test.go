package explain_test

import (
	"bytes"
	"encoding/json"
	"io"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/explain"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
	"github.com/slipway-dev/slipway/internal/testing/golden"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// newShopSnapshot returns a cluster with a tainted node, a full node, a DaemonSet, budgets and pending pods.
func newShopSnapshot(t *testing.T) *snapshot.Snapshot {
	t.Helper()
	c := &placementtest.Cluster{}
	for _, name := range []string{"node-a", "node-b", "node-c", "node-d"} {
		c.Nodes = append(c.Nodes, placementtest.Node(name, "zone-a", 4, 16, 10))
	}
	c.Nodes[3].Spec.Taints = []corev1.Taint{{Key: "gpu", Value: "only", Effect: corev1.TaintEffectNoSchedule}}
	agent := placementtest.Pod("agent", 0, "node-a", 100, 64)
	agent.OwnerReferences[0].Kind = "DaemonSet"
	lone := placementtest.Pod("lone", 0, "node-b", 100, 64)
	lone.OwnerReferences = nil
	c.Pods = []*corev1.Pod{
		agent, placementtest.Pod("web", 0, "node-a", 500, 512), placementtest.Pod("web", 1, "node-a", 500, 512),
		lone, placementtest.Pod("db", 0, "node-b", 3000, 4096), placementtest.Pod("cache", 0, "node-c", 3000, 4096),
		placementtest.Pod("batch", 0, "", 3900, 1024), placementtest.Pod("monster", 0, "", 64000, 1024),
	}
	c.Budgets = []*policyv1.PodDisruptionBudget{placementtest.Budget("db", 0), placementtest.Budget("web", 2)}
	s, err := c.Snapshot()
	must.NoError(t, err)
	return s
}

func checkGolden(t *testing.T, name string, print func(io.Writer) error) {
	t.Helper()
	var got bytes.Buffer
	must.NoError(t, print(&got))
	golden.Check(t, filepath.Join("testdata", name+".golden"), got.Bytes())
}

func TestPrintedAnswersMatchGoldenFiles(t *testing.T) {
	s := newShopSnapshot(t)
	for _, wide := range []bool{false, true} {
		selection, err := planner.Victims(s, 4, planner.LeastDisruption, planner.Options{})
		must.NoError(t, err)
		checkGolden(t, map[bool]string{false: "plan", true: "plan-wide"}[wide], func(w io.Writer) error {
			return explain.Selection(w, selection, wide)
		})
		checkGolden(t, "plan-json", func(w io.Writer) error {
			encoder := json.NewEncoder(w)
			encoder.SetIndent("", "  ")
			return encoder.Encode(selection)
		})
	}
	for _, name := range []string{"node-a", "node-b", "node-d"} {
		e, err := planner.Evacuate(s, name, planner.LeastDisruption, planner.Options{})
		must.NoError(t, err)
		checkGolden(t, "why-"+name, func(w io.Writer) error { return explain.Node(w, e) })
	}
	flavours := []planner.Flavour{placementtest.Flavour()}
	for _, name := range []string{"batch-0", "monster-0"} {
		p, err := planner.JudgePending(s, placement.PodKey{Namespace: "default", Name: name}, flavours)
		must.NoError(t, err)
		checkGolden(t, "why-"+name, func(w io.Writer) error { return explain.Pod(w, p) })
	}
	packing, err := planner.Pack(s, nil, flavours, planner.LeastCost)
	must.NoError(t, err)
	checkGolden(t, "pack", func(w io.Writer) error { return explain.Packing(w, packing) })
}

func TestManyFittingNodesAreCounted(t *testing.T) {
	p := &planner.Pending{
		Pod:  placement.PodKey{Namespace: "default", Name: "web"},
		Fits: []string{"a", "b", "c", "d", "e", "f", "g", "h"},
	}
	var got bytes.Buffer
	must.NoError(t, explain.Pod(&got, p))
	if want := "default/web fits on a, b, c, d, e and 3 others: it waits for the scheduler.\n"; got.String() != want {
		t.Errorf("got %q, want %q", got.String(), want)
	}
}
