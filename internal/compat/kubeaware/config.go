// Package kubeaware is the compatibility mode of kubeaware-cloudpool-proxy (github.com/elastisys/kubeaware-cloudpool-proxy).
// It converts the tool's configuration file and flags to Slipway's configuration.
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

// Tool is the name of the replaced tool.
const Tool = "kubeaware-cloudpool-proxy"

// The tool's defaults.
const (
	DefaultFile           = "/etc/elastisys/kubeaware-cloudpool-proxy.json"
	DefaultPort           = 8080
	defaultServerTimeout  = time.Minute
	defaultKubeTimeout    = time.Minute
	defaultBackendTimeout = 5 * time.Minute
)

// Config holds the tool's configuration as the user wrote it.
type Config struct {
	Server    Server
	APIServer APIServer
	Backend   Backend
	// Warnings report ignored and changed settings.
	Warnings []string
}

// Server configures the API server for clients.
type Server struct {
	// Timeout limits the time that a client takes to send a request.
	Timeout time.Duration
}

// APIServer configures the connection to the Kubernetes API server.
type APIServer struct {
	URL     string
	Auth    KubeAuth
	Timeout time.Duration
}

// KubeAuth contains the credentials: a kubeconfig file, or three PEM files.
type KubeAuth struct {
	KubeConfigPath string `json:"kubeConfigPath"`
	ClientCertPath string `json:"clientCertPath"`
	ClientKeyPath  string `json:"clientKeyPath"`
	CACertPath     string `json:"caCertPath"`
}

// Backend configures the connection to the backend, which is the cloudpool server.
type Backend struct {
	// URL contains no credentials. Credentials in the file's URL are moved to Auth.
	URL     string
	Timeout time.Duration
	// Auth and CAFile are additions. The tool supported only credentials in the URL.
	Auth   BackendAuth
	CAFile string
	// ComputerName is the path of the host name in a machine's metadata, as in provider.PoolConfig.
	ComputerName string
}

// BackendAuth contains the credentials for the backend.
type BackendAuth struct {
	Username     string `json:"username"`
	PasswordFile string `json:"passwordFile"`
	TokenFile    string `json:"tokenFile"`
	CertFile     string `json:"certFile"`
	KeyFile      string `json:"keyFile"`
	// Password is the password of the URL, for Username.
	Password *string `json:"-"`
}

// configFile is the structure of the tool's JSON file. Keys may have any letter case.
type configFile struct {
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
		// CloudPoolURL is the key of url in the tool's README.
		CloudPoolURL string          `json:"cloudPoolUrl"`
		Timeout      json.RawMessage `json:"timeout"`
		Auth         BackendAuth     `json:"auth"`
		CAFile       string          `json:"caFile"`
		ComputerName string          `json:"computerName"`
	} `json:"backend"`
}

// parseFile parses the tool's JSON file. An error names the key and the wanted type.
func parseFile(raw []byte) (configFile, error) {
	var f configFile
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

// parseDuration parses a duration in Go's format within quotes. It returns 0 if raw is missing.
func parseDuration(raw json.RawMessage) (time.Duration, error) {
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

// knownKeys lists the keys that each object of the file can have.
var knownKeys = map[string][]string{
	"": {"server", "apiServer", "backend"}, "server": {"timeout"}, "apiServer": {"url", "auth", "timeout"},
	"apiServer.auth": {"kubeConfigPath", "clientCertPath", "clientKeyPath", "caCertPath"},
	"backend":        {"url", "cloudPoolUrl", "timeout", "auth", "caFile", "computerName"},
	"backend.auth":   {"username", "passwordFile", "tokenFile", "certFile", "keyFile"},
}

// Load reads and parses the tool's file. Its errors have the tool's wording.
func Load(path string) (Config, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("failed to open configuration file: %w", err)
	}
	return Parse(raw)
}

// Parse parses the content of the tool's file. Its errors have the tool's wording.
func Parse(raw []byte) (Config, error) {
	f, err := parseFile(raw)
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
		c.addWarning("backend.cloudPoolUrl: %s is ignored, because backend.url overrides it", redactURL(f.Backend.CloudPoolURL))
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
		is, err := parseDuration(t.raw)
		if err != nil {
			return c, fmt.Errorf("could not parse config: failed to parse proxy config: %s: %w", t.key, err)
		}
		*t.into = c.limitTimeout(t.key, is, t.fallback)
	}
	c.warnUnknownKeys(raw)
	err = c.validate()
	if err == nil {
		err = c.Backend.moveCredentialsToAuth()
	}
	if err != nil {
		return c, fmt.Errorf("could not parse config: invalid proxy configuration: proxy config: %w", err)
	}
	return c, nil
}

func (c *Config) addWarning(format string, a ...any) {
	c.Warnings = append(c.Warnings, fmt.Sprintf(format, a...))
}

// minTimeout and maxTimeout limit a timeout in the tool's file.
const minTimeout, maxTimeout = time.Second, 30 * time.Minute

// limitTimeout returns a timeout within the limits. It returns fallback for 0 or a negative value. It adds a warning if
// it changes a value other than 0.
func (c *Config) limitTimeout(key string, timeout, fallback time.Duration) time.Duration {
	if timeout == 0 {
		return fallback
	}
	if timeout < 0 {
		c.addWarning("%s: %s: is negative; using %s", key, timeout, fallback)
		return fallback
	}
	bounded := min(max(timeout, minTimeout), maxTimeout)
	if bounded != timeout {
		c.addWarning("%s: %s: want %s to %s; using %s", key, timeout, minTimeout, maxTimeout, bounded)
	}
	return bounded
}

// warnUnknownKeys adds a warning for each unknown key in the file.
func (c *Config) warnUnknownKeys(raw []byte) {
	var tree map[string]any
	if json.Unmarshal(raw, &tree) == nil {
		c.warnUnknownKeysIn("", tree)
	}
}

func (c *Config) warnUnknownKeysIn(where string, tree map[string]any) {
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
			text := path + ": unknown key, ignored"
			if like := compat.FindClosestName(key, known); like != "" {
				text += "; did you mean " + like + "?"
			}
			c.Warnings = append(c.Warnings, text)
			continue
		}
		if inner, ok := tree[key].(map[string]any); ok {
			c.warnUnknownKeysIn(strings.TrimPrefix(where+"."+known[i], "."), inner)
		}
	}
}

func (c *Config) validate() error {
	if c.APIServer.URL == "" {
		return errors.New("apiServer: missing field: url")
	}
	if _, err := url.Parse(c.APIServer.URL); err != nil {
		return errors.New("apiServer: url: " + unreadableURL)
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
		return errors.New("backend: url: " + unreadableURL)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("backend: url: %q: want http:// or https:// and a host", redactURL(c.Backend.URL))
	}
	return nil
}

// moveCredentialsToAuth moves the user name and password in the URL to Auth. They become basic authentication, which
// the tool used for every request.
func (b *Backend) moveCredentialsToAuth() error {
	u, err := url.Parse(b.URL)
	if err != nil || u.User == nil {
		return err
	}
	switch {
	case b.Auth.Username != "" || b.Auth.PasswordFile != "" || b.Auth.TokenFile != "":
		return errors.New("backend: url: contains credentials although backend.auth is set: want only one of the two")
	case u.User.Username() == "":
		return errors.New("backend: url: contains a password without a user name: want both, or backend.auth")
	}
	password, _ := u.User.Password()
	b.Auth.Username, b.Auth.Password = u.User.Username(), &password
	u.User = nil
	b.URL = u.String()
	return nil
}

// unreadableURL is the text of the error for an invalid URL. It contains neither the URL nor the parser's error,
// because both may contain a password.
const unreadableURL = "cannot be read as a URL: want for example https://HOST:PORT, with special characters in user name and password percent-encoded"

// redactURL returns a URL without its password and its query, which may contain a token. If the URL has no host but an
// @, redactURL returns a placeholder. Such a text may be credentials.
func redactURL(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" && strings.Contains(text, "@") {
		return "(not shown)"
	}
	u.RawQuery, u.Fragment = "", ""
	return u.Redacted()
}
