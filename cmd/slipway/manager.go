package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	_ "time/tzdata" // disruption budgets use time zones, and images have no time zone database

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/slipway-dev/slipway/cmd/internal/start"
	"github.com/slipway-dev/slipway/cmd/internal/startqueue"
	"github.com/slipway-dev/slipway/internal/compat/kubeaware"
	"github.com/slipway-dev/slipway/internal/compat/openstackautoscaler"
	"github.com/slipway-dev/slipway/internal/compat/vmsspodwatcher"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/manager"
	"github.com/slipway-dev/slipway/internal/notice/aws/queue"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/surge"
)

func newManagerCommand() *cobra.Command {
	var c manager.Config
	var q queue.Config
	var queueAgentConfig string
	cmd := &cobra.Command{
		Use:   "manager",
		Short: "Run the manager: retire nodes, launch instances, and delete orphaned ones",
		Long: "The manager carries out NodeRetirements: it cordons and drains the node, deletes the Node, and deletes its instance in\n" +
			"the cloud. It verifies each step. It can be stopped at any time; the next manager continues.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkQueueFlags(cmd.Flags(), q); err != nil {
				return err
			}
			if q.URL != "" {
				all, err := newManagerQueue(cmd.Context(), &c, q, queueAgentConfig, cmd.ErrOrStderr())
				if err != nil {
					return err
				}
				defer all.Close()
			}
			return manager.Run(cmd.Context(), c, start.Version(), cmd.ErrOrStderr())
		},
	}
	c.AddFlags(cmd.Flags())
	q.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&queueAgentConfig, "aws-queue-agent-config", "", "configuration file of an agent, for the nodes with notices in the queue")
	c.Selector, cmd.Flags().Lookup("selector").DefValue = excludeCompatSelector, excludeCompatSelector
	return cmd
}

// checkQueueFlags returns an error if a flag of the AWS queue mode is set, but no queue. The URL may come from a variable that
// is empty, and then the manager would read no notice.
func checkQueueFlags(fs *pflag.FlagSet, q queue.Config) error {
	var err error
	fs.Visit(func(f *pflag.Flag) {
		if q.URL == "" && err == nil && strings.HasPrefix(f.Name, "aws-queue-") && f.Name != "aws-queue-url" {
			err = fmt.Errorf("--aws-queue-url: %q: want the URL of the queue, because --%s is set", q.URL, f.Name)
		}
	})
	return err
}

// newManagerQueue prepares the AWS queue mode, which runs while the manager leads. Its agents have the options of an agent's
// configuration file; an empty path means the defaults.
func newManagerQueue(ctx context.Context, c *manager.Config, q queue.Config, agentConfig string, stderr io.Writer) (*startqueue.Queue, error) {
	var a config.Agent
	flags := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	a.RegisterFlags(flags)
	a.ConfigFile = agentConfig
	if err := a.LoadFile(flags); err != nil {
		return nil, fmt.Errorf("--aws-queue-agent-config: %w", err)
	}
	if mode, err := surge.ParseMode(a.Surge); err == nil && mode.Enabled() {
		return nil, fmt.Errorf("--aws-queue-agent-config: surge: %s: the manager has no rights for surges by the agents of a queue: want %s, or leave it out",
			a.Surge, surge.Off)
	}
	a.Kubeconfig, a.LogLevel, a.LogFormat, a.Listen = c.Kubeconfig, c.LogLevel, c.LogFormat, ""
	all, err := startqueue.NewQueue(ctx, a, q, start.AgentOptions{OpenTracing: newTraceExporter}, stderr)
	if err != nil {
		return nil, err
	}
	c.Leading, c.LeadingMetrics = all.Start, newGatherer(all.Registry())
	return all, nil
}

// newGatherer returns the metrics of a registry for a server of Prometheus' client library. It leaves out the metrics of
// surges, because two series with one name would make /metrics fail. The manager has its own, and the agents of the queue mode
// start no surges.
func newGatherer(r *observe.Registry) prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		page := &metricsPage{header: http.Header{}}
		r.ServeHTTP(page, nil)
		parser := expfmt.NewTextParser(model.LegacyValidation)
		families, err := parser.TextToMetricFamilies(page)
		maps.DeleteFunc(families, func(name string, _ *dto.MetricFamily) bool { return strings.HasPrefix(name, "slipway_surge") })
		return slices.Collect(maps.Values(families)), err
	})
}

// metricsPage is an http.ResponseWriter that stores the response in memory.
type metricsPage struct {
	bytes.Buffer

	header http.Header
}

// Header implements http.ResponseWriter.
func (p *metricsPage) Header() http.Header { return p.header }

// WriteHeader implements http.ResponseWriter.
func (*metricsPage) WriteHeader(int) {}

// excludeCompatSelector excludes objects that compatibility modes handle themselves. These are the NodeRetirements of
// kubeaware-cloudpool-proxy. That tool may remove a machine only when the machine's pool shrinks. They are also the
// NodeGroups and NodeRetirements of vmss-pod-watcher and openstack-autoscaler, which no other process knows.
const excludeCompatSelector = "!" + kubeaware.BackendLabel + ",!" + vmsspodwatcher.GroupLabel + ",!" + openstackautoscaler.GroupLabel
