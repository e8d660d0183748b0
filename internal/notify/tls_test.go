package notify

import (
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/testing/must"
)

// certificateOf returns a server's certificate in PEM.
func certificateOf(s *httptest.Server) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

// newTLSInbox starts a receiver with TLS and an unknown certificate.
func newTLSInbox(t testing.TB) *inbox {
	t.Helper()
	b := &inbox{}
	b.Server = httptest.NewUnstartedServer(b)
	b.Config.ErrorLog = log.New(io.Discard, "", 0) // the test expects refused handshakes
	b.StartTLS()
	t.Cleanup(b.Close)
	return b
}

func TestW20CertificatesAreVerifiedByDefault(t *testing.T) {
	b := newTLSInbox(t)
	r := webhook(b.URL)
	if err := sendOnce(t, r); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an unknown certificate: error %v", err)
	}
	if len(b.all()) != 0 {
		t.Error("a request was sent")
	}
	r.Webhook.CAFile = writeTempFile(t, certificateOf(b.Server))
	if err := sendOnce(t, r); err != nil {
		t.Errorf("with its CA: %v", err)
	}
	r.Webhook.CAFile, r.Webhook.InsecureSkipVerify = "", true
	var log logged
	n := newNotifier(t, Options{Log: log.logger()}, r)
	if err := n.SendToAllNow(t.Context(), NewSampleMessage(Detected, time.Now())); err != nil {
		t.Errorf("without verification: %v", err)
	}
	if !strings.Contains(log.String(), "is not verified") {
		t.Errorf("no warning in the log: %s", log.String())
	}
	if len(b.all()) != 2 {
		t.Errorf("%d requests arrived, want 2", len(b.all()))
	}
}

func TestReplacedCAFileIsReadAgain(t *testing.T) {
	b := newTLSInbox(t)
	r := webhook(b.URL)
	none := 0
	r.Webhook.Retries = &none
	r.Webhook.CAFile = writeTempFile(t, foreignCertificate)
	n := newNotifier(t, Options{}, r)
	if err := n.SendToAllNow(t.Context(), NewSampleMessage(Detected, time.Now())); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("with another's CA: error %v", err)
	}
	must.NoError(t, os.WriteFile(r.Webhook.CAFile, []byte(certificateOf(b.Server)), 0o600))
	if err := n.SendToAllNow(t.Context(), NewSampleMessage(Detected, time.Now())); err != nil {
		t.Errorf("after the file was replaced: %v", err)
	}
}

// serveTunnel is an HTTP proxy for CONNECT, for one user.
func serveTunnel(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect || r.Header.Get("Proxy-Authorization") != "Basic YW5uOnBhc3Mtd29yZA==" {
		w.Header().Set("Proxy-Authenticate", "Basic")
		w.WriteHeader(http.StatusProxyAuthRequired)
		return
	}
	far, err := net.Dial("tcp", r.Host)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer func() { _ = far.Close() }()
	near, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = near.Close() }()
	_, _ = io.WriteString(near, "HTTP/1.1 200 Connection established\r\n\r\n")
	go func() { _, _ = io.Copy(far, near) }()
	_, _ = io.Copy(near, far)
}

func TestTLSUsesAProxyWithBasicAuth(t *testing.T) {
	b := newTLSInbox(t)
	plain, encrypted := httptest.NewServer(http.HandlerFunc(serveTunnel)), httptest.NewTLSServer(http.HandlerFunc(serveTunnel))
	t.Cleanup(plain.Close)
	t.Cleanup(encrypted.Close)
	both := certificateOf(b.Server) + certificateOf(encrypted)
	for _, c := range []struct {
		name, proxy, user string
		ok                bool
	}{
		{"HTTP proxy", plain.URL, "ann:pass-word", true},
		{"HTTPS proxy", encrypted.URL, "ann:pass-word", true},
		{"a wrong password", plain.URL, "ann:guess-word", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := webhook(b.URL)
			r.Webhook.CAFile = writeTempFile(t, both)
			r.Webhook.Proxy = strings.Replace(c.proxy, "://", "://"+c.user+"@", 1)
			before := len(b.all())
			err := sendOnce(t, r)
			if (err == nil) != c.ok {
				t.Fatalf("error %v", err)
			}
			if arrived := len(b.all()) - before; (arrived == 1) != c.ok {
				t.Errorf("%d arrived", arrived)
			}
			if !c.ok && (!strings.Contains(err.Error(), "Proxy Authentication Required") || strings.Contains(err.Error(), "guess-word")) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// foreignCertificate is an authority that has signed nothing.
const foreignCertificate = `-----BEGIN CERTIFICATE-----
MIIBRjCB7aADAgECAgEBMAoGCCqGSM49BAMCMBIxEDAOBgNVBAMTB2Fub3RoZXIw
IBcNNzAwMTAxMDAwMDAwWhgPMjI0MjAzMTYxMjU2MzJaMBIxEDAOBgNVBAMTB2Fu
b3RoZXIwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAATRibo3f9ENpzFg3nFa7Wku
aLitN1tQ0PGrflWhB/ZhL8F3s5lQI2xCyJWhCFO8VFsUBk3heK9pU42Lwm7ndWIx
ozIwMDAPBgNVHRMBAf8EBTADAQH/MB0GA1UdDgQWBBTA5khEIpedtauyvi0a4por
J0AMpjAKBggqhkjOPQQDAgNIADBFAiEA1MlxIWeWg2ADftWw/aiPuYqf3Zavo0OB
wpFvOeIZzxMCIB97xbS+3GeYSbNtjfJrD3t7kGHgnmg4ARXT9+uSHK6N
-----END CERTIFICATE-----
`
