package cloudpool

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestRedirectsOfReadsAreFollowed(t *testing.T) {
	shown := map[string]bool{} // whether credentials were sent, by path
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown["other"] = r.Header.Get("Authorization") != ""
		_, _ = io.WriteString(w, `{"timestamp": "2026-01-02T03:04:05.000Z", "desiredSize": 7, "allocated": 7, "active": 7}`)
	}))
	defer other.Close()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown[r.URL.Path] = r.Header.Get("Authorization") != ""
		switch {
		case r.URL.Path == "/pool/size" && r.Method == http.MethodGet:
			http.Redirect(w, r, "/moved", http.StatusFound)
		case r.URL.Path == "/moved":
			http.Redirect(w, r, other.URL, http.StatusPermanentRedirect)
		default:
			http.Redirect(w, r, "/pool", http.StatusFound)
		}
	}))
	defer server.Close()
	password := "secret"
	for _, follows := range []bool{true, false} {
		p, err := New(Config{
			Pools: []PoolConfig{{Name: "workers", URL: server.URL}}, FollowRedirects: follows,
			Auth: Auth{Username: "u", Password: &password}, RequestTimeout: cloud.Duration(10 * time.Second),
		}, Options{})
		must.NoError(t, err)
		group, err := p.Group(t.Context(), "workers")
		if follows != (err == nil && group.Size == 7) {
			t.Errorf("follows %t: %+v, %v", follows, group, err)
		}
		client, err := p.Client(t.Context(), "workers")
		must.NoError(t, err)
		if err := client.SetDesiredSize(t.Context(), 3); err == nil || !strings.Contains(err.Error(), "302") {
			t.Errorf("follows %t: a change was redirected: %v", follows, err)
		}
		_, err = p.Instances(t.Context(), "workers")
		if follows && (err == nil || !strings.Contains(err.Error(), "stopped after 10 redirects")) {
			t.Errorf("endless redirects: %v", err)
		}
	}
	if !shown["/moved"] || shown["other"] {
		t.Errorf("credentials sent to %v; want only the same server", shown)
	}
}

func TestRedirectToAnotherServerGetsNoCredentials(t *testing.T) {
	names := []string{"Authorization", "Proxy-Authorization", "Cookie", "X-Auth-Token"}
	var shown []string
	note := func(r *http.Request) {
		shown = nil
		for _, name := range names {
			if r.Header.Get(name) != "" {
				shown = append(shown, name)
			}
		}
		if len(r.TLS.PeerCertificates) > 0 {
			shown = append(shown, "certificate")
		}
	}
	serve := func(h http.HandlerFunc) *httptest.Server {
		server := httptest.NewUnstartedServer(h)
		server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
		server.StartTLS()
		t.Cleanup(server.Close)
		return server
	}
	other := serve(func(_ http.ResponseWriter, r *http.Request) { note(r) })
	server := serve(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, other.URL, http.StatusFound)
		case "/here":
			http.Redirect(w, r, "/moved", http.StatusFound)
		default:
			note(r)
		}
	})
	certFile, keyFile := writeKeyPair(t, server.TLS.Certificates[0])
	c := Config{FollowRedirects: true, CAFile: certFile, Auth: Auth{CertFile: certFile, KeyFile: keyFile}}
	transport, err := c.Transport()
	must.NoError(t, err)
	for path, want := range map[string]string{"/here": strings.Join(names, " ") + " certificate", "/away": ""} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
		must.NoError(t, err)
		for _, name := range names {
			r.Header.Set(name, "secret")
		}
		answer, err := transport.RoundTrip(r)
		must.NoError(t, err)
		_ = answer.Body.Close()
		if got := strings.Join(shown, " "); got != want {
			t.Errorf("%s: sent %q, want %q", path, got, want)
		}
	}
}

// writeKeyPair writes a certificate and its key to files.
func writeKeyPair(t *testing.T, pair tls.Certificate) (certFile, keyFile string) {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	must.NoError(t, err)
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, keyFile: {Type: "PRIVATE KEY", Bytes: key},
	} {
		must.NoError(t, os.WriteFile(file, pem.EncodeToMemory(block), 0o600))
	}
	return certFile, keyFile
}
