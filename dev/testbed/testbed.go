// Package testbed runs what demos, tests and benchmarks need. It starts a real control plane, and an Azure emulator
// that has the machines of the nodes. It runs the real agent binaries with the credentials of the shipped manifests.
package testbed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
)

// Options configures Start, StartForTest and NewVirtual.
type Options struct {
	Cluster controlplane.Options
	// Azure configures the emulator. Start sets Machines and Bookkeeper.
	Azure azure.Options
	// ARM configures Azure Resource Manager. Start sets its names and its Joiner.
	ARM azure.ARMOptions
	// Listen is the loopback address of the emulator. Empty means any free port.
	Listen string
}

// Testbed is a control plane with an emulated Azure that has the machines of its nodes.
type Testbed struct {
	*controlplane.Cluster

	Azure *azure.Emulator
	ARM   *azure.ARM
	Nodes *azure.NodeMap
	Pods  *azure.PodWatch

	server *http.Server
	base   *url.URL
	stop   context.CancelFunc
	azure  azure.Options // as given

	armServer *azure.ARMServer

	manager struct {
		sync.Mutex
		installed bool
	}

	mu          sync.Mutex
	agents      map[string]poweredAgent         // the current agent of each node
	agentStarts map[string]int                  // number of agents started on each node
	pools       map[string]controlplane.AKSPool // by scale set in lower case
	agentPools  []string
}

// Start starts a control plane, the emulated Azure and the shipped permissions. It starts no agents.
func Start(ctx context.Context, o Options) (_ *Testbed, err error) {
	cluster, err := controlplane.Start(ctx, o.Cluster)
	if err != nil {
		return nil, err
	}
	t := newTestbed(cluster, o)
	defer func() {
		if err != nil {
			err = errors.Join(err, t.Stop())
		}
	}()
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	t.stop = stop
	if t.Nodes, err = azure.WatchNodes(work, cluster.Client(), slog.New(slog.DiscardHandler)); err != nil {
		return nil, err
	}
	if t.Pods, err = azure.WatchPods(work, cluster.Client(), t.Nodes); err != nil {
		return nil, err
	}
	o.Azure.Machines = t.Nodes.NewMachines(nodePower{t})
	o.Azure.LedgerBuilder = t.Pods
	t.Azure = azure.New(o.Azure)
	if err := t.startARM(o.ARM); err != nil { //nolint:contextcheck // it serves until Stop
		return nil, err
	}
	if err := t.serveAzure(o.Listen); err != nil {
		return nil, err
	}
	return t, t.installAgentManifests(ctx)
}

func (t *Testbed) serveAzure(address string) error {
	if address == "" {
		address = anyFreePort
	}
	listener, err := net.Listen("tcp", address) //nolint:noctx // returns at once
	if err != nil {
		return fmt.Errorf("start the Azure emulator: %w", err)
	}
	t.base = &url.URL{Scheme: "http", Host: listener.Addr().String()}
	t.server = &http.Server{Handler: t.Azure.Handler(), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = t.server.Serve(listener) }()
	return nil
}

func newTestbed(cluster *controlplane.Cluster, o Options) *Testbed {
	return &Testbed{
		Cluster: cluster, agents: map[string]poweredAgent{}, agentStarts: map[string]int{}, azure: o.Azure,
		pools: map[string]controlplane.AKSPool{},
	}
}

// Stop stops everything that Start has started. It may be called after a failed Start.
func (t *Testbed) Stop() error { return errors.Join(t.stopAzure(), t.Cluster.Stop()) }

// stopAzure stops the emulated Azure and its watches of the cluster.
func (t *Testbed) stopAzure() error {
	if t.stop != nil {
		t.stop()
	}
	if t.Azure != nil {
		t.Azure.Close()
	}
	var errs []error
	if t.armServer != nil {
		errs = append(errs, t.armServer.Close())
	}
	if t.server != nil {
		errs = append(errs, t.server.Close())
	}
	return errors.Join(errs...)
}

// AddPool adds an AKS pool with n machines. It adds their nodes to the cluster, and their scale set to the emulated
// Azure.
func (t *Testbed) AddPool(ctx context.Context, pool controlplane.AKSPool, n int) error {
	t.addScaleSet(pool, n)
	return t.AddNodes(ctx, pool.Nodes(n)...)
}

// ScheduledEventsURL returns the URL where the agent of one machine reads Scheduled Events.
func (t *Testbed) ScheduledEventsURL(pool controlplane.AKSPool, instance int) string {
	u := t.base.JoinPath("scalesets", pool.ScaleSetName(), "virtualMachines", pool.ResourceName(instance), "metadata/scheduledevents")
	u.RawQuery = "api-version=2020-07-01"
	return u.String()
}

// ARMURL returns the emulator's plain HTTP address. It serves the ARM requests that need neither TLS nor a token.
func (t *Testbed) ARMURL() string { return t.base.String() }

// ControlURL returns the address of the emulator's control API, for manual use.
func (t *Testbed) ControlURL() string { return t.base.JoinPath("emulator").String() }

// WriteLedger writes the emulator's ledger to w. Use it to explain a failed test.
func (t *Testbed) WriteLedger(w io.Writer) {
	fmt.Fprint(w, t.Azure.Ledger().Summary(CutTolerance))
}

// CutTolerance is how long before the end of its machine a pod may be cut short without counting as a failure. It is
// the sum of the agent's deadline margin, 1 s for rounding in the API, and 1 s for the requests.
const CutTolerance = 4 * time.Second

// nodePower switches a machine with its pods and its agent off and on. It also works for a machine that has no Node.
type nodePower struct{ t *Testbed }

// NodePower returns the switch of the machines of the testbed's nodes. It stops and starts a machine with its agent.
func (t *Testbed) NodePower() azure.NodePower { return nodePower{t} }

func (p nodePower) PowerOff(ctx context.Context, node string) error {
	if a := p.t.agentOn(node); a != nil {
		a.setPower(false)
		if err := a.KillIfAlive(); err != nil {
			return err
		}
	}
	return ignoreNotFound(p.t.PowerOff(ctx, node))
}

// PowerOn switches on the machine of a node, and restarts its agent with the same command, as the kubelet does.
func (p nodePower) PowerOn(ctx context.Context, node string) error {
	if err := p.t.PowerOn(ctx, node); err != nil {
		return err
	}
	if a := p.t.agentOn(node); a != nil {
		a.setPower(true)
		return a.RestartIfDead(ctx)
	}
	return nil
}

// poweredAgent is an agent that nodePower stops and starts with its machine.
type poweredAgent interface {
	setPower(on bool)
	KillIfAlive() error
	RestartIfDead(ctx context.Context) error
}

// powerSupply records whether the machine of an agent has power. An agent holds the mutex while it starts or stops,
// so that both match the recorded state.
type powerSupply struct {
	mu  sync.Mutex
	off bool
}

func (s *powerSupply) setPower(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.off = !on
}

func (t *Testbed) agentOn(node string) poweredAgent {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.agents[node]
}
