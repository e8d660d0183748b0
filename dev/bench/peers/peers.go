// Package peers drains equal nodes with different programs, one after another on one control plane: Slipway's agent,
// slipway drain, kubectl drain and, if given, another handler of Azure's Scheduled Events. Two bare clients measure
// how fast the control plane itself is. If the other handler is for EC2, the notices are EC2's, only the handlers and the
// bare clients are measured, and also with pods without a PDB.
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
	"github.com/slipway-dev/slipway/dev/bench/metadata"
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
	// Peer is the path of another handler of Scheduled Events, or of EC2's notices. Empty means none.
	Peer string
	// PeerArgs are the arguments of Peer, separated by spaces. drainWithPeer replaces the placeholders
	// in them. If one is ec2Placeholder, Peer is a handler of EC2's notices. Empty means awsPeerArgs
	// if the name of Peer is awsPeer, and aksPeerArgs otherwise.
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
	// aksPeerArgs are the flags of aks-node-termination-handler.
	aksPeerArgs = "-node={node} -kubeconfig={kubeconfig} -endpoint={endpoint} -web.address={listen}"
	// awsPeer is the name of aws-node-termination-handler, and awsPeerArgs are its flags.
	awsPeer     = "aws-node-termination-handler"
	awsPeerArgs = "--node-name={node} --metadata-url=" + ec2Placeholder
	// ec2Placeholder is replaced by the URL of EC2's instance metadata.
	ec2Placeholder = "{metadata}"
)

// program drains nodes of its own pool.
type program struct {
	name  string
	pool  controlplane.AKSPool
	drain func(context.Context, target) (measurement, error)
	// isOurs means that lost pods are a fault. Other programs are only observed.
	isOurs bool
	// withoutPDBs means that the pods have no PDB.
	withoutPDBs bool
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
	requests   int   // to the API server, from the notice to the end of the drain; 0 if they are not counted
}

type peersBench struct {
	*testbed.Testbed
	o       Options
	random  *rand.Rand
	refuge  controlplane.AKSPool
	clients controlplane.ClientBinaries
	args    []string // of the peer
	isEC2   bool     // the notices are EC2's
}

// RunBenchmarks runs every program. It takes about five minutes for three rounds, and ten with a handler of EC2's notices.
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
	if err := b.createPeerAccount(ctx); err != nil {
		return nil, err
	}
	for _, p := range all {
		if err := b.addPool(ctx, p.pool); err != nil {
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

// addPool adds a node for each round.
func (b *peersBench) addPool(ctx context.Context, pool controlplane.AKSPool) error {
	if !b.isEC2 {
		return b.AddPool(ctx, pool, b.o.Rounds)
	}
	specs := pool.Nodes(b.o.Rounds)
	for i := range specs {
		specs[i].ProviderID = metadata.EC2.ProviderID(specs[i].Name)
	}
	return b.AddNodes(ctx, specs...)
}

// The names of the bare clients. The faster one is the floor.
const (
	atOnceName = "bare client, all evictions at once"
	queuesName = "bare client, one eviction per PDB at a time"
	agentName  = "slipway-agent"
	// withoutPDBs is added to the names of programs that evict pods without PDBs.
	withoutPDBs = ", pods without PDB"
)

func (p program) isBareClient() bool {
	return strings.HasPrefix(p.name, atOnceName) || strings.HasPrefix(p.name, queuesName)
}

func (b *peersBench) listPrograms() []program {
	newProgram := func(name, pool string, isOurs bool, drain func(context.Context, target) (measurement, error)) program {
		return program{name: name, pool: controlplane.AKSPool{Name: pool, Spot: true}, drain: drain, isOurs: isOurs}
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
		newProgram(agentName, "agent", true, b.drainWithAgent),
	}
	if !b.isEC2 {
		all = append(all, newProgram("slipway drain", "slipway", true, b.drainWithSlipway),
			newProgram("kubectl drain", "kubectl", false, b.drainWithKubectl))
	}
	if b.o.Peer != "" {
		all = append(all, newProgram(b.peerName(), "peer", false, b.drainWithPeer))
	}
	if !b.isEC2 {
		return all
	}
	for _, p := range all {
		if p.name != queuesName { // it is for PDBs
			p.name, p.pool.Name, p.withoutPDBs = p.name+withoutPDBs, p.pool.Name+"-free", true
			all = append(all, p)
		}
	}
	return all
}

func (b *peersBench) peerName() string { return filepath.Base(b.o.Peer) }

// measureProgram runs the workload on a node, lets the program drain the node, and removes the workload.
func (b *peersBench) measureProgram(ctx context.Context, p program, round int) (measurement, error) {
	t, err := b.runWorkload(ctx, p, round)
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
func (b *peersBench) runWorkload(ctx context.Context, p program, instance int) (target, error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	pool := p.pool
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
		objects = append(objects, app.Deployment())
		if !p.withoutPDBs {
			objects = append(objects, app.PodDisruptionBudget())
		}
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
		if p.withoutPDBs {
			floor = median(measured[atOnceName+withoutPDBs], lastEviction)
		}
		results = append(results, b.programResults(p, measured[p.name], floor)...)
	}
	if b.isEC2 {
		results = append(results, b.compareHandlers("", measured)...)
		results = append(results, b.compareHandlers(withoutPDBs, measured)...)
	}
	return results
}

// The targets of the agent beside another handler of EC2's notices. With PDBs the time has no target: the floor itself is
// more than a tenth of the handler's time, because the API server sleeps between evictions under one PDB.
const (
	minTimeRatio   = 10.0
	maxMemoryRatio = 0.5
)

// compareHandlers compares the agent with the peer. The suffix selects the workload.
func (b *peersBench) compareHandlers(suffix string, measured map[string][]measurement) []result.Result {
	ours, theirs := measured[agentName+suffix], measured[b.peerName()+suffix]
	setup := b.describeSetup(suffix == withoutPDBs, "medians of %d rounds", len(ours))
	faster := result.Result{
		Name:  "time of " + b.peerName() + " as a multiple of slipway-agent's" + suffix,
		Value: median(theirs, lastEviction) / median(ours, lastEviction), Unit: "times", Setup: setup,
	}
	if suffix == withoutPDBs {
		faster.Target = result.AtLeast(minTimeRatio)
	}
	peak := func(m measurement) float64 { return float64(m.peak) }
	return []result.Result{faster, {
		Name:  "memory of slipway-agent while draining, as a multiple of " + b.peerName() + "'s" + suffix,
		Value: median(ours, peak) / median(theirs, peak), Unit: "times", Target: result.AtMost(maxMemoryRatio), Setup: setup,
	}}
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
		Setup: b.describeSetup(p.withoutPDBs, "from %s to the audit log's time of the last response; median of rounds with %s s%s", begin, strings.Join(rounds, ", "), incomplete),
	}}
	if !p.isBareClient() {
		results = append(results, result.Result{
			Name: p.name + ": the same, as a multiple of the floor", Value: last / floor, Unit: "times",
			Setup: b.describeSetup(p.withoutPDBs, "the floor is the faster bare client, %.2f s in the same rounds", floor),
		})
	}
	results = append(results,
		result.Result{
			Name: p.name + ": pods without accepted eviction", Value: float64(notEvicted), Unit: "pods", Target: target,
			Setup: b.describeSetup(p.withoutPDBs, "of %d, from the audit log", len(all)*podsEach),
		},
		result.Result{
			Name: p.name + ": pods deleted past their PDB", Value: float64(deleted), Unit: "pods", Target: target,
			Setup: b.describeSetup(p.withoutPDBs, "DELETE requests without an accepted eviction, by any client but controllers and the kubelet"),
		})
	if requests := median(all, func(m measurement) float64 { return float64(m.requests) }); requests > 0 {
		results = append(results, result.Result{
			Name: p.name + ": API requests", Value: requests, Unit: "requests",
			Setup: b.describeSetup(p.withoutPDBs, "from the visible notice until %s after the last pod or the machine is gone; median of %d rounds", settleTime, len(all)),
		})
	}
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
				Setup: b.describeSetup(p.withoutPDBs, "resident, median of %d rounds", len(all)),
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

func (b *peersBench) describeSetup(withoutPDBs bool, format string, args ...any) string {
	pdbs, cloud := "each Deployment with a PDB of maxUnavailable 100%", "Azure"
	if withoutPDBs {
		pdbs = "no PDB"
	}
	if b.isEC2 {
		cloud = metadata.EC2.Service
	}
	return fmt.Sprintf("one node with %d pods of %d Deployments, grace period %s, %s; replaced on %d other nodes; default settings; "+
		"notices of %s (seed %d); Kubernetes %s, %d cores for everything; ", podsEach, apps, gracePeriod, pdbs, refuges, cloud, b.o.Seed, b.Version(),
		runtime.NumCPU()) + fmt.Sprintf(format, args...)
}
