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
	"github.com/slipway-dev/slipway/internal/semaphore"
)

// Dependencies are the inputs of Run that do not come from the configuration.
type Dependencies struct {
	// Kube is the connection to the API server. Slots stores the Leases there.
	Kube   *rest.Config
	Leases semaphore.API
	// Clouds are the providers by name.
	Clouds map[string]cloud.Provider
	Build  observe.Build
	Stderr io.Writer
	// Ready, if set, is closed once the caches have synced and all requests are served.
	Ready chan<- struct{}
}

// Run serves the API until ctx ends. While the API server is unavailable, it still answers requests that do not need
// Kubernetes.
func Run(ctx context.Context, c Config, in Dependencies) error {
	if err := c.Validate(); err != nil {
		return err
	}
	log, err := observe.NewLogger(in.Stderr, c.LogFormat, c.LogLevel)
	if err != nil {
		return err
	}
	bridged := logr.FromSlogHandler(log.Handler())
	ctrllog.SetLogger(bridged)
	klog.SetLogger(bridged)
	registry := observe.NewRegistry()
	registry.AddStandardMetrics(in.Build)
	metrics := controller.NewMetrics(registry)
	cluster, err := controller.NewCluster(in.Kube, c.Namespace, log)
	if err != nil {
		return err
	}
	fronts, err := newServedPools(ctx, &c, &in, cluster, metrics, log)
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
					return errors.New("the cluster caches have not synced yet")
				}
				return nil
			}},
		})
		if err != nil {
			return err
		}
		group.Go(func() error { return server.Run(ctx) })
	}
	server, err := httpserver.Listen(ctx, c.ListenOptions, httpserver.NewServer(newServerOptions(&c, cluster, metrics, log), fronts...), log)
	if err != nil {
		return err
	}
	log.Info("serving the cloudpool API", "address", server.Address(), "tls", server.TLS(), "pools", len(fronts))
	group.Go(func() error { return server.Run(ctx) })
	group.Go(func() error { return cluster.Run(ctx) })
	startUpdaters(ctx, group, cluster, fronts, in.Clouds, func() {
		ready.Store(true)
		log.Info("the cluster caches have synced")
		if in.Ready != nil {
			close(in.Ready)
		}
	})
	return group.Wait()
}

// startUpdaters starts one updater for each pool; they run until ctx ends. It calls ready once the caches have synced
// and all NodeGroups were read.
func startUpdaters(ctx context.Context, group *errgroup.Group, cluster *controller.Cluster, fronts []*httpserver.ServedPool, clouds map[string]cloud.Provider, ready func()) {
	known := make(chan struct{})
	group.Go(func() error {
		select {
		case <-ctx.Done():
			return nil
		case <-cluster.Synced():
		}
		for _, f := range fronts {
			if f.Native == nil {
				continue
			}
			if err := f.Native.ReadNodeGroup(ctx, clouds); err != nil {
				return err
			}
		}
		close(known)
		ready()
		return nil
	})
	for _, f := range fronts {
		group.Go(func() error {
			if f.Native != nil { // its cloud is known only after its NodeGroup was read
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

func newServerOptions(c *Config, cluster *controller.Cluster, metrics *controller.Metrics, log *slog.Logger) httpserver.ServerOptions {
	o := c.ServerOptions
	o.Metrics, o.Log = metrics, log
	host, _, err := net.SplitHostPort(c.Address)
	o.LoopbackOnly = err == nil && httpserver.IsLoopback(host) && c.TLSCertFile == "" && !c.Authorize
	if c.Authorize {
		o.AuthorizeRequest = httpserver.NewAuthorizer(cluster.Client, c.TokenAudiences, log).Authorize
	}
	return o
}

func newServedPools(ctx context.Context, c *Config, in *Dependencies, cluster *controller.Cluster, metrics *controller.Metrics, log *slog.Logger) ([]*httpserver.ServedPool, error) {
	var fronts []*httpserver.ServedPool
	add := func(f *httpserver.ServedPool, b controller.Backend) (err error) {
		o := c.UpdaterOptions
		o.Pool, o.Backend, o.Cluster, o.Leases, o.Metrics, o.Log = f.Name, b, cluster, in.Leases, metrics, log
		f.Updater, err = controller.NewUpdater(o)
		fronts = append(fronts, f)
		return err
	}
	if len(c.NodeGroups) == 0 || len(c.Pools) > 0 {
		pools, _ := in.Clouds[provider.Name].(*provider.Provider)
		if pools == nil {
			return nil, errors.New("--cloud-config: contains no cloudpool: want cloudpool.pools, or --native with NodeGroups")
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
			computerName, err2 := pools.ComputerNamePath(ctx, name)
			if err := cmp.Or(err, err2); err != nil {
				return nil, fmt.Errorf("--pool: %s: %w", name, err)
			}
			if err := add(&httpserver.ServedPool{Name: name, URL: u, Transport: pools.Transport()}, controller.NewProxiedPool(pools, name, computerName)); err != nil {
				return nil, err
			}
		}
	}
	for _, name := range c.NodeGroups {
		n := controller.NewNativePool(cluster, name, c.Namespace, c.NativeRefresh)
		if err := add(&httpserver.ServedPool{Name: name, Native: n}, n); err != nil {
			return nil, err
		}
	}
	if len(fronts) == 0 {
		return nil, errors.New("--pool, --native: no pool to serve: want at least one")
	}
	return fronts, checkPoolNames(fronts)
}

// maxPoolName is the longest name of a pool, in bytes. The pool's Lease has a label value of at most 63 bytes, which
// contains the name.
const maxPoolName = 63 - len("cloudpool-")

// checkPoolNames returns an error if a pool's name cannot be served.
func checkPoolNames(fronts []*httpserver.ServedPool) error {
	names := make([]string, 0, len(fronts))
	for _, f := range fronts {
		names = append(names, f.Name)
	}
	if _, refused := SelectPoolNames(names); len(refused) > 0 {
		return fmt.Errorf("%w; or exclude the pool with --pool and --native", errors.Join(refused...))
	}
	return nil
}

// SelectPoolNames returns the names of pools that can be served together. For each other name it returns the reason: the
// name does not fit into object names, or an earlier pool has the same path, Lease or PoolUpdates.
func SelectPoolNames(names []string) (usable []string, refused []error) {
	seen := map[string]string{}
	for _, name := range names {
		key := controller.PoolObjectName(name)
		switch other, twice := seen[key]; {
		case len(name) > maxPoolName:
			refused = append(refused, fmt.Errorf("pool %s: the name has %d characters: want at most %d", name, len(name), maxPoolName))
		case twice:
			refused = append(refused, fmt.Errorf("pools %s and %s: the names map to the same object name: want names that differ in more than letter case and punctuation", other, name))
		default:
			seen[key] = name
			usable = append(usable, name)
		}
	}
	return usable, refused
}
