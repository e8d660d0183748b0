package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/slipway-dev/slipway/internal/cloud/azure/eviction"
	"github.com/slipway-dev/slipway/internal/manager"
)

func simulateCommand() *cobra.Command {
	kube := newKubeFlags("simulate-eviction")
	var endpoint, cloudConfig string
	cmd := &cobra.Command{
		Use:   "simulate-eviction NODE",
		Short: "Ask Azure to act as if it took a Spot node's machine away",
		Long: `Simulate-eviction asks Azure for a simulated eviction of the machine that a node runs on. Azure announces it in
Scheduled Events, some 30 seconds before it takes the machine away: the agent on the node drains it, notifies, and the
machine goes. THE MACHINE REALLY GOES, as the eviction policy of its scale set says.

Azure's credentials are found as azidentity's DefaultAzureCredential finds them: environment, workload identity, managed
identity, az login, and so on; or as --cloud-config says, which is the file that slipway manager takes.`,
		Example: "  slipway simulate-eviction aks-spot-12345678-vmss000003",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := nodeName(args[0])
			if err != nil {
				return err
			}
			simulate, err := simulator(endpoint, cloudConfig)
			if err != nil {
				return err
			}
			api, err := kube.api()
			if err != nil {
				return err
			}
			node, err := api.GetNode(cmd.Context(), name)
			if err != nil {
				return err
			}
			target, err := eviction.ParseProviderID(node.Spec.ProviderID)
			if err == nil {
				err = simulate(cmd.Context(), node.Spec.ProviderID, target)
			}
			if err != nil {
				return fmt.Errorf("node %s: %w", name, err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: Azure will evict %s; watch with: kubectl get events --field-selector "+
				"involvedObject.name=%s\n", name, target, name)
			return nil
		},
	}
	cmd.Flags().StringVar(&endpoint, "arm-endpoint", "", "URL of Azure Resource Manager (default: the public cloud's); http is for an emulator on the loopback interface")
	cmd.Flags().StringVar(&cloudConfig, "cloud-config", "", "file that says which Azure to ask, and as whom, as slipway manager takes it")
	cmd.MarkFlagsMutuallyExclusive("arm-endpoint", "cloud-config")
	kube.add(cmd.Flags())
	return cmd
}

// simulator gives how Azure is asked.
func simulator(endpoint, cloudConfig string) (func(context.Context, string, eviction.Target) error, error) {
	if cloudConfig != "" {
		azure, err := manager.LoadAzure(cloudConfig)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, providerID string, _ eviction.Target) error {
			return azure.SimulateEviction(ctx, providerID)
		}, nil
	}
	s, err := eviction.New(eviction.Options{Endpoint: endpoint})
	if err != nil {
		return nil, fmt.Errorf("--arm-endpoint: %w", err)
	}
	return func(ctx context.Context, _ string, target eviction.Target) error { return s.Simulate(ctx, target) }, nil
}
