package controller

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// TestHarmlessChangesPassWhileUpdatesAreUnreadable makes PoolUpdates unreadable after the caches have synced.
func TestHarmlessChangesPassWhileUpdatesAreUnreadable(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		front := s.newFrontServer(s.startReplica("a"))
		s.advance(5 * time.Second)
		s.updatesUnreadable.Store(true)
		for _, tt := range []struct {
			path, body string
			want       int
		}{
			{"/pool/size", `{"desiredSize": 2}`, http.StatusServiceUnavailable},
			{"/pool/terminate", `{"machineId": "` + newUUID(1) + `"}`, http.StatusServiceUnavailable},
			{"/pool/detach", `{"machineId": "` + newUUID(1) + `"}`, http.StatusOK},
			{"/pool/size", `{"desiredSize": 4}`, http.StatusOK},
		} {
			if w := post(t, front, tt.path, tt.body); w.Code != tt.want {
				t.Errorf("%s %s: %d %s, want %d", tt.path, tt.body, w.Code, w.Body, tt.want)
			}
		}
		if asked := s.pool.changeRequests(); !slices.Equal(asked, []string{"detach 1", "size 4"}) || len(s.listRetirements()) > 0 {
			t.Errorf("the pool was asked %q, and %v are retired", asked, s.retiringNodes())
		}
		s.updatesUnreadable.Store(false)
		if w := post(t, front, "/pool/terminate", `{"machineId": "x"}`); w.Code != http.StatusNotFound {
			t.Errorf("%d %s once the API server answers again, want 404", w.Code, w.Body)
		}
		before := len(s.listUpdates())
		if w := post(t, front, "/pool/size", `{"desiredSize": 5}`); w.Code != http.StatusOK || len(s.listUpdates()) != before+1 {
			t.Errorf("%d %s and %d PoolUpdates once the API server answers again, want 200 and %d", w.Code, w.Body, len(s.listUpdates()), before+1)
		}
	})
}

// TestI10InvalidPoolUpdateIsBadRequest lets the API server refuse the object, for example because of a too long ID.
func TestI10InvalidPoolUpdateIsBadRequest(t *testing.T) {
	simulate(t, 1, func(t *testing.T, s *sim) {
		s.objects = interceptor.NewClient(s.objects.(client.WithWatch), interceptor.Funcs{
			Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
				return apierrors.NewInvalid(v1alpha1.GroupVersion.WithKind("PoolUpdate").GroupKind(), "workers-1", field.ErrorList{
					field.TooLong(field.NewPath("spec", "machineID"), "x", 4096),
				})
			},
		})
		w := post(t, s.newFrontServer(s.startReplica("a")), "/pool/detach", `{"machineId": "x"}`)
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "spec.machineID") || len(s.pool.changeRequests()) > 0 {
			t.Errorf("%d %s after %q; want 400, and the field", w.Code, w.Body, s.pool.changeRequests())
		}
	})
}
