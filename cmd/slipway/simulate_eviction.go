package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/slipway-dev/slipway/internal/cloud/azure/eviction"
	"github.com/slipway-dev/slipway/internal/manager"
)

func newSimulateCommand() *cobra.Command {
	kube := newKubeFlags("simulate-eviction")
	var endpoint, cloudConfig string
	var output outputFlag
	cmd := &cobra.Command{
		Use:   "simulate-eviction NODE",
		Short: "Simulate the eviction of an Azure Spot node",
		Long: `Simulate-eviction asks Azure to simulate the eviction of a node's instance. Azure announces it in Scheduled Events about
30 seconds before the eviction. The agent then drains the node and sends notifications. THE INSTANCE IS REALLY EVICTED,
according to the eviction policy of its scale set.

The credentials are those of azidentity's DefaultAzureCredential (environment, workload identity, managed identity,
az login and others), or of --cloud-config, the configuration file of slipway manager.`,
		Example: "  slipway simulate-eviction aks-spot-12345678-vmss000003",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := output.validate(); err != nil {
				return err
			}
			name, err := parseNodeName(args[0])
			if err != nil {
				return err
			}
			simulate, err := newSimulateFunc(endpoint, cloudConfig)
			if err != nil {
				return err
			}
			api, err := kube.newAPIClient()
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
			answer := simulatedEviction{
				Node: name, ProviderID: node.Spec.ProviderID, ResourceGroup: target.ResourceGroup, ScaleSet: target.ScaleSet, Instance: target.Name,
			}
			return output.printAnswer(cmd.OutOrStdout(), answer, func(w io.Writer, _ bool) error {
				_, err := fmt.Fprintf(w, "%s: Azure will evict %s; watch with: kubectl get events --field-selector "+
					"involvedObject.name=%s\n", name, target, name)
				return err
			}, formatName("Node", name))
		},
	}
	cmd.Flags().StringVar(&endpoint, "arm-endpoint", "", "URL of Azure Resource Manager (default: public cloud); http only for an emulator on the loopback interface")
	cmd.Flags().StringVar(&cloudConfig, "cloud-config", "", "cloud configuration file of slipway manager, with the Azure cloud and credentials")
	cmd.MarkFlagsMutuallyExclusive("arm-endpoint", "cloud-config")
	output.addFlag(cmd.Flags())
	kube.addFlags(cmd.Flags())
	return cmd
}

// simulatedEviction is an eviction that Azure has accepted to simulate.
type simulatedEviction struct {
	Node          string `json:"node"`
	ProviderID    string `json:"providerID"`
	ResourceGroup string `json:"resourceGroup"`
	// ScaleSet is empty for a single instance and for a flexible scale set.
	ScaleSet string `json:"scaleSet,omitempty"`
	// Instance is the name of the virtual machine or, in a uniform scale set, the instance number.
	Instance string `json:"instance"`
}

// newSimulateFunc returns the function that requests the simulated eviction from Azure.
func newSimulateFunc(endpoint, cloudConfig string) (func(context.Context, string, eviction.Target) error, error) {
	if cloudConfig != "" {
		azure, err := manager.NewAzureProvider(cloudConfig)
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
