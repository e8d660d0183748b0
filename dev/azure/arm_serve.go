package azure

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"
)

// ARMServer is an ARM that is being served over TLS.
type ARMServer struct {
	// URL is the https address of ARM and of the token service.
	URL *url.URL
	// CA is the certificate in PEM that clients must trust.
	CA []byte
	// Certificate is the server's certificate, also for a proxy in front of it.
	Certificate tls.Certificate

	server *http.Server
}

// Serve serves an ARM over TLS at a loopback address, with a self-signed certificate.
func (a *ARM) Serve(address string) (*ARMServer, error) {
	if err := requireLoopback("address", address); err != nil {
		return nil, err
	}
	certificate, ca, err := newSelfSignedCertificate()
	if err != nil {
		return nil, fmt.Errorf("create the certificate of ARM: %w", err)
	}
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serving ARM: %w", err)
	}
	s := &ARMServer{
		URL: &url.URL{Scheme: "https", Host: listener.Addr().String()}, CA: ca, Certificate: certificate,
		server: &http.Server{
			Handler: a.Handler(), ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0),
			TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
		},
	}
	go func() { _ = s.server.ServeTLS(listener, "", "") }()
	return s, nil
}

// Close stops the server at once and closes its connections. It does nothing if the server has no listener.
func (s *ARMServer) Close() error {
	if s.server == nil { // the handler is called directly
		return nil
	}
	return s.server.Close()
}

// newSelfSignedCertificate creates a self-signed certificate for the loopback addresses. The second result is the
// certificate in PEM.
func newSelfSignedCertificate() (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "Azure emulator"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// tokenLifetime is the lifetime that the response to a token request states.
const tokenLifetime = time.Hour

// IssueToken returns a new valid bearer token. Tests use it instead of a request to the token service.
func (a *ARM) IssueToken() string {
	token := "emulated." + uuid.NewString()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tokens[token] = true
	return token
}

// RevokeTokens invalidates all issued tokens.
func (a *ARM) RevokeTokens() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.tokens)
}

// registerTokenRoutes adds the routes of Microsoft Entra ID that azidentity uses. They return the endpoints of a
// tenant. They also return a token for a client secret, or for the assertion of a workload identity.
func (a *ARM) registerTokenRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /{tenant}/v2.0/.well-known/openid-configuration", func(w http.ResponseWriter, r *http.Request) {
		base := "https://" + r.Host + "/" + r.PathValue("tenant")
		a.writeResponse(w, armResponse{status: http.StatusOK, body: map[string]any{
			"issuer": base + "/v2.0", "authorization_endpoint": base + "/oauth2/v2.0/authorize",
			"token_endpoint": base + "/oauth2/v2.0/token", "jwks_uri": base + "/discovery/v2.0/keys",
		}})
	})
	mux.HandleFunc("POST /{tenant}/oauth2/v2.0/token", a.serveToken)
}

func (a *ARM) serveToken(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxARMBody)
	if err := r.ParseForm(); err != nil {
		a.writeResponse(w, newTokenError("invalid_request", "AADSTS900144: The request body could not be read."))
		return
	}
	switch {
	case !strings.EqualFold(r.PathValue("tenant"), a.opts.Tenant):
		a.writeResponse(w, newTokenError("invalid_request", fmt.Sprintf("AADSTS90002: Tenant '%s' not found.", r.PathValue("tenant"))))
	case r.PostForm.Get("grant_type") != "client_credentials":
		a.writeResponse(w, newTokenError("unsupported_grant_type", "AADSTS70003: The app requested an unsupported grant type."))
	case r.PostForm.Get("client_id") == "" || !strings.HasSuffix(r.PostForm.Get("scope"), "/.default") &&
		!strings.Contains(r.PostForm.Get("scope"), "/.default "):
		a.writeResponse(w, newTokenError("invalid_request", "AADSTS900144: The request must contain client_id and scope."))
	case r.PostForm.Get("client_secret") == "" && r.PostForm.Get("client_assertion") == "":
		a.writeResponse(w, newTokenError("invalid_client", "AADSTS7000216: 'client_assertion' or 'client_secret' is required."))
	default:
		seconds := int(tokenLifetime.Seconds())
		a.writeResponse(w, armResponse{status: http.StatusOK, body: map[string]any{
			"token_type": "Bearer", "expires_in": seconds, "ext_expires_in": seconds, "access_token": a.IssueToken(),
		}})
	}
}

func newTokenError(code, description string) armResponse {
	return armResponse{status: http.StatusBadRequest, body: map[string]any{"error": code, "error_description": description}}
}
