package cloudpool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync/atomic"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/slipway-dev/slipway/internal/cloud"
	provider "github.com/slipway-dev/slipway/internal/cloud/cloudpool"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/slots"
)

// Inputs are what Run is given beside its configuration.
type Inputs struct {
	// Kube is how to reach the API server, and Slots keeps Leases there.
	Kube  *rest.Config
	Slots slots.API
	// Clouds are the providers by name.
	Clouds map[string]cloud.Provider
	Build  observe.Build
	Stderr io.Writer
	// Ready, if set, is closed when requests are served.
	Ready chan<- struct{}
}

// Run serves until ctx ends.
func Run(ctx context.Context, c Config, in Inputs) error {
	if err := c.Validate(); err != nil {
		return err
	}
	log, err := observe.Logger(in.Stderr, c.LogFormat, c.LogLevel)
	if err != nil {
		return err
	}
	bridged := logr.FromSlogHandler(log.Handler())
	ctrllog.SetLogger(bridged)
	klog.SetLogger(bridged)
	registry := observe.NewRegistry()
	registry.Standard(in.Build)
	metrics := NewMetrics(registry)
	cluster, err := NewCluster(ctx, in.Kube, log)
	if err != nil {
		return err
	}
	fronts, err := makeFronts(ctx, &c, &in, cluster, metrics, log)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	ready := &atomic.Bool{}
	if c.MetricsListen != "" {
		server, err := observe.Listen(ctx, observe.ServerOptions{
			Address: c.MetricsListen, Metrics: registry, Pprof: c.Profiling, Log: log,
			Ready: []observe.Check{func() error {
				if !ready.Load() {
					return errors.New("the cluster has not been read yet")
				}
				return nil
			}},
		})
		if err != nil {
			return err
		}
		group.Go(func() error { return server.Run(ctx) })
	}
	server, err := listen(ctx, &c, NewServer(serverOptions(&c, cluster, metrics, log), fronts...), log)
	if err != nil {
		return err
	}
	group.Go(func() error { return serveAPI(ctx, cluster, fronts, server, ready, in.Ready, log) })
	return group.Wait()
}

// serveAPI serves once the cluster is known.
func serveAPI(ctx context.Context, cluster *Cluster, fronts []*Front, server *listener, ready *atomic.Bool, told chan<- struct{}, log *slog.Logger) error {
	group, ctx := errgroup.WithContext(ctx)
	if err := cluster.Start(ctx); err != nil {
		_ = server.net.Close()
		return err
	}
	for _, f := range fronts {
		group.Go(func() error { f.Updater.Run(ctx); return nil })
	}
	group.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-cluster.changed:
				for _, f := range fronts {
					f.Updater.Nudge()
				}
			}
		}
	})
	group.Go(func() error { return server.run(ctx) })
	ready.Store(true)
	if told != nil {
		close(told)
	}
	log.Info("serving the cloudpool API", "address", server.net.Addr().String(), "tls", server.tls, "pools", len(fronts))
	return group.Wait()
}

func serverOptions(c *Config, cluster *Cluster, metrics *Metrics, log *slog.Logger) ServerOptions {
	o := ServerOptions{
		StrictCompat: c.StrictCompat, Refuse: c.Refuse, MaxBody: c.MaxBody, BackendTimeout: c.BackendTimeout,
		KeepCredentials: c.KeepCredentials, Metrics: metrics, Log: log,
	}
	host, _, err := net.SplitHostPort(c.Listen)
	o.Local = err == nil && loopback(host) && c.TLSCertFile == "" && !c.Authorize
	if c.Authorize {
		o.Authorize = newAuthorizer(cluster.Client, log).Authorize
	}
	return o
}

// makeFronts makes what is served.
func makeFronts(ctx context.Context, c *Config, in *Inputs, cluster *Cluster, metrics *Metrics, log *slog.Logger) ([]*Front, error) {
	var fronts []*Front
	pools, _ := in.Clouds[provider.Name].(*provider.Provider)
	if len(c.NodeGroups) == 0 || len(c.Pools) > 0 {
		if pools == nil {
			return nil, errors.New("--cloud-config: names no cloudpool to stand in front of: want cloudpool.pools, or --native and NodeGroups")
		}
		names := c.Pools
		if len(names) == 0 {
			var err error
			if names, err = pools.Groups(ctx); err != nil {
				return nil, err
			}
		}
		for _, name := range names {
			f, err := proxiedFront(ctx, pools, name)
			if err != nil {
				return nil, err
			}
			fronts = append(fronts, f)
		}
	}
	for _, name := range c.NodeGroups {
		n, err := newNative(ctx, cluster, name, c.Namespace, c.NativeRefresh, in.Clouds)
		if err != nil {
			return nil, err
		}
		fronts = append(fronts, &Front{Name: name, Backend: n, Native: n})
	}
	if len(fronts) == 0 {
		return nil, errors.New("there is no pool to serve")
	}
	for _, f := range fronts {
		updater, err := NewUpdater(UpdaterOptions{
			Pool: f.Name, Backend: f.Backend, Cluster: cluster, Slots: in.Slots, Namespace: c.Namespace, Holder: c.Holder,
			Policy: placement.Policy(c.Policy), AtOnce: c.AtOnce, Labels: c.RetirementLabels, Metrics: metrics, Log: log,
			Pace: Pace{Poll: c.PollEvery, Registration: c.RegistrationGrace, Trouble: c.TroublePatience, Admission: c.AdmissionWait, Settle: c.SettleTime},
		})
		if err != nil {
			return nil, err
		}
		f.Updater = updater
	}
	return fronts, distinct(fronts)
}

func proxiedFront(ctx context.Context, pools *provider.Provider, name string) (*Front, error) {
	u, err := pools.URL(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("--pool: %s: %w", name, err)
	}
	computerName, err := pools.ComputerName(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("--pool: %s: %w", name, err)
	}
	return &Front{Name: name, Backend: proxied{pools, name, computerName}, URL: u, Transport: pools.Transport()}, nil
}

// maxPoolName is the longest name of a pool, in bytes: it is part of the value of a label of the pool's Lease, of 63 at most.
const maxPoolName = 63 - len("cloudpool-")

// distinct wants names that paths, Leases and records can have, and tell apart.
func distinct(fronts []*Front) error {
	seen := map[string]string{}
	for _, f := range fronts {
		if len(f.Name) > maxPoolName {
			return fmt.Errorf("the pool %s has a name of %d characters: want at most %d, or with --pool and --native others alone", f.Name, len(f.Name), maxPoolName)
		}
		key := recordName(f.Name)
		if other, twice := seen[key]; twice {
			return fmt.Errorf("the pools %s and %s cannot be told apart: want names that differ in more than letter case and marks", other, f.Name)
		}
		seen[key] = f.Name
	}
	return nil
}
