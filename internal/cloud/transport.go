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

// LoadCertPool reads certificates in PEM from a file. An empty file name returns nil, which means the system's certificate
// authorities.
func LoadCertPool(file string) (*x509.CertPool, error) {
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

// NewTransport returns an HTTP transport for a cloud API. It keeps at most maxIdleConnections idle connections.
func NewTransport(config *tls.Config, maxIdleConnections int) *http.Transport {
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:        config,
		TLSHandshakeTimeout:    10 * time.Second,
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           maxIdleConnections,
		MaxIdleConnsPerHost:    maxIdleConnections,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
	}
}

// LimitResponses returns a transport that limits each response body to a number of bytes; see [Bounded].
func LimitResponses(next http.RoundTripper, maxBytes int) http.RoundTripper {
	return limitedTransport{next, maxBytes}
}

type limitedTransport struct {
	http.RoundTripper
	maxBytes int
}

func (l limitedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := l.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	response.Body = LimitBody(response.Body, l.maxBytes)
	return response, nil
}
