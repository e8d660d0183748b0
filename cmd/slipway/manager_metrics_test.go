package main

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/notice/aws/queue"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/retirement"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestQueueMetricsDoNotCollideWithSurgesOfTheManager(t *testing.T) {
	own := prometheus.NewRegistry()
	m, err := retirement.NewMetrics(own)
	must.NoError(t, err)
	m.SurgeSucceeded(time.Second)
	m.RecordRestored()
	r := observe.NewRegistry()
	agent.NewMetrics(r)
	queue.NewMetrics(r)
	families, err := prometheus.Gatherers{own, newGatherer(r)}.Gather()
	must.NoError(t, err)
	names := map[string]bool{}
	for _, f := range families {
		names[f.GetName()] = true
	}
	for _, name := range []string{"slipway_queue_unhandled_nodes", "slipway_drains_total", "slipway_surges_total"} {
		if !names[name] {
			t.Errorf("%s is missing", name)
		}
	}
}
