// Package storm measures the loss of many machines of a pool within one second. Two hundred released agents run as
// separate processes on one real control plane. A hundred of them get a notice at the same time.
package storm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
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

// Options configures a run.
type Options struct {
	// Kubernetes is the minor version. Empty means the control plane's default.
	Kubernetes string
	// Progress receives one line per step. It may be nil.
	Progress io.Writer
	// Profile is a directory for CPU profiles of the API server and its audit logs. Empty means none.
	Profile string
	// NoticedMachines is the number of machines with a notice, a multiple of 10 up to 200. 0 means 100.
	NoticedMachines int
	// Only selects one part, "agents" or "floor". Empty selects both.
	Only string
}

// A scale set is one placement group of at most a hundred machines. All of them get the same document.
const (
	scaleSets           = 2
	machinesEach        = 100
	defaultNoticed      = 100
	machines            = scaleSets * machinesEach
	podsEach            = 20
	apps                = 100
	namespaces          = 25
	maxConcurrentStarts = 8
	startTimeout        = 5 * time.Minute
	settleTimeout       = 5 * time.Minute
	calmBeforeStorm     = 5 * time.Second
)

// nodeLabel is the label of the nodes that may run the pods.
const nodeLabel = "bench.slipway.dev/storm"

func namespaceName(i int) string { return fmt.Sprintf("team-%d", i) }

// stormBench is the cluster of the measurement.
type stormBench struct {
	*testbed.Testbed
	o          Options
	clientKind string // the kind of the processes that send requests
	pools      []controlplane.AKSPool
	// noticedNodes are the nodes of machines with a notice, otherNodes all others.
	noticedNodes, otherNodes []string
}

func (s *stormBench) noticedMachineCount() int { return cmp.Or(s.o.NoticedMachines, defaultNoticed) }

func (s *stormBench) podCount() int { return s.noticedMachineCount() * podsEach }

// allNodes returns all nodes.
func (s *stormBench) allNodes() []string { return slices.Concat(s.noticedNodes, s.otherNodes) }

// RunBenchmarks runs the measurements. It takes about five minutes.
func RunBenchmarks(ctx context.Context, o Options) ([]result.Result, error) {
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if o.NoticedMachines < 0 || o.NoticedMachines > machines || o.NoticedMachines%10 != 0 {
		return nil, fmt.Errorf("NoticedMachines is %d: must be a multiple of 10 up to %d", o.NoticedMachines, machines)
	}
	var all []result.Result
	for _, part := range []struct {
		name    string
		measure func(*stormBench, context.Context) ([]result.Result, error)
	}{{"agents", (*stormBench).measureAgents}, {"floor", (*stormBench).measureBareClients}} {
		if o.Only != "" && o.Only != part.name {
			continue
		}
		results, err := runOnNewCluster(ctx, o, part.measure)
		if err != nil {
			return nil, err
		}
		all = append(all, results...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("only is %q: must be agents or floor", o.Only)
	}
	return all, nil
}

// runOnNewCluster runs a measurement on a new cluster.
func runOnNewCluster(ctx context.Context, o Options, measure func(*stormBench, context.Context) ([]result.Result, error),
) (_ []result.Result, err error) {
	s := &stormBench{o: o}
	cluster := controlplane.Options{Version: o.Kubernetes}
	if o.Profile != "" {
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
		benchStep{fmt.Sprintf("adding %d nodes", machines), s.addNodes},
		benchStep{fmt.Sprintf("running %d pods on %d of them", s.podCount(), s.noticedMachineCount()), s.runWorkload},
	)
	if err != nil {
		return nil, err
	}
	return measure(s, ctx)
}

// benchStep is a step of the preparation or measurement.
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

// measureAgents measures the agents.
func (s *stormBench) measureAgents(ctx context.Context) ([]result.Result, error) {
	s.clientKind = "agent processes"
	if err := s.runSteps(ctx, benchStep{fmt.Sprintf("starting %d agents", machines), s.startAgents}, calmStep); err != nil {
		return nil, err
	}
	var records []azure.EventRecord
	load, profile := s.startCPULoad(ctx), s.startProfile(ctx, "agents")
	err := s.runSteps(ctx, benchStep{fmt.Sprintf("%d Spot notices at once", s.noticedMachineCount()), func(ctx context.Context) (err error) {
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

// addNodes adds the nodes. The doomed nodes are limited to podsEach pods, so that each gets the same number.
func (s *stormBench) addNodes(ctx context.Context) error {
	var nodes []controlplane.NodeSpec
	for i := range scaleSets {
		pool := controlplane.AKSPool{Name: fmt.Sprintf("spot%d", i), Spot: true}
		s.Azure.EnsureScaleSet(pool.ScaleSetName())
		s.pools = append(s.pools, pool)
		for instance := range machinesEach {
			node := pool.Node(instance)
			if instance < s.noticedMachineCount()/scaleSets {
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

// runWorkload runs the pods on the doomed nodes, and then opens the other nodes for their replacements. Every app has pods on
// many machines. Every other app has a PDB for all of them, so that agents compete for the same PDB.
func (s *stormBench) runWorkload(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	var objects []apiruntime.Object
	for i := range namespaces {
		objects = append(objects, workload.NewNamespace(namespaceName(i)))
	}
	for i := range apps {
		app := workload.App{
			Namespace: namespaceName(i % namespaces), Name: fmt.Sprintf("app-%d", i), MaxUnavailable: "100%",
			Replicas:     int32(s.podCount() / apps),
			NodeSelector: map[string]string{nodeLabel: ""},
		}
		objects = append(objects, app.Deployment())
		if i/namespaces%2 == 0 {
			objects = append(objects, app.PodDisruptionBudget())
		}
	}
	if err := workload.CreateAndAwait(ctx, s.Client(), objects...); err != nil {
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

// checkPodsPerNode checks the number of pods on each node.
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
		return fmt.Errorf("pods by node: %v: want %d on each of the %d doomed nodes", on, podsEach, s.noticedMachineCount())
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

// announceNotices announces the notices, and waits until the machines are deleted.
func (s *stormBench) announceNotices(ctx context.Context) ([]azure.EventRecord, error) {
	var announced []azure.EventRecord
	for _, pool := range s.pools {
		for instance := range s.noticedMachineCount() / scaleSets {
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

// nodeOfEvent returns the node of an event's machine.
func (s *stormBench) nodeOfEvent(r azure.EventRecord) (string, error) {
	name, ok := s.Nodes.NodeOfEventResource(r.Resources[0])
	if !ok {
		return "", fmt.Errorf("event %s: machine %s has no known node", r.EventID, r.Resources[0])
	}
	return name, nil
}

// describeSetup describes the conditions of the measurements.
func (s *stormBench) describeSetup(format string, args ...any) string {
	return fmt.Sprintf("%d Spot notices of %s within a second, %d pods on each node, %d apps in %d namespaces spread over all of them, "+
		"every other with a PDB of maxUnavailable 100%%; %d nodes in %d scale sets, %d %s, Kubernetes %s, %d cores for everything; ",
		s.noticedMachineCount(), azure.MinimumNotice(azure.Preempt), podsEach, apps, namespaces, machines, scaleSets, machines, s.clientKind, s.Version(),
		runtime.NumCPU()) + fmt.Sprintf(format, args...)
}
