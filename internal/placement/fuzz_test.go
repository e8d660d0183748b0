package placement_test

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
)

// FuzzObjects feeds a pod and a node as they may come out of any JSON, and asks every question.
func FuzzObjects(f *testing.F) {
	for seed := range uint64(20) {
		c := placementtest.Random(seed)
		for i, p := range c.Candidates {
			pod, err := json.Marshal(p)
			if err != nil {
				f.Fatal(err)
			}
			node, err := json.Marshal(c.Nodes[i%len(c.Nodes)])
			if err != nil {
				f.Fatal(err)
			}
			f.Add(pod, node, i%2 == 0)
		}
	}
	f.Add([]byte(`{"metadata":{"name":"p","ownerReferences":[{}]},"spec":{"containers":[{"ports":[{"hostPort":-1}]}]}}`),
		[]byte(`{"metadata":{"name":"n"},"status":{"allocatable":{"cpu":"-9223372036854775808","pods":"-1"}}}`), true)
	f.Fuzz(func(t *testing.T, podText, nodeText []byte, placed bool) {
		var p corev1.Pod
		var n corev1.Node
		if json.Unmarshal(podText, &p) != nil || json.Unmarshal(nodeText, &n) != nil || p.Name == "" || n.Name == "" {
			return
		}
		s, err := placementtest.Random(7).Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		if placed {
			p.Spec.NodeName = n.Name
		}
		for _, err := range []error{s.SetPod(&p), s.SetNode(&n), s.SetPod(&p)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.Judge(&p, n.Name); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Evacuate(n.Name, placement.LeastDisruption, placement.Options{}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Victims(3, placement.LeastLoaded, placement.Options{Unmanaged: true}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Pack(nil, []placement.Flavour{{Name: "f", Template: &n, Cost: 1}}, placement.LeastCost); err != nil {
			t.Fatal(err)
		}
		if err := s.DeleteNode(n.Name); err != nil {
			t.Fatal(err)
		}
		if err := s.DeletePod(placement.PodKey{Namespace: p.Namespace, Name: p.Name}); err != nil {
			t.Fatal(err)
		}
	})
}
