package cloudpool

import (
	"cmp"
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
	"github.com/slipway-dev/slipway/internal/cloudpool/controller"
	"github.com/slipway-dev/slipway/internal/cloudpool/httpserver"
	"github.com/slipway-dev/slipway/internal/observe"
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
	// Ready, if set, is closed when the cluster was read, and all requests are served.
	Ready chan<- struct{}
}

// Run serves until ctx ends. While Kubernetes is away, at the start or later, requests that do not need it are served.
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
	metrics := controller.NewMetrics(registry)
	cluster, err := controller.NewCluster(in.Kube, c.Namespace, log)
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
	server, err := httpserver.Listen(ctx, c.ListenOptions, httpserver.NewServer(serverOptions(&c, cluster, metrics, log), fronts...), log)
	if err != nil {
		return err
	}
	log.Info("serving the cloudpool API", "address", server.Address(), "tls", server.TLS(), "pools", len(fronts))
	group.Go(func() error { return server.Run(ctx) })
	group.Go(func() error { return cluster.Run(ctx) })
	update(ctx, group, cluster, fronts, in.Clouds, func() {
		ready.Store(true)
		log.Info("the Kubernetes cluster was read")
		if in.Ready != nil {
			close(in.Ready)
		}
	})
	return group.Wait()
}

// update has the updaters work until ctx ends. It calls ready once the cluster was read, and all requests can be served.
func update(ctx context.Context, group *errgroup.Group, cluster *controller.Cluster, fronts []*httpserver.Front, clouds map[string]cloud.Provider, ready func()) {
	known := make(chan struct{})
	group.Go(func() error {
		select {
		case <-ctx.Done():
			return nil
		case <-cluster.Read():
		}
		for _, f := range fronts {
			if f.Native == nil {
				continue
			}
			if err := f.Native.ReadGroup(ctx, clouds); err != nil {
				return err
			}
		}
		close(known)
		ready()
		return nil
	})
	for _, f := range fronts {
		group.Go(func() error {
			if f.Native != nil { // its cloud is that of its NodeGroup
				select {
				case <-ctx.Done():
					return nil
				case <-known:
				}
			}
			return f.Updater.Run(ctx)
		})
	}
}

func serverOptions(c *Config, cluster *controller.Cluster, metrics *controller.Metrics, log *slog.Logger) httpserver.ServerOptions {
	o := c.ServerOptions
	o.Metrics, o.Log = metrics, log
	host, _, err := net.SplitHostPort(c.Address)
	o.Local = err == nil && httpserver.IsLoopback(host) && c.TLSCertFile == "" && !c.Authorize
	if c.Authorize {
		o.Identify = httpserver.NewAuthorizer(cluster.Client, c.TokenAudiences, log).Authorize
	}
	return o
}

func makeFronts(ctx context.Context, c *Config, in *Inputs, cluster *controller.Cluster, metrics *controller.Metrics, log *slog.Logger) ([]*httpserver.Front, error) {
	var fronts []*httpserver.Front
	add := func(f *httpserver.Front, b controller.Backend) (err error) {
		o := c.UpdaterOptions
		o.Pool, o.Backend, o.Cluster, o.Slots, o.Metrics, o.Log = f.Name, b, cluster, in.Slots, metrics, log
		f.Updater, err = controller.NewUpdater(o)
		fronts = append(fronts, f)
		return err
	}
	if len(c.NodeGroups) == 0 || len(c.Pools) > 0 {
		pools, _ := in.Clouds[provider.Name].(*provider.Provider)
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
			u, err := pools.URL(ctx, name)
			computerName, err2 := pools.ComputerName(ctx, name)
			if err := cmp.Or(err, err2); err != nil {
				return nil, fmt.Errorf("--pool: %s: %w", name, err)
			}
			if err := add(&httpserver.Front{Name: name, URL: u, Transport: pools.Transport()}, controller.NewProxied(pools, name, computerName)); err != nil {
				return nil, err
			}
		}
	}
	for _, name := range c.NodeGroups {
		n := controller.NewNative(cluster, name, c.Namespace, c.NativeRefresh)
		if err := add(&httpserver.Front{Name: name, Native: n}, n); err != nil {
			return nil, err
		}
	}
	if len(fronts) == 0 {
		return nil, errors.New("there is no pool to serve")
	}
	return fronts, distinct(fronts)
}

// maxPoolName is the longest name of a pool, in bytes: it is part of the value of a label of the pool's Lease, of 63 at most.
const maxPoolName = 63 - len("cloudpool-")

// distinct wants names that paths, Leases and records can have, and tell apart.
func distinct(fronts []*httpserver.Front) error {
	seen := map[string]string{}
	for _, f := range fronts {
		if len(f.Name) > maxPoolName {
			return fmt.Errorf("the pool %s has a name of %d characters: want at most %d, or with --pool and --native others alone", f.Name, len(f.Name), maxPoolName)
		}
		key := controller.RecordName(f.Name)
		if other, twice := seen[key]; twice {
			return fmt.Errorf("the pools %s and %s cannot be told apart: want names that differ in more than letter case and marks", other, f.Name)
		}
		seen[key] = f.Name
	}
	return nil
}
