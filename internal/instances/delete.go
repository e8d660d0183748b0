package instances

import (
	"context"
	"fmt"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// Deleter is the part of [cloud.Provider] that DeleteWithoutNode needs.
type Deleter interface {
	Normalize(providerID string) (string, error)
	Instance(ctx context.Context, providerID string) (cloud.Instance, error)
	Delete(ctx context.Context, providerID string) (cloud.Operation, error)
}

// DeleteWithoutNode deletes an instance for which no Node is there. It reads the instance and then the Nodes right before the
// deletion (I4, I7): an instance may have joined since the caller decided. isSame reports whether the instance is still as the
// caller judged it. The result says whether the cloud was asked to delete it.
func DeleteWithoutNode(ctx context.Context, c Deleter, nodes func(context.Context) ([]cloud.Host, error), providerID string,
	isSame func(cloud.Instance) bool,
) (bool, error) {
	i, err := c.Instance(ctx, providerID)
	switch {
	case cloud.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("instance %s: %w", providerID, err)
	case !isSame(i):
		return false, nil
	}
	hosts, err := nodes(ctx)
	if err != nil {
		return false, fmt.Errorf("instance %s stays, since the Nodes could not be read: %w", providerID, err)
	}
	if node, err := cloud.NewHosts(c.Normalize, hosts).Of(i); node != "" || err != nil {
		return false, err
	}
	if _, err := c.Delete(ctx, providerID); err != nil && !cloud.IsNotFound(err) {
		return false, fmt.Errorf("deleting instance %s, which has no Node: %w", providerID, err)
	}
	return true, nil
}
