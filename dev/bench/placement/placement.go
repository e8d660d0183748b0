// Command placement measures internal/placement on one core, and prints the results as JSON. It applies every answer to
// the snapshot and verifies the result. So a fast but wrong answer fails.
//
// It is a separate program, because it links kube-scheduler, which slipway-dev needs for nothing else.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/planner"
)

const seed = 1

// mix is the text that describes the diverse pods in the results.
const mix = "seed 1; applications of up to 80 replicas, one third each plain, spread over zones or hosts with skew 1, and with " +
	"affinity or anti-affinity to their own pods; 0.1 to 1 core, 128 MiB to 2 GiB"

func main() {
	results, err := runBenchmarks()
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(results)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "placement:", err)
		os.Exit(1)
	}
}

// runBenchmarks runs all measurements, which takes some seconds.
func runBenchmarks() ([]result.Result, error) {
	runtime.GOMAXPROCS(1)
	var results []result.Result
	for _, scenario := range []func() ([]result.Result, error){measureUniformVictims, measureUniformPacking, measureDiversePacking, measureDiverseRanking, measureCommands} {
		measured, err := scenario()
		if err != nil {
			return results, err
		}
		results = append(results, measured...)
		runtime.GC()
	}
	return results, nil
}

// measurements holds the medians of several runs: elapsed time, processor time and allocated memory.
type measurements struct {
	wall, cpu time.Duration
	allocated float64 // MB
}

// measureRuns runs fn several times and returns the medians. The processor time includes garbage collection.
func measureRuns(runs int, fn func() error) (measurements, error) {
	var wall, cpu []time.Duration
	var allocated []float64
	for range runs {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		start, used := time.Now(), placementtest.MeasureCPUTime()
		if err := fn(); err != nil {
			return measurements{}, err
		}
		wall, cpu = append(wall, time.Since(start)), append(cpu, placementtest.MeasureCPUTime()-used)
		runtime.ReadMemStats(&after)
		allocated = append(allocated, float64(after.TotalAlloc-before.TotalAlloc)/1e6)
	}
	slices.Sort(wall)
	slices.Sort(cpu)
	slices.Sort(allocated)
	return measurements{wall[runs/2], cpu[runs/2], allocated[runs/2]}, nil
}

func toMillis(d time.Duration) float64 { return d.Seconds() * 1e3 }

// describeSetup returns text that describes the conditions of a result. It includes the elapsed time, which on a
// shared machine is longer than the processor time.
func (f measurements) describeSetup(text string) string {
	return fmt.Sprintf("%s; one core, processor time, p50; elapsed time %.0f ms; %.0f MB allocated", text,
		toMillis(f.wall), f.allocated)
}

func measureUniformVictims() ([]result.Result, error) {
	s, err := placementtest.NewUniformCluster(2000, 40).BuildSnapshot()
	if err != nil {
		return nil, err
	}
	var selection *planner.VictimSelection
	f, err := measureRuns(9, func() (err error) {
		selection, err = planner.SelectVictims(s, 2000, planner.LeastDisruption, planner.Options{})
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(selection.Victims) != 1200 {
		return nil, fmt.Errorf("%d victims of 2,000 nodes, want 1,200", len(selection.Victims))
	}
	if err := placementtest.CheckRemovalsExecutable(s, selection.Victims); err != nil {
		return nil, fmt.Errorf("apply the victims: %w", err)
	}
	setup := f.describeSetup("2,000 nodes with 40 equal pods of 1 % each; all removable nodes, 1,200 found and verified")
	return []result.Result{
		newMaxResult("choose 1,200 of 2,000 nodes", toMillis(f.cpu), "ms", 150, setup),
		newMaxResult("choose 1,200 of 2,000 nodes, allocated", f.allocated, "MB", 100, setup),
	}, nil
}

func measurePacking(c *placementtest.Cluster) (*planner.Packing, measurements, error) {
	s, err := c.BuildSnapshot()
	if err != nil {
		return nil, measurements{}, err
	}
	templates := []planner.Template{placementtest.NewTemplate()}
	var packing *planner.Packing
	f, err := measureRuns(9, func() (err error) {
		packing, err = planner.PackPods(s, nil, templates, planner.LeastWaste)
		return err
	})
	if err != nil {
		return nil, measurements{}, err
	}
	if len(packing.Unschedulable) > 0 {
		return nil, measurements{}, fmt.Errorf("%d pods have no machine, the first %v", len(packing.Unschedulable), packing.Unschedulable[0])
	}
	if err := placementtest.CheckPackingExecutable(s, templates, packing); err != nil {
		return nil, measurements{}, fmt.Errorf("apply the packing: %w", err)
	}
	return packing, f, nil
}

func measureUniformPacking() ([]result.Result, error) {
	packing, f, err := measurePacking(placementtest.NewPendingPodCluster(50_000))
	if err != nil {
		return nil, err
	}
	if len(packing.Instances) != 1000 {
		return nil, fmt.Errorf("%d machines, want 1,000", len(packing.Instances))
	}
	return []result.Result{newMaxResult("pack 50,000 pods onto 1,000 machines", toMillis(f.cpu), "ms", 150,
		f.describeSetup("equal pending pods of 2 % in the snapshot, one flavor in three zones, no nodes"))}, nil
}

func measureDiversePacking() ([]result.Result, error) {
	packing, f, err := measurePacking(placementtest.NewDiversePendingPodCluster(seed, 5000))
	if err != nil {
		return nil, err
	}
	return []result.Result{newMinResult("pack 5,000 diverse pods", 5000/f.cpu.Seconds(), "pods/s", 20_000,
		f.describeSetup(fmt.Sprintf("%s, up to 40 replicas; one flavor of 10 cores in three zones; %d machines", mix, len(packing.Instances))))}, nil
}

func measureDiverseRanking() ([]result.Result, error) {
	c := placementtest.NewDiverseCluster(seed, 5000, 150_000, 200)
	before := liveHeap()
	s, err := c.BuildSnapshot()
	if err != nil {
		return nil, err
	}
	heapMB := liveHeap() - before
	runtime.KeepAlive(c) // otherwise the objects would be missing in the second size
	var ranks []planner.Rank
	f, err := measureRuns(5, func() error {
		ranks = planner.RankNodes(s, planner.LeastDisruption, planner.Options{})
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := placementtest.CheckRanks(s, ranks, 25); err != nil {
		return nil, fmt.Errorf("check the ranking: %w", err)
	}
	text := "5,000 nodes, 150,000 placed pods, 200 disruption budgets; " + mix
	return []result.Result{
		newMaxResult("rank 5,000 nodes with 150,000 diverse pods", toMillis(f.cpu), "ms", 1000, f.describeSetup(text)),
		newMaxResult("snapshot of 5,000 nodes and 150,000 pods", heapMB, "MB", 300,
			text+"; heap without the objects, which an informer's cache holds anyway"),
	}, nil
}

// liveHeap returns the size of the live heap in MB.
func liveHeap() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / 1e6
}

func newMaxResult(name string, value float64, unit string, limit float64, setup string) result.Result {
	return result.Result{Name: name, Value: value, Unit: unit, Target: result.AtMost(limit), Setup: setup}
}

func newMinResult(name string, value float64, unit string, limit float64, setup string) result.Result {
	return result.Result{Name: name, Value: value, Unit: unit, Target: result.AtLeast(limit), Setup: setup}
}
