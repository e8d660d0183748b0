package manager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/observe"
)

// minStartPause and maxStartPause are the shortest and the longest pause between two attempts to start.
// startRequestTimeout is the timeout of a request in an attempt. Without it, an API server that accepts a connection
// and never answers would block the start.
const (
	minStartPause       = time.Second
	maxStartPause       = 30 * time.Second
	startRequestTimeout = 10 * time.Second
)

// readiness holds the reason why the manager is not ready, for /readyz. The first reason is that the API server has not
// answered.
type readiness struct {
	reason atomic.Pointer[error]
	ready  chan struct{} // closed when the manager is ready
}

func newReadiness() *readiness { return &readiness{ready: make(chan struct{})} }

func (r *readiness) setReason(err error) { r.reason.Store(&err) }

func (r *readiness) markReady() {
	r.setReason(nil)
	close(r.ready)
}

// checkReady implements observe.Check. It returns the reason why the manager is not ready, or nil.
func (r *readiness) checkReady() error {
	if why := r.reason.Load(); why != nil {
		return *why
	}
	return errors.New("the API server has not answered yet")
}

// errCachesNotSynced is the reason why the manager is not ready after the API server has answered.
var errCachesNotSynced = errors.New("the caches are not synced yet")

// resolveClouds calls Config.ResolveClouds, if that is set, and stores its result in Config.Clouds.
func (c *Config) resolveClouds(ctx context.Context, ready *readiness) error {
	if c.ResolveClouds == nil {
		return nil
	}
	found, err := c.ResolveClouds(ctx, ready.setReason)
	if err != nil {
		return err
	}
	c.Clouds = &found
	ready.setReason(errCachesNotSynced)
	return nil
}

// permanentError is an error that a retry cannot resolve.
type permanentError struct{ error }

func (r permanentError) Unwrap() error { return r.error }

// retryUntilDone calls attempt until it succeeds, ctx ends, or it returns a permanentError. It also retries while the
// API server does not answer or does not serve Slipway's types: a restart of the process would not help.
func retryUntilDone(ctx context.Context, log *slog.Logger, ready *readiness, attempt func(context.Context) error) error {
	for pause := minStartPause; ; pause = min(2*pause, maxStartPause) {
		err := attempt(ctx)
		var final permanentError
		switch {
		case err == nil:
			ready.setReason(errCachesNotSynced)
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &final):
			return err
		}
		ready.setReason(err)
		log.Warn("cannot start yet, will retry", "err", err, "after", pause.String())
		if !elapsed.Sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

// withRequestTimeout returns a copy of the configuration with a timeout for each request. Do not use it for watches.
func withRequestTimeout(kube *rest.Config) *rest.Config {
	kube = rest.CopyConfig(kube)
	kube.Timeout = startRequestTimeout
	return kube
}

// checkTypesServed returns an error unless the API server answers and serves Slipway's types.
func checkTypesServed(kube *rest.Config) error {
	discoveryClient, err := discovery.NewDiscoveryClientForConfig(withRequestTimeout(kube))
	if err != nil {
		return permanentError{fmt.Errorf("--kubeconfig: %w", err)}
	}
	_, err = discoveryClient.ServerResourcesForGroupVersion(v1alpha1.GroupVersion.String())
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("the API server does not serve %s: apply the CustomResourceDefinitions in api/crds, or set --install-crds",
			v1alpha1.GroupVersion)
	case err != nil:
		return fmt.Errorf("checking the API server %s: %w", kube.Host, err)
	}
	return nil
}

// startMetricsAndHealthServer starts the server for metrics and health, which runs until ctx ends. It starts before the
// API server is reached, so that /readyz can report what is missing.
func startMetricsAndHealthServer(ctx context.Context, c Config, ready *readiness, log *slog.Logger) error {
	if c.Listen == "" {
		return nil
	}
	gatherers := prometheus.Gatherers{metrics.Registry}
	if c.LeadingMetrics != nil {
		gatherers = append(gatherers, c.LeadingMetrics)
	}
	server, err := observe.Listen(ctx, observe.ServerOptions{
		Address: c.Listen, Ready: []observe.Check{ready.checkReady}, Pprof: c.Profiling, Log: log,
		Routes: map[string]http.Handler{"/metrics": promhttp.HandlerFor(gatherers, promhttp.HandlerOpts{})},
	})
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	go func() {
		if err := server.Run(ctx); err != nil && ctx.Err() == nil {
			log.Error("the server of metrics and health has failed", "err", err)
		}
	}()
	return nil
}
