package start

import (
	"context"
	"errors"
	"sync"
)

// together runs all parts until ctx ends or one of them fails, then ends the others, and returns what failed first.
// An end that was asked for is no failure.
func together(ctx context.Context, parts ...func(context.Context) error) error {
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
