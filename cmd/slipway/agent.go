package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/slipway-dev/slipway/cmd/internal/start"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/observe/otlp"
)

// sendTraces is a start.Tracing.
func sendTraces(ctx context.Context, endpoint, version string) (start.Spans, error) {
	return otlp.New(ctx, endpoint, version)
}

func agentCommand() *cobra.Command {
	var c config.Agent
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Guard the node that this runs on: drain it in time when its machine is about to go",
		Long: "The agent runs on every node. It reads Azure's Scheduled Events, cordons and drains the node before the machine\n" +
			"is interrupted, lets Azure begin early once every machine of the event is drained, and uncordons the node when\n" +
			"the event is over and the machine lived. The binary slipway-agent is this command alone, in less memory.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.LoadFile(cmd.Flags()); err != nil {
				return err
			}
			return start.AgentWith(cmd.Context(), c, start.Extras{Tracing: sendTraces}, cmd.ErrOrStderr())
		},
	}
	c.AddFlags(cmd.Flags())
	return cmd
}
