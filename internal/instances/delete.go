package instances

import (
	"context"
	"fmt"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// Deleter lists the methods of [cloud.Provider] that a deletion calls.
type Deleter interface {
	Normalize(providerID string) (string, error)
	Instance(ctx context.Context, providerID string) (cloud.Instance, error)
	Delete(ctx context.Context, providerID string) (cloud.Operation, error)
}

// DeleteIfStillWithoutNode deletes an instance that has no Node. Directly before the deletion it reads the instance and
// then all Nodes (invariants I4 and I7), because the instance may have joined the cluster. isUnchanged reports whether the
// instance is the one about which the caller has decided. The result is true if the deletion was requested.
func DeleteIfStillWithoutNode(ctx context.Context, c Deleter, nodes func(context.Context) ([]cloud.NodeIdentity, error), providerID string,
	isUnchanged func(cloud.Instance) bool,
) (requested bool, err error) {
	i, err := c.Instance(ctx, providerID)
	switch {
	case cloud.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("instance %s: %w", providerID, err)
	case !isUnchanged(i):
		return false, nil
	}
	hosts, err := nodes(ctx)
	if err != nil {
		return false, fmt.Errorf("instance %s is not deleted, because reading the Nodes failed: %w", providerID, err)
	}
	if node, err := cloud.NewNodeIndex(c.Normalize, hosts).FindNode(i); node != "" || err != nil {
		return false, err
	}
	if _, err := c.Delete(ctx, providerID); err != nil && !cloud.IsNotFound(err) {
		return false, fmt.Errorf("deleting instance %s without a Node: %w", providerID, err)
	}
	return true, nil
}
