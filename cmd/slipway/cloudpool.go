package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/slipway-dev/slipway/cmd/internal/start"
	"github.com/slipway-dev/slipway/internal/cloudpool"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/manager"
	"github.com/slipway-dev/slipway/internal/observe"
)

func cloudpoolCommand() *cobra.Command {
	var c cloudpool.Config
	cmd := &cobra.Command{
		Use:   "cloudpool",
		Short: "Serve the cloudpool REST API: \"be N machines\", and the right one goes gracefully",
		Long: "Cloudpool stands in front of cloudpool servers, or serves their API over NodeGroups. What cannot take a machine away is\n" +
			"passed on. What can becomes NodeRetirements, which slipway manager carries out with the same --cloud-config.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.Validate(); err != nil {
				return err
			}
			userAgent := "slipway-cloudpool/" + start.Version()
			kube, err := clusterConfig(c.Kubeconfig, userAgent)
			if err != nil {
				return err
			}
			log, err := observe.Logger(cmd.ErrOrStderr(), c.LogFormat, c.LogLevel)
			if err != nil {
				return err
			}
			clouds, closeAll, err := manager.OpenClouds(c.CloudConfig, kube, log)
			if err != nil {
				return err
			}
			defer closeAll()
			api, err := kubeapi.LoadConfig(c.Kubeconfig)
			if err != nil {
				return err
			}
			leases, err := api.Connect(userAgent)
			if err != nil {
				return err
			}
			return cloudpool.Run(cmd.Context(), c, cloudpool.Inputs{
				Kube: kube, Slots: leases, Clouds: clouds, Build: observe.Build{Version: start.Version()}, Stderr: cmd.ErrOrStderr(),
			})
		},
	}
	c.AddFlags(cmd.Flags())
	return cmd
}

// clusterConfig is that of a kubeconfig file, or of the pod's own ServiceAccount. It is not slowed down on this side:
// priority and fairness on the other side is there for that.
func clusterConfig(kubeconfig, userAgent string) (*rest.Config, error) {
	kube, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	switch {
	case err != nil && kubeconfig == "":
		return nil, fmt.Errorf("--kubeconfig: is not given, and there is no ServiceAccount of a pod's: %w", err)
	case err != nil:
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	kube.UserAgent, kube.QPS = userAgent, -1
	return kube, nil
}
