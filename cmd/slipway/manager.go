package main

import (
	_ "time/tzdata" // disruption budgets use time zones, and images have no time zone database

	"github.com/spf13/cobra"

	"github.com/slipway-dev/slipway/cmd/internal/start"
	"github.com/slipway-dev/slipway/internal/compat/kubeaware"
	"github.com/slipway-dev/slipway/internal/compat/openstackautoscaler"
	"github.com/slipway-dev/slipway/internal/compat/vmsspodwatcher"
	"github.com/slipway-dev/slipway/internal/manager"
)

func newManagerCommand() *cobra.Command {
	var c manager.Config
	cmd := &cobra.Command{
		Use:   "manager",
		Short: "Run the manager: retire nodes, launch instances, and delete orphaned ones",
		Long: "The manager carries out NodeRetirements: it cordons and drains the node, deletes the Node, and deletes its instance in\n" +
			"the cloud. It verifies each step. It can be stopped at any time; the next manager continues.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return manager.Run(cmd.Context(), c, start.Version(), cmd.ErrOrStderr())
		},
	}
	c.AddFlags(cmd.Flags())
	c.Selector, cmd.Flags().Lookup("selector").DefValue = excludeCompatSelector, excludeCompatSelector
	return cmd
}

// excludeCompatSelector excludes objects that compatibility modes handle themselves. These are the NodeRetirements of
// kubeaware-cloudpool-proxy, where a machine may be removed only when its pool shrinks. They are also the NodeGroups and
// NodeRetirements of vmss-pod-watcher and openstack-autoscaler, which no other process knows.
const excludeCompatSelector = "!" + kubeaware.BackendLabel + ",!" + vmsspodwatcher.GroupLabel + ",!" + openstackautoscaler.GroupLabel
