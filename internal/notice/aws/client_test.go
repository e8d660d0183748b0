package aws

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestIPv6EndpointReplacesAnUnreachableIPv4One(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && r.Header.Get(tokenHeader) != "token" {
			w.WriteHeader(http.StatusUnauthorized)
		}
		_, _ = io.WriteString(w, "token")
	}))
	closed := httptest.NewServer(nil)
	closed.Close()
	c, err := NewClient(ClientOptions{})
	must.NoError(t, err)
	check.Equal(t, []string{"http://169.254.169.254", "http://[fd00:ec2::254]"}, c.endpoints)
	c.endpoints = []string{closed.URL, server.URL}
	for range 2 {
		body, found, err := c.Get(t.Context(), spotPath)
		if err != nil || !found || string(body) != "token" {
			t.Fatalf("%q, %t, %v", body, found, err)
		}
	}
	check.Is(t, server.URL, c.Endpoint())
	server.Close()
	c.dropToken("token")
	if _, _, err := c.Get(t.Context(), spotPath); err == nil || !strings.Contains(err.Error(), server.URL) {
		t.Errorf("error %v, want one about the endpoint in use", err)
	}
}

func TestI10BadClientOptionsAreNamedWithTheirValue(t *testing.T) {
	for _, endpoint := range []string{"ftp://h", "h", "http://", "http://h/latest", "http://h?x=1", "http://h/%zz"} {
		_, err := NewClient(ClientOptions{Endpoint: endpoint})
		check.ErrorContains(t, err, "endpoint", endpoint, DefaultEndpoint)
	}
	_, err := NewClient(ClientOptions{Timeout: -1})
	check.ErrorContains(t, err, "timeout", "-1ns")
}
