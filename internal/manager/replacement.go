package manager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/placement/live"
	"github.com/slipway-dev/slipway/internal/replacement"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// looksAtNotices is the longest pause between two looks at a node that a notice takes away, which may leave it 30 s.
const looksAtNotices = 2 * time.Second

// addReplacement adds what brings machines in the place of those that their cloud takes away. What it reads of the
// cluster is read from the beginning: a notice may leave half a minute.
func addReplacement(ctx context.Context, m manager.Manager, c Config, pods live.Pods, groups *Groups, clouds map[string]cloud.Provider,
	counters *replacement.Metrics, asked *retirement.Metrics, log *slog.Logger,
) error {
	if _, err := m.GetCache().GetInformer(ctx, &corev1.Namespace{}); err != nil {
		return fmt.Errorf("watching Namespaces: %w", err)
	}
	return replacement.New(replacement.Options{
		Client: m.GetClient(), Live: m.GetAPIReader(), Groups: groups, Selector: c.parsedSelector, Clouds: clouds,
		Room:   replacement.Room{Cached: m.GetClient(), Live: m.GetAPIReader(), Pods: pods},
		Events: m.GetEventRecorder("slipway"), Metrics: counters, Asked: asked.Cloud, Log: log,
		Pace: replacement.Pace{Look: min(c.PollInterval, looksAtNotices), Cloud: c.CloudPoll, Retry: c.OrderRetry, Settle: c.OrderSettle},
	}).Register(m)
}

// present registers what is read from the caches at each scrape.
func present(r prometheus.Registerer, reader client.Reader) error {
	return errors.Join(r.Register(retirement.Present{Reader: reader}), r.Register(replacement.Present{Reader: reader}))
}
