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

// Config says which cloudpools there are, and with which credentials they are asked. It is read from YAML or JSON.
type Config struct {
	// Pools are the pools, each of which is a group.
	Pools []PoolConfig `json:"pools"`
	Auth  Auth         `json:"auth,omitzero"`
	// CAFile holds the certificates, in PEM, that the servers are trusted by; empty is the system's.
	CAFile string `json:"caFile,omitempty"`
	// ProxyFromEnvironment has requests go through the proxy that HTTPS_PROXY and its like name.
	ProxyFromEnvironment bool `json:"proxyFromEnvironment,omitempty"`
	// FollowRedirects follows the redirects of what is read, up to 10, also to another host, which is shown no credentials.
	FollowRedirects bool `json:"followRedirects,omitempty"`
	// RequestTimeout limits each request, to the last byte of its answer. 1s to 30m; the default is 5m, since a server may
	// wait for its cloud.
	RequestTimeout cloud.Duration `json:"requestTimeout,omitempty"`
	// SettleTime is how long the servers may show a machine as alive after they have taken its termination, by their own
	// observation. 0 to 10m; the default is 1m. A machine that is alive after that has not been terminated.
	SettleTime *cloud.Duration `json:"settleTime,omitempty"`
	// PollInterval is how long a server is left alone that has not looked at its cloud again yet. 10ms to 5m; the default
	// is 5s.
	PollInterval cloud.Duration `json:"pollInterval,omitempty"`
	// ObservationWait is how long a call waits for the server to look at its cloud again, where that decides, before it asks
	// to be asked later. 0 to 1m; the default is 1s.
	ObservationWait *cloud.Duration `json:"observationWait,omitempty"`
}

// PoolConfig is one pool, or the server of several.
type PoolConfig struct {
	// Name is the group's. The groups of a server of several are named as their pools are.
	Name string `json:"name,omitempty"`
	// URL is the address to which /pool is added, such as https://cloudpool:8443 or https://cloudpool:8443/cloudpools/workers;
	// that of a server of several is the one to which /cloudpools is added.
	URL string `json:"url"`
	// Multi says that the server has several pools, all of which are groups.
	Multi bool `json:"multi,omitempty"`
	// Scope is the account that the machines are in: the region of EC2 or OpenStack, the project of GCE, the subscription
	// of Azure. A machine that is said to be in another one is refused; empty takes all.
	Scope string `json:"scope,omitempty"`
	// ComputerName is where in a machine's metadata its host name is, as a list of keys with dots between. Empty is where
	// its cloud has it.
	ComputerName string `json:"computerName,omitempty"`
	// MachineSize is the kind of machines that the pool launches; empty is that of the machines it has.
	MachineSize string `json:"machineSize,omitempty"`
	// Nodes declares what the group's Nodes will be like.
	Nodes cloud.Shape `json:"nodes,omitzero"`
}

// Auth is who is asking. Basic authentication and a token exclude each other; a certificate goes with either.
type Auth struct {
	// Username is that of basic authentication.
	Username string `json:"username,omitempty"`
	// PasswordFile and TokenFile are read again for every request, so that they can be replaced.
	PasswordFile string `json:"passwordFile,omitempty"`
	TokenFile    string `json:"tokenFile,omitempty"`
	// Password is in the place of PasswordFile where whoever makes a configuration has it from elsewhere; it is in no file.
	Password *string `json:"-"`
	// CertFile and KeyFile are a client certificate, in PEM.
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
}

const (
	defaultRequestTimeout = 5 * time.Minute
	defaultSettleTime     = time.Minute
	defaultPollInterval   = 5 * time.Second
	defaultWait           = time.Second
)

// groupName is what can be a segment of a path and the name of a group.
var groupName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?$`)

// Validate reports everything that is wrong.
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
			fail("%s.name: %q: the groups of a server of several pools are named as the pools are: want none", where, p.Name)
		case !p.Multi && !groupName.MatchString(p.Name):
			fail("%s.name: %q: want letters, digits, dots, dashes and underscores, at most 128", where, p.Name)
		case names[p.Name] && !p.Multi:
			fail("%s.name: %q: is there twice", where, p.Name)
		}
		names[p.Name] = true
		if p.Nodes.Cost < 0 {
			fail("%s.nodes.cost: %v: want 0 or more", where, p.Nodes.Cost)
		}
		for _, name := range cloud.Negative(p.Nodes.Reserved) {
			fail("%s.nodes.reserved.%s: is less than 0: want 0 or more", where, name)
		}
	}
	return errs
}

func (a Auth) validate() (errs []error) {
	if (a.Username == "") != (a.PasswordFile == "" && a.Password == nil) {
		errs = append(errs, errors.New("auth: username and passwordFile belong together"))
	}
	if a.Username != "" && a.TokenFile != "" {
		errs = append(errs, errors.New("auth: want a username or a tokenFile, and not both"))
	}
	if (a.CertFile == "") != (a.KeyFile == "") {
		errs = append(errs, errors.New("auth: certFile and keyFile belong together"))
	}
	return errs
}

// ParseURL reads the address of a server. Its error does not repeat a password.
func ParseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, errors.New("cannot be read as a URL: want https://HOST:PORT, or http:// for a server on the same machine")
	case u.User != nil:
		return nil, errors.New("has credentials in it: want them under auth")
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.RawQuery != "", u.Fragment != "":
		return nil, fmt.Errorf("%q: want https://HOST:PORT with a path if need be, and nothing after it", text)
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
		return defaultWait
	}
	return time.Duration(*c.ObservationWait)
}

// Transport makes the transport that reaches the servers, and adds the credentials to every request. It follows no
// redirect.
func (c *Config) Transport() (http.RoundTripper, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if config.RootCAs, err = cloud.CertPool(c.CAFile); err != nil {
		return nil, err
	}
	if c.Auth.CertFile != "" {
		if _, err := tls.LoadX509KeyPair(c.Auth.CertFile, c.Auth.KeyFile); err != nil {
			return nil, fmt.Errorf("auth.certFile, auth.keyFile: %w", err)
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(c.Auth.CertFile, c.Auth.KeyFile) // they may have been replaced
			return &pair, err
		}
	}
	transport := cloud.NewTransport(config, 200)
	transport.DisableCompression = true // what passes through is not to be changed
	if !c.ProxyFromEnvironment {
		transport.Proxy = nil
	}
	var next http.RoundTripper = transport
	if c.Auth.Username != "" || c.Auth.TokenFile != "" {
		next = &credentials{c.Auth, transport}
	}
	if c.FollowRedirects {
		plain := transport
		if config.GetClientCertificate != nil {
			plain = transport.Clone()
			plain.TLSClientConfig.GetClientCertificate = nil
		}
		next = &redirects{next: next, plain: plain}
	}
	return next, nil
}

// credentials say who is asking.
type credentials struct {
	auth Auth
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (c *credentials) RoundTrip(r *http.Request) (*http.Response, error) {
	secret, err := c.secret()
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

// secret is the token or the password as it is now.
func (c *credentials) secret() (string, error) {
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
