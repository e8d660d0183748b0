// Package externalgrpc is the client of the cluster autoscaler's external gRPC cloud provider protocol, so that the
// providers that were made for it serve Slipway as they are.
//
// The protocol knows less than package cloud asks for:
//
//   - Machines have no names, only provider IDs. Their last part stands for the name: where it is not the Node's name, the
//     machine is never confirmed to be the Node's, and so never deleted for it (I4).
//   - Nothing is an operation. A deletion is done when the machine is listed no more, and growing when the group has as
//     many machines as it is meant to.
//   - A group has one kind of machine, which is called as the group is.
//   - Nothing is read past a cache of the provider's but by Refresh, which is called before every reading.
//   - Errors have no meaning but that of their gRPC code: PERMISSION_DENIED is a missing right, RESOURCE_EXHAUSTED in
//     answer to growing a used-up quota, RetryInfo a wish to wait. No code says that something is gone; only a complete
//     list does in which it is missing.
package externalgrpc

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// Config is one provider.
type Config struct {
	// Name is what NodeGroups call it in spec.cloud.provider.
	Name string `json:"name"`
	// Address is where it listens, host:port or unix:///path.
	Address string `json:"address"`
	// ProviderIDPrefix is how all of its provider IDs begin, such as "hcloud://": an ID of another cloud is told by it.
	ProviderIDPrefix string `json:"providerIDPrefix"`
	// CAFile, CertFile and KeyFile are PEM files: who has signed the provider's certificate, and the certificate and key
	// by which it knows Slipway. The latter two are read again for each connection.
	CAFile   string `json:"caFile,omitempty"`
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
	// ServerName is the name in the provider's certificate, where it is not the host of Address.
	ServerName string `json:"serverName,omitempty"`
	// Insecure allows a connection without TLS, on the loopback interface or a Unix socket only.
	Insecure bool `json:"insecure,omitempty"`
	// CallTimeout bounds each call, 1s to 10m; 30s if zero.
	CallTimeout metav1.Duration `json:"callTimeout,omitzero"`
}

const (
	defaultTimeout = 30 * time.Second
	unixScheme     = "unix://"
)

var namePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// Validate reports everything that is wrong, without a look at the files.
func (c Config) Validate() error {
	var errs []error
	fail := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if !namePattern.MatchString(c.Name) {
		fail("name: %q: want lower-case letters, digits and -, at most 63", c.Name)
	}
	if _, _, err := net.SplitHostPort(c.Address); err != nil && !strings.HasPrefix(c.Address, unixScheme+"/") {
		fail("address: %q: want host:port or unix:///path", c.Address)
	}
	if !strings.Contains(c.ProviderIDPrefix, "://") {
		fail("providerIDPrefix: %q: want the beginning of all provider IDs, such as hcloud://", c.ProviderIDPrefix)
	}
	files := []string{c.CAFile, c.CertFile, c.KeyFile}
	switch given := strings.Join(files, ""); {
	case c.Insecure && given != "":
		fail("insecure: is set beside caFile, certFile or keyFile: want one or the other")
	case c.Insecure && !c.local():
		fail("insecure: %s is not on this machine: want 127.0.0.1, ::1, localhost or a Unix socket, or else TLS", c.Address)
	case !c.Insecure && (c.CAFile == "" || c.CertFile == "" || c.KeyFile == ""):
		fail("caFile %q, certFile %q, keyFile %q: want all three, or insecure for a provider on this machine",
			c.CAFile, c.CertFile, c.KeyFile)
	}
	if d := c.CallTimeout.Duration; d != 0 && (d < time.Second || d > 10*time.Minute) {
		fail("callTimeout: %s: want 1s to 10m", d)
	}
	return errors.Join(errs...)
}

// local reports whether the address is on this machine.
func (c Config) local() bool {
	if strings.HasPrefix(c.Address, unixScheme) {
		return true
	}
	host, _, err := net.SplitHostPort(c.Address)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// credentials reads the files.
func (c Config) credentials() (credentials.TransportCredentials, error) {
	if c.Insecure {
		return insecure.NewCredentials(), nil
	}
	roots, err := cloud.CertPool(c.CAFile)
	if err != nil {
		return nil, err
	}
	pair := func() (*tls.Certificate, error) {
		cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("certFile, keyFile: %w", err)
		}
		return &cert, nil
	}
	if _, err := pair(); err != nil {
		return nil, err
	}
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: c.ServerName,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair() },
	}), nil
}
