package controller

import (
	"context"

	"github.com/slipway-dev/slipway/internal/cloud"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/cloudpool/matching"
)

// Backend is one pool of machines, whoever keeps it. Its methods may be called concurrently.
type Backend interface {
	// Pool reads the machines as they were last observed.
	Pool(ctx context.Context) (api.Pool, error)
	// Size reads how large the pool is and is meant to be.
	Size(ctx context.Context) (api.Size, error)
	// SetDesiredSize records how large the pool is meant to be. A pool that is larger may take a machine of its own choice
	// away for it, so that its caller sees to it before that it is not.
	SetDesiredSize(ctx context.Context, n int) error
	// SetMembershipStatus says whether a machine counts, and may be taken away.
	SetMembershipStatus(ctx context.Context, s api.SetMembershipStatus) error
	// Detach ends a machine's membership, and lets it run.
	Detach(ctx context.Context, r api.Removal) error
	matching.Identities
	// Delete begins to take a machine without a node away, by its identity or, where it has none, by what it is called
	// in the pool. The provider tells what becomes of the operation.
	Delete(ctx context.Context, m *api.Machine, o cloud.DeleteOptions) (cloud.Operation, error)
	// KeepsSize reports that a machine can be deleted and the desired size kept, so that the pool's server replaces it.
	KeepsSize() bool
	// Provider names the provider and the group that retirements find the machines by.
	Provider() (provider cloud.Provider, group string)
}
