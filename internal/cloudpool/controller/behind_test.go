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

// TestI8AProcessThatHasFallenBehindCancelsNothing has another process write the update after each read of the retirement.
func TestI8AProcessThatHasFallenBehindCancelsNothing(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		var behind atomic.Bool
		s.objects = interceptor.NewClient(s.objects.(client.WithWatch), interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, o ...client.GetOption) error {
				if _, retirement := into.(*v1alpha1.NodeRetirement); retirement && behind.Load() {
					s.rewrite(s.updates()[0], func(st *v1alpha1.PoolUpdateStatus) { st.Message = time.Now().String() })
				}
				return c.Get(ctx, key, into, o...)
			},
		})
		a := s.replica("a")
		begun(t, a, Update{Kind: Terminate, MachineID: uuid(1)})
		s.passes(5 * time.Second)
		behind.Store(true)
		s.passes(2 * a.o.Pace.Trouble)
		if n := len(s.retirements()); n != 1 {
			t.Errorf("%d retirements, want the one that no manager has taken up to be kept", n)
		}
	})
}
