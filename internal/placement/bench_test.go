package placement_test

import (
	"testing"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
)

// measure runs fn under the benchmark and reports the processor time beside the clock's.
func measure(b *testing.B, fn func()) {
	b.Helper()
	b.ReportAllocs()
	before := placementtest.CPUTime()
	for b.Loop() {
		fn()
	}
	b.ReportMetric((placementtest.CPUTime()-before).Seconds()*1e3/float64(b.N), "cpu-ms/op")
}

func snapshot(b *testing.B, c *placementtest.Cluster) *placement.Snapshot {
	b.Helper()
	s, err := c.Snapshot()
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// Choose the nodes that can go: 2,000 nodes with 40 pods of one percent each, so that 800 nodes hold them all.
func BenchmarkVictimsUniform(b *testing.B) {
	s := snapshot(b, placementtest.Uniform(2000, 40))
	var selection *placement.Selection
	var err error
	measure(b, func() {
		selection, err = s.Victims(2000, placement.LeastDisruption, placement.Options{})
		if err != nil {
			b.Fatal(err)
		}
		if len(selection.Victims) != 1200 {
			b.Fatalf("%d victims, 1200 can go", len(selection.Victims))
		}
	})
	if err := placementtest.CarryOut(s, selection.Victims); err != nil {
		b.Fatal(err)
	}
}

// Rank all of 5,000 nodes with 150,000 diverse pods under 200 budgets.
func BenchmarkRankDiverse(b *testing.B) {
	s := snapshot(b, placementtest.Diverse(1, 5000, 150_000, 200))
	var ranks []placement.Rank
	measure(b, func() {
		ranking, err := placement.NewRanking(s, placement.LeastDisruption, placement.Options{})
		if err != nil {
			b.Fatal(err)
		}
		ranks = ranking.List()
	})
	if err := placementtest.CheckRanks(s, ranks, 25); err != nil {
		b.Fatal(err)
	}
}

// Pack 50,000 pending pods of two percent each onto new machines.
func BenchmarkPackUniform(b *testing.B) {
	s := snapshot(b, placementtest.Pending(50_000))
	flavours := []placement.Flavour{placementtest.Flavour()}
	var packing *placement.Packing
	var err error
	measure(b, func() {
		packing, err = s.Pack(nil, flavours, placement.LeastWaste)
		if err != nil {
			b.Fatal(err)
		}
		if len(packing.Machines) != 1000 || len(packing.Helpless) != 0 {
			b.Fatalf("%d machines, %d helpless: 1000 machines hold all", len(packing.Machines), len(packing.Helpless))
		}
	})
	if err := placementtest.LaunchAll(s, flavours, packing); err != nil {
		b.Fatal(err)
	}
}

// Pack 5,000 diverse pending pods.
func BenchmarkPackDiverse(b *testing.B) {
	s := snapshot(b, placementtest.DiversePending(1, 5000))
	flavours := []placement.Flavour{placementtest.Flavour()}
	var packing *placement.Packing
	var err error
	measure(b, func() {
		packing, err = s.Pack(nil, flavours, placement.LeastWaste)
		if err != nil {
			b.Fatal(err)
		}
		if len(packing.Helpless) != 0 {
			b.Fatalf("%d helpless, first %v", len(packing.Helpless), packing.Helpless[0])
		}
	})
	b.ReportMetric(float64(len(packing.Machines)), "machines")
	if err := placementtest.LaunchAll(s, flavours, packing); err != nil {
		b.Fatal(err)
	}
}

// Keep the ranking of 5,000 nodes current through one pod event: a pod of the mix leaves its node, or returns.
func BenchmarkRankAfterPodEvent(b *testing.B) {
	c := placementtest.Diverse(1, 5000, 150_000, 200)
	s := snapshot(b, c)
	ranking, err := placement.NewRanking(s, placement.LeastDisruption, placement.Options{})
	if err != nil {
		b.Fatal(err)
	}
	i := 0
	measure(b, func() {
		p := c.Pods[i/2*7919%len(c.Pods)]
		if i%2 == 0 {
			err = ranking.DeletePod(placement.PodKey{Namespace: p.Namespace, Name: p.Name})
		} else {
			err = ranking.SetPod(p)
		}
		if err != nil {
			b.Fatal(err)
		}
		i++
	})
}
