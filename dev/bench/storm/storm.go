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
	// Doomed is the number of machines with a notice, a multiple of 10 up to 200. 0 means 100.
	Doomed int
	// Only selects one part, "agents" or "floor". Empty selects both.
	Only string
}

// A scale set is one placement group of at most a hundred machines. All of them get the same document.
const (
	scaleSets       = 2
	machinesEach    = 100
	doomed          = 100
	machines        = scaleSets * machinesEach
	podsEach        = 20
	apps            = 100
	namespaces      = 25
	startedAtOnce   = 8
	startTimeout    = 5 * time.Minute
	settleTimeout   = 5 * time.Minute
	calmBeforeStorm = 5 * time.Second
)

// place is the label of the nodes that may run the pods.
const place = "bench.slipway.dev/storm"

func namespace(i int) string { return fmt.Sprintf("team-%d", i) }

// scene is the cluster of the measurement.
type scene struct {
	*testbed.Testbed
	o     Options
	who   string // the kind of the processes that send requests
	pools []controlplane.AKSPool
	// doomed are the nodes of machines with a notice, spared the others.
	doomed, spared []string
}

func (s *scene) machinesThatGo() int { return cmp.Or(s.o.Doomed, doomed) }

func (s *scene) allPods() int { return s.machinesThatGo() * podsEach }

// nodes returns all nodes.
func (s *scene) nodes() []string { return slices.Concat(s.doomed, s.spared) }

// Run runs the measurements. It takes about five minutes.
func Run(ctx context.Context, o Options) ([]result.Result, error) {
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if o.Doomed < 0 || o.Doomed > machines || o.Doomed%10 != 0 {
		return nil, fmt.Errorf("doomed is %d: must be a multiple of 10 up to %d", o.Doomed, machines)
	}
	var all []result.Result
	for _, part := range []struct {
		name    string
		measure func(*scene, context.Context) ([]result.Result, error)
	}{{"agents", (*scene).agents}, {"floor", (*scene).floor}} {
		if o.Only != "" && o.Only != part.name {
			continue
		}
		results, err := on(ctx, o, part.measure)
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

// on runs a measurement on a new cluster.
func on(ctx context.Context, o Options, measure func(*scene, context.Context) ([]result.Result, error),
) (_ []result.Result, err error) {
	s := &scene{o: o}
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
	err = s.do(ctx,
		step{fmt.Sprintf("adding %d nodes", machines), s.addMachines},
		step{fmt.Sprintf("running %d pods on %d of them", s.allPods(), s.machinesThatGo()), s.settle},
	)
	if err != nil {
		return nil, err
	}
	return measure(s, ctx)
}

// step is a step of the preparation or measurement.
type step struct {
	what string
	do   func(context.Context) error
}

func (s *scene) do(ctx context.Context, steps ...step) error {
	for _, step := range steps {
		fmt.Fprintf(s.o.Progress, "agent-storm: %s\n", step.what)
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return nil
}

var calm = step{"waiting for calm", func(ctx context.Context) error { return testbed.Pause(ctx, calmBeforeStorm) }}

// agents measures the agents.
func (s *scene) agents(ctx context.Context) ([]result.Result, error) {
	s.who = "agent processes"
	if err := s.do(ctx, step{fmt.Sprintf("starting %d agents", machines), s.startAgents}, calm); err != nil {
		return nil, err
	}
	var records []azure.Record
	load, profile := s.watchLoad(ctx), s.profile(ctx, "agents")
	err := s.do(ctx, step{fmt.Sprintf("%d Spot notices at once", s.machinesThatGo()), func(ctx context.Context) (err error) {
		records, err = s.strike(ctx)
		return err
	}})
	taken := load.end()
	if err := errors.Join(err, profile(), s.keepAudit("agents")); err != nil {
		return nil, err
	}
	results, err := s.results(records)
	if err != nil {
		return nil, err
	}
	return append(results, loadResult("processor time of the API server, from the first notice to the machines' end",
		s.setup(""), taken)), nil
}

// addMachines adds the nodes. The doomed nodes are limited to podsEach pods, so that each gets the same number.
func (s *scene) addMachines(ctx context.Context) error {
	var nodes []controlplane.NodeSpec
	for i := range scaleSets {
		pool := controlplane.AKSPool{Name: fmt.Sprintf("spot%d", i), Spot: true}
		s.Azure.ScaleSet(pool.ScaleSet())
		s.pools = append(s.pools, pool)
		for instance := range machinesEach {
			node := pool.Node(instance)
			if instance < s.machinesThatGo()/scaleSets {
				node.Pods = podsEach
				node.Labels[place] = ""
				s.doomed = append(s.doomed, node.Name)
			} else {
				s.spared = append(s.spared, node.Name)
			}
			nodes = append(nodes, node)
		}
	}
	return s.AddNodes(ctx, nodes...)
}

// settle runs the pods on the doomed nodes, and then opens the other nodes for their replacements. Every app has pods on
// many machines. Every other app has a PDB for all of them, so that agents compete for the same PDB.
func (s *scene) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	var objects []apiruntime.Object
	for i := range namespaces {
		objects = append(objects, workload.Namespace(namespace(i)))
	}
	for i := range apps {
		app := workload.App{
			Namespace: namespace(i % namespaces), Name: fmt.Sprintf("app-%d", i), MaxUnavailable: "100%",
			Replicas:     int32(s.allPods() / apps),
			NodeSelector: map[string]string{place: ""},
		}
		objects = append(objects, app.Deployment())
		if i/namespaces%2 == 0 {
			objects = append(objects, app.Budget())
		}
	}
	if err := workload.CreateSettled(ctx, s.Client(), objects...); err != nil {
		return err
	}
	if err := s.checkPods(ctx); err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:""}}}`, place)
	for _, node := range s.spared {
		if _, err := s.Client().CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("labelling node %s: %w", node, err)
		}
	}
	return nil
}

// checkPods checks the number of pods on each node.
func (s *scene) checkPods(ctx context.Context) error {
	all, err := s.Client().CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	on := map[string]int{}
	for _, p := range all.Items {
		on[p.Spec.NodeName]++
	}
	want := map[string]int{}
	for _, node := range s.doomed {
		want[node] = podsEach
	}
	if !maps.Equal(on, want) {
		return fmt.Errorf("pods by node: %v: want %d on each of the %d doomed nodes", on, podsEach, s.machinesThatGo())
	}
	return nil
}

func (s *scene) startAgents(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(startedAtOnce)
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

// strike announces the notices, and waits until the machines are deleted.
func (s *scene) strike(ctx context.Context) ([]azure.Record, error) {
	var announced []azure.Record
	for _, pool := range s.pools {
		for instance := range s.machinesThatGo() / scaleSets {
			r, err := s.Azure.Announce(azure.Announcement{ //nolint:contextcheck // an event outlives its announcer
				Type: azure.Preempt, ScaleSet: pool.ScaleSet(), Resources: []string{pool.Resource(instance)},
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
	state, err := s.Azure.Wait(ctx, func(state azure.State) bool {
		for _, r := range state.Events {
			if r.Listed() {
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

// node returns the node of an event's machine.
func (s *scene) node(r azure.Record) (string, error) {
	name, ok := s.Nodes.Node(r.Resources[0])
	if !ok {
		return "", fmt.Errorf("event %s: machine %s has no known node", r.EventID, r.Resources[0])
	}
	return name, nil
}

// setup describes the conditions of the measurements.
func (s *scene) setup(format string, args ...any) string {
	return fmt.Sprintf("%d Spot notices of %s within a second, %d pods on each node, %d apps in %d namespaces spread over all of them, "+
		"every other with a PDB of maxUnavailable 100%%; %d nodes in %d scale sets, %d %s, Kubernetes %s, %d cores for everything; ",
		s.machinesThatGo(), azure.MinimumNotice(azure.Preempt), podsEach, apps, namespaces, machines, scaleSets, machines, s.who, s.Version(),
		runtime.NumCPU()) + fmt.Sprintf(format, args...)
}
