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
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/golden"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// newShopSnapshot returns a cluster with a tainted node, a full node, a DaemonSet, a Job of a JobSet, budgets and pending pods.
func newShopSnapshot(t *testing.T) *snapshot.Snapshot {
	t.Helper()
	c := &placementtest.Cluster{}
	for _, name := range []string{"node-a", "node-b", "node-c", "node-d"} {
		c.Nodes = append(c.Nodes, placementtest.NewNode(name, "zone-a", 4, 16, 10))
	}
	c.Nodes[3].Spec.Taints = []corev1.Taint{{Key: "gpu", Value: "only", Effect: corev1.TaintEffectNoSchedule}}
	agent := placementtest.NewPod("agent", 0, "node-a", 100, 64)
	agent.OwnerReferences[0].Kind = "DaemonSet"
	lone := placementtest.NewPod("lone", 0, "node-b", 100, 64)
	lone.OwnerReferences = nil
	c.Pods = []*corev1.Pod{
		agent, placementtest.NewPod("web", 0, "node-a", 500, 512), placementtest.NewPod("web", 1, "node-a", 500, 512),
		lone, placementtest.NewPod("db", 0, "node-b", 3000, 4096), placementtest.NewPod("cache", 0, "node-c", 3000, 4096),
		placementtest.NewPod("batch", 0, "", 3900, 1024), placementtest.NewPod("monster", 0, "", 64000, 1024),
	}
	for _, web := range c.Pods[1:3] {
		web.Labels = map[string]string{
			"app": "web", "jobset.sigs.k8s.io/jobset-name": "web", "jobset.sigs.k8s.io/replicatedjob-name": "workers", "jobset.sigs.k8s.io/job-index": "0",
		}
	}
	c.PDBs = []*policyv1.PodDisruptionBudget{placementtest.NewPDB("db", 0), placementtest.NewPDB("web", 2)}
	s, err := c.BuildSnapshot()
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
		selection, err := planner.SelectVictims(s, 4, planner.LeastDisruption, planner.Options{})
		must.NoError(t, err)
		checkGolden(t, map[bool]string{false: "plan", true: "plan-wide"}[wide], func(w io.Writer) error {
			return explain.PrintVictimSelection(w, selection, wide)
		})
		checkGolden(t, "plan-json", func(w io.Writer) error {
			encoder := json.NewEncoder(w)
			encoder.SetIndent("", "  ")
			return encoder.Encode(selection)
		})
	}
	for _, name := range []string{"node-a", "node-b", "node-d"} {
		e, err := planner.PlanEvacuation(s, name, planner.LeastDisruption, planner.Options{})
		must.NoError(t, err)
		checkGolden(t, "why-"+name, func(w io.Writer) error { return explain.PrintEvacuation(w, e) })
	}
	templates := []planner.Template{placementtest.NewTemplate()}
	for _, name := range []string{"batch-0", "monster-0"} {
		p, err := planner.JudgePendingPod(s, placement.PodKey{Namespace: "default", Name: name}, templates)
		must.NoError(t, err)
		checkGolden(t, "why-"+name, func(w io.Writer) error { return explain.PrintPendingPod(w, p, false) })
	}
	packing, err := planner.PackPods(s, nil, templates, planner.LeastCost)
	must.NoError(t, err)
	checkGolden(t, "pack", func(w io.Writer) error { return explain.PrintPacking(w, packing) })
}

func TestManyFittingNodesAreCounted(t *testing.T) {
	p := &planner.PendingPod{
		Pod:          placement.PodKey{Namespace: "default", Name: "web"},
		FittingNodes: []string{"a", "b", "c", "d", "e", "f", "g", "h"},
	}
	var got bytes.Buffer
	must.NoError(t, explain.PrintPendingPod(&got, p, false))
	want := "default/web fits on a, b, c, d, e and 3 others: it waits for the scheduler.\n"
	check.Not(t, got.String() != want, "got %q, want %q", got.String(), want)
}
