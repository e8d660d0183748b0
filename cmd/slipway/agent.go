package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/slipway-dev/slipway/cmd/internal/start"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/observe/otlp"
)

// newTraceExporter implements start.Tracing.
func newTraceExporter(ctx context.Context, endpoint, version string) (start.SpanExporter, error) {
	return otlp.NewExporter(ctx, endpoint, version)
}

func newAgentCommand() *cobra.Command {
	var c config.Agent
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run the agent of a node: drain the node before its instance is interrupted",
		Long: "The agent runs on every node. It reads Azure's Scheduled Events and drains the node before its instance is\n" +
			"interrupted. Once every instance of an event is drained, it acknowledges the event, so that Azure starts early. It\n" +
			"uncordons the node when the event has ended and the instance still exists. The binary slipway-agent contains only\n" +
			"this command and needs less memory.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.LoadFile(cmd.Flags()); err != nil {
				return err
			}
			return start.RunAgentWithOptions(cmd.Context(), c, start.AgentOptions{OpenTracing: newTraceExporter}, cmd.ErrOrStderr())
		},
	}
	c.RegisterFlags(cmd.Flags())
	return cmd
}
