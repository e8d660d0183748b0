package httpserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/certwatcher"

	"github.com/slipway-dev/slipway/internal/cloudpool/controller"
)

const (
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 32 << 10 // bytes
	// shutdownGrace is the time that forwarded requests have to finish at shutdown. After it, the remaining requests
	// get an error, within finalGrace.
	shutdownGrace = 10 * time.Second
	finalGrace    = time.Second
)

// errShuttingDown is the cancellation cause of requests that have not finished at shutdown.
var errShuttingDown = controller.NewFailuref(controller.ClusterUnavailable, "this process is shutting down: retry the request")

// ListenOptions configures the address and TLS of the API.
type ListenOptions struct {
	Address                 string
	TLSCertFile, TLSKeyFile string
	// ClientCAFile contains the CA certificates for client certificates. If empty, clients need none.
	ClientCAFile string
	// Authorize makes the client certificate optional, because a token also identifies a client.
	Authorize   bool
	ReadTimeout time.Duration
}

// Listener serves the API on an address.
type Listener struct {
	http  *http.Server
	net   net.Listener
	certs *certwatcher.CertWatcher // nil without TLS
	grace time.Duration
}

// Listen opens the address, so that an address in use is reported at once. If h has a method CancelWaits, the shutdown
// calls it first.
func Listen(ctx context.Context, c ListenOptions, h http.Handler, log *slog.Logger) (*Listener, error) {
	config, certs, err := loadTLSConfig(c)
	if err != nil {
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", c.Address)
	if err != nil {
		return nil, fmt.Errorf("--listen: %q: %w", c.Address, err)
	}
	server := &http.Server{
		Handler: h, TLSConfig: config, ReadHeaderTimeout: headerTimeout, ReadTimeout: c.ReadTimeout, IdleTimeout: idleTimeout,
		// No WriteTimeout: an answer may wait for drains. The Server sets a write deadline when the answer starts.
		MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	if waited, ok := h.(interface{ CancelWaits() }); ok {
		server.RegisterOnShutdown(waited.CancelWaits)
	}
	return &Listener{net: l, certs: certs, http: server, grace: shutdownGrace}, nil
}

// Address returns the address that is served.
func (l *Listener) Address() string { return l.net.Addr().String() }

// TLS reports whether the API is served with TLS.
func (l *Listener) TLS() bool { return l.certs != nil }

// Run serves the API until ctx ends. At shutdown, it answers the clients that wait for an update at once; their updates
// continue. Forwarded requests get shutdownGrace to finish, and an error afterwards.
func (l *Listener) Run(ctx context.Context) error {
	requests, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	l.http.BaseContext = func(net.Listener) context.Context { return requests }
	ended := make(chan error, 1)
	go func() {
		if l.certs != nil {
			go func() { _ = l.certs.Start(requests) }() // reloads the certificate
			ended <- l.http.ServeTLS(l.net, "", "")
			return
		}
		ended <- l.http.Serve(l.net)
	}()
	select {
	case err := <-ended:
		return fmt.Errorf("serving the cloudpool API: %w", err)
	case <-ctx.Done():
	}
	if !l.shutdown(ctx, l.grace) {
		cancel(errShuttingDown)
		if !l.shutdown(ctx, finalGrace) {
			_ = l.http.Close()
		}
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving the cloudpool API: %w", err)
	}
	return nil
}

// shutdown stops accepting requests. It reports whether the running requests have finished within the given time.
func (l *Listener) shutdown(ctx context.Context, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	return l.http.Shutdown(ctx) == nil
}

// loadTLSConfig returns the TLS configuration and the watcher that reloads the certificate. Both are nil without TLS.
func loadTLSConfig(c ListenOptions) (config *tls.Config, reloader *certwatcher.CertWatcher, err error) {
	if c.TLSCertFile == "" {
		return nil, nil, nil
	}
	reloader, err = certwatcher.New(c.TLSCertFile, c.TLSKeyFile)
	if err != nil {
		return nil, nil, fmt.Errorf("--tls-cert-file, --tls-private-key-file: %w", err)
	}
	config = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: reloader.GetCertificate}
	if c.ClientCAFile == "" {
		return config, reloader, nil
	}
	pem, err := os.ReadFile(c.ClientCAFile)
	if err != nil {
		return nil, nil, fmt.Errorf("--client-ca-file: %w", err)
	}
	config.ClientCAs = x509.NewCertPool()
	if !config.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, nil, fmt.Errorf("--client-ca-file: %s: want certificates in PEM", c.ClientCAFile)
	}
	config.ClientAuth = tls.RequireAndVerifyClientCert
	if c.Authorize { // a token is sufficient
		config.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return config, reloader, nil
}
