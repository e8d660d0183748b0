package cloud

import (
	"context"
	"fmt"
)

// DeleteOptions configures the deletion of an instance.
type DeleteOptions struct {
	// KeepSize keeps the size of the instance's group, so that the cloud launches another instance. Only a [SizePreservingDeleter]
	// supports it.
	KeepSize bool
}

// SizePreservingDeleter is a Provider that can delete an instance without changing its group's size.
type SizePreservingDeleter interface {
	// DeleteKeepingSize does what [Provider.Delete] does, but keeps the group's size.
	DeleteKeepingSize(ctx context.Context, providerID string) (Operation, error)
}

// Delete deletes an instance with the given options. If the provider does not support an option, Delete returns a
// [*RefusedError] and deletes nothing.
func Delete(ctx context.Context, p Provider, providerID string, o DeleteOptions) (Operation, error) {
	if !o.KeepSize {
		return p.Delete(ctx, providerID)
	}
	deleter, can := p.(SizePreservingDeleter)
	if !can {
		return Operation{}, &RefusedError{Reason: Invalid, Err: fmt.Errorf(
			"deleting %s: the provider %s cannot keep its group's size: want a deletion that lowers it", providerID, p.Name())}
	}
	return deleter.DeleteKeepingSize(ctx, providerID)
}
