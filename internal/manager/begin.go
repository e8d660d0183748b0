package manager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/observe"
)

// The pauses between two attempts to begin, and how long one question of an attempt may take: an API server may take a
// connection and never answer.
const (
	firstAgain   = time.Second
	longestAgain = 30 * time.Second
	answerTime   = 10 * time.Second
)

// readiness is why the manager does not work yet; it begins with that the API server has not answered.
type readiness struct {
	why  atomic.Pointer[error]
	read chan struct{} // closed when it works
}

func newReadiness() *readiness { return &readiness{read: make(chan struct{})} }

func (r *readiness) set(err error) { r.why.Store(&err) }

// done says that the manager works.
func (r *readiness) done() {
	r.set(nil)
	close(r.read)
}

// check implements observe.Check.
func (r *readiness) check() error {
	if why := r.why.Load(); why != nil {
		return *why
	}
	return errors.New("the API server has not answered yet")
}

// errUnread is what a manager waits for that has reached its API server.
var errUnread = errors.New("the cluster has not been read yet")

// findClouds has the clouds found out, where that is for somebody else to do.
func (c *Config) findClouds(ctx context.Context, ready *readiness) error {
	if c.FindClouds == nil {
		return nil
	}
	found, err := c.FindClouds(ctx, ready.set)
	if err != nil {
		return err
	}
	c.Clouds = &found
	ready.set(errUnread)
	return nil
}

// refusal is an error that no further attempt would mend.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

// begin attempts until it is done, or ctx ends, or it cannot be done. An API server that does not answer, or that does not
// serve our types yet, is no reason to end: the one that is started next would find no other.
func begin(ctx context.Context, log *slog.Logger, ready *readiness, attempt func(context.Context) error) error {
	for pause := firstAgain; ; pause = min(2*pause, longestAgain) {
		err := attempt(ctx)
		var final refusal
		switch {
		case err == nil:
			ready.set(errUnread)
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &final):
			return err
		}
		ready.set(err)
		log.Warn("cannot begin yet, and tries again", "err", err, "after", pause.String())
		if !elapsed.Sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

// bounded gives a configuration whose requests end. It is not for watches.
func bounded(kube *rest.Config) *rest.Config {
	kube = rest.CopyConfig(kube)
	kube.Timeout = answerTime
	return kube
}

// reach asks the API server whether it is there, and whether it serves our types.
func reach(kube *rest.Config) error {
	asks, err := discovery.NewDiscoveryClientForConfig(bounded(kube))
	if err != nil {
		return refusal{fmt.Errorf("--kubeconfig: %w", err)}
	}
	_, err = asks.ServerResourcesForGroupVersion(v1alpha1.GroupVersion.String())
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("the API server does not serve %s: apply the CustomResourceDefinitions in api/crds, or give --install-crds",
			v1alpha1.GroupVersion)
	case err != nil:
		return fmt.Errorf("the API server %s does not answer as it should: %w", kube.Host, err)
	}
	return nil
}

// serve serves metrics and health until ctx ends. It is there before the API server is, so that what is waited for can be
// asked.
func serve(ctx context.Context, c Config, ready *readiness, log *slog.Logger) error {
	if c.Listen == "" {
		return nil
	}
	server, err := observe.Listen(ctx, observe.ServerOptions{
		Address: c.Listen, Ready: []observe.Check{ready.check}, Pprof: c.Profiling, Log: log,
		Routes: map[string]http.Handler{"/metrics": promhttp.HandlerFor(metrics.Registry, promhttp.HandlerOpts{})},
	})
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	go func() {
		if err := server.Run(ctx); err != nil && ctx.Err() == nil {
			log.Error("metrics and health are not served any more", "err", err)
		}
	}()
	return nil
}
