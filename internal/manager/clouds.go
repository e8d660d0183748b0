package manager

import (
	"log/slog"

	"k8s.io/client-go/rest"

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

// OpenProviders returns the providers of a --cloud-config file by name. It is for a process that runs no manager. The
// caller must call closeAll at the end.
func OpenProviders(path string, kube *rest.Config, log *slog.Logger) (providers map[string]cloud.Provider, closeAll func(), err error) {
	openStack := &openStackSetup{kube: kube, log: log}
	providers, err = newProviders(path, nil, openStack.newProvider, log)
	if err != nil {
		return nil, nil, err
	}
	return providers, func() { closeClouds(providers) }, nil
}
