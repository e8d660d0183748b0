package cloudpool

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// Config configures the cloudpools and their credentials. It is read from YAML or JSON.
type Config struct {
	// Pools lists the pools. Each is a group.
	Pools []PoolConfig `json:"pools"`
	Auth  Auth         `json:"auth,omitzero"`
	// CAFile has the certificate authorities of the servers, in PEM. Empty means the system's.
	CAFile string `json:"caFile,omitempty"`
	// ProxyFromEnvironment uses the proxy from HTTPS_PROXY and related variables.
	ProxyFromEnvironment bool `json:"proxyFromEnvironment,omitempty"`
	// FollowRedirects follows up to 10 redirects of a read request. Another host receives no credentials.
	FollowRedirects bool `json:"followRedirects,omitempty"`
	// RequestTimeout limits each request, including its body, 1s to 30m. The default is 5m, because a server may wait
	// for its cloud.
	RequestTimeout cloud.Duration `json:"requestTimeout,omitempty"`
	// SettleTime is how long a server may report a terminated machine as alive, 0 to 10m. The default is 1m. It is
	// measured between observations, from the first one after the termination. If the machine is still alive after
	// that, the termination failed.
	SettleTime *cloud.Duration `json:"settleTime,omitempty"`
	// PollInterval is the delay before a server is read again while its observation is too old, 10ms to 5m. The default
	// is 5s.
	PollInterval cloud.Duration `json:"pollInterval,omitempty"`
	// ObservationWait is how long a call waits for a newer observation before it returns a [cloud.ThrottledError], 0 to
	// 1m. The default is 1s.
	ObservationWait *cloud.Duration `json:"observationWait,omitempty"`
}

// PoolConfig is a pool, or a server with several pools.
type PoolConfig struct {
	// Name is the name of the group. It is empty for a server with several pools, where each pool's name is the group's
	// name.
	Name string `json:"name,omitempty"`
	// URL is the URL before /pool, such as https://cloudpool:8443 or https://cloudpool:8443/cloudpools/workers. For a
	// server with several pools it is the URL before /cloudpools.
	URL string `json:"url"`
	// Multi means that the server has several pools. Each is a group.
	Multi bool `json:"multi,omitempty"`
	// Scope is the account of the machines: the region of EC2 or OpenStack, the project of GCE, or the subscription of
	// Azure. A machine of another scope is refused. Empty accepts every scope.
	Scope string `json:"scope,omitempty"`
	// ComputerName is the path of the host name in a machine's metadata, as keys separated by dots. The default depends
	// on the cloud.
	ComputerName string `json:"computerName,omitempty"`
	// MachineSize is the size that the pool launches. It defaults to the size of the existing machines.
	MachineSize string `json:"machineSize,omitempty"`
	// Nodes describes the group's Nodes.
	Nodes cloud.NodeShape `json:"nodes,omitzero"`
}

// Auth configures the credentials. Basic authentication and a token exclude each other. A certificate can be added to
// both.
type Auth struct {
	// Username is the user of basic authentication.
	Username string `json:"username,omitempty"`
	// PasswordFile and TokenFile are read for every request, so that they can be replaced.
	PasswordFile string `json:"passwordFile,omitempty"`
	TokenFile    string `json:"tokenFile,omitempty"`
	// Password replaces PasswordFile if the configuration is built in code. It cannot come from a file.
	Password *string `json:"-"`
	// CertFile and KeyFile are a client certificate, in PEM.
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
}

const (
	defaultRequestTimeout  = 5 * time.Minute
	defaultSettleTime      = time.Minute
	defaultPollInterval    = 5 * time.Second
	defaultObservationWait = time.Second
)

// groupNamePattern matches a name that is valid both as a path segment of a URL and as a group name.
var groupNamePattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?$`)

// Validate returns all errors, each with field, value and allowed values.
func (c *Config) Validate() error {
	errs := c.validatePools()
	for field, b := range map[string]struct {
		is, least, most time.Duration
	}{
		"requestTimeout": {c.requestTimeout(), time.Second, 30 * time.Minute},
		"pollInterval":   {c.pollInterval(), 10 * time.Millisecond, 5 * time.Minute},
		"settleTime":     {c.settleTime(), 0, 10 * time.Minute}, "observationWait": {c.observationWait(), 0, time.Minute},
	} {
		if b.is < b.least || b.is > b.most {
			errs = append(errs, fmt.Errorf("%s: %s: want %s to %s", field, b.is, b.least, b.most))
		}
	}
	return errors.Join(append(errs, c.Auth.validate()...)...)
}

func (c *Config) validatePools() (errs []error) {
	fail := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if len(c.Pools) == 0 {
		fail("pools: is empty: want a list of pools, each with name and url")
	}
	names := map[string]bool{}
	for i, p := range c.Pools {
		where := fmt.Sprintf("pools[%d]", i)
		if _, err := ParseURL(p.URL); err != nil {
			fail("%s.url: %w", where, err)
		}
		switch {
		case p.Multi && p.Name != "":
			fail("%s.name: %q: want none with multi, because each pool is a group", where, p.Name)
		case !p.Multi && !groupNamePattern.MatchString(p.Name):
			fail("%s.name: %q: want letters, digits, dots, dashes and underscores, at most 128", where, p.Name)
		case names[p.Name] && !p.Multi:
			fail("%s.name: %q: duplicate name", where, p.Name)
		}
		names[p.Name] = true
		if p.Nodes.Cost < 0 {
			fail("%s.nodes.cost: %v: want 0 or more", where, p.Nodes.Cost)
		}
		for _, name := range cloud.NegativeResources(p.Nodes.Reserved) {
			fail("%s.nodes.reserved.%s: less than 0: want 0 or more", where, name)
		}
	}
	return errs
}

func (a Auth) validate() (errs []error) {
	if (a.Username == "") != (a.PasswordFile == "" && a.Password == nil) {
		errs = append(errs, errors.New("auth: username and passwordFile require each other"))
	}
	if a.Username != "" && a.TokenFile != "" {
		errs = append(errs, errors.New("auth: want either username or tokenFile"))
	}
	if (a.CertFile == "") != (a.KeyFile == "") {
		errs = append(errs, errors.New("auth: certFile and keyFile require each other"))
	}
	return errs
}

// ParseURL parses the URL of a server. A password in the URL does not appear in the error.
func ParseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, errors.New("invalid URL: want https://HOST:PORT, or http:// for a server on the same host")
	case u.User != nil:
		return nil, errors.New("contains credentials: want them in auth")
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.RawQuery != "", u.Fragment != "":
		return nil, fmt.Errorf("%q: want https://HOST:PORT with an optional path, without query and fragment", text)
	}
	u.Path, u.RawPath = "/"+strings.Trim(u.Path, "/"), ""
	return u, nil
}

func (c *Config) requestTimeout() time.Duration {
	if c.RequestTimeout == 0 {
		return defaultRequestTimeout
	}
	return time.Duration(c.RequestTimeout)
}

func (c *Config) settleTime() time.Duration {
	if c.SettleTime == nil {
		return defaultSettleTime
	}
	return time.Duration(*c.SettleTime)
}

func (c *Config) pollInterval() time.Duration {
	if c.PollInterval == 0 {
		return defaultPollInterval
	}
	return time.Duration(c.PollInterval)
}

func (c *Config) observationWait() time.Duration {
	if c.ObservationWait == nil {
		return defaultObservationWait
	}
	return time.Duration(*c.ObservationWait)
}

// Transport returns a transport that adds the credentials to every request. It follows redirects only if
// FollowRedirects is set.
func (c *Config) Transport() (http.RoundTripper, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if config.RootCAs, err = cloud.LoadCertPool(c.CAFile); err != nil {
		return nil, err
	}
	if c.Auth.CertFile != "" {
		if _, err := tls.LoadX509KeyPair(c.Auth.CertFile, c.Auth.KeyFile); err != nil {
			return nil, fmt.Errorf("auth.certFile, auth.keyFile: %w", err)
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(c.Auth.CertFile, c.Auth.KeyFile) // the files may have been replaced
			return &pair, err
		}
	}
	transport := cloud.NewTransport(config, 200)
	transport.DisableCompression = true // proxied responses must not change
	if !c.ProxyFromEnvironment {
		transport.Proxy = nil
	}
	var next http.RoundTripper = transport
	if c.Auth.Username != "" || c.Auth.TokenFile != "" {
		next = &authTransport{c.Auth, transport}
	}
	if c.FollowRedirects {
		plain := transport
		if config.GetClientCertificate != nil {
			plain = transport.Clone()
			plain.TLSClientConfig.GetClientCertificate = nil
		}
		next = &redirectTransport{next: next, withoutCredentials: plain}
	}
	return next, nil
}

// authTransport is a transport that adds the Authorization header.
type authTransport struct {
	auth Auth
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (c *authTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	secret, err := c.readSecret()
	if err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	if c.auth.TokenFile != "" {
		r.Header.Set("Authorization", "Bearer "+secret)
	} else {
		r.SetBasicAuth(c.auth.Username, secret)
	}
	return c.next.RoundTrip(r)
}

// readSecret returns the token or password for a request. It reads the file again for each request, if one is
// configured.
func (c *authTransport) readSecret() (string, error) {
	file, field := c.auth.TokenFile, "auth.tokenFile"
	switch {
	case file != "":
	case c.auth.Password != nil:
		return *c.auth.Password, nil
	default:
		file, field = c.auth.PasswordFile, "auth.passwordFile"
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", field, err)
	}
	return strings.TrimSpace(string(raw)), nil
}
