package controller

import (
	"context"

	"github.com/slipway-dev/slipway/internal/cloud"
	provider "github.com/slipway-dev/slipway/internal/cloud/cloudpool"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/cloudpool/matching"
)

// proxied is a pool that a cloudpool server keeps.
type proxied struct {
	provider *provider.Provider
	group    string
	matching.ServerIdentities
}

// NewProxied makes a pool that a cloudpool server keeps. A machine's metadata has its host name at computerName.
func NewProxied(p *provider.Provider, group, computerName string) Backend {
	return proxied{p, group, matching.ServerIdentities{ComputerName: computerName}}
}

// ask asks the pool's server.
func ask[T any](ctx context.Context, p proxied, what func(*api.Client, context.Context) (T, error)) (answer T, err error) {
	c, err := p.provider.Client(ctx, p.group)
	if err != nil {
		return answer, err
	}
	return what(c, ctx)
}

// tell asks the pool's server to change something.
func tell[T any](ctx context.Context, p proxied, what func(*api.Client, context.Context, T) error, it T) error {
	_, err := ask(ctx, p, func(c *api.Client, ctx context.Context) (struct{}, error) { return struct{}{}, what(c, ctx, it) })
	return err
}

func (p proxied) Pool(ctx context.Context) (api.Pool, error) { return ask(ctx, p, (*api.Client).Pool) }

func (p proxied) Size(ctx context.Context) (api.Size, error) { return ask(ctx, p, (*api.Client).Size) }

func (p proxied) SetDesiredSize(ctx context.Context, n int) error {
	return tell(ctx, p, (*api.Client).SetDesiredSize, n)
}

func (p proxied) SetMembershipStatus(ctx context.Context, s api.SetMembershipStatus) error {
	return tell(ctx, p, (*api.Client).SetMembershipStatus, s)
}

func (p proxied) Detach(ctx context.Context, r api.Removal) error {
	return tell(ctx, p, (*api.Client).Detach, r)
}

func (p proxied) Delete(ctx context.Context, m *api.Machine, o cloud.DeleteOptions) (cloud.Operation, error) {
	return p.provider.DeleteMember(ctx, p.group, m.ID, o)
}

func (proxied) KeepsSize() bool { return true }

func (p proxied) Provider() (cloud.Provider, string) { return p.provider, p.group }
