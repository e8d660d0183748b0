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

func newCloudpoolCommand() *cobra.Command {
	var c cloudpool.Config
	cmd := &cobra.Command{
		Use:   "cloudpool",
		Short: "Serve the cloudpool REST API and drain nodes before machines are deleted",
		Long: "Cloudpool is a proxy in front of cloudpool servers, or serves their API for NodeGroups. It forwards requests that cannot\n" +
			"remove a machine. For the others it creates NodeRetirements, which slipway manager carries out with the same\n" +
			"--cloud-config.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.Validate(); err != nil {
				return err
			}
			userAgent := "slipway-cloudpool/" + start.Version()
			kube, err := loadKubeConfig(c.Kubeconfig, userAgent)
			if err != nil {
				return err
			}
			log, err := observe.NewLogger(cmd.ErrOrStderr(), c.LogFormat, c.LogLevel)
			if err != nil {
				return err
			}
			clouds, closeAll, err := manager.OpenProviders(c.CloudConfig, kube, log)
			if err != nil {
				return err
			}
			defer closeAll()
			api, err := kubeapi.LoadConfig(c.Kubeconfig)
			if err != nil {
				return err
			}
			leases, err := api.NewClient(userAgent)
			if err != nil {
				return err
			}
			return cloudpool.Run(cmd.Context(), c, cloudpool.Dependencies{
				Kube: kube, Leases: leases, Clouds: clouds, Build: observe.Build{Version: start.Version()}, Stderr: cmd.ErrOrStderr(),
			})
		},
	}
	c.AddFlags(cmd.Flags())
	return cmd
}

// loadKubeConfig returns the client-go configuration from a kubeconfig file. If kubeconfig is empty, it uses the pod's
// ServiceAccount. The configuration has no client-side rate limit, because the API server limits requests itself
// (priority and fairness).
func loadKubeConfig(kubeconfig, userAgent string) (*rest.Config, error) {
	kube, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	switch {
	case err != nil && kubeconfig == "":
		return nil, fmt.Errorf("--kubeconfig: is not set, and this is not a pod with a ServiceAccount: %w", err)
	case err != nil:
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	kube.UserAgent, kube.QPS = userAgent, -1
	return kube, nil
}
