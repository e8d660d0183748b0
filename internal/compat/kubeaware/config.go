// Package kubeaware is the personality of kubeaware-cloudpool-proxy (github.com/elastisys/kubeaware-cloudpool-proxy): its
// configuration file and flags in, Slipway's configuration out.
package kubeaware

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/compat"
)

// Tool is the name of what is stood in for.
const Tool = "kubeaware-cloudpool-proxy"

// The tool's defaults.
const (
	DefaultFile           = "/etc/elastisys/kubeaware-cloudpool-proxy.json"
	DefaultPort           = 8080
	defaultServerTimeout  = time.Minute
	defaultKubeTimeout    = time.Minute
	defaultBackendTimeout = 5 * time.Minute
)

// Config is the tool's configuration, as its users gave it.
type Config struct {
	Server    Server
	APIServer APIServer
	Backend   Backend
	// Warnings are what was passed over or is done otherwise than it was asked for.
	Warnings []string
}

// Server is how clients are served.
type Server struct {
	// Timeout is how long a client may take to send a request.
	Timeout time.Duration
}

// APIServer is how the Kubernetes API server is reached.
type APIServer struct {
	URL     string
	Auth    KubeAuth
	Timeout time.Duration
}

// KubeAuth is who is asking: a kubeconfig file, or else three files in PEM.
type KubeAuth struct {
	KubeConfigPath string `json:"kubeConfigPath"`
	ClientCertPath string `json:"clientCertPath"`
	ClientKeyPath  string `json:"clientKeyPath"`
	CACertPath     string `json:"caCertPath"`
}

// Backend is the cloudpool behind.
type Backend struct {
	// URL has no credentials in it: those that the file has there are in Auth.
	URL     string
	Timeout time.Duration
	// Auth and CAFile are beyond what the tool knew: it had no credentials but those of a URL.
	Auth   BackendAuth
	CAFile string
	// ComputerName is where a machine's metadata has its host name, as provider.PoolConfig has it.
	ComputerName string
}

// BackendAuth is who is asking the backend.
type BackendAuth struct {
	Username     string `json:"username"`
	PasswordFile string `json:"passwordFile"`
	TokenFile    string `json:"tokenFile"`
	CertFile     string `json:"certFile"`
	KeyFile      string `json:"keyFile"`
	// Password is the URL's, with Username.
	Password *string `json:"-"`
}

// file is the JSON as it is written. Keys may be in any letter case.
type file struct {
	Server struct {
		Timeout json.RawMessage `json:"timeout"`
	} `json:"server"`
	APIServer struct {
		URL     string          `json:"url"`
		Auth    KubeAuth        `json:"auth"`
		Timeout json.RawMessage `json:"timeout"`
	} `json:"apiServer"`
	Backend struct {
		URL string `json:"url"`
		// CloudPoolURL is what the tool's README calls it.
		CloudPoolURL string          `json:"cloudPoolUrl"`
		Timeout      json.RawMessage `json:"timeout"`
		Auth         BackendAuth     `json:"auth"`
		CAFile       string          `json:"caFile"`
		ComputerName string          `json:"computerName"`
	} `json:"backend"`
}

// readFile reads the JSON. Its errors name the key, and what is wanted there.
func readFile(raw []byte) (file, error) {
	var f file
	err := json.Unmarshal(raw, &f)
	wrong := new(json.UnmarshalTypeError)
	if !errors.As(err, &wrong) {
		return f, err
	}
	want := "a text in quotes"
	if wrong.Type.Kind() == reflect.Struct {
		want = "an object"
	}
	if wrong.Field == "" {
		return f, fmt.Errorf("is a JSON %s: want %s", wrong.Value, want)
	}
	return f, fmt.Errorf("%s: is a JSON %s: want %s", wrong.Field, wrong.Value, want)
}

// duration reads a time in Go's syntax, in quotes; 0 is one that is not there.
func duration(raw json.RawMessage) (time.Duration, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return 0, nil
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return 0, fmt.Errorf("%s: want a duration in quotes, such as \"60s\"", raw)
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("invalid duration %q: want one such as \"60s\"", text)
	}
	return d, nil
}

// knownKeys are the keys that mean something, by where they are.
var knownKeys = map[string][]string{
	"": {"server", "apiServer", "backend"}, "server": {"timeout"}, "apiServer": {"url", "auth", "timeout"},
	"apiServer.auth": {"kubeConfigPath", "clientCertPath", "clientKeyPath", "caCertPath"},
	"backend":        {"url", "cloudPoolUrl", "timeout", "auth", "caFile", "computerName"},
	"backend.auth":   {"username", "passwordFile", "tokenFile", "certFile", "keyFile"},
}

// Load reads the file at path.
func Load(path string) (Config, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("failed to open configuration file: %w", err)
	}
	return Parse(raw)
}

// Parse reads what the file holds. Its errors are worded as the tool worded them.
func Parse(raw []byte) (Config, error) {
	f, err := readFile(raw)
	if err != nil {
		return Config{}, fmt.Errorf("could not parse config: failed to parse proxy config: %w", err)
	}
	c := Config{
		Server:    Server{},
		APIServer: APIServer{URL: f.APIServer.URL, Auth: f.APIServer.Auth},
		Backend:   Backend{URL: f.Backend.URL, Auth: f.Backend.Auth, CAFile: f.Backend.CAFile, ComputerName: f.Backend.ComputerName},
	}
	switch {
	case c.Backend.URL == "":
		c.Backend.URL = f.Backend.CloudPoolURL
	case f.Backend.CloudPoolURL != "" && f.Backend.CloudPoolURL != c.Backend.URL:
		c.warn("backend.cloudPoolUrl: %s is passed over, since backend.url wins", withoutPassword(f.Backend.CloudPoolURL))
	}
	for _, t := range []struct {
		key      string
		raw      json.RawMessage
		into     *time.Duration
		fallback time.Duration
	}{
		{"server.timeout", f.Server.Timeout, &c.Server.Timeout, defaultServerTimeout},
		{"apiServer.timeout", f.APIServer.Timeout, &c.APIServer.Timeout, defaultKubeTimeout},
		{"backend.timeout", f.Backend.Timeout, &c.Backend.Timeout, defaultBackendTimeout},
	} {
		is, err := duration(t.raw)
		if err != nil {
			return c, fmt.Errorf("could not parse config: failed to parse proxy config: %s: %w", t.key, err)
		}
		*t.into = c.timeout(t.key, is, t.fallback)
	}
	c.unknown(raw)
	err = c.validate()
	if err == nil {
		err = c.Backend.takeCredentials()
	}
	if err != nil {
		return c, fmt.Errorf("could not parse config: invalid proxy configuration: proxy config: %w", err)
	}
	return c, nil
}

func (c *Config) warn(format string, a ...any) {
	c.Warnings = append(c.Warnings, fmt.Sprintf(format, a...))
}

// What Slipway takes for a time limit.
const leastTimeout, mostTimeout = time.Second, 30 * time.Minute

// timeout is a time limit as it is taken.
func (c *Config) timeout(key string, is, fallback time.Duration) time.Duration {
	if is == 0 {
		return fallback
	}
	if is < 0 {
		c.warn("%s: %s: is negative: %s is taken", key, is, fallback)
		return fallback
	}
	bounded := min(max(is, leastTimeout), mostTimeout)
	if bounded != is {
		c.warn("%s: %s: want %s to %s: %s is taken", key, is, leastTimeout, mostTimeout, bounded)
	}
	return bounded
}

// unknown warns of keys that mean nothing.
func (c *Config) unknown(raw []byte) {
	var tree map[string]any
	if json.Unmarshal(raw, &tree) == nil {
		c.unknownIn("", tree)
	}
}

func (c *Config) unknownIn(where string, tree map[string]any) {
	known := knownKeys[where]
	var keys []string
	for key := range tree {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		i := slices.IndexFunc(known, func(k string) bool { return strings.EqualFold(k, key) })
		path := strings.TrimPrefix(where+"."+key, ".")
		if i < 0 {
			text := path + ": is no key that is known, and is passed over"
			if like := compat.Closest(key, known); like != "" {
				text += "; meant " + like + "?"
			}
			c.Warnings = append(c.Warnings, text)
			continue
		}
		if inner, ok := tree[key].(map[string]any); ok {
			c.unknownIn(strings.TrimPrefix(where+"."+known[i], "."), inner)
		}
	}
}

func (c *Config) validate() error {
	if c.APIServer.URL == "" {
		return errors.New("apiServer: missing field: url")
	}
	if _, err := url.Parse(c.APIServer.URL); err != nil {
		return errors.New("apiServer: url: " + unreadable)
	}
	if c.APIServer.Auth.KubeConfigPath == "" {
		for _, f := range []struct{ name, value string }{
			{"clientCertPath", c.APIServer.Auth.ClientCertPath},
			{"clientKeyPath", c.APIServer.Auth.ClientKeyPath},
			{"caCertPath", c.APIServer.Auth.CACertPath},
		} {
			if f.value == "" {
				return fmt.Errorf("apiServer: auth: missing value: %s", f.name)
			}
		}
	}
	if c.Backend.URL == "" {
		return errors.New("backend: missing field: url")
	}
	u, err := url.Parse(c.Backend.URL)
	if err != nil {
		return errors.New("backend: url: " + unreadable)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("backend: url: %q: want http:// or https:// and a host", withoutPassword(c.Backend.URL))
	}
	return nil
}

// takeCredentials has those in the URL be basic authentication, as they were for the tool, whose every request had them.
func (b *Backend) takeCredentials() error {
	u, err := url.Parse(b.URL)
	if err != nil || u.User == nil {
		return err
	}
	switch {
	case b.Auth.Username != "" || b.Auth.PasswordFile != "" || b.Auth.TokenFile != "":
		return errors.New("backend: url: has a name or a password in it, and backend.auth says who is asking, too: want it said once")
	case u.User.Username() == "":
		return errors.New("backend: url: has a password in it, and no name: want both, or backend.auth")
	}
	password, _ := u.User.Password()
	b.Auth.Username, b.Auth.Password = u.User.Username(), &password
	u.User = nil
	b.URL = u.String()
	return nil
}

// unreadable is what is said of a text that is no URL. Neither it nor what is wrong in it is repeated: the parser's words have
// the text in them, or the part at fault, which may be a password.
const unreadable = "cannot be read as a URL: want one such as https://HOST:PORT, with what is special in a name or a password percent-encoded"

// withoutPassword is a URL as it may be shown: without a password and without a query, where a token may be. One that has no
// host is not shown where it may be a name and a password.
func withoutPassword(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" && strings.Contains(text, "@") {
		return "(not shown)"
	}
	u.RawQuery, u.Fragment = "", ""
	return u.Redacted()
}
