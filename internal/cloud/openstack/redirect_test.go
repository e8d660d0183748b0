package openstack

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestTokenIsNotSentToRedirects(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("request to another server, with token %q", r.Header.Get("X-Auth-Token"))
	}))
	defer other.Close()
	moved := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusFound))
	defer moved.Close()
	client := (&session{login: &login{}, timeout: 10 * time.Second}).httpClient()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, moved.URL, nil)
	must.NoError(t, err)
	r.Header.Set("X-Auth-Token", "secret")
	answer, err := client.Do(r)
	must.NoError(t, err)
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusFound {
		t.Errorf("%s, want the redirect itself", answer.Status)
	}
}
