package cloud

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"
)

// CertPool reads a file with certificates in PEM. Without a file it returns nil: the system's authorities are trusted.
func CertPool(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("caFile: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("caFile: %q: want certificates in PEM", file)
	}
	return pool, nil
}

// NewTransport returns a transport for the API of a cloud, which keeps at most so many connections for later requests.
func NewTransport(config *tls.Config, connections int) *http.Transport {
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:        config,
		TLSHandshakeTimeout:    10 * time.Second,
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           connections,
		MaxIdleConnsPerHost:    connections,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
	}
}

// LimitAnswers returns a transport with answers of at most so many bytes; see [Bounded].
func LimitAnswers(next http.RoundTripper, most int) http.RoundTripper { return limited{next, most} }

type limited struct {
	http.RoundTripper
	most int
}

// RoundTrip implements http.RoundTripper.
func (l limited) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := l.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	response.Body = Bounded(response.Body, l.most)
	return response, nil
}
