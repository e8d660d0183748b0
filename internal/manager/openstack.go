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

// openStackSetup creates the OpenStack provider, and the bootstrap tokens that its instances join with. It also checks
// the provider's configuration and deletes unneeded tokens.
type openStackSetup struct {
	kube *rest.Config
	log  *slog.Logger

	provider *openstack.Provider // nil without OpenStack
	minter   *bootstrap.TokenIssuer
}

func (o *openStackSetup) newProvider(c openstack.Config) (cloud.Provider, error) {
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

// Start implements manager.Runnable; it runs in the leader. It checks once that everything named in the configuration
// exists in OpenStack. Until ctx ends, it deletes unneeded bootstrap tokens.
func (o *openStackSetup) Start(ctx context.Context) error {
	if o.provider == nil {
		return nil
	}
	if err := o.provider.CheckConfiguredNames(ctx); err != nil && ctx.Err() == nil {
		o.log.Error("OpenStack lacks something that the configuration names", "err", err)
	}
	if o.provider.UsesJoin() {
		o.minter.RunTokenCleanup(ctx)
	}
	return nil
}
