package monitoring_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud/openstack"
)

// noServers is an OpenStack without servers. It implements as much as the manager needs to report that no orphaned
// instances exist. The manager reports this only for a cloud that marks its instances. e2e/openstack tests the real
// OpenStack.
func noServers(t *testing.T) openstack.Config {
	t.Helper()
	mux := http.NewServeMux()
	answer := func(route string, status int, body string) {
		mux.HandleFunc(route, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("X-Subject-Token", "token")
			w.WriteHeader(status)
			_, _ = fmt.Fprint(w, body) // a disconnected client does not read it
		})
	}
	expires := time.Now().Add(time.Hour).UTC().Format("2006-01-02T15:04:05.000000Z")
	answer("POST /v3/auth/tokens", http.StatusCreated, `{"token": {"catalog": [], "expires_at": "`+expires+`"}}`)
	answer("GET /v2.1/{$}", http.StatusOK, `{"version": {"version": "2.90"}}`)
	answer("GET /v2.1/servers/detail", http.StatusOK, `{"servers": []}`)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return openstack.Config{
		Auth:        &openstack.Auth{URL: server.URL + "/v3", UserID: "user", Password: "secret", ProjectID: "project"},
		Endpoints:   map[string]string{"compute": server.URL + "/v2.1", "image": server.URL, "network": server.URL},
		ClusterName: "monitoring",
	}
}
