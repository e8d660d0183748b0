package controller

import (
	"context"

	"github.com/slipway-dev/slipway/internal/cloud"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/cloudpool/matching"
)

// Backend lists the operations on one pool of machines. Its methods may be called concurrently.
type Backend interface {
	// Pool returns the machines as they were last observed.
	Pool(ctx context.Context) (api.Pool, error)
	// Size returns the desired and the actual size.
	Size(ctx context.Context) (api.Size, error)
	// SetDesiredSize sets the desired size. If the pool is larger, its server may delete machines of its choice, so the
	// caller makes sure first that it is not.
	SetDesiredSize(ctx context.Context, n int) error
	// SetMembershipStatus sets whether a machine counts towards the size (active) and may be removed (evictable).
	SetMembershipStatus(ctx context.Context, s api.SetMembershipStatus) error
	// Detach ends a machine's membership. The machine keeps running.
	Detach(ctx context.Context, r api.Removal) error
	matching.Identities
	// Delete starts to delete a machine without a node. It identifies the machine by its identity or, if it has none, by its
	// ID in the pool. The provider reports the status of the operation.
	Delete(ctx context.Context, m *api.Machine, o cloud.DeleteOptions) (cloud.Operation, error)
	// KeepsSize reports whether a deletion can keep the desired size, so that the pool's server replaces the machine.
	KeepsSize() bool
	// Provider returns the provider and the group that retirements use to find the machines.
	Provider() (provider cloud.Provider, group string)
}
