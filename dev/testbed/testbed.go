// Package testbed puts together what Slipway is shown, tested and measured on: a real control plane, the Azure
// emulator that owns the machines behind its nodes, and the real agent binaries, each with the credentials that the
// shipped manifests give it.
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

// Options configure a testbed.
type Options struct {
	Cluster controlplane.Options
	// Azure configures the emulator; Machines and Bookkeeper are set by Start.
	Azure azure.Options
	// ARM configures Azure Resource Manager; what it is called and its Joiner are set by Start.
	ARM azure.ARMOptions
	// Listen is the loopback address that the emulator is served at; empty is any free port.
	Listen string
}

// Testbed is a control plane with an emulated cloud under it.
type Testbed struct {
	*controlplane.Cluster

	Azure *azure.Emulator
	ARM   *azure.ARM
	Nodes *azure.Nodes
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

	mu         sync.Mutex
	agents     map[string]powered              // by node, the one that runs there now
	starts     map[string]int                  // how many were started on each node
	pools      map[string]controlplane.AKSPool // by scale set in lower case
	agentPools []string
}

// Start starts everything but agents.
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
	o.Azure.Machines = t.Nodes.Machines(power{t})
	o.Azure.Bookkeeper = t.Pods
	t.Azure = azure.New(o.Azure)
	if err := t.startARM(o.ARM); err != nil { //nolint:contextcheck // it serves until Stop
		return nil, err
	}
	if err := t.serve(o.Listen); err != nil {
		return nil, err
	}
	return t, t.install(ctx)
}

func (t *Testbed) serve(address string) error {
	if address == "" {
		address = anyPort
	}
	listener, err := net.Listen("tcp", address) //nolint:noctx // it is done in a moment
	if err != nil {
		return fmt.Errorf("azure emulator: %w", err)
	}
	t.base = &url.URL{Scheme: "http", Host: listener.Addr().String()}
	t.server = &http.Server{Handler: t.Azure.Handler(), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = t.server.Serve(listener) }()
	return nil
}

func newTestbed(cluster *controlplane.Cluster, o Options) *Testbed {
	return &Testbed{
		Cluster: cluster, agents: map[string]powered{}, starts: map[string]int{}, azure: o.Azure,
		pools: map[string]controlplane.AKSPool{},
	}
}

// Stop ends everything. A testbed that was started in part can be stopped too.
func (t *Testbed) Stop() error { return errors.Join(t.closeAzure(), t.Cluster.Stop()) }

// closeAzure ends the emulator and its watches.
func (t *Testbed) closeAzure() error {
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

// AddPool adds n machines of an AKS pool: their nodes, and the scale set in the emulator.
func (t *Testbed) AddPool(ctx context.Context, pool controlplane.AKSPool, n int) error {
	t.addScaleSet(pool, n)
	return t.AddNodes(ctx, pool.Nodes(n)...)
}

// Endpoint is the Scheduled Events URL of one machine of a pool.
func (t *Testbed) Endpoint(pool controlplane.AKSPool, instance int) string {
	u := t.base.JoinPath("scalesets", pool.ScaleSet(), "virtualMachines", pool.Resource(instance), "metadata/scheduledevents")
	u.RawQuery = "api-version=2020-07-01"
	return u.String()
}

// ARMURL is where the emulator stands in for Azure Resource Manager.
func (t *Testbed) ARMURL() string { return t.base.String() }

// ControlURL is where the emulator's control API is served, for people.
func (t *Testbed) ControlURL() string { return t.base.JoinPath("emulator").String() }

// Report writes the emulator's ledger, for a test that failed.
func (t *Testbed) Report(w io.Writer) {
	fmt.Fprint(w, t.Azure.Ledger().Summary(CutTolerance))
}

// CutTolerance is how close to the end of its machine a pod may be cut short without having been robbed of time: the
// agent's margin, and a second each for the API's whole seconds and for the way.
const CutTolerance = 4 * time.Second

// power switches a machine off with all that runs on it, its agent included, and on again. A machine whose node was
// deleted before it can be switched off too.
type power struct{ t *Testbed }

func (p power) PowerOff(ctx context.Context, node string) error {
	if a := p.t.agentOn(node); a != nil {
		a.setPower(false)
		if err := a.Crash(); err != nil {
			return err
		}
	}
	return unlessGone(p.t.PowerOff(ctx, node))
}

// PowerOn brings the node back, and its agent as the kubelet would: the same command again.
func (p power) PowerOn(ctx context.Context, node string) error {
	if err := p.t.PowerOn(ctx, node); err != nil {
		return err
	}
	if a := p.t.agentOn(node); a != nil {
		a.setPower(true)
		return a.Revive(ctx)
	}
	return nil
}

// powered is an agent that ends and begins with its machine.
type powered interface {
	setPower(on bool)
	Crash() error
	Revive(ctx context.Context) error
}

// supply says whether the machine of an agent has power. Its mutex is also held while the agent is ended or started.
type supply struct {
	mu  sync.Mutex
	off bool
}

func (s *supply) setPower(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.off = !on
}

func (t *Testbed) agentOn(node string) powered {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.agents[node]
}
