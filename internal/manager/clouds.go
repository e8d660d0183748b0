package manager

import (
	"context"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// Given is what a manager within another process works with, in place of what files and flags say.
type Given struct {
	Kube   *rest.Config
	API    *kubeapi.Client
	Clouds map[string]cloud.Provider
	// LeaseName is the Lease that such managers compete for.
	LeaseName string
}

// given is what a manager works with, from wherever.
func (c *Config) given(userAgent string) (*Given, error) {
	if c.Given != nil {
		return c.Given, nil
	}
	clouds, err := loadClouds(c.CloudConfig)
	if err != nil {
		return nil, err
	}
	kube, err := restConfig(c.Kubeconfig, userAgent)
	if err != nil {
		return nil, err
	}
	api, err := liveAPI(c.Kubeconfig, userAgent)
	if err != nil {
		return nil, err
	}
	return &Given{Kube: kube, API: api, Clouds: clouds}, nil
}

func (c *Config) leaseName() string {
	if c.Given != nil && c.Given.LeaseName != "" {
		return c.Given.LeaseName
	}
	return leaseName
}

// Clouds makes the providers that a file of --cloud-config names, by their names.
func Clouds(path string) (map[string]cloud.Provider, error) { return loadClouds(path) }

// InstallCRDs installs or upgrades Slipway's CustomResourceDefinitions, and waits until they are served.
func InstallCRDs(ctx context.Context, kube *rest.Config) error {
	c, err := client.New(kube, client.Options{})
	if err != nil {
		return err
	}
	return installCRDs(ctx, c)
}
