package surge

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// slowLists is an API server that needs most of the timeout for a list.
type slowLists struct{ API }

func (slowLists) ListEndpointSlices(ctx context.Context, _ string) ([]kubeapi.EndpointSlice, error) {
	if !elapsed.Sleep(ctx, requestTimeout*3/4) {
		return nil, ctx.Err()
	}
	return nil, nil
}

func TestSharedListHasItsWholeTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Options{API: slowLists{}, Namespace: "slipway", Identity: "n1/1", Mode: On})
		must.NoError(t, err)
		var all sync.WaitGroup
		for i := range 3 {
			all.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				_, err := s.listEndpointSlices(t.Context(), "shop")
				check.NoError(t, err)
			})
		}
		all.Wait()
	})
}
