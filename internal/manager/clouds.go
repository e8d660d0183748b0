package manager

import (
	"context"
	"log/slog"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/cloudpool"
)

// addCloudpool makes the provider of cloudpools, if there are any.
func (c *Clouds) addCloudpool(providers map[string]cloud.Provider, log *slog.Logger) error {
	if c.Cloudpool == nil {
		return nil
	}
	p, err := cloudpool.New(*c.Cloudpool, cloudpool.Options{Log: log})
	if err != nil {
		return err
	}
	providers[p.Name()] = p
	return nil
}

// OpenClouds makes the providers that a file of --cloud-config names, by their names, for a process that reads the cluster
// and has no manager in it. They are to be closed by what is returned.
func OpenClouds(path string, kube *rest.Config, log *slog.Logger) (providers map[string]cloud.Provider, closeAll func(), err error) {
	openStack := &openStack{kube: kube, log: log}
	providers, err = loadClouds(path, nil, openStack.open, log)
	if err != nil {
		return nil, nil, err
	}
	return providers, func() { closeClouds(providers) }, nil
}

// InstallCRDs installs or upgrades Slipway's CustomResourceDefinitions, and waits until they are served.
// Those that are newer than this program's are left as they are, which is logged.
func InstallCRDs(ctx context.Context, kube *rest.Config, log *slog.Logger) error {
	c, err := client.New(bounded(kube), client.Options{})
	if err != nil {
		return err
	}
	return installCRDs(ctx, c, log)
}
