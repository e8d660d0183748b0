package start

import (
	"context"
	"errors"
	"sync"
)

// runAllUntilFailure runs all parts until ctx ends or one part fails. Then it cancels the others and returns the first failure.
// Cancellation is not a failure.
func runAllUntilFailure(ctx context.Context, parts ...func(context.Context) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var group sync.WaitGroup
	for _, part := range parts {
		group.Go(func() {
			if err := part(ctx); err != nil && !errors.Is(err, context.Canceled) {
				stop(err)
			}
		})
	}
	group.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
