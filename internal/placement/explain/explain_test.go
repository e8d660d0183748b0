package explain_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/explain"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
)

var update = flag.Bool("update", false, "write the golden files anew")

// shop is a cluster with something of everything: a tainted node, a full one, a DaemonSet, budgets, pending pods.
func shop(t *testing.T) *placement.Snapshot {
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
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func golden(t *testing.T, name string, print func(io.Writer) error) {
	t.Helper()
	var got bytes.Buffer
	if err := print(&got); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got.Bytes(), want)
	}
}

func TestAnswersInWords(t *testing.T) {
	s := shop(t)
	for _, wide := range []bool{false, true} {
		selection, err := s.Victims(4, placement.LeastDisruption, placement.Options{})
		if err != nil {
			t.Fatal(err)
		}
		golden(t, map[bool]string{false: "plan", true: "plan-wide"}[wide], func(w io.Writer) error {
			return explain.Selection(w, selection, wide)
		})
		golden(t, "plan-json", func(w io.Writer) error {
			encoder := json.NewEncoder(w)
			encoder.SetIndent("", "  ")
			return encoder.Encode(selection)
		})
	}
	for _, name := range []string{"node-a", "node-b", "node-d"} {
		e, err := s.Evacuate(name, placement.LeastDisruption, placement.Options{})
		if err != nil {
			t.Fatal(err)
		}
		golden(t, "why-"+name, func(w io.Writer) error { return explain.Node(w, e) })
	}
	flavours := []placement.Flavour{placementtest.Flavour()}
	for _, name := range []string{"batch-0", "monster-0"} {
		p, err := s.Pending(placement.PodKey{Namespace: "default", Name: name}, flavours)
		if err != nil {
			t.Fatal(err)
		}
		golden(t, "why-"+name, func(w io.Writer) error { return explain.Pod(w, p) })
	}
	packing, err := s.Pack(nil, flavours, placement.LeastCost)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "pack", func(w io.Writer) error { return explain.Packing(w, packing) })
}

func TestManyNodesThatFitAreCountedRatherThanListed(t *testing.T) {
	p := &placement.Pending{
		Pod:  placement.PodKey{Namespace: "default", Name: "web"},
		Fits: []string{"a", "b", "c", "d", "e", "f", "g", "h"},
	}
	var got bytes.Buffer
	if err := explain.Pod(&got, p); err != nil {
		t.Fatal(err)
	}
	if want := "default/web fits on a, b, c, d, e and 3 others: it waits for the scheduler.\n"; got.String() != want {
		t.Errorf("got %q, want %q", got.String(), want)
	}
}
