package controller

import (
	"context"

	"github.com/slipway-dev/slipway/internal/cloud"
	provider "github.com/slipway-dev/slipway/internal/cloud/cloudpool"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/cloudpool/matching"
)

// proxiedPool is the Backend of a pool on a cloudpool server.
type proxiedPool struct {
	provider *provider.Provider
	group    string
	matching.ServerIdentities
}

// NewProxiedPool returns the Backend of a pool on a cloudpool server. computerName is the path of the host name in a machine's
// metadata.
func NewProxiedPool(p *provider.Provider, group, computerName string) Backend {
	return proxiedPool{p, group, matching.ServerIdentities{ComputerName: computerName}}
}

// queryServer calls a method of the pool's client and returns its result.
func queryServer[T any](ctx context.Context, p proxiedPool, what func(*api.Client, context.Context) (T, error)) (answer T, err error) {
	c, err := p.provider.Client(ctx, p.group)
	if err != nil {
		return answer, err
	}
	return what(c, ctx)
}

// changeServer calls a method of the pool's client that changes something.
func changeServer[T any](ctx context.Context, p proxiedPool, what func(*api.Client, context.Context, T) error, it T) error {
	_, err := queryServer(ctx, p, func(c *api.Client, ctx context.Context) (struct{}, error) { return struct{}{}, what(c, ctx, it) })
	return err
}

func (p proxiedPool) Pool(ctx context.Context) (api.Pool, error) {
	return queryServer(ctx, p, (*api.Client).Pool)
}

func (p proxiedPool) Size(ctx context.Context) (api.Size, error) {
	return queryServer(ctx, p, (*api.Client).Size)
}

func (p proxiedPool) SetDesiredSize(ctx context.Context, n int) error {
	return changeServer(ctx, p, (*api.Client).SetDesiredSize, n)
}

func (p proxiedPool) SetMembershipStatus(ctx context.Context, s api.SetMembershipStatus) error {
	return changeServer(ctx, p, (*api.Client).SetMembershipStatus, s)
}

func (p proxiedPool) Detach(ctx context.Context, r api.Removal) error {
	return changeServer(ctx, p, (*api.Client).Detach, r)
}

func (p proxiedPool) Delete(ctx context.Context, m *api.Machine, o cloud.DeleteOptions) (cloud.Operation, error) {
	return p.provider.DeleteMember(ctx, p.group, m.ID, o)
}

func (proxiedPool) KeepsSize() bool { return true }

func (p proxiedPool) Provider() (cloud.Provider, string) { return p.provider, p.group }
