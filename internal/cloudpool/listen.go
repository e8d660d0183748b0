package cloudpool

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
	"sync"
	"time"
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
var errEnding = failure(ClusterAway, "this process is ending: want to be asked again")

// listener is the server of the API.
type listener struct {
	http  *http.Server
	net   net.Listener
	tls   bool
	grace time.Duration
}

// listen opens the address, so that one that cannot be had is known at once.
//
// h is told when the end begins if it can be: its EndWaits is called.
func listen(ctx context.Context, c *Config, h http.Handler, log *slog.Logger) (*listener, error) {
	config, err := tlsConfig(c)
	if err != nil {
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return nil, fmt.Errorf("--listen: %q: %w", c.Listen, err)
	}
	server := &http.Server{
		Handler: h, TLSConfig: config, ReadHeaderTimeout: headerTimeout, ReadTimeout: c.ReadTimeout, IdleTimeout: idleTimeout,
		// There is no WriteTimeout: an answer may wait for machines to be emptied. A Server gives each its time when it is there.
		MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	if waited, ok := h.(interface{ EndWaits() }); ok {
		server.RegisterOnShutdown(waited.EndWaits)
	}
	return &listener{net: l, tls: config != nil, http: server, grace: shutdownGrace}, nil
}

// run serves until ctx ends. Clients that wait for an update are told at once that it goes on; requests that are passed on
// have a grace to come to their end, after which their clients are told that it was not waited for.
func (l *listener) run(ctx context.Context) error {
	requests, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	l.http.BaseContext = func(net.Listener) context.Context { return requests }
	ended := make(chan error, 1)
	go func() {
		if l.tls {
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
func (l *listener) shutdown(ctx context.Context, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	return l.http.Shutdown(ctx) == nil
}

// tlsConfig is how to serve with TLS; nil is without.
func tlsConfig(c *Config) (*tls.Config, error) {
	if c.TLSCertFile == "" {
		return nil, nil
	}
	pair := &keyPair{cert: c.TLSCertFile, key: c.TLSKeyFile}
	if _, err := pair.get(nil); err != nil {
		return nil, fmt.Errorf("--tls-cert-file, --tls-private-key-file: %w", err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.get}
	if c.ClientCAFile == "" {
		return config, nil
	}
	pem, err := os.ReadFile(c.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("--client-ca-file: %w", err)
	}
	config.ClientCAs = x509.NewCertPool()
	if !config.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("--client-ca-file: %s: want certificates in PEM", c.ClientCAFile)
	}
	config.ClientAuth = tls.RequireAndVerifyClientCert
	if c.Authorize { // a token is as good
		config.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return config, nil
}

// keyPair is a certificate that is read again when its file has changed.
type keyPair struct {
	cert, key string

	mu     sync.Mutex
	read   time.Time
	loaded *tls.Certificate
}

func (k *keyPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	info, err := os.Stat(k.cert)
	if err == nil && k.loaded != nil && info.ModTime().Equal(k.read) {
		return k.loaded, nil
	}
	var pair tls.Certificate
	if err == nil {
		pair, err = tls.LoadX509KeyPair(k.cert, k.key)
	}
	switch {
	case err == nil:
		k.loaded, k.read = &pair, info.ModTime()
	case k.loaded == nil:
		return nil, err
	}
	return k.loaded, nil // the old one, while the two files are being replaced
}
