// Package storm measures the loss of many machines of a pool within one second. Two hundred released agents run as
// separate processes on one real control plane. Fifty of them get a notice at the same time. Options.Sizes
// measures other sizes.
package storm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

// Options configures RunBenchmarks.
type Options struct {
	// Kubernetes is the minor version. Empty means the control plane's default.
	Kubernetes string
	// Progress receives one line per step. It may be nil.
	Progress io.Writer
	// Profile is a directory for CPU profiles of the API server and its audit logs. Empty means none.
	Profile string
	// Sizes are numbers of machines with a notice, each a multiple of 10. Each size is measured. Empty means 50.
	Sizes []int
	// Only selects one part, "agents" or "floor". Empty selects both.
	Only string
}

// The size of the storm. A scale set is one placement group of at most 100 machines, which all get the same document
// of events. At least minOtherMachines get no notice.
const (
	machinesEach        = 100
	defaultSize         = 50
	minOtherMachines    = 100
	maxSize             = 1000
	podsEach            = 20
	apps                = 100
	namespaces          = 25
	maxConcurrentStarts = 8
	startTimeout        = 5 * time.Minute
	settleTimeout       = 5 * time.Minute
	calmBeforeStorm     = 5 * time.Second
)

// nodeLabel is the label of nodes that may run the pods of the workload.
const nodeLabel = "bench.slipway.dev/storm"

func namespaceName(i int) string { return fmt.Sprintf("team-%d", i) }

func appName(i int) string { return fmt.Sprintf("app-%d", i) }

// hasPDB reports whether an app has a PDB. Every second app of each namespace has one.
func hasPDB(app int) bool { return app/namespaces%2 == 0 }

// stormBench is a testbed with the machines and pods of the storm.
type stormBench struct {
	*testbed.Testbed
	o          Options
	size       int    // number of machines with a notice
	clientKind string // the kind of the processes that send requests
	// lastEviction is the time from the first notice to any agent, or from the first request of any bare client, to the last
	// eviction of all nodes.
	lastEviction time.Duration
	pools        []controlplane.AKSPool
	// noticedNodes are the nodes of machines with a notice, otherNodes all others.
	noticedNodes, otherNodes []string
}

func (s *stormBench) podCount() int { return s.size * podsEach }

func (s *stormBench) scaleSetCount() int {
	return (s.size + minOtherMachines + machinesEach - 1) / machinesEach
}

func (s *stormBench) machineCount() int { return s.scaleSetCount() * machinesEach }

// noticedIn returns the number of machines with a notice in a scale set. The notices are spread evenly.
func (s *stormBench) noticedIn(scaleSet int) int {
	return s.size*(scaleSet+1)/s.scaleSetCount() - s.size*scaleSet/s.scaleSetCount()
}

func (s *stormBench) allNodes() []string { return slices.Concat(s.noticedNodes, s.otherNodes) }

// RunBenchmarks runs the measurements. It takes about eight minutes for each 100 machines with a notice.
func RunBenchmarks(ctx context.Context, o Options) ([]result.Result, error) {
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if len(o.Sizes) == 0 {
		o.Sizes = []int{defaultSize}
	}
	for _, size := range o.Sizes {
		if size < 10 || size > maxSize || size%10 != 0 {
			return nil, fmt.Errorf("nodes is %d: must be a multiple of 10 up to %d", size, maxSize)
		}
	}
	return measureSizes(ctx, o, measureSize)
}

// measureSizes measures all sizes. If one of several sizes fails, its results are what was measured before, and the error.
// If all sizes fail, measureSizes returns the errors.
func measureSizes(ctx context.Context, o Options, measure func(context.Context, Options, int) ([]result.Result, error)) ([]result.Result, error) {
	var all []result.Result
	var failures []error
	largest := 0
	for _, size := range o.Sizes {
		results, err := measure(ctx, o, size)
		if len(results) > 0 && !slices.ContainsFunc(results, isLoss) { // the first results are those of the agents
			largest = max(largest, size)
		}
		if err != nil {
			err = fmt.Errorf("%d machines with a notice: %w", size, err)
			failures = append(failures, err)
			if len(failures) == len(o.Sizes) || ctx.Err() != nil {
				return nil, errors.Join(failures...)
			}
			fmt.Fprintf(o.Progress, "agent-storm: %v\n", err)
			results = append(results, result.Result{Name: "failures", Value: 1, Target: result.AtMost(0), Setup: err.Error()})
		}
		all = append(all, labelSize(results, size, len(o.Sizes) > 1)...)
	}
	if len(o.Sizes) > 1 && o.Only != floorPart {
		all = append(all, result.Result{
			Name: "largest storm without a pod deleted past its PDB or lost", Value: float64(largest), Unit: "machines",
			Setup: fmt.Sprintf("of storms with %v machines, %d pods each", o.Sizes, podsEach),
		})
	}
	return all, nil
}

// isLoss reports whether a result counts lost pods, and is not zero. Machines that end before their approval do not count.
func isLoss(r result.Result) bool {
	return r.Unit == "pods" && !strings.HasPrefix(r.Name, floorPrefix) && r.Value > 0
}

// labelSize adds the size to the names, if several sizes are measured. Larger storms than the default have no targets, because
// they show what the machine carries. Smaller ones have no target for the time, because the agents do more than the floor.
func labelSize(results []result.Result, size int, several bool) []result.Result {
	for i := range results {
		if several {
			results[i].Name = fmt.Sprintf("%d notices: %s", size, results[i].Name)
		}
		if size > defaultSize || size < defaultSize && results[i].Unit == "times" {
			results[i].Target = result.Bound{}
		}
	}
	return results
}

// The parts of a measurement, for Options.Only.
const (
	agentsPart = "agents"
	floorPart  = "floor"
)

// maxFloorRatio is the target of the agents' time as a multiple of the bare clients' time.
const maxFloorRatio = 1.1

// measureSize measures the agents, and then the bare clients in each order, each on a new cluster. With an error, it also
// returns the results before the error.
func measureSize(ctx context.Context, o Options, size int) ([]result.Result, error) {
	type part struct {
		name    string
		measure func(*stormBench, context.Context) ([]result.Result, error)
	}
	parts := []part{{agentsPart, (*stormBench).measureAgents}}
	for _, order := range evictionOrders {
		parts = append(parts, part{floorPart, func(s *stormBench, ctx context.Context) ([]result.Result, error) {
			return s.measureBareClients(ctx, order)
		}})
	}
	var all []result.Result
	last := map[string][]time.Duration{}
	for _, p := range parts {
		if o.Only != "" && o.Only != p.name {
			continue
		}
		s := &stormBench{o: o, size: size}
		results, err := s.runOnNewCluster(ctx, p.measure)
		if err != nil {
			return all, err
		}
		last[p.name] = append(last[p.name], s.lastEviction)
		all = append(all, results...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("only is %q: must be %s or %s", o.Only, agentsPart, floorPart)
	}
	if o.Only == "" {
		all = append(all, compareWithFloor(last[agentsPart][0], last[floorPart]))
	}
	return all, nil
}

// compareWithFloor returns the agents' time as a multiple of the floor. The bare clients' times are in the order of
// evictionOrders.
func compareWithFloor(agents time.Duration, bareClients []time.Duration) result.Result {
	floor := slices.Min(bareClients)
	setup := fmt.Sprintf("%.2f s from the first notice to the last eviction of all nodes, including the agents' wait for their next poll; "+
		"the faster bare clients are the floor, from their first request:", agents.Seconds())
	for i, order := range evictionOrders {
		setup += fmt.Sprintf(" %.2f s with %s;", bareClients[i].Seconds(), order.name)
	}
	return result.Result{
		Name: "last eviction accepted, as a multiple of the bare clients' time", Value: agents.Seconds() / floor.Seconds(), Unit: "times",
		Target: result.AtMost(maxFloorRatio), Setup: strings.TrimSuffix(setup, ";"),
	}
}

// runOnNewCluster creates a cluster, runs a measurement on it, and stops it.
func (s *stormBench) runOnNewCluster(ctx context.Context, measure func(*stormBench, context.Context) ([]result.Result, error),
) (_ []result.Result, err error) {
	cluster := controlplane.Options{Version: s.o.Kubernetes}
	if s.o.Profile != "" {
		cluster.Flags = profilingFlags()
	}
	if s.Testbed, err = testbed.Start(ctx, testbed.Options{Cluster: cluster}); err != nil {
		return nil, err
	}
	defer func() {
		if stopped := s.Stop(); err == nil {
			err = stopped
		}
	}()
	err = s.runSteps(ctx,
		benchStep{fmt.Sprintf("adding %d nodes", s.machineCount()), s.addNodes},
		benchStep{fmt.Sprintf("running %d pods on %d of them", s.podCount(), s.size), s.runWorkload},
	)
	if err != nil {
		return nil, err
	}
	return measure(s, ctx)
}

// benchStep is one step of a measurement or its preparation, with a description for the progress output.
type benchStep struct {
	description string
	run         func(context.Context) error
}

func (s *stormBench) runSteps(ctx context.Context, steps ...benchStep) error {
	for _, step := range steps {
		fmt.Fprintf(s.o.Progress, "agent-storm: %s\n", step.description)
		if err := step.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.description, err)
		}
	}
	return nil
}

var calmStep = benchStep{"waiting for calm", func(ctx context.Context) error { return testbed.Sleep(ctx, calmBeforeStorm) }}

// measureAgents measures how the agents drain the nodes of machines with a notice.
func (s *stormBench) measureAgents(ctx context.Context) ([]result.Result, error) {
	s.clientKind = "agent processes"
	if err := s.runSteps(ctx, benchStep{fmt.Sprintf("starting %d agents", s.machineCount()), s.startAgents}, calmStep); err != nil {
		return nil, err
	}
	var records []azure.EventRecord
	load, profile := s.startCPULoad(ctx), s.startProfile(ctx, "agents")
	err := s.runSteps(ctx, benchStep{fmt.Sprintf("%d Spot notices at once", s.size), func(ctx context.Context) (err error) {
		records, err = s.announceNotices(ctx)
		return err
	}})
	taken := load.stopAndReport()
	if err := errors.Join(err, profile(), s.copyAuditLog("agents")); err != nil {
		return nil, err
	}
	results, err := s.newResults(records)
	if err != nil {
		return nil, err
	}
	return append(results, newLoadResult("processor time of the API server, from the first notice to the machines' end",
		s.describeSetup(""), taken)), nil
}

// addNodes adds the nodes of all machines. A node with a coming notice is limited to podsEach pods, so that each
// such node gets the same number of pods.
func (s *stormBench) addNodes(ctx context.Context) error {
	var nodes []controlplane.NodeSpec
	for i := range s.scaleSetCount() {
		pool := controlplane.AKSPool{Name: fmt.Sprintf("spot%d", i), Spot: true}
		s.Azure.EnsureScaleSet(pool.ScaleSetName())
		s.pools = append(s.pools, pool)
		for instance := range machinesEach {
			node := pool.Node(instance)
			if instance < s.noticedIn(i) {
				node.Pods = podsEach
				node.Labels[nodeLabel] = ""
				s.noticedNodes = append(s.noticedNodes, node.Name)
			} else {
				s.otherNodes = append(s.otherNodes, node.Name)
			}
			nodes = append(nodes, node)
		}
	}
	return s.AddNodes(ctx, nodes...)
}

// runWorkload runs the pods on the nodes that will get a notice. Then it labels the other nodes, so that replacement
// pods can run there. Every app has pods on many machines. Every second app has a PDB, so that several agents
// compete for the same PDB.
func (s *stormBench) runWorkload(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	if err := workload.CreateAndAwait(ctx, s.Client(), s.workloadObjects()...); err != nil {
		return err
	}
	if err := s.checkPodsPerNode(ctx); err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:""}}}`, nodeLabel)
	for _, node := range s.otherNodes {
		if _, err := s.Client().CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("labelling node %s: %w", node, err)
		}
	}
	return nil
}

func (s *stormBench) workloadObjects() []apiruntime.Object {
	var objects []apiruntime.Object
	for i := range namespaces {
		objects = append(objects, workload.NewNamespace(namespaceName(i)))
	}
	for i := range apps {
		app := workload.App{
			Namespace: namespaceName(i % namespaces), Name: appName(i), MaxUnavailable: "100%",
			Replicas:     int32(s.podCount() / apps),
			NodeSelector: map[string]string{nodeLabel: ""},
		}
		objects = append(objects, app.Deployment())
		if hasPDB(i) {
			objects = append(objects, app.PodDisruptionBudget())
		}
	}
	return objects
}

// checkPodsPerNode returns an error if a node with a coming notice does not have podsEach pods.
func (s *stormBench) checkPodsPerNode(ctx context.Context) error {
	all, err := s.Client().CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	on := map[string]int{}
	for _, p := range all.Items {
		on[p.Spec.NodeName]++
	}
	want := map[string]int{}
	for _, node := range s.noticedNodes {
		want[node] = podsEach
	}
	if !maps.Equal(on, want) {
		return fmt.Errorf("pods by node: %v: want %d on each of the %d nodes with a notice", on, podsEach, s.size)
	}
	return nil
}

func (s *stormBench) startAgents(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxConcurrentStarts)
	for _, pool := range s.pools {
		for instance := range machinesEach {
			group.Go(func() error {
				_, err := s.StartAgent(ctx, pool, instance)
				return err
			})
		}
	}
	return group.Wait()
}

// announceNotices announces all notices within one second. It waits until all these events have vanished, and
// returns them.
func (s *stormBench) announceNotices(ctx context.Context) ([]azure.EventRecord, error) {
	var announced []azure.EventRecord
	for i, pool := range s.pools {
		for instance := range s.noticedIn(i) {
			r, err := s.Azure.Announce(azure.Announcement{ //nolint:contextcheck // an event outlives its announcer
				Type: azure.Preempt, ScaleSet: pool.ScaleSetName(), Resources: []string{pool.ResourceName(instance)},
			})
			if err != nil {
				return nil, err
			}
			announced = append(announced, r)
		}
	}
	first, last := announced[0].VisibleAt, announced[len(announced)-1].VisibleAt
	if last.Sub(first) > time.Second {
		return nil, fmt.Errorf("the notices appeared within %s: must be within 1 s", last.Sub(first))
	}
	ctx, cancel := context.WithTimeout(ctx, 3*azure.MinimumNotice(azure.Preempt))
	defer cancel()
	state, err := s.Azure.AwaitState(ctx, func(state azure.State) bool {
		for _, r := range state.Events {
			if r.IsListed() {
				return false
			}
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	for i, r := range announced {
		announced[i], _ = state.Event(r.EventID)
	}
	return announced, nil
}

// nodeOfEvent returns the name of the node of the event's machine.
func (s *stormBench) nodeOfEvent(r azure.EventRecord) (string, error) {
	name, ok := s.Nodes.NodeOfEventResource(r.Resources[0])
	if !ok {
		return "", fmt.Errorf("event %s: machine %s has no known node", r.EventID, r.Resources[0])
	}
	return name, nil
}

// describeSetup returns text that describes the conditions of all measurements, followed by the given text.
func (s *stormBench) describeSetup(format string, args ...any) string {
	return fmt.Sprintf("%d Spot notices of %s within a second, %d pods on each node, %d apps in %d namespaces spread over all of them, "+
		"every other with a PDB of maxUnavailable 100%%; %d nodes in %d scale sets, %d %s, Kubernetes %s, %d cores for everything; ",
		s.size, azure.MinimumNotice(azure.Preempt), podsEach, apps, namespaces, s.machineCount(), s.scaleSetCount(), s.machineCount(), s.clientKind, s.Version(),
		runtime.NumCPU()) + fmt.Sprintf(format, args...)
}
