// Package cloudpool serves the cloudpool REST API so that a machine goes only when its node's work has gone before: in
// front of a server that knows nothing of Kubernetes, or over any of Slipway's providers.
//
// Requests that cannot take a machine away pass through. One that can (a smaller desired size, a termination, a membership
// that makes a machine disposable) becomes an update of the pool: the machines are paired with their nodes (pairing.go),
// the victims are chosen together as package placement says (decide.go), and one after the other is judged again and
// retired by a NodeRetirement, which the manager carries out (update.go). At the end of a smaller size the server's
// desired size is the one that was asked for.
//
// An update is written down before it begins and after each of its turns (record.go), and one process at a time works on
// a pool (a Lease). So it goes on when the client leaves, when the process ends and in another replica, and a request that
// is repeated is told how the first one went.
//
// What cannot be known leads to nothing: pairs that are unclear, a server or an API server that is away (I7).
package cloudpool

import (
	"context"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloudpool/api"
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
	// Identity is a machine's, in the one spelling that NodeIdentity uses; false for a machine that has none yet.
	Identity(m *api.Machine) (string, bool)
	// NodeIdentity is that of the machine that a node's spec.providerID names. An ID that cannot be read is an error.
	NodeIdentity(providerID string) (string, error)
	// Elsewhere reports a provider ID that is of another cloud than an identity, and of one that is known. Of what is not known
	// nothing follows.
	Elsewhere(identity, providerID string) bool
	// Names are a machine's name and its computer name, as the provider has them: by one of them a retirement confirms that it is
	// the Node's.
	Names(m *api.Machine) (name, computerName string)
	// KeepsRejected reports that a REJECTED machine is one that its cloud has, and that can be taken away.
	KeepsRejected() bool
	// Delete begins to take a machine without a node away, by its identity or, where it has none, by what it is called
	// in the pool, and lowers the desired size by one. The provider tells what becomes of the operation.
	Delete(ctx context.Context, m *api.Machine) (cloud.Operation, error)
	// Provider names the provider and the group that retirements find the machines by.
	Provider() (provider cloud.Provider, group string)
}
