package demo

import (
	"context"
	"encoding/json"
	"fmt"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

// The pools of the demo's cluster. Each has four machines.
var (
	spot    = controlplane.AKSPool{Name: "spot", Spot: true}
	general = controlplane.AKSPool{Name: "general"}
)

const machinesPerPool = 4

// machine identifies one machine by its pool and its instance number.
type machine struct {
	pool     controlplane.AKSPool
	instance int
}

func (m machine) node() string     { return m.pool.NodeName(m.instance) }
func (m machine) resource() string { return m.pool.ResourceName(m.instance) }

// The machines, named after what happens to them. Nothing happens to the two machines of refuge, which take the
// evicted pods.
var (
	preempted   = machine{spot, 0}
	redeployed  = [2]machine{{spot, 1}, {spot, 2}}
	rebooted    = machine{general, 0}
	crashed     = machine{general, 1} // it is migrated first
	cancelledOn = machine{general, 2}
	refuge      = [2]machine{{spot, 3}, {general, 3}}
)

// nodeGroupLabel returns the node label that the pods of a machine select. At first only this machine has the label,
// so all its pods start there. Later the machines of refuge get the label too. Each machine has its own label, so
// that the parallel steps do not mix their pods.
func nodeGroupLabel(m machine) string {
	return "demo.slipway.dev/" + m.pool.Name + "-" + fmt.Sprint(m.instance)
}

const shop = "shop"

// The apps that run on the machines of the steps.
var (
	onSpot                                 = workload.NewSpotApps(shop, map[string]string{nodeGroupLabel(preempted): ""})
	web, search, orders, invoices, encoder = onSpot.Web, onSpot.Search, onSpot.Orders, onSpot.Invoices, onSpot.Encoder

	accounts = pinTo(rebooted, workload.App{Name: "accounts", Replicas: 8, StopSeconds: "2"})
	payments = pinTo(crashed, workload.App{Name: "payments", Replicas: 6, MaxUnavailable: "1", StartSeconds: "0.5"})
	reports  = pinTo(cancelledOn, workload.App{Name: "reports", Replicas: 6, MaxUnavailable: "1", StartSeconds: "2"})
	catalog  = pinTo(redeployed[0], workload.App{Name: "catalog", Replicas: 5})
	renderer = pinTo(redeployed[1], workload.App{Name: "renderer", Replicas: 3, StopSeconds: "8"})
)

func pinTo(m machine, a workload.App) workload.App {
	a.Namespace, a.NodeSelector = shop, map[string]string{nodeGroupLabel(m): ""}
	return a
}

func shopObjects() []runtime.Object {
	return append(append([]runtime.Object{workload.NewNamespace(shop)}, onSpot.Objects()...),
		accounts.Deployment(), payments.Deployment(), payments.PodDisruptionBudget(), reports.Deployment(), reports.PodDisruptionBudget(),
		catalog.Deployment(), renderer.Deployment(),
		workload.App{Namespace: shop, Name: "log-collector"}.DaemonSet(),
	)
}

// stage is the testbed with the agents, managers and observers that the steps share.
type stage struct {
	*testbed.Testbed
	cloud  noticeCloud
	agents map[string]*testbed.Agent // by node
	hook   *webhook                  // of the agent on the preempted machine
	// managers are the two managers of the pool of builds.
	managers [2]*manager
	pool     *poolObserver // set once its step has begun
	crowd    crowdCloud
}

// prepareStage adds the machines, and starts the workload and the agents. At the end it labels the machines of
// refuge, so that evicted pods can run there.
func prepareStage(ctx context.Context, t *testbed.Testbed, c noticeCloud) (*stage, error) {
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	s := &stage{Testbed: t, cloud: c, agents: map[string]*testbed.Agent{}}
	var nodes []controlplane.NodeSpec
	groups := map[string]any{}
	for _, m := range allMachines() {
		node := c.newNode(m)
		if m != refuge[0] && m != refuge[1] {
			node.Labels[nodeGroupLabel(m)] = ""
			groups[nodeGroupLabel(m)] = ""
		}
		nodes = append(nodes, node)
	}
	if err := t.AddNodes(ctx, nodes...); err != nil {
		return nil, err
	}
	if err := workload.CreateAndAwait(ctx, t.Client(), shopObjects()...); err != nil {
		return nil, err
	}
	if err := c.prepare(ctx, s); err != nil {
		return nil, err
	}
	groups[nodeGroupLabel(machine{ciPool, interruptedInstance})] = ""
	for _, m := range refuge {
		if err := labelNode(ctx, t, m.node(), groups); err != nil {
			return nil, err
		}
	}
	var err error
	if s.hook, err = startWebhook(ctx, t.Dir()); err != nil {
		return nil, err
	}
	return s, s.startAgents(ctx)
}

func allMachines() []machine {
	var all []machine
	for _, pool := range []controlplane.AKSPool{spot, general} {
		for instance := range machinesPerPool {
			all = append(all, machine{pool, instance})
		}
	}
	return all
}

// labelNode sets labels of a node. The value nil removes a label.
func labelNode(ctx context.Context, t *testbed.Testbed, node string, labels map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err != nil {
		return err
	}
	_, err = t.Client().CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("labelling node %s: %w", node, err)
	}
	return nil
}

func (s *stage) startAgents(ctx context.Context) error {
	all := allMachines()
	started := make([]*testbed.Agent, len(all))
	group, ctx := errgroup.WithContext(ctx)
	for i, m := range all {
		group.Go(func() (err error) {
			flags := s.cloud.agentFlags(m)
			if m == preempted {
				flags = append(flags, "--config="+s.hook.config)
			}
			started[i], err = s.StartAgent(ctx, m.pool, m.instance, flags...)
			return err
		})
	}
	err := group.Wait()
	for _, a := range started {
		if a != nil {
			s.agents[a.Node] = a
		}
	}
	return err
}
