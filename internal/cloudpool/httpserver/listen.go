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
	// shutdownGrace is how long requests that are passed on may take at the end, and lastGrace how long it may take to tell
	// them that it was too long.
	shutdownGrace = 10 * time.Second
	lastGrace     = time.Second
)

// errEnding is why a request is given up that there is no time for any more.
var errEnding = controller.Failuref(controller.ClusterUnavailable, "this process is ending: want to be asked again")

// ListenOptions are where the API is served, and to whom.
type ListenOptions struct {
	Address                 string
	TLSCertFile, TLSKeyFile string
	// ClientCAFile is of the authorities that sign clients' certificates; empty is any certificate.
	ClientCAFile string
	// Authorize has clients asked for a certificate, which the API server looks at.
	Authorize   bool
	ReadTimeout time.Duration
}

// Listener is the server of the API.
type Listener struct {
	http  *http.Server
	net   net.Listener
	certs *certwatcher.CertWatcher // nil without TLS
	grace time.Duration
}

// Listen opens the address, so that one that cannot be had is known at once.
//
// h is told when the end begins if it can be: its EndWaits is called.
func Listen(ctx context.Context, c ListenOptions, h http.Handler, log *slog.Logger) (*Listener, error) {
	config, certs, err := tlsConfig(c)
	if err != nil {
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", c.Address)
	if err != nil {
		return nil, fmt.Errorf("--listen: %q: %w", c.Address, err)
	}
	server := &http.Server{
		Handler: h, TLSConfig: config, ReadHeaderTimeout: headerTimeout, ReadTimeout: c.ReadTimeout, IdleTimeout: idleTimeout,
		// There is no WriteTimeout: an answer may wait for machines to be emptied. A Server gives each its time when it is there.
		MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	if waited, ok := h.(interface{ EndWaits() }); ok {
		server.RegisterOnShutdown(waited.EndWaits)
	}
	return &Listener{net: l, certs: certs, http: server, grace: shutdownGrace}, nil
}

// Address is where it is served.
func (l *Listener) Address() string { return l.net.Addr().String() }

// TLS reports whether it is served with TLS.
func (l *Listener) TLS() bool { return l.certs != nil }

// Run serves until ctx ends. Clients that wait for an update are told at once that it goes on; requests that are passed on
// have a grace to come to their end, after which their clients are told that it was not waited for.
func (l *Listener) Run(ctx context.Context) error {
	requests, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	l.http.BaseContext = func(net.Listener) context.Context { return requests }
	ended := make(chan error, 1)
	go func() {
		if l.certs != nil {
			go func() { _ = l.certs.Start(requests) }() // without it the certificate is the one that was read first
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
		end(errEnding)
		if !l.shutdown(ctx, lastGrace) {
			_ = l.http.Close()
		}
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving the cloudpool API: %w", err)
	}
	return nil
}

// shutdown takes no more requests, and reports that those there were came to their end in time.
func (l *Listener) shutdown(ctx context.Context, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	return l.http.Shutdown(ctx) == nil
}

// tlsConfig is how to serve with TLS, and what reads the certificate again when its files change; nil is without.
func tlsConfig(c ListenOptions) (*tls.Config, *certwatcher.CertWatcher, error) {
	if c.TLSCertFile == "" {
		return nil, nil, nil
	}
	certs, err := certwatcher.New(c.TLSCertFile, c.TLSKeyFile)
	if err != nil {
		return nil, nil, fmt.Errorf("--tls-cert-file, --tls-private-key-file: %w", err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certs.GetCertificate}
	if c.ClientCAFile == "" {
		return config, certs, nil
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
	if c.Authorize { // a token is as good
		config.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return config, certs, nil
}
