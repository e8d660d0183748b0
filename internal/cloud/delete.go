package cloud

import (
	"context"
	"fmt"
)

// DeleteOptions say how an instance is deleted.
type DeleteOptions struct {
	// KeepSize keeps the size of the instance's group, so that the cloud launches another instance. It takes a [SizeKeeper].
	KeepSize bool
}

// SizeKeeper is a Provider that can delete an instance and keep its group's size.
type SizeKeeper interface {
	// DeleteKeepingSize is [Provider.Delete], except that the group's size stays.
	DeleteKeepingSize(ctx context.Context, providerID string) (Operation, error)
}

// Delete deletes an instance as the options say. Options that the provider cannot follow are a [*RefusedError], and nothing
// is deleted.
func Delete(ctx context.Context, p Provider, providerID string, o DeleteOptions) (Operation, error) {
	if !o.KeepSize {
		return p.Delete(ctx, providerID)
	}
	keeper, can := p.(SizeKeeper)
	if !can {
		return Operation{}, &RefusedError{Reason: Invalid, Err: fmt.Errorf(
			"deleting %s: the provider %s cannot keep its group's size: want a deletion that lowers it", providerID, p.Name())}
	}
	return keeper.DeleteKeepingSize(ctx, providerID)
}
