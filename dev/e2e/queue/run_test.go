package queue_test

import (
	"context"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice/aws/queue"
	"github.com/slipway-dev/slipway/internal/notice/poll"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/queueagents"
)

// runQueue runs the queue mode as its program does, from the configurations.
func runQueue(ctx context.Context, t *testing.T, adjust func(*queue.Config), log *slog.Logger, api, cloud http.RoundTripper) error {
	t.Helper()
	var c config.Agent
	flags := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	c.RegisterFlags(flags)
	if err := flags.Parse([]string{"--on-rebalance=drain"}); err != nil {
		return err
	}
	q := queue.NewDefaultConfig()
	q.URL, q.Endpoint, q.ParkedVisibility = queueURL, awsEndpoint, 2*time.Minute
	adjust(&q)
	kube, err := (kubeapi.Config{Server: mustParse(t, apiServer), Wrap: func(http.RoundTripper) http.RoundTripper { return api }}).NewClient("slipway/test")
	if err != nil {
		return err
	}
	clients, err := queue.NewClients(ctx, q, func(http.RoundTripper) http.RoundTripper { return cloud })
	if err != nil {
		return err
	}
	metrics := agent.NewMetrics(observe.NewRegistry())
	newAgent := func(n *kubeapi.Node, instance string, source *queue.Source, slots agent.DrainSlots) (queueagents.Agent, error) {
		o := agent.Options{
			Node: n.Name, ResourceName: instance, API: kube, InitialNode: n, Sources: []agent.Source{source}, Policy: c.BuildNoticePolicy(),
			DeadlineMargin: c.DeadlineMargin, Taint: c.BuildTaint(), GracePeriodSeconds: &c.GracePeriod, Metrics: metrics.ForOneNode(),
			Heartbeat: observe.NewHeartbeat("agent", time.Hour), Log: log.With("node", n.Name),
		}
		queueagents.SetAgentOptions(&o, source, slots, true)
		return agent.New(o), nil
	}
	return queueagents.New(queueagents.Options{
		API: kube, WatchNodes: queueagents.NewNodeWatcher(kube), NewAgent: newAgent, Clients: clients,
		Config: q, Policy: c.BuildNoticePolicy(), Leads: poll.Leads{Retirement: c.RetirementLead, Maintenance: c.MaintenanceLead}, Acknowledges: true, Metrics: queue.NewMetrics(observe.NewRegistry()), Log: log,
	}).Run(ctx)
}
