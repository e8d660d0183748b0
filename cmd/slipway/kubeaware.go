package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/slipway-dev/slipway/cmd/internal/start"
	"github.com/slipway-dev/slipway/internal/cloud"
	provider "github.com/slipway-dev/slipway/internal/cloud/cloudpool"
	"github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/cloudpool"
	"github.com/slipway-dev/slipway/internal/compat/kubeaware"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/manager"
	"github.com/slipway-dev/slipway/internal/observe"
)

func newKubeawareCommand() *cobra.Command {
	return &cobra.Command{
		Use:   kubeaware.Tool + " [flags of " + kubeaware.Tool + "]",
		Short: "Drop-in replacement for " + kubeaware.Tool + ": same file, flags and REST API, in one process",
		// cobra does not parse the flags: they may have one or two dashes.
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := kubeaware.ParseFlags(args, os.Getenv, cmd.ErrOrStderr())
			if ends, err := endsAfterParsing(cmd, err, err == nil && f.ShowVersion, "Version: "+start.Version()); ends {
				return err
			}
			c, err := kubeaware.Load(f.ConfigFile)
			if err != nil {
				return err
			}
			return runKubeaware(cmd.Context(), &c, f, cmd.ErrOrStderr())
		},
	}
}

// leaseNamePrefix is the prefix of the Lease name that managers in this compatibility mode use.
const leaseNamePrefix = "slipway-" + kubeaware.Tool + "-"

// runKubeaware serves the cloudpool API, and runs a manager for the NodeRetirements that the API creates.
func runKubeaware(ctx context.Context, c *kubeaware.Config, f *kubeaware.Flags, stderr io.Writer) error {
	front := c.ToCloudpoolConfig(f)
	if err := front.Validate(); err != nil {
		return err
	}
	several := c.ToPoolConfig(true)
	if err := several.Validate(); err != nil {
		return err
	}
	log, err := observe.NewLogger(stderr, front.LogFormat, front.LogLevel)
	if err != nil {
		return err
	}
	for _, w := range append(f.Warnings, c.Warnings...) {
		log.Warn(w, "inputOf", kubeaware.Tool)
	}
	if f.TLSCertFile == "" {
		log.Warn("the API is served over plain HTTP without authentication: set -tls-cert-file, and -client-ca-file or -authorize")
	}
	kube, err := c.APIServer.ToRESTConfig("slipway-" + kubeaware.Tool + "/" + start.Version())
	if err != nil {
		return err
	}
	api, err := newKubeAPIClient(kube)
	if err != nil {
		return err
	}
	pools, served, err := detectPools(ctx, c, log)
	if err != nil {
		return err
	}
	front.Pools = served
	provided, err := provider.New(pools, provider.Options{Log: log})
	if err != nil {
		return err
	}
	m := newManagerConfig(&front, f, c.BackendHash())
	m.Clouds = &manager.Clouds{Cloudpool: &pools}
	if err := m.Validate(); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		runWithRestarts(ctx, log, func(ctx context.Context) error { return runManager(ctx, m, kube, api, log) })
		return nil
	})
	group.Go(func() error {
		return cloudpool.Run(ctx, front, cloudpool.Dependencies{
			Kube: kube, Leases: api, Clouds: map[string]cloud.Provider{provided.Name(): provided},
			Build: observe.Build{Version: start.Version()}, Stderr: stderr,
		})
	})
	return group.Wait()
}

// runManager runs the manager until ctx ends or the manager loses its Lease, for example while the API server is
// unavailable.
func runManager(ctx context.Context, m manager.Config, kube *rest.Config, api *kubeapi.Client, log *slog.Logger) error {
	// A registry accepts a manager's metrics only once. These metrics are not served.
	return manager.RunInProcess(ctx, m, manager.Process{Kube: kube, API: api, Metrics: prometheus.NewRegistry(), Log: log})
}

// The delays between restarts of the manager, and the running time after which the delay starts again at the minimum.
const (
	minRestartDelay = time.Second
	maxRestartDelay = 30 * time.Second
	stableRunTime   = time.Minute
)

// runWithRestarts calls run until ctx ends. If run ends before, it waits and calls run again. The rest of the process
// continues meanwhile.
func runWithRestarts(ctx context.Context, log *slog.Logger, run func(context.Context) error) {
	for pause := minRestartDelay; ; pause = min(2*pause, maxRestartDelay) {
		began := time.Now()
		err := run(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > stableRunTime {
			pause = minRestartDelay
		}
		log.Warn("the manager of NodeRetirements has ended, restarting it", "err", err, "after", pause.String())
		if !elapsed.Sleep(ctx, pause) {
			return
		}
	}
}

// newManagerConfig returns the default configuration of a manager, with the proxy's selector, Lease and log settings.
func newManagerConfig(front *cloudpool.Config, f *kubeaware.Flags, backendHash string) manager.Config {
	var m manager.Config
	m.AddFlags(pflag.NewFlagSet("", pflag.ContinueOnError))
	m.InstallCRDs, m.InstallCRDsByDefault = f.InstallCRDs, f.InstallCRDsByDefault
	m.Listen, m.Selector = "", kubeaware.BackendLabel+"="+backendHash
	m.LeaderElectionNamespace, m.LeaseName = f.Namespace, leaseNamePrefix+backendHash
	m.LogLevel, m.LogFormat = front.LogLevel, front.LogFormat
	m.SystemLocalStorage = front.SystemLocalStorage
	return m
}

// The timeout for reading the list of the backend's pools at start, and the pause between two requests.
const (
	poolListTimeout = 10 * time.Second
	poolListPause   = time.Second
)

// detectPools returns the provider configuration of the backend. If the backend has several pools, it also returns the
// names of the pools to serve. It skips pools with unusable names, because the tool served the others.
func detectPools(ctx context.Context, c *kubeaware.Config, log *slog.Logger) (pools provider.Config, served []string, err error) {
	several, err := provider.New(c.ToPoolConfig(true), provider.Options{})
	if err != nil {
		return provider.Config{}, nil, err
	}
	names := listBackendPools(ctx, several.Groups, log.With("backend", c.Backend.URL))
	served, refused := cloudpool.SelectPoolNames(names)
	if len(names) > 0 && len(served) == 0 {
		return provider.Config{}, nil, fmt.Errorf("backend.url: %s: lists no pool that can be served: %w", c.Backend.URL, errors.Join(refused...))
	}
	for _, reason := range refused {
		log.Warn("a pool of the backend is not served: requests to it get 404", "err", reason)
	}
	return c.ToPoolConfig(len(names) > 0), served, nil
}

// listBackendPools returns the names of the backend's pools. It returns none if the backend serves a single pool: it
// then answers 404, or an empty list. After another error it asks again, because all paths of the other pools would be
// unknown until a restart. If the errors continue, it assumes a single pool.
func listBackendPools(ctx context.Context, list func(context.Context) ([]string, error), log *slog.Logger) []string {
	ctx, cancel := context.WithTimeout(ctx, poolListTimeout)
	defer cancel()
	for {
		names, err := list(ctx)
		status := wire.AsStatusError(err)
		if err == nil || status != nil && status.Code == http.StatusNotFound {
			return names
		}
		if !elapsed.Sleep(ctx, poolListPause) {
			log.Warn("the backend did not list its pools, assuming a single pool: if it has several, restart this process", "err", err)
			return nil
		}
	}
}

// newKubeAPIClient returns a kubeapi client, which the drain engine uses, for a client-go configuration.
func newKubeAPIClient(kube *rest.Config) (*kubeapi.Client, error) {
	hc, err := rest.HTTPClientFor(kube)
	if err != nil {
		return nil, err
	}
	base, _, err := rest.DefaultServerUrlFor(kube)
	if err != nil {
		return nil, err
	}
	return kubeapi.NewClient(&url.URL{Scheme: base.Scheme, Host: base.Host, Path: base.Path}, hc, kube.UserAgent), nil
}
