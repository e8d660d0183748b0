package planner_test

import (
	"testing"

	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// measure runs fn as a benchmark, and reports the processor time besides the elapsed time.
func measure(b *testing.B, fn func()) {
	b.Helper()
	b.ReportAllocs()
	before := placementtest.MeasureCPUTime()
	for b.Loop() {
		fn()
	}
	b.ReportMetric((placementtest.MeasureCPUTime()-before).Seconds()*1e3/float64(b.N), "cpu-ms/op")
}

func buildSnapshot(b *testing.B, c *placementtest.Cluster) *snapshot.Snapshot {
	b.Helper()
	s, err := c.BuildSnapshot()
	must.NoError(b, err)
	return s
}

// Select nodes to remove among 2,000 nodes with 40 pods of 1 % each. 800 nodes can hold all pods.
func BenchmarkSelectVictimsUniform(b *testing.B) {
	s := buildSnapshot(b, placementtest.NewUniformCluster(2000, 40))
	var selection *planner.VictimSelection
	var err error
	measure(b, func() {
		selection, err = planner.SelectVictims(s, 2000, planner.LeastDisruption, planner.Options{})
		must.NoError(b, err)
		if len(selection.Victims) != 1200 {
			b.Fatalf("%d victims, 1200 can go", len(selection.Victims))
		}
	})
	must.NoError(b, placementtest.CheckRemovalsExecutable(s, selection.Victims))
}

// Rank all of 5,000 nodes with 150,000 diverse pods and 200 PodDisruptionBudgets.
func BenchmarkRankDiverse(b *testing.B) {
	s := buildSnapshot(b, placementtest.NewDiverseCluster(1, 5000, 150_000, 200))
	var ranks []planner.Rank
	measure(b, func() {
		ranks = planner.RankNodes(s, planner.LeastDisruption, planner.Options{})
	})
	must.NoError(b, placementtest.CheckRanks(s, ranks, 25))
}

// Pack 50,000 pending pods of 2 % each onto new instances.
func BenchmarkPackUniform(b *testing.B) {
	s := buildSnapshot(b, placementtest.NewPendingPodCluster(50_000))
	templates := []planner.Template{placementtest.NewTemplate()}
	var packing *planner.Packing
	var err error
	measure(b, func() {
		packing, err = planner.PackPods(s, nil, templates, planner.LeastWaste)
		must.NoError(b, err)
		if len(packing.Instances) != 1000 || len(packing.Unschedulable) != 0 {
			b.Fatalf("%d instances, %d unschedulable pods: want 1000 instances for all pods", len(packing.Instances), len(packing.Unschedulable))
		}
	})
	must.NoError(b, placementtest.CheckPackingExecutable(s, templates, packing))
}

// Pack 5,000 diverse pending pods.
func BenchmarkPackDiverse(b *testing.B) {
	s := buildSnapshot(b, placementtest.NewDiversePendingPodCluster(1, 5000))
	templates := []planner.Template{placementtest.NewTemplate()}
	var packing *planner.Packing
	var err error
	measure(b, func() {
		packing, err = planner.PackPods(s, nil, templates, planner.LeastWaste)
		must.NoError(b, err)
		if len(packing.Unschedulable) != 0 {
			b.Fatalf("%d unschedulable pods, first %v", len(packing.Unschedulable), packing.Unschedulable[0])
		}
	})
	b.ReportMetric(float64(len(packing.Instances)), "machines")
	must.NoError(b, placementtest.CheckPackingExecutable(s, templates, packing))
}
