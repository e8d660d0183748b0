// Package storm measures what happens when much of a pool is taken away in one second: two hundred agents as they are
// shipped, one process each, on one real control plane, a hundred of which are told at once that their machine goes.
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

// Options configure a run.
type Options struct {
	// Kubernetes is the minor version; empty is the control plane's default.
	Kubernetes string
	// Progress is told what is being done; nil is nobody.
	Progress io.Writer
	// Profile is a directory for processor profiles of the API server and its audit logs; empty keeps none.
	Profile string
	// Doomed is how many machines go, a multiple of 10 up to 200; 0 is 100.
	Doomed int
	// Only measures one part of the two, "agents" or "floor"; empty is both.
	Only string
}

// A scale set is one placement group, which has a hundred machines at most, and all of them are given one document.
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

// place is the label of the nodes that the pods may be on.
const place = "bench.slipway.dev/storm"

func namespace(i int) string { return fmt.Sprintf("team-%d", i) }

// scene is the cluster that the storm comes over.
type scene struct {
	*testbed.Testbed
	o     Options
	who   string // the processes that ask
	pools []controlplane.AKSPool
	// doomed are the nodes of the machines that go, spared those of the others.
	doomed, spared []string
}

func (s *scene) machinesThatGo() int { return cmp.Or(s.o.Doomed, doomed) }

func (s *scene) allPods() int { return s.machinesThatGo() * podsEach }

// nodes are all of them.
func (s *scene) nodes() []string { return slices.Concat(s.doomed, s.spared) }

// Run measures. It takes some five minutes.
func Run(ctx context.Context, o Options) ([]result.Result, error) {
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if o.Doomed < 0 || o.Doomed > machines || o.Doomed%10 != 0 {
		return nil, fmt.Errorf("machines that go: %d: want a multiple of 10 up to %d", o.Doomed, machines)
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
		return nil, fmt.Errorf("only: %q: want agents or floor", o.Only)
	}
	return all, nil
}

// on measures something on a cluster of its own.
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

// step is a part of what takes long.
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

var calm = step{"the calm before", func(ctx context.Context) error { return testbed.Pause(ctx, calmBeforeStorm) }}

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

// addMachines adds the nodes. Those that will go take no more pods than they are to have, so that each has as many.
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

// settle runs the pods on the machines that will go, and then lets the others take those that replace them. Every app
// has pods on many machines, and every other one a budget over all of them: each eviction is counted there, in
// competition with those that other agents ask for.
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

// checkPods checks that the pods are where they are to be.
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
		return fmt.Errorf("pods by node: %v: want %d on each of the %d nodes that go", on, podsEach, s.machinesThatGo())
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

// strike announces that the machines go, and waits until they have gone.
func (s *scene) strike(ctx context.Context) ([]azure.Record, error) {
	var announced []azure.Record
	for _, pool := range s.pools {
		for instance := range s.machinesThatGo() / scaleSets {
			r, err := s.Azure.Announce(azure.Announcement{ //nolint:contextcheck // an event outlives who announces it
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
		return nil, fmt.Errorf("the notices appeared within %s: want one second", last.Sub(first))
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

// node is the node of the machine that an event is for.
func (s *scene) node(r azure.Record) (string, error) {
	name, ok := s.Nodes.Node(r.Resources[0])
	if !ok {
		return "", fmt.Errorf("event %s: no node is known to be machine %s", r.EventID, r.Resources[0])
	}
	return name, nil
}

// setup is what the measures were taken on.
func (s *scene) setup(format string, args ...any) string {
	return fmt.Sprintf("%d Spot notices of %s within a second, %d pods on each node, %d apps in %d namespaces spread over all of them, "+
		"every other behind a budget of maxUnavailable 100%%; %d nodes in %d scale sets, %d %s, Kubernetes %s, %d cores for everything; ",
		s.machinesThatGo(), azure.MinimumNotice(azure.Preempt), podsEach, apps, namespaces, machines, scaleSets, machines, s.who, s.Version(),
		runtime.NumCPU()) + fmt.Sprintf(format, args...)
}
