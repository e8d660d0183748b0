package main

import (
	_ "time/tzdata" // disruption budgets name time zones, and images come without the database

	"github.com/spf13/cobra"

	"github.com/slipway-dev/slipway/cmd/internal/start"
	"github.com/slipway-dev/slipway/internal/manager"
)

func managerCommand() *cobra.Command {
	var c manager.Config
	cmd := &cobra.Command{
		Use:   "manager",
		Short: "Carry nodes out of the cluster, one safe step after another",
		Long: "The manager takes the nodes that NodeRetirements name out of service: cordoned, drained, the Node deleted, its\n" +
			"machine deleted in its cloud, each verified. It can be ended at any moment: the next one goes on where it was.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return manager.Run(cmd.Context(), c, start.Version(), cmd.ErrOrStderr())
		},
	}
	c.AddFlags(cmd.Flags())
	return cmd
}
