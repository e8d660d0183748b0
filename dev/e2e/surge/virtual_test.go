package surge_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/pflag"

	emulator "github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/cloud/azure/providerid"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice/azure"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/surge"
)

// inMemory returns a fixture in virtual time.
func inMemory(t *testing.T, name string) *fixture {
	t.Helper()
	return newFixtureOn(t, testbed.NewVirtualForTest(t, testbed.Options{Azure: emulator.Options{Outage: time.Second}}), name)
}

// startInProcess runs the agent of an instance in this process, with surges on.
func (f *fixture) startInProcess(instance int, proxy *faultproxy.Proxy, flags ...string) *testbed.InProcessAgent {
	f.t.Helper()
	var c config.Agent
	set := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	c.RegisterFlags(set)
	flags = slices.Concat(surgeFlags, flags, []string{"--node-name", f.node(instance), "--endpoint", f.ScheduledEventsURL(f.pool, instance)})
	f.check(set.Parse(flags))
	log := &testbed.LogBuffer{}
	a, err := f.StartInProcessAgent(f.ctx, f.node(instance), proxy, func(ctx context.Context, metadata, api http.RoundTripper, server *url.URL) {
		if err := runAgent(ctx, c, metadata, api, server, slog.New(slog.NewTextHandler(log, nil))); err != nil && ctx.Err() == nil {
			f.t.Error(err)
		}
	})
	f.check(err)
	f.t.Cleanup(func() {
		f.check(a.KillIfAlive())
		a.Wait()
		if f.t.Failed() {
			f.t.Logf("log of the agent on %s:\n%s", f.node(instance), log)
		}
	})
	return a
}

// lives numbers the agents, as process IDs do.
var lives atomic.Int64

// runAgent runs the agent as its program does, from the configuration.
func runAgent(ctx context.Context, c config.Agent, metadata, api http.RoundTripper, server *url.URL, log *slog.Logger) error {
	kube, err := (kubeapi.Config{Server: server, Wrap: func(http.RoundTripper) http.RoundTripper { return api }}).NewClient("slipway-agent/test")
	if err != nil {
		return err
	}
	client, err := azure.NewClient(azure.Options{
		Endpoint: c.Endpoint, Timeout: c.RequestTimeout, FirstTimeout: c.FirstRequestTimeout,
		Wrap: func(http.RoundTripper) http.RoundTripper { return metadata },
	})
	if err != nil {
		return err
	}
	node, err := kube.GetNode(ctx, c.NodeName)
	if err != nil {
		return err
	}
	resource, err := providerid.ScheduledEventName(node.Spec.ProviderID)
	if err != nil {
		return err
	}
	metrics := agent.NewMetrics(observe.NewRegistry())
	source, err := azure.NewSource(azure.SourceOptions{
		Fetcher: client, Resource: resource, Interval: c.PollInterval, ClockAhead: client.ClockAhead, Observer: metrics, Log: log,
	})
	if err != nil {
		return err
	}
	mode, err := surge.ParseMode(c.Surge)
	if err != nil {
		return err
	}
	surger, err := surge.New(surge.Options{
		API: kube, Namespace: c.Namespace, Identity: fmt.Sprintf("%s/%d", c.NodeName, lives.Add(1)), Mode: mode, Logger: log,
	})
	if err != nil {
		return err
	}
	return agent.New(agent.Options{
		Surger: surger, Node: c.NodeName, ResourceName: resource, InstanceName: providerid.ScheduledEventName, API: kube, InitialNode: node, Sources: []agent.Source{source},
		Approver: client, Policy: c.BuildNoticePolicy(), DeadlineMargin: c.DeadlineMargin, Taint: c.BuildTaint(), GracePeriodSeconds: &c.GracePeriod,
		StopTimeout: c.StopGrace, Metrics: metrics, Heartbeat: observe.NewHeartbeat("agent", time.Hour), Log: log,
	}).Run(ctx)
}
