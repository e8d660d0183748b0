package placement_test

import (
	"testing"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
)

// Choose the nodes that can go: 2,000 nodes with 40 pods of one percent each, so that 800 nodes hold them all.
func BenchmarkVictimsUniform(b *testing.B) {
	s, err := placementtest.Uniform(2000, 40).Snapshot()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		selection, err := s.Victims(2000, placement.LeastDisruption, placement.Options{})
		if err != nil {
			b.Fatal(err)
		}
		if len(selection.Victims) != 1200 {
			b.Fatalf("%d victims, 1200 can go", len(selection.Victims))
		}
	}
}
