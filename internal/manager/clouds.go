package manager

import (
	"context"
	"log/slog"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/cloudpool"
)

// addCloudpoolProvider adds the cloudpool provider, if configured.
func (c *Clouds) addCloudpoolProvider(providers map[string]cloud.Provider, log *slog.Logger) error {
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

// OpenProviders returns the providers of a --cloud-config file by name, for a process without a manager. The caller must
// call closeAll.
func OpenProviders(path string, kube *rest.Config, log *slog.Logger) (providers map[string]cloud.Provider, closeAll func(), err error) {
	openStack := &openStackSetup{kube: kube, log: log}
	providers, err = newProviders(path, nil, openStack.newProvider, log)
	if err != nil {
		return nil, nil, err
	}
	return providers, func() { closeClouds(providers) }, nil
}

// InstallCRDs installs or upgrades Slipway's CustomResourceDefinitions, and waits until they are served. It keeps
// definitions that are newer than this program's, and logs that.
func InstallCRDs(ctx context.Context, kube *rest.Config, log *slog.Logger) error {
	c, err := client.New(withRequestTimeout(kube), client.Options{})
	if err != nil {
		return err
	}
	return installCRDs(ctx, c, log)
}
