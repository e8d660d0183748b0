package kubeapi

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/yaml"
)

const (
	serviceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"
	// tokenLifetime is how long a token is used before its file is read again. The kubelet rotates a projected token
	// at 80 % of its life, which is at least 8 minutes before its end.
	tokenLifetime = time.Minute
	// pingAfter and pingTimeout detect a silently dead connection. Without them a watch through a dropped NAT entry
	// or a dead load balancer would wait forever.
	pingAfter   = 30 * time.Second
	pingTimeout = 15 * time.Second
	// headerTimeout limits the wait for a response to begin. It also applies to a watch, because the API server
	// begins its response at once.
	headerTimeout = 20 * time.Second
)

// Config says how to reach an API server, and with which credentials. A token is preferred to Username and Password.
// A client certificate, if any, is sent in each case.
type Config struct {
	Server             *url.URL
	ServerName         string // for TLS, if it differs from the host of Server
	CA                 []byte // PEM; empty trusts the system's authorities
	InsecureSkipVerify bool   // skip verification of the server's certificate
	ClientCert         []byte // PEM, with ClientKey
	ClientKey          []byte
	Token              string
	TokenFile          string // read again while in use; preferred to Token
	Username           string
	Password           string
	Proxy              *url.URL // nil uses the standard environment
	// Wrap, if set, wraps the transport to measure requests. Credentials are added outside of it.
	Wrap func(http.RoundTripper) http.RoundTripper
}

// LoadConfig reads the kubeconfig at path, or the pod's own ServiceAccount if path is empty.
func LoadConfig(path string) (Config, error) {
	if path == "" {
		return loadInClusterConfig(os.Getenv, serviceAccountDir)
	}
	return loadKubeconfig(path)
}

// loadInClusterConfig reads the files that the kubelet mounts into every pod
// (https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/).
func loadInClusterConfig(getenv func(string) string, dir string) (Config, error) {
	host, port := getenv("KUBERNETES_SERVICE_HOST"), getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return Config{}, errors.New("no kubeconfig given, and KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are " +
			"not set as they are inside a pod: give --kubeconfig")
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return Config{}, fmt.Errorf("service account: %w", err)
	}
	token := filepath.Join(dir, "token")
	if _, err := os.Stat(token); err != nil {
		return Config{}, fmt.Errorf("service account: %w", err)
	}
	server := &url.URL{Scheme: "https", Host: net.JoinHostPort(host, port)}
	return Config{Server: server, CA: ca, TokenFile: token}, nil
}

// kubeconfig is the supported part of clientcmdapi/v1.Config. Other fields do not affect the requests of this
// package.
type kubeconfig struct {
	CurrentContext string `json:"current-context"`
	Contexts       []struct {
		Name    string `json:"name"`
		Context struct {
			Cluster string `json:"cluster"`
			User    string `json:"user"`
		} `json:"context"`
	} `json:"contexts"`
	Clusters []struct {
		Name    string            `json:"name"`
		Cluster kubeconfigCluster `json:"cluster"`
	} `json:"clusters"`
	Users []struct {
		Name string         `json:"name"`
		User kubeconfigUser `json:"user"`
	} `json:"users"`
}

type kubeconfigCluster struct {
	Server        string `json:"server"`
	TLSServerName string `json:"tls-server-name"`
	CAFile        string `json:"certificate-authority"`
	CAData        string `json:"certificate-authority-data"`
	Insecure      bool   `json:"insecure-skip-tls-verify"`
	ProxyURL      string `json:"proxy-url"`
}

type kubeconfigUser struct {
	CertFile     string         `json:"client-certificate"`
	CertData     string         `json:"client-certificate-data"`
	KeyFile      string         `json:"client-key"`
	KeyData      string         `json:"client-key-data"`
	Token        string         `json:"token"`
	TokenFile    string         `json:"tokenFile"`
	Username     string         `json:"username"`
	Password     string         `json:"password"`
	Exec         map[string]any `json:"exec"`
	AuthProvider map[string]any `json:"auth-provider"`

	As          string              `json:"as"`
	AsUID       string              `json:"as-uid"`
	AsGroups    []string            `json:"as-groups"`
	AsUserExtra map[string][]string `json:"as-user-extra"`
}

// ErrUnsupportedCredentials is the error for credentials in a kubeconfig that this package does not support, but client-go does.
var ErrUnsupportedCredentials = errors.New("credentials are not supported")

// unsupportedError is an [ErrUnsupportedCredentials] with details.
type unsupportedError string

func (u unsupportedError) Error() string      { return string(u) }
func (unsupportedError) Is(target error) bool { return target == ErrUnsupportedCredentials }

// validate refuses credentials that this package cannot use. Without them, requests would have another identity or
// none.
func (u kubeconfigUser) validate() error {
	switch {
	case u.Exec != nil || u.AuthProvider != nil:
		return unsupportedError("its credentials come from another program (exec or auth-provider), which is not supported: " +
			"want a token, tokenFile, client certificate or username and password")
	case u.As != "" || u.AsUID != "" || u.AsGroups != nil || u.AsUserExtra != nil:
		return unsupportedError("impersonation (as, as-uid, as-groups, as-user-extra) is not supported: want credentials of " +
			"the account itself")
	}
	return nil
}

func loadKubeconfig(path string) (Config, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("kubeconfig: %w", err)
	}
	c, err := parseKubeconfig(raw, filepath.Dir(path))
	if err != nil {
		return Config{}, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	return c, nil
}

func parseKubeconfig(raw []byte, dir string) (Config, error) {
	var k kubeconfig
	if err := yaml.Unmarshal(raw, &k); err != nil {
		return Config{}, hideContentInError(err)
	}
	cluster, user, err := k.currentClusterAndUser()
	if err != nil {
		return Config{}, err
	}
	c := Config{
		ServerName: cluster.TLSServerName, InsecureSkipVerify: cluster.Insecure,
		Token: user.Token, Username: user.Username, Password: user.Password,
	}
	if user.TokenFile != "" {
		c.TokenFile = resolvePath(dir, user.TokenFile)
	}
	if c.Server, err = parseURL("server", cluster.Server, "https", "http"); err != nil {
		return Config{}, err
	}
	if c.Server.User != nil {
		return Config{}, errors.New("server: the URL contains credentials: want them in the user's fields")
	}
	if cluster.ProxyURL != "" {
		if c.Proxy, err = parseURL("proxy-url", cluster.ProxyURL, "http", "https", "socks5"); err != nil {
			return Config{}, err
		}
	}
	if c.InsecureSkipVerify && cluster.CAData+cluster.CAFile != "" {
		return Config{}, errors.New("insecure-skip-tls-verify: is true, but certificate-authority is set: want only one of them")
	}
	for _, f := range []struct {
		field, data, file string
		into              *[]byte
	}{
		{"certificate-authority", cluster.CAData, cluster.CAFile, &c.CA},
		{"client-certificate", user.CertData, user.CertFile, &c.ClientCert},
		{"client-key", user.KeyData, user.KeyFile, &c.ClientKey},
	} {
		if *f.into, err = loadDataOrFile(dir, f.field, f.data, f.file); err != nil {
			return Config{}, err
		}
	}
	return c, nil
}

// yamlLine matches the line number in a YAML parser's error.
var yamlLine = regexp.MustCompile(`line \d+`)

// hideContentInError returns the place of a kubeconfig error without the content there, which may be a credential.
func hideContentInError(err error) error {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%s: want %s", wrong.Field, wrong.Type.Kind())
	}
	if line := yamlLine.FindString(err.Error()); line != "" {
		return fmt.Errorf("%s: not YAML (not quoted, it may hold a credential)", line)
	}
	return errors.New("not YAML (not quoted, it may hold a credential)")
}

// currentClusterAndUser returns the cluster and user of the current context. A context without a user has no credentials.
func (k kubeconfig) currentClusterAndUser() (cluster kubeconfigCluster, user kubeconfigUser, err error) {
	var none kubeconfigCluster
	for _, ctx := range k.Contexts {
		if ctx.Name != k.CurrentContext {
			continue
		}
		cluster, ok := findFirst(k.Clusters, func(i int) bool { return k.Clusters[i].Name == ctx.Context.Cluster })
		if !ok {
			return none, kubeconfigUser{}, fmt.Errorf("context %q names cluster %q, which is missing", ctx.Name,
				ctx.Context.Cluster)
		}
		user, ok := findFirst(k.Users, func(i int) bool { return k.Users[i].Name == ctx.Context.User })
		if !ok && ctx.Context.User != "" {
			return none, kubeconfigUser{}, fmt.Errorf("context %q names user %q, which is missing", ctx.Name, ctx.Context.User)
		}
		if err := user.User.validate(); err != nil {
			return none, kubeconfigUser{}, fmt.Errorf("user %q: %w", user.Name, err)
		}
		return cluster.Cluster, user.User, nil
	}
	return none, kubeconfigUser{}, fmt.Errorf("current-context %q is not among the contexts", k.CurrentContext)
}

func findFirst[T any](all []T, is func(int) bool) (T, bool) {
	for i := range all {
		if is(i) {
			return all[i], true
		}
	}
	var none T
	return none, false
}

// parseURL parses the URL of a host. It quotes an invalid URL only if it cannot contain a password.
func parseURL(field, value string, schemes ...string) (*url.URL, error) {
	u, err := url.Parse(value)
	if err == nil && u.Hostname() != "" && slices.Contains(schemes, u.Scheme) {
		return u, nil
	}
	shown := strconv.Quote(value)
	if strings.Contains(value, "@") {
		shown = "the URL (not quoted, it may hold a password)"
	}
	return nil, fmt.Errorf("%s: %s: want a URL such as %s://host:6443, the scheme one of %s", field, shown, schemes[0],
		strings.Join(schemes, ", "))
}

func resolvePath(dir, file string) string {
	if filepath.IsAbs(file) {
		return file
	}
	return filepath.Join(dir, file)
}

// loadDataOrFile returns the base64 data of a field, or else the content of its file.
func loadDataOrFile(dir, field, data, file string) ([]byte, error) {
	if data != "" {
		raw, err := base64.StdEncoding.DecodeString(data)
		if err != nil {
			return nil, fmt.Errorf("%s-data: want base64: %w", field, err)
		}
		return raw, nil
	}
	if file == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(resolvePath(dir, file))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	return raw, nil
}

// NewHTTPClient returns a client with the credentials of c. It has no timeout, because a watch is long. The context
// limits each request.
func (c Config) NewHTTPClient() (*http.Client, error) {
	t := &tls.Config{ServerName: c.ServerName, InsecureSkipVerify: c.InsecureSkipVerify, MinVersion: tls.VersionTLS12} //nolint:gosec // the user's own option
	if len(c.CA) > 0 {
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(c.CA) {
			return nil, errors.New("certificate-authority: has no certificate in PEM form")
		}
	}
	if len(c.ClientCert) > 0 || len(c.ClientKey) > 0 {
		pair, err := tls.X509KeyPair(c.ClientCert, c.ClientKey)
		if err != nil {
			return nil, fmt.Errorf("client-certificate: %w", err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	proxy := proxyFromEnvironment
	if c.Proxy != nil {
		proxy = http.ProxyURL(c.Proxy)
	}
	transport := &http.Transport{
		Proxy:               proxy,
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:     t,
		TLSHandshakeTimeout: 5 * time.Second,
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: 4,
		IdleConnTimeout:     90 * time.Second,

		ResponseHeaderTimeout: headerTimeout,
		HTTP2:                 &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
	}
	var wrapped http.RoundTripper = transport
	if c.Wrap != nil {
		wrapped = c.Wrap(transport)
	}
	return &http.Client{Transport: c.wrapWithCredentials(wrapped), CheckRedirect: refuseRedirect}, nil
}

// proxyFromEnvironment is http.ProxyFromEnvironment with another error, because the original quotes the proxy's URL
// with its password.
func proxyFromEnvironment(r *http.Request) (*url.URL, error) {
	u, err := http.ProxyFromEnvironment(r)
	if err != nil {
		return nil, errors.New("HTTPS_PROXY or HTTP_PROXY: want a URL such as http://proxy:3128 (not quoted, it may hold " +
			"a password)")
	}
	return u, nil
}

// refuseRedirect follows no redirect. The API server never redirects these requests, and credentials must not be sent
// elsewhere.
func refuseRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

func (c Config) wrapWithCredentials(next http.RoundTripper) http.RoundTripper {
	switch {
	case c.TokenFile != "":
		return &bearer{next: next, file: c.TokenFile}
	case c.Token != "":
		return &bearer{next: next, token: c.Token}
	case c.Username != "":
		return &basic{next: next, username: c.Username, password: c.Password}
	}
	return next
}

// bearer adds a token to requests, and reads it again from its file after tokenLifetime.
type bearer struct {
	next http.RoundTripper
	file string

	mu     sync.Mutex
	token  string
	readAt time.Time
}

func (b *bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	token, err := b.currentToken()
	if err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+token)
	return b.next.RoundTrip(r)
}

func (b *bearer) currentToken() (string, error) {
	if b.file == "" {
		return b.token, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.token != "" && time.Since(b.readAt) < tokenLifetime {
		return b.token, nil
	}
	raw, err := os.ReadFile(b.file)
	token := strings.TrimSpace(string(raw))
	switch {
	case err == nil && token != "":
		b.token, b.readAt = token, time.Now()
	case b.token == "" && err != nil:
		return "", fmt.Errorf("token file: %w", err)
	case b.token == "":
		return "", fmt.Errorf("token file: %s is empty", b.file)
	}
	return b.token, nil // after a failed read the last token may still be valid
}

type basic struct {
	next               http.RoundTripper
	username, password string
}

func (b *basic) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.SetBasicAuth(b.username, b.password)
	return b.next.RoundTrip(r)
}

// NewClient returns a client for c; userAgent is its name in the audit log.
func (c Config) NewClient(userAgent string) (*Client, error) {
	hc, err := c.NewHTTPClient()
	if err != nil {
		return nil, err
	}
	return NewClient(c.Server, hc, userAgent), nil
}
