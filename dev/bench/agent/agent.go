// Package agent measures the agent on a real control plane. It runs the released binary with its default flags. The
// agent reads the notices of an emulated cloud: most measurements use Azure, and some are repeated with AWS and Google.
// Each measurement checks its own conditions, and fails if they are not met.
package agent

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	source "github.com/slipway-dev/slipway/internal/notice/azure"
)

// IdleWindow is the duration of the measurement of an idle agent. The names of this measurement's results contain
// it.
const IdleWindow = 10 * time.Minute

// Options configures RunBenchmarks.
type Options struct {
	// Kubernetes is the minor version. Empty means the control plane's default.
	Kubernetes string
	// IdleTime shortens the measuring time of the idle agent for experiments. Zero means IdleWindow.
	IdleTime time.Duration
	// Only selects the measurements with this text in their names. Empty selects all.
	Only string
	// Seed determines the times of the notices.
	Seed uint64
	// Progress receives one line per step. It may be nil.
	Progress io.Writer
}

// The instance numbers of the pool's machines, by their use in the measurements.
const (
	idleMachine     = 0
	firstNoticed    = 1
	noticedMachines = 5
	evictedMachine  = firstNoticed + noticedMachines
	crowdedMachine  = evictedMachine + evictionRounds
	memoryMachine   = crowdedMachine + 1
	spotMachine     = memoryMachine + 1
	hangingMachine  = spotMachine + 1
	floorMachine    = hangingMachine + 1 // a bare client drains it and the following ones
	firstRefuge     = floorMachine + evictionRounds
	refugeMachines  = 4 // take the pods of drained nodes
	machines        = firstRefuge + refugeMachines
)

// approvalDelay is the time between the agent's approval of an event and the end of the machine. The benchmark
// examines the agent's process in this time.
const approvalDelay = 2 * time.Second

type agentBench struct {
	*testbed.Testbed
	opts    Options
	pool    controlplane.AKSPool
	random  *rand.Rand
	closers []func()      // they end what runs during several measurements
	floor   time.Duration // the result of timeBareClient; 0 before
	patches time.Duration // the result of timePatches; 0 before
}

// RunBenchmarks runs the measurements that Options.Only selects. If it runs all, it takes IdleWindow plus about one
// minute to start and stop.
func RunBenchmarks(ctx context.Context, o Options) (_ []result.Result, err error) {
	if o.IdleTime < 0 {
		return nil, fmt.Errorf("idle is %s: must be more than 0", o.IdleTime)
	}
	if o.IdleTime == 0 {
		o.IdleTime = IdleWindow
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	b := &agentBench{
		opts: o, pool: controlplane.AKSPool{Name: "spot", Spot: true},
		random: rand.New(rand.NewPCG(o.Seed, 0)),
	}
	chosen, err := selectMeasurements(b.listMeasurements(), o.Only)
	if err != nil {
		return nil, err
	}
	b.Testbed, err = testbed.Start(ctx, testbed.Options{
		Cluster: controlplane.Options{Version: o.Kubernetes},
		Azure:   azure.Options{ApprovalDelay: approvalDelay},
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, end := range b.closers {
			end()
		}
		if stopped := b.Stop(); err == nil {
			err = stopped
		}
	}()
	if err := b.AddPool(ctx, b.pool, machines); err != nil {
		return nil, err
	}
	results, err := b.runMeasurements(ctx, chosen)
	return append(results, compareClouds(results)...), err
}

// measurement is a function that measures, and the name that Options.Only selects it by.
type measurement struct {
	name string
	run  func(context.Context) ([]result.Result, error)
	// prepare, if set, is called before all measurements. It starts what run measures in parallel with the others.
	prepare func(context.Context) error
}

// idleMeasure is the name of the measurement of an idle agent. This measurement runs in parallel with all others.
const idleMeasure = "idle agent, until its measuring time ends"

func (b *agentBench) listMeasurements() []measurement {
	azureIdle := &idleAgent{b: b, start: b.startIdleAzureAgent}
	all := []measurement{
		{name: "notice to cordon", run: b.measureCordons},
		{name: "notice to evictions, one PDB per app", run: b.measureEvictionsPerApp},
		{name: "notice to evictions, one PDB for all", run: b.measureEvictionsOnePDB},
		{name: "memory while draining", run: b.measurePeakMemory},
		{name: "the demo's Spot notice", run: b.measureSpotNotice},
		{name: "a Spot notice while Node requests hang", run: b.measureHangingNodes},
		{name: "binary", run: b.measureBinarySize},
	}
	idle := []measurement{{idleMeasure, azureIdle.awaitResults, azureIdle.begin}}
	for _, c := range b.listClouds() {
		all = append(all,
			measurement{name: c.prefix() + "notice to cordon", run: c.measureCordons},
			measurement{name: c.prefix() + "notice to evictions", run: c.measureEvictions},
			measurement{name: c.prefix() + "memory while draining", run: c.measurePeakMemory},
		)
		a := &idleAgent{b: b, prefix: c.prefix(), start: c.startIdleAgent}
		idle = append(idle, measurement{c.prefix() + idleMeasure, a.awaitResults, a.begin})
	}
	return append(all, idle...)
}

// selectMeasurements returns the measurements with names that contain the given text.
func selectMeasurements(all []measurement, text string) ([]measurement, error) {
	var chosen []measurement
	var names []string
	for _, m := range all {
		names = append(names, strconv.Quote(m.name))
		if strings.Contains(m.name, text) {
			chosen = append(chosen, m)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("only is %q: must be part of one of %s", text, strings.Join(names, ", "))
	}
	return chosen, nil
}

func (b *agentBench) runMeasurements(ctx context.Context, chosen []measurement) ([]result.Result, error) {
	for _, m := range chosen {
		if m.prepare == nil {
			continue
		}
		if err := m.prepare(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", m.name, err)
		}
	}
	var results []result.Result
	for _, m := range chosen {
		b.printProgress(m.name)
		rows, err := m.run(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.name, err)
		}
		results = append(results, rows...)
	}
	return results, nil
}

func (b *agentBench) printProgress(text string) { fmt.Fprintf(b.opts.Progress, "agent: %s\n", text) }

// startAgent starts the agent of one machine with its default flags.
func (b *agentBench) startAgent(ctx context.Context, instance int) (*testbed.Agent, error) {
	return b.StartAgent(ctx, b.pool, instance)
}

// describeSetup returns text that describes a measurement's own conditions, followed by the conditions of all
// measurements.
func (b *agentBench) describeSetup(format string, args ...any) string {
	return fmt.Sprintf(format, args...) + fmt.Sprintf("; %d nodes, %s, poll interval %s", machines, b.describeMachine(), source.DefaultInterval)
}

func (b *agentBench) describeMachine() string {
	return fmt.Sprintf("Kubernetes %s, %d cores for everything", b.Version(), runtime.NumCPU())
}

// maxBoundRatio is the target of the agent's times as a multiple of their bounds.
const maxBoundRatio = 1.1

// newBoundResults returns the floor and the bound of a time, and the time as a multiple of the bound. The floor is what the
// API server needs without an agent. The bound is the floor and the longest time that a notice waits for the next poll.
func newBoundResults(prefix, floorName string, took, interval, floor time.Duration, setup string) []result.Result {
	name, bound := "the poll interval and "+floorName, interval+floor
	return []result.Result{
		{Name: prefix + "floor: " + floorName, Value: floor.Seconds(), Unit: "s", Setup: setup},
		{Name: prefix + "bound: " + name, Value: bound.Seconds(), Unit: "s", Setup: setup},
		{
			Name: prefix + "as a multiple of the bound, " + name, Value: took.Seconds() / bound.Seconds(), Unit: "times",
			Target: result.AtMost(maxBoundRatio), Setup: setup,
		},
	}
}

func (b *agentBench) measureBinarySize(context.Context) ([]result.Result, error) {
	path, err := testbed.EnsureBinary("slipway-agent")
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	return []result.Result{{
		Name: "size of slipway-agent", Value: toMebibytes(info.Size()), Unit: "MiB",
		Setup: fmt.Sprintf("%s/%s, stripped, no cgo, %s", runtime.GOOS, runtime.GOARCH, runtime.Version()),
	}}, nil
}

func toMebibytes(bytes int64) float64 { return float64(bytes) / (1 << 20) }
