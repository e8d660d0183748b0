package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/slipway-dev/slipway/cmd/internal/start"
	"github.com/slipway-dev/slipway/cmd/internal/startqueue"
	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/compat/awsnth"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice/aws"
	"github.com/slipway-dev/slipway/internal/notice/aws/queue"
	"github.com/slipway-dev/slipway/internal/notice/poll"
	"github.com/slipway-dev/slipway/internal/observe"
)

func newAWSNTHCommand() *cobra.Command {
	return &cobra.Command{
		Use:   awsnth.Tool + " [flags of " + awsnth.Tool + "]",
		Short: "Drop-in replacement for " + awsnth.Tool + ": same flags, variables, taints, labels, events and metrics",
		// cobra does not parse the flags: they may have one or two dashes.
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := awsnth.ParseOptions(args, os.Getenv, cmd.ErrOrStderr())
			if ends, err := endsAfterParsing(cmd, err, err == nil && o.ShowVersion, start.Version()); ends {
				return err
			}
			return runAWSNTH(cmd.Context(), o, cmd.ErrOrStderr())
		},
	}
}

func runAWSNTH(ctx context.Context, o *awsnth.Options, stderr io.Writer) error {
	for name, value := range o.KubernetesEnvironment() {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	o.WarnAboutTemplates()
	c := o.ToAgentConfig()
	if err := logWarnings(awsnth.Tool, o.Warnings, c, stderr); err != nil {
		return err
	}
	log, err := observe.NewLogger(stderr, c.LogFormat, c.LogLevel)
	if err != nil {
		return err
	}
	log = log.With("node", o.NodeName)
	var (
		identity awsnth.Identity
		metrics  *awsnth.Metrics
		reporter *awsnth.Reporter
		live     atomic.Pointer[func() error]
	)
	x := start.AgentOptions{
		RegisterMetrics: func(r *observe.Registry) {
			metrics = awsnth.NewMetrics(r)
			reporter = awsnth.NewReporter(o, metrics, &identity, log)
		},
		EventFormatter: func(t agent.EventTrigger) ([]agent.FormattedEvent, bool) { return reporter.FormatEvents(t) },
		PollObserver:   failureObserver(func(err error, class poll.Class) { metrics.FetchFailed(err, class) }),
		ActionFor:      o.ActionFor,
		TaintsFor:      o.TaintsFor,
		LabelsFor:      o.LabelsFor,
		WrapSource: func(source agent.Source, node *kubeapi.Node) agent.Source {
			return o.WrapSource(source, node, log)
		},
		WarnOfTemplates:     true,
		TemplateData:        awsnth.NewWebhookData(&identity),
		ConnectWithClientGo: connectWithClientGo,
		NewRoutes: func(in start.AgentAccess) map[string]http.Handler {
			live.Store(&in.CheckLive)
			return o.NewRoutes(in.CheckLive, in.Metrics)
		},
	}
	run := func(ctx context.Context) error { return start.RunAgentWithOptions(ctx, c, x, stderr) }
	if o.EnableSQSTerminationDraining {
		inventory, err := newAWSInventory(ctx, o)
		if err != nil {
			return err
		}
		run = func(ctx context.Context) error { return startqueue.RunQueue(ctx, c, o.ToQueueConfig(), x, stderr) }
		if o.EnablePrometheusServer { // as in the tool, because it needs ec2:DescribeInstances
			registerMetrics := x.RegisterMetrics
			x.RegisterMetrics = func(r *observe.Registry) {
				registerMetrics(r)
				go metrics.CountTagged(ctx, inventory, o.ManagedTag, log)
			}
		}
	} else {
		metadata, err := aws.NewClient(aws.ClientOptions{Endpoint: c.Endpoint, Timeout: c.RequestTimeout})
		if err != nil {
			return fmt.Errorf("-metadata-url: %w", err)
		}
		go identity.Read(ctx, metadata)
	}
	if !o.HasOwnProbesServer() {
		return run(ctx)
	}
	probes, err := o.ListenForProbes(ctx, func() error {
		if check := live.Load(); check != nil {
			return (*check)()
		}
		return nil // the process is starting
	}, log)
	if err != nil {
		return fmt.Errorf("-probes-server-port: %w", err)
	}
	return runWithServer(ctx, probes, run)
}

// newAWSInventory returns the clients that count managed nodes and instances.
func newAWSInventory(ctx context.Context, o *awsnth.Options) (awsnth.Inventory, error) {
	q := o.ToQueueConfig()
	if err := q.Validate(); err != nil {
		return awsnth.Inventory{}, err
	}
	api, err := connectWithClientGo(o.Kubeconfig, "slipway/"+start.Version(), nil)
	if err != nil {
		return awsnth.Inventory{}, err
	}
	clients, err := queue.NewClients(ctx, q, nil)
	if err != nil {
		return awsnth.Inventory{}, err
	}
	tagged, ok := clients.EC2.(interface {
		DescribeTagged(ctx context.Context, key string) ([]queue.Instance, error)
	})
	if !ok {
		return awsnth.Inventory{}, fmt.Errorf("the EC2 client %T cannot list instances by their tag", clients.EC2)
	}
	return awsnth.Inventory{
		ListNodes:      func(ctx context.Context) ([]kubeapi.Node, error) { return api.ListNodes(ctx, "") },
		DescribeTagged: tagged.DescribeTagged,
	}, nil
}

// runWithServer runs a server and a function. When one of them ends, it ends the other.
func runWithServer(ctx context.Context, server *observe.Server, run func(context.Context) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	served := make(chan error, 1)
	go func() {
		err := server.Run(ctx)
		stop()
		served <- err
	}()
	err := run(ctx)
	stop()
	return errors.Join(err, <-served)
}
