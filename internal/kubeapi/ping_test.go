package kubeapi

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-dev/slipway/internal/testing/must"
)

// mutableConn is a connection that can die silently: it delivers nothing and reports no error.
type mutableConn struct {
	net.Conn
	dead *atomic.Bool
}

func (m mutableConn) Read(p []byte) (int, error) {
	for {
		n, err := m.Conn.Read(p)
		if err != nil || !m.dead.Load() {
			return n, err
		}
	}
}

func (m mutableConn) Write(p []byte) (int, error) {
	if m.dead.Load() {
		return len(p), nil
	}
	return m.Conn.Write(p)
}

func TestSilentlyDeadWatchIsReplaced(t *testing.T) {
	certificate := httptest.NewTLSServer(http.NotFoundHandler()) // outside of the bubble: only its certificate is used
	t.Cleanup(certificate.Close)
	synctest.Test(t, func(t *testing.T) {
		var dead atomic.Bool
		listener := newPipeListener()
		s := &script{steps: []http.HandlerFunc{podList("5"), neverAnswer, stream(event("ADDED", "a", "6"))}}
		server := &http.Server{Handler: s}
		server.Protocols = new(http.Protocols)
		server.Protocols.SetHTTP2(true)
		server.TLSConfig = &tls.Config{Certificates: certificate.TLS.Certificates}
		go func() { _ = server.ServeTLS(listener, "", "") }()

		config := Config{Server: &url.URL{Scheme: "https", Host: "api.test"}, InsecureSkipVerify: true}
		hc, err := config.NewHTTPClient()
		must.NoError(t, err)
		transport := hc.Transport.(*http.Transport)
		transport.Proxy = nil
		dials := 0
		transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := listener.dial(ctx, network, address)
			if dials++; dials == 1 {
				return mutableConn{c, &dead}, err
			}
			return c, err
		}

		ctx, cancel := context.WithCancel(t.Context())
		var d recorder
		var began, noticed time.Time
		h := d.handler()
		h.Failed = func(error) { noticed = time.Now(); d.add("failed") }
		done := make(chan struct{})
		go func() { _ = NewClient(config.Server, hc, "slipway-test").WatchPodsOnNode(ctx, "n1", h); close(done) }()
		time.Sleep(10 * time.Minute) // answered pings keep the watch
		if got := d.read(); !cmp.Equal(got, []string{"replaced []"}) {
			t.Errorf("before the connection died: %v", got)
		}
		began = time.Now()
		dead.Store(true)
		time.Sleep(2 * time.Minute)
		cancel()
		<-done
		transport.CloseIdleConnections()
		_ = server.Close()

		if got := d.read(); !cmp.Equal(got, []string{"replaced []", "failed", "changed a@6"}) {
			t.Errorf("calls %s", strings.Join(got, ", "))
		}
		if took := noticed.Sub(began); took <= 0 || took > pingAfter+pingTimeout {
			t.Errorf("detected after %v, want at most %v", took, pingAfter+pingTimeout)
		}
	})
}
