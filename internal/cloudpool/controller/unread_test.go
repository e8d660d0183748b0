package controller

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestUnreadNodeGroupIsUnavailable(t *testing.T) {
	simulate(t, 1, func(t *testing.T, s *sim) {
		c := newCluster(s.kube, s.objects, slog.New(slog.DiscardHandler))
		pool := NewNativePool(c, "web", "slipway", 0)
		u, err := NewUpdater(UpdaterOptions{
			Pool: "web", Backend: pool, Cluster: c, Leases: s.leases.forHolder("a"), Namespace: "slipway", Holder: "a", Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		front := newServer("web", pool, pool, u, false)
		for _, path := range []string{"/pool", "/pool/size", "/cloudpools/web/pool", "/slipway/v1/pools/web/plan?desiredSize=0"} {
			answer := httptest.NewRecorder()
			front.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
			if answer.Code != http.StatusServiceUnavailable || answer.Header().Get("Retry-After") == "" {
				t.Errorf("%s: %d %s, want 503", path, answer.Code, answer.Body)
			}
		}
	})
}
