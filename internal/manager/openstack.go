package manager

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/slipway-dev/slipway/internal/bootstrap"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/openstack"
)

// openStack makes the provider of OpenStack with what its machines join the cluster by, and looks after both.
type openStack struct {
	kube *rest.Config
	log  *slog.Logger

	provider *openstack.Provider // nil where there is no OpenStack
	minter   *bootstrap.Minter
}

func (o *openStack) open(c openstack.Config) (cloud.Provider, error) {
	client, err := kubernetes.NewForConfig(o.kube)
	if err != nil {
		return nil, err
	}
	minter, err := bootstrap.New(client, bootstrap.Options{TTL: time.Duration(c.Join.TTL), Server: c.Join.Server, Log: o.log})
	if err != nil {
		return nil, err
	}
	provider, err := openstack.New(c, openstack.Options{Joiner: minter, Log: o.log})
	if err != nil {
		return nil, err
	}
	o.provider, o.minter = provider, minter
	return provider, nil
}

// Start implements manager.Runnable, for the one that leads: it says at once what of the configuration OpenStack does not
// have, and removes the bootstrap tokens that are not needed any more.
func (o *openStack) Start(ctx context.Context) error {
	if o.provider == nil {
		return nil
	}
	if err := o.provider.Check(ctx); err != nil && ctx.Err() == nil {
		o.log.Error("what the configuration names is not all to be had in OpenStack", "err", err)
	}
	if o.provider.Joins() {
		o.minter.Run(ctx)
	}
	return nil
}
