package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
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
	"github.com/slipway-dev/slipway/internal/compat"
	"github.com/slipway-dev/slipway/internal/compat/kubeaware"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/manager"
	"github.com/slipway-dev/slipway/internal/observe"
)

func kubeawareCommand() *cobra.Command {
	return &cobra.Command{
		Use:   kubeaware.Tool + " [flags of " + kubeaware.Tool + "]",
		Short: "Stand in for " + kubeaware.Tool + ": its file and flags in, its REST API out, all in one process",
		// The flags are not cobra's: they have one dash or two.
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := kubeaware.ParseFlags(args, os.Getenv, cmd.ErrOrStderr())
			_, usage := errors.AsType[*compat.UsageError](err)
			switch {
			case errors.Is(err, flag.ErrHelp):
				return nil
			case usage:
				return &exitError{exitUsage, err}
			case err != nil:
				return err
			case f.ShowVersion:
				fmt.Fprintln(cmd.OutOrStdout(), "Version: "+start.Version())
				return nil
			}
			c, err := kubeaware.Load(f.ConfigFile)
			if err != nil {
				return err
			}
			return runKubeaware(cmd.Context(), &c, f, cmd.ErrOrStderr())
		},
	}
}

// managedBy begins the name of the Lease of those who carry retirements out within this personality.
const managedBy = "slipway-" + kubeaware.Tool + "-"

// runKubeaware serves, and carries the retirements out that it makes.
func runKubeaware(ctx context.Context, c *kubeaware.Config, f *kubeaware.Flags, stderr io.Writer) error {
	front := c.Front(f)
	if err := front.Validate(); err != nil {
		return err
	}
	several := c.Pool(true)
	if err := several.Validate(); err != nil {
		return err
	}
	log, err := observe.Logger(stderr, front.LogFormat, front.LogLevel)
	if err != nil {
		return err
	}
	for _, w := range append(f.Warnings, c.Warnings...) {
		log.Warn(w, "inputOf", kubeaware.Tool)
	}
	if f.TLSCertFile == "" {
		log.Warn("the API is served in plain HTTP, to everybody who can reach it: -tls-cert-file, -client-ca-file and -authorize are there")
	}
	kube, err := c.APIServer.Kube("slipway-" + kubeaware.Tool + "/" + start.Version())
	if err != nil {
		return err
	}
	api, err := smallClient(kube)
	if err != nil {
		return err
	}
	pools, err := backend(ctx, c, log)
	if err != nil {
		return err
	}
	provided, err := provider.New(pools, provider.Options{Log: log})
	if err != nil {
		return err
	}
	m := managing(&front, f, c.Mark())
	m.Clouds = &manager.Clouds{Cloudpool: &pools}
	if err := m.Validate(); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		supervise(ctx, log, func(ctx context.Context) error { return manage(ctx, m, kube, api, f.InstallCRDs, log) })
		return nil
	})
	group.Go(func() error {
		return cloudpool.Run(ctx, front, cloudpool.Inputs{
			Kube: kube, Slots: api, Clouds: map[string]cloud.Provider{provided.Name(): provided},
			Build: observe.Build{Version: start.Version()}, Stderr: stderr,
		})
	})
	return group.Wait()
}

// manage carries retirements out until ctx ends, or its Lease is lost as while the API server is away.
func manage(ctx context.Context, m manager.Config, kube *rest.Config, api *kubeapi.Client, install bool, log *slog.Logger) error {
	if install {
		if err := manager.InstallCRDs(ctx, kube, log); err != nil {
			return err
		}
	}
	// A registry takes a manager's metrics once. Nobody reads these.
	return manager.RunIn(ctx, m, manager.Process{Kube: kube, API: api, Metrics: prometheus.NewRegistry(), Log: log})
}

// The pauses between two starts of the part that carries retirements out, and how long one that was no failure runs.
const (
	firstRestart   = time.Second
	longestRestart = 30 * time.Second
	steadyRun      = time.Minute
)

// supervise runs a part of the process until ctx ends, and starts it again when it ends before: the rest of the process is not
// to end with it.
func supervise(ctx context.Context, log *slog.Logger, run func(context.Context) error) {
	for pause := firstRestart; ; pause = min(2*pause, longestRestart) {
		began := time.Now()
		err := run(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > steadyRun {
			pause = firstRestart
		}
		log.Warn("NodeRetirements are not carried out, and that is tried again", "err", err, "after", pause.String())
		if !elapsed.Sleep(ctx, pause) {
			return
		}
	}
}

// managing is how the retirements are carried out: with the manager's own defaults, but for what is this proxy's.
func managing(front *cloudpool.Config, f *kubeaware.Flags, mark string) manager.Config {
	var m manager.Config
	m.AddFlags(pflag.NewFlagSet("", pflag.ContinueOnError))
	m.Listen, m.Selector = "", kubeaware.MarkLabel+"="+mark
	m.LeaderElectionNamespace, m.LeaseName = f.Namespace, managedBy+mark
	m.LogLevel, m.LogFormat = front.LogLevel, front.LogFormat
	m.SystemLocalStorage = front.SystemLocalStorage
	return m
}

// backend is the pool, or the pools: the server is asked whether it has several. One that is away at the start is taken
// for one.
func backend(ctx context.Context, c *kubeaware.Config, log *slog.Logger) (provider.Config, error) {
	several, err := provider.New(c.Pool(true), provider.Options{})
	if err != nil {
		return provider.Config{}, err
	}
	ask, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	names, err := several.Groups(ask)
	if err != nil && wire.AsStatus(err) == nil {
		log.Warn("the backend did not say whether it has several pools, and is taken for a server of one", "backend", c.Backend.URL, "err", err)
	}
	return c.Pool(err == nil && len(names) > 0), nil
}

// smallClient is the small client that the drain engine works with.
func smallClient(kube *rest.Config) (*kubeapi.Client, error) {
	hc, err := rest.HTTPClientFor(kube)
	if err != nil {
		return nil, err
	}
	hc.Timeout = 0 // a watch lasts; every other request has its own
	base, _, err := rest.DefaultServerUrlFor(kube)
	if err != nil {
		return nil, err
	}
	return kubeapi.New(&url.URL{Scheme: base.Scheme, Host: base.Host, Path: base.Path}, hc, kube.UserAgent), nil
}
