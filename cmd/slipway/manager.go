package main

import (
	_ "time/tzdata" // disruption budgets name time zones, and images come without the database

	"github.com/spf13/cobra"

	"github.com/slipway-dev/slipway/cmd/internal/start"
	"github.com/slipway-dev/slipway/internal/compat/kubeaware"
	"github.com/slipway-dev/slipway/internal/compat/openstackautoscaler"
	"github.com/slipway-dev/slipway/internal/compat/vmsspodwatcher"
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
	c.Selector, cmd.Flags().Lookup("selector").DefValue = notTheStandIns, notTheStandIns
	return cmd
}

// notTheStandIns selects all but what stand-ins act on themselves: the NodeRetirements of kubeaware-cloudpool-proxy's, for which
// a machine may only go as its pool is made smaller, and the NodeGroup and NodeRetirements of each vmss-pod-watcher's and of
// openstack-autoscaler's, whose group no other process knows.
const notTheStandIns = "!" + kubeaware.MarkLabel + ",!" + vmsspodwatcher.GroupLabel + ",!" + openstackautoscaler.GroupLabel
