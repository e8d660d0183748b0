package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/slipway-dev/slipway/internal/cloud/azure/eviction"
)

func simulateCommand() *cobra.Command {
	kube := newKubeFlags("simulate-eviction")
	var endpoint string
	cmd := &cobra.Command{
		Use:   "simulate-eviction NODE",
		Short: "Ask Azure to act as if it took a Spot node's machine away",
		Long: `Simulate-eviction asks Azure for a simulated eviction of the machine that a node runs on. Azure announces it in
Scheduled Events, some 30 seconds before it takes the machine away: the agent on the node drains it, notifies, and the
machine goes. THE MACHINE REALLY GOES, as the eviction policy of its scale set says.

Azure's credentials are found as azidentity's DefaultAzureCredential finds them: environment, workload identity, managed
identity, az login, and so on.`,
		Example: "  slipway simulate-eviction aks-spot-12345678-vmss000003",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			simulator, err := eviction.New(eviction.Options{Endpoint: endpoint})
			if err != nil {
				return fmt.Errorf("--arm-endpoint: %w", err)
			}
			api, err := kube.api()
			if err != nil {
				return err
			}
			node, err := api.GetNode(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			target, err := eviction.ParseProviderID(node.Spec.ProviderID)
			if err != nil {
				return fmt.Errorf("node %s: %w", args[0], err)
			}
			if err := simulator.Simulate(cmd.Context(), target); err != nil {
				return fmt.Errorf("node %s: %w", args[0], err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: Azure will evict %s; watch with: kubectl get events --field-selector "+
				"involvedObject.name=%s\n", args[0], target, args[0])
			return nil
		},
	}
	cmd.Flags().StringVar(&endpoint, "arm-endpoint", "", "URL of Azure Resource Manager (default: the public cloud's); http is for an emulator on the loopback interface")
	kube.add(cmd.Flags())
	return cmd
}
