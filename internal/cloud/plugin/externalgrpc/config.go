// Package externalgrpc is a client of the cluster autoscaler's external gRPC cloud provider protocol. Existing
// providers of that protocol work with Slipway unchanged.
//
// The protocol has less information than package cloud needs:
//
//   - Instances have no names, only provider IDs. The last part of the ID is used as the name. If it is not the Node's
//     name, the instance is not deleted for that Node (I4).
//   - The protocol lacks operations. A deletion is done when the instance is no longer listed. A launch is done when the
//     group has its target size.
//   - A group has a single template with the group's name.
//   - Only Refresh bypasses the provider's cache. It is called before every read.
//   - Only the gRPC code of an error is used: PERMISSION_DENIED means a missing permission, RESOURCE_EXHAUSTED on a size
//     increase means an exceeded quota, RetryInfo a retry delay. No code proves that an instance is gone. Only a
//     complete list without the instance does.
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

// Config configures one provider.
type Config struct {
	// Name is the value of NodeGroup spec.cloud.provider.
	Name string `json:"name"`
	// Address is host:port or unix:///path.
	Address string `json:"address"`
	// ProviderIDPrefix is the prefix of all its provider IDs, such as "hcloud://". It distinguishes IDs of other
	// clouds.
	ProviderIDPrefix string `json:"providerIDPrefix"`
	// CAFile, CertFile and KeyFile are PEM files: the certificate authority of the provider, and Slipway's client
	// certificate and key. The last two are read again for each connection.
	CAFile   string `json:"caFile,omitempty"`
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
	// ServerName is the name in the provider's certificate. It defaults to the host of Address.
	ServerName string `json:"serverName,omitempty"`
	// Insecure allows a connection without TLS. It requires the loopback interface or a Unix socket.
	Insecure bool `json:"insecure,omitempty"`
	// CallTimeout limits each call, 1s to 10m. 0 is 30s.
	CallTimeout metav1.Duration `json:"callTimeout,omitzero"`
}

const (
	defaultTimeout = 30 * time.Second
	unixScheme     = "unix://"
)

var namePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// Validate returns all errors. It does not read the files.
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
		fail("providerIDPrefix: %q: want the prefix of all provider IDs, such as hcloud://", c.ProviderIDPrefix)
	}
	files := []string{c.CAFile, c.CertFile, c.KeyFile}
	switch given := strings.Join(files, ""); {
	case c.Insecure && given != "":
		fail("insecure: conflicts with caFile, certFile and keyFile: want one or the other")
	case c.Insecure && !c.isLocal():
		fail("insecure: address %s is not local: want 127.0.0.1, ::1, localhost or a Unix socket, or else TLS", c.Address)
	case !c.Insecure && (c.CAFile == "" || c.CertFile == "" || c.KeyFile == ""):
		fail("caFile %q, certFile %q, keyFile %q: want all three, or insecure for a local provider",
			c.CAFile, c.CertFile, c.KeyFile)
	}
	if d := c.CallTimeout.Duration; d != 0 && (d < time.Second || d > 10*time.Minute) {
		fail("callTimeout: %s: want 1s to 10m", d)
	}
	return errors.Join(errs...)
}

// isLocal reports whether the address is on this host.
func (c Config) isLocal() bool {
	if strings.HasPrefix(c.Address, unixScheme) {
		return true
	}
	host, _, err := net.SplitHostPort(c.Address)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// transportCredentials reads the certificate files.
func (c Config) transportCredentials() (credentials.TransportCredentials, error) {
	if c.Insecure {
		return insecure.NewCredentials(), nil
	}
	roots, err := cloud.LoadCertPool(c.CAFile)
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
