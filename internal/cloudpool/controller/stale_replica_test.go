package controller

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// TestI8StaleReplicaCancelsNoRetirement lets another process write the update after each read of the retirement.
func TestI8StaleReplicaCancelsNoRetirement(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		var behind atomic.Bool
		s.objects = interceptor.NewClient(s.objects.(client.WithWatch), interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, o ...client.GetOption) error {
				if _, retirement := into.(*v1alpha1.NodeRetirement); retirement && behind.Load() {
					s.rewriteStatus(s.listUpdates()[0], func(st *v1alpha1.PoolUpdateStatus) { st.Message = time.Now().String() })
				}
				return c.Get(ctx, key, into, o...)
			},
		})
		a := s.startReplica("a")
		mustSubmit(t, a, Update{Kind: Terminate, MachineID: newUUID(1)})
		s.advance(5 * time.Second)
		behind.Store(true)
		s.advance(2 * a.opts.Timeouts.FailureTolerance)
		if n := len(s.listRetirements()); n != 1 {
			t.Errorf("%d retirements, want the unobserved one to be kept", n)
		}
	})
}
