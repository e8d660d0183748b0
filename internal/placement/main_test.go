package placement_test

import (
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
)

func TestMain(m *testing.M) {
	placement.SetBuilders(placement.Builders{
		Snapshot: func(seed uint64) (*placement.Snapshot, []*corev1.Node, []*corev1.Pod) {
			c := placementtest.Random(seed)
			s, err := c.Snapshot()
			if err != nil {
				panic(err)
			}
			return s, c.Nodes, c.Pods
		},
		Node:      placementtest.RandomNode,
		Pending:   func(seed uint64) []*corev1.Pod { return placementtest.Random(seed).Candidates },
		CarryOut:  placementtest.CarryOut,
		LaunchAll: placementtest.LaunchAll,
	})
	os.Exit(m.Run())
}
