// Package peers drains equal nodes with different programs, one after another on one control plane: Slipway's agent,
// slipway drain, kubectl drain and, if given, another handler of Azure's Scheduled Events. Two bare clients measure
// how fast the control plane itself is.
package peers

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	apiruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/bench/bareclient"
	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

// Options configures RunBenchmarks.
type Options struct {
	// Kubernetes is the minor version. Empty means the control plane's default.
	Kubernetes string
	// Seed determines the times of the notices.
	Seed uint64
	// Peer is the path of another handler of Scheduled Events. Empty means none.
	Peer string
	// PeerArgs are the arguments of Peer, separated by spaces. drainWithPeer replaces the placeholders
	// in them. Empty means defaultPeerArgs.
	PeerArgs string
	// Rounds is how often each program drains a node. 0 means 3.
	Rounds int
	// Progress receives one line per step. It may be nil.
	Progress io.Writer
}

const (
	defaultRounds = 3
	podsEach      = 96
	apps          = 12
	gracePeriod   = 2 * time.Second
	refuges       = 4 // nodes for the replacements of evicted pods

	// stepTimeout is the time limit for the start of a program, and for the drain.
	stepTimeout = 2 * time.Minute
	// approvalDelay is the time between the approval of an event and the end of the machine. The benchmark examines the
	// agent's process in this time.
	approvalDelay = 2 * time.Second
	// defaultPeerArgs are the flags of aks-node-termination-handler.
	defaultPeerArgs = "-node={node} -kubeconfig={kubeconfig} -endpoint={endpoint} -web.address={listen}"
)

// program drains nodes of its own pool.
type program struct {
	name  string
	pool  controlplane.AKSPool
	drain func(context.Context, target) (measurement, error)
	// isOurs means that lost pods are a fault. Other programs are only observed.
	isOurs bool
}

// target is a node that a program drains, and the pods on it.
type target struct {
	pool      controlplane.AKSPool
	instance  int
	node      string
	namespace string
	pods      []string // names
}

// measurement is what one drain of a node took.
type measurement struct {
	last       time.Duration // from the notice or the start of the command to the last accepted eviction
	notEvicted int
	deleted    int   // pods deleted without eviction
	idle, peak int64 // resident memory in bytes; 0 if the program has none
}

type peersBench struct {
	*testbed.Testbed
	o       Options
	random  *rand.Rand
	refuge  controlplane.AKSPool
	clients controlplane.ClientBinaries
	args    []string // of the peer
}

// RunBenchmarks runs every program. It takes about five minutes.
func RunBenchmarks(ctx context.Context, o Options) (_ []result.Result, err error) {
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if o.Rounds = cmp.Or(o.Rounds, defaultRounds); o.Rounds < 0 {
		return nil, fmt.Errorf("rounds is %d: must be more than 0", o.Rounds)
	}
	b := &peersBench{o: o, random: rand.New(rand.NewPCG(o.Seed, 0)), refuge: controlplane.AKSPool{Name: "refuge"}}
	if err := b.checkPeer(); err != nil {
		return nil, err
	}
	if b.clients, err = controlplane.BuildClientBinaries(ctx, o.Progress); err != nil {
		return nil, err
	}
	b.Testbed, err = testbed.Start(ctx, testbed.Options{
		Cluster: controlplane.Options{Version: o.Kubernetes}, Azure: azure.Options{ApprovalDelay: approvalDelay},
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		if stopped := b.Stop(); err == nil {
			err = stopped
		}
	}()
	all := b.listPrograms()
	if err := b.AddPool(ctx, b.refuge, refuges); err != nil {
		return nil, err
	}
	for _, p := range all {
		if err := b.AddPool(ctx, p.pool, o.Rounds); err != nil {
			return nil, err
		}
	}
	measured := map[string][]measurement{}
	for round := range o.Rounds {
		for _, p := range all {
			fmt.Fprintf(o.Progress, "peers: round %d of %d, %s\n", round+1, o.Rounds, p.name)
			m, err := b.measureProgram(ctx, p, round)
			if err != nil {
				return nil, fmt.Errorf("round %d of %s: %w", round+1, p.name, err)
			}
			measured[p.name] = append(measured[p.name], m)
		}
	}
	return b.newResults(all, measured), nil
}

// The names of the bare clients. The faster one is the floor.
const (
	atOnceName = "bare client, all evictions at once"
	queuesName = "bare client, one eviction per PDB at a time"
)

func (p program) isBareClient() bool { return p.name == atOnceName || p.name == queuesName }

func (b *peersBench) listPrograms() []program {
	newProgram := func(name, pool string, isOurs bool, drain func(context.Context, target) (measurement, error)) program {
		return program{name, controlplane.AKSPool{Name: pool, Spot: true}, drain, isOurs}
	}
	all := []program{
		newProgram(atOnceName, "once", true, func(ctx context.Context, t target) (measurement, error) {
			return b.drainWithBareClient(ctx, t, (*bareclient.Client).CordonAndEvict)
		}),
		newProgram(queuesName, "queues", true, func(ctx context.Context, t target) (measurement, error) {
			return b.drainWithBareClient(ctx, t, func(c *bareclient.Client, ctx context.Context) error {
				return c.CordonAndEvictInQueues(ctx, workload.AppLabel)
			})
		}),
		newProgram("slipway-agent", "agent", true, b.drainWithAgent),
		newProgram("slipway drain", "slipway", true, b.drainWithSlipway),
		newProgram("kubectl drain", "kubectl", false, b.drainWithKubectl),
	}
	if b.o.Peer != "" {
		all = append(all, newProgram(filepath.Base(b.o.Peer), "peer", false, b.drainWithPeer))
	}
	return all
}

// measureProgram runs the workload on a node, lets the program drain the node, and removes the workload.
func (b *peersBench) measureProgram(ctx context.Context, p program, round int) (measurement, error) {
	t, err := b.runWorkload(ctx, p.pool, round)
	if err != nil {
		return measurement{}, err
	}
	m, err := p.drain(ctx, t)
	if err != nil {
		return measurement{}, err
	}
	return m, b.removeWorkload(ctx, t)
}

// runWorkload runs podsEach pods on one node. Then it labels the refuge nodes, so that replacements run there.
func (b *peersBench) runWorkload(ctx context.Context, pool controlplane.AKSPool, instance int) (target, error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	t := target{pool: pool, instance: instance, node: pool.NodeName(instance), namespace: fmt.Sprintf("%s-%d", pool.Name, instance)}
	if err := b.labelNode(ctx, t.node, t.namespace); err != nil {
		return t, err
	}
	objects := []apiruntime.Object{workload.NewNamespace(t.namespace)}
	for i := range apps {
		app := workload.App{
			Namespace: t.namespace, Name: fmt.Sprintf("app-%d", i), Replicas: podsEach / apps, GracePeriod: gracePeriod,
			NodeSelector: map[string]string{labelKey(t.namespace): ""}, MaxUnavailable: "100%",
		}
		objects = append(objects, app.Deployment(), app.PodDisruptionBudget())
	}
	if err := workload.CreateAndAwait(ctx, b.Client(), objects...); err != nil {
		return t, err
	}
	for i := range refuges {
		if err := b.labelNode(ctx, b.refuge.NodeName(i), t.namespace); err != nil {
			return t, err
		}
	}
	pods, err := b.listPods(ctx, t)
	if err == nil && len(pods) != podsEach {
		err = fmt.Errorf("%d pods run on node %s, want %d", len(pods), t.node, podsEach)
	}
	t.pods = pods
	return t, err
}

func (b *peersBench) newResults(all []program, measured map[string][]measurement) []result.Result {
	floor := min(median(measured[atOnceName], lastEviction), median(measured[queuesName], lastEviction))
	var results []result.Result
	for _, p := range all {
		results = append(results, b.programResults(p, measured[p.name], floor)...)
	}
	return results
}

func lastEviction(m measurement) float64 { return m.last.Seconds() }

func (b *peersBench) programResults(p program, all []measurement, floor float64) []result.Result {
	begin := "the start of the command"
	switch {
	case p.isBareClient():
		begin = "the first request"
	case all[0].idle > 0:
		begin = "the visible Spot notice"
	}
	var rounds []string
	for _, m := range all {
		rounds = append(rounds, fmt.Sprintf("%.2f", lastEviction(m)))
	}
	target := result.Bound{}
	if p.isOurs {
		target = result.AtMost(0)
	}
	notEvicted, deleted := 0, 0
	for _, m := range all {
		notEvicted, deleted = notEvicted+m.notEvicted, deleted+m.deleted
	}
	incomplete := ""
	if notEvicted > 0 {
		incomplete = "; THE DRAINS ARE NOT COMPLETE: the time is of the last eviction that was accepted"
	}
	last := median(all, lastEviction)
	results := []result.Result{{
		Name: fmt.Sprintf("%s: last of %d evictions accepted", p.name, podsEach), Value: last, Unit: "s",
		Setup: b.describeSetup("from %s to the audit log's time of the last response; median of rounds with %s s%s", begin, strings.Join(rounds, ", "), incomplete),
	}}
	if !p.isBareClient() {
		results = append(results, result.Result{
			Name: p.name + ": the same, as a multiple of the floor", Value: last / floor, Unit: "times",
			Setup: b.describeSetup("the floor is the faster bare client, %.2f s in the same rounds", floor),
		})
	}
	results = append(results,
		result.Result{
			Name: p.name + ": pods without accepted eviction", Value: float64(notEvicted), Unit: "pods", Target: target,
			Setup: b.describeSetup("of %d, from the audit log", len(all)*podsEach),
		},
		result.Result{
			Name: p.name + ": pods deleted past their PDB", Value: float64(deleted), Unit: "pods", Target: target,
			Setup: b.describeSetup("DELETE requests without an accepted eviction, by any client but controllers and the kubelet"),
		})
	for _, memory := range []struct {
		name  string
		bytes func(measurement) float64
	}{
		{"memory, idle", func(m measurement) float64 { return float64(m.idle) }},
		{"memory while draining, peak", func(m measurement) float64 { return float64(m.peak) }},
	} {
		if value := median(all, memory.bytes); value > 0 {
			results = append(results, result.Result{
				Name: p.name + ": " + memory.name, Value: value / (1 << 20), Unit: "MiB",
				Setup: b.describeSetup("resident, median of %d rounds", len(all)),
			})
		}
	}
	return results
}

// median returns the middle value. For an even number of values it returns the lower of the two in the middle.
func median(all []measurement, value func(measurement) float64) float64 {
	var values []float64
	for _, m := range all {
		values = append(values, value(m))
	}
	slices.Sort(values)
	return values[(len(values)-1)/2]
}

func (b *peersBench) describeSetup(format string, args ...any) string {
	return fmt.Sprintf("one node with %d pods of %d Deployments, grace period %s, each Deployment with a PDB of maxUnavailable 100%%; replaced on %d "+
		"other nodes; default settings; Kubernetes %s, %d cores for everything; ", podsEach, apps, gracePeriod, refuges, b.Version(),
		runtime.NumCPU()) + fmt.Sprintf(format, args...)
}
