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

// TestForeignPoolUpdateBlocksNoUpdate creates an object by hand. The object is not carried out, and a new update starts
// after few requests.
func TestForeignPoolUpdateBlocksNoUpdate(t *testing.T) {
	ofPool := map[string]string{PoolLabel: "workers"}
	for name, tt := range map[string]struct {
		object string
		labels map[string]string
		pool   string
	}{
		"next name without label":  {"workers-1", nil, "workers"},
		"next name of other pool":  {"workers-1", ofPool, "other"},
		"name without number":      {"by-hand", ofPool, "workers"},
		"too large number":         {"workers-99999999999999999999", ofPool, "workers"},
		"number with leading zero": {"workers-01", ofPool, "workers"},
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
							return errConnectionRefused
						}
						return c.Create(ctx, o, more...)
					},
				})
				a := s.startReplica("a")
				s.advance(5 * time.Second)
				submitted, err := a.SubmitOrFindEqual(t.Context(), Update{Kind: SetSize, DesiredSize: 2}, nil)
				if err != nil {
					t.Fatalf("%v after %d requests to create it, want the update created", err, creations)
				}
				for range 10 {
					s.advance(2 * time.Second)
					s.completeRetirements()
				}
				if is, err := a.FindUpdate(t.Context(), submitted.ID); err != nil || is.Outcome == nil || is.Outcome.Result != Done || len(s.pool.machines) != 2 {
					t.Errorf("%+v, %v, and %d machines; want it done, and 2", is, err, len(s.pool.machines))
				}
			})
		})
	}
}
