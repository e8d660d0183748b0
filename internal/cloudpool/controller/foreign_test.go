package controller

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// TestAForeignPoolUpdateKeepsNoUpdateFromBeginning has an object that was made by hand. It is not carried out, and an update begins
// after a few requests.
func TestAForeignPoolUpdateKeepsNoUpdateFromBeginning(t *testing.T) {
	ofPool := map[string]string{PoolLabel: "workers"}
	for name, tt := range map[string]struct {
		object string
		labels map[string]string
		pool   string
	}{
		"the next name, without the label": {"workers-1", nil, "workers"},
		"the next name, of another pool":   {"workers-1", ofPool, "other"},
		"a name without a number":          {"by-hand", ofPool, "workers"},
		"a number that is too large":       {"workers-99999999999999999999", ofPool, "workers"},
		"a number with a zero before it":   {"workers-01", ofPool, "workers"},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				err := s.objects.Create(t.Context(), &v1alpha1.PoolUpdate{
					ObjectMeta: metav1.ObjectMeta{Namespace: "slipway", Name: tt.object, Labels: tt.labels},
					Spec:       v1alpha1.PoolUpdateSpec{Pool: tt.pool, Type: v1alpha1.SetPoolSize, DesiredSize: new(int32(1))},
				})
				if err != nil {
					t.Fatal(err)
				}
				creations := 0
				s.objects = interceptor.NewClient(s.objects.(client.WithWatch), interceptor.Funcs{
					Create: func(ctx context.Context, c client.WithWatch, o client.Object, more ...client.CreateOption) error {
						if creations++; creations > 20 {
							return errCut
						}
						return c.Create(ctx, o, more...)
					},
				})
				a := s.replica("a")
				s.passes(5 * time.Second)
				ticket, err := a.Submit(t.Context(), Update{Kind: SetSize, DesiredSize: 2}, nil)
				if err != nil {
					t.Fatalf("%v after %d requests to create it, want the update begun", err, creations)
				}
				for range 10 {
					s.passes(2 * time.Second)
					s.manage()
				}
				if is, err := a.Find(t.Context(), ticket.ID); err != nil || is.Outcome == nil || is.Outcome.Result != Done || len(s.pool.machines) != 2 {
					t.Errorf("%+v, %v, and %d machines; want it done, and 2", is, err, len(s.pool.machines))
				}
			})
		})
	}
}
