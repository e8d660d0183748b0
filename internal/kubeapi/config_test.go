package kubeapi

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// secret is in every place of a kubeconfig that may hold a credential; no error may contain it.
const secret = "hunter2"

// kubeconfigOf returns a kubeconfig with these fields of its cluster and user, in YAML's flow style.
func kubeconfigOf(cluster, user string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Config
current-context: here
contexts:
- {name: other, context: {cluster: elsewhere, user: nobody}}
- {name: here, context: {cluster: c, user: u}}
clusters:
- {name: elsewhere, cluster: {server: "https://elsewhere.test"}}
- {name: c, cluster: {%s}}
users:
- {name: nobody, user: {token: wrong}}
- {name: u, user: {%s}}
`, cluster, user)
}

const goodServer = `server: "https://api.test:6443"`

func TestKubeconfigIsParsed(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "pki", "ca.crt"), "CA")
	writeFile(t, filepath.Join(dir, "pki", "cert"), "CERT")
	writeFile(t, filepath.Join(dir, "pki", "key"), "KEY")
	b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	api := &url.URL{Scheme: "https", Host: "api.test:6443"}

	tests := map[string]struct {
		config string
		want   Config
	}{
		"data": {
			kubeconfigOf(goodServer+", certificate-authority-data: "+b64("CA"),
				"client-certificate-data: "+b64("CERT")+", client-key-data: "+b64("KEY")),
			Config{Server: api, CA: []byte("CA"), ClientCert: []byte("CERT"), ClientKey: []byte("KEY")},
		},
		"files relative to the kubeconfig": {
			kubeconfigOf(goodServer+", certificate-authority: pki/ca.crt", "client-certificate: pki/cert, client-key: ./pki/key"),
			Config{Server: api, CA: []byte("CA"), ClientCert: []byte("CERT"), ClientKey: []byte("KEY")},
		},
		"an absolute file": {
			kubeconfigOf(goodServer+", certificate-authority: "+filepath.Join(dir, "pki", "ca.crt"), ""),
			Config{Server: api, CA: []byte("CA")},
		},
		"data before a file": {
			kubeconfigOf(goodServer+", certificate-authority: nowhere, certificate-authority-data: "+b64("CA"), ""),
			Config{Server: api, CA: []byte("CA")},
		},
		"token":             {kubeconfigOf(goodServer, "token: t0"), Config{Server: api, Token: "t0"}},
		"a token of digits": {kubeconfigOf(goodServer, "token: 12345"), Config{Server: api, Token: "12345"}},
		"tokenFile": {
			kubeconfigOf(goodServer, "tokenFile: token"),
			Config{Server: api, TokenFile: filepath.Join(dir, "token")},
		},
		"username and password": {
			kubeconfigOf(goodServer, "username: me, password: pw"),
			Config{Server: api, Username: "me", Password: "pw"},
		},
		"no credentials": {kubeconfigOf(goodServer, ""), Config{Server: api}},
		"no user in the context": {
			`{current-context: x, contexts: [{name: x, context: {cluster: c}}], clusters: [{name: c, cluster: {` + goodServer + `}}]}`,
			Config{Server: api},
		},
		"no verification, another server name, a proxy": {
			kubeconfigOf(goodServer+`, insecure-skip-tls-verify: true, tls-server-name: kubernetes, proxy-url: "socks5://p:1080"`, ""),
			Config{Server: api, InsecureSkipVerify: true, ServerName: "kubernetes", Proxy: &url.URL{Scheme: "socks5", Host: "p:1080"}},
		},
		"a path prefix": {
			kubeconfigOf(`server: "http://proxy/k8s/c-1"`, ""),
			Config{Server: &url.URL{Scheme: "http", Host: "proxy", Path: "/k8s/c-1"}},
		},
		"JSON": {
			`{"current-context":"x","contexts":[{"name":"x","context":{"cluster":"c","user":""}}],` +
				`"clusters":[{"name":"c","cluster":{"server":"https://api.test:6443"}}],"preferences":{},"extensions":[]}`,
			Config{Server: api},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, "config")
			writeFile(t, path, tt.config)
			got, err := LoadConfig(path)
			must.NoError(t, err)
			check.Equal(t, tt.want, got)
		})
	}
}

func TestWrongKubeconfigIsLocatedWithoutSecrets(t *testing.T) {
	tests := map[string]struct{ config, want string }{
		"missing context": {
			`{current-context: x, contexts: [{name: y}], users: [{name: u, user: {token: hunter2}}]}`,
			`current-context "x" is not among the contexts`,
		},
		"an empty file": {``, `current-context "" is not among the contexts`},
		"missing cluster": {
			`{current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}], users: [{name: u, user: {token: hunter2}}]}`,
			`context "x" names cluster "c", which is missing`,
		},
		"missing user": {
			`{current-context: x, contexts: [{name: x, context: {cluster: c, user: v}}], clusters: [{name: c}], users: [{name: u, user: {token: hunter2}}]}`,
			`context "x" names user "v", which is missing`,
		},
		"exec": {
			kubeconfigOf(goodServer, "token: hunter2, exec: {command: aws, env: [{name: X, value: hunter2}]}"),
			`user "u": its credentials come from another program (exec or auth-provider), which is not supported: want a token`,
		},
		"auth-provider": {
			kubeconfigOf(goodServer, "auth-provider: {name: gcp, config: {access-token: hunter2}}"), `user "u": its credentials come`,
		},
		"impersonation": {
			kubeconfigOf(goodServer, "token: hunter2, as: jane"), `user "u": impersonation (as, as-uid, as-groups, as-user-extra)`,
		},
		"impersonation of groups alone": {
			kubeconfigOf(goodServer, "token: hunter2, as-groups: [viewers]"), `user "u": impersonation`,
		},
		"no server":              {kubeconfigOf("", "token: hunter2"), `server: "": want a URL such as https://host:6443`},
		"a server without https": {kubeconfigOf(`server: "api.test:6443"`, ""), `server: "api.test:6443": want a URL`},
		"a server without host":  {kubeconfigOf(`server: "https://:6443"`, ""), `server: "https://:6443": want a URL`},
		"a server with a password": {
			kubeconfigOf(`server: "https://me:hunter2@api.test"`, ""), `server: the URL contains credentials`,
		},
		"a server with a password that is not a URL": {
			kubeconfigOf(`server: "https://me:hunter2 @api.test"`, ""), `server: the URL (not quoted, it may hold a password): want a URL`,
		},
		"a proxy with a password that is not a URL": {
			kubeconfigOf(goodServer+`, proxy-url: "http://me:%hunter2@proxy"`, ""), `proxy-url: the URL (not quoted, it may hold`,
		},
		"a proxy of another kind": {
			kubeconfigOf(goodServer+`, proxy-url: "ftp://proxy"`, ""), `proxy-url: "ftp://proxy": want a URL such as`,
		},
		"a CA that is not used": {
			kubeconfigOf(goodServer+`, insecure-skip-tls-verify: true, certificate-authority: ca.crt`, ""), `insecure-skip-tls-verify: is true, but`,
		},
		"a CA that is not base64": {
			kubeconfigOf(goodServer+`, certificate-authority-data: "***"`, "token: hunter2"), `certificate-authority-data: want base64`,
		},
		"a key that is not base64": {
			kubeconfigOf(goodServer, `client-key-data: "hunter2*"`), `client-key-data: want base64`,
		},
		"a missing file": {
			kubeconfigOf(goodServer+`, certificate-authority: nowhere.crt`, "token: hunter2"), `certificate-authority: open `,
		},
		"not YAML":                   {"users:\n- {token: hunter2", `line 2: not YAML (not quoted`},
		"a secret that is not YAML":  {"users:\n- password: *hunter2\n", `not YAML (not quoted`},
		"a secret of the wrong type": {kubeconfigOf(goodServer, "token: [hunter2]"), `users.user.token: want string`},
		"not a mapping":              {`hunter2`, `want struct`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "config")
			writeFile(t, path, tt.config)
			got, err := LoadConfig(path)
			if err == nil {
				t.Fatalf("parsed as %+v", got)
			}
			if !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "kubeconfig "+path+": ") {
				t.Errorf("got %q, want it to name the file and contain %q", err, tt.want)
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%q contains a secret", err)
			}
		})
	}
	if _, err := LoadConfig(filepath.Join(t.TempDir(), "nowhere")); err == nil || !strings.HasPrefix(err.Error(), "kubeconfig: ") {
		t.Errorf("no file: %v", err)
	}
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}

func TestInClusterConfigIsLoaded(t *testing.T) {
	dir := t.TempDir()
	env := map[string]string{"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
	getenv := func(k string) string { return env[k] }

	_, err := loadInClusterConfig(func(string) string { return "" }, dir)
	check.ErrorContains(t, err, "give --kubeconfig")
	for _, missing := range []string{"ca.crt", "token"} {
		check.ErrorContains(t, check.Err(loadInClusterConfig(getenv, dir)), missing)
		writeFile(t, filepath.Join(dir, missing), "x")
	}
	got, err := loadInClusterConfig(getenv, dir)
	want := Config{Server: &url.URL{Scheme: "https", Host: "[fd00::1]:443"}, CA: []byte("x"), TokenFile: filepath.Join(dir, "token")}
	if err != nil || !cmp.Equal(want, got) {
		t.Errorf("got %+v and %v", got, err)
	}
}

// authorization answers with the Authorization header as the name of a node.
func authorization(w http.ResponseWriter, r *http.Request) {
	_, _ = fmt.Fprintf(w, `{"metadata":{"name":%q}}`, "<"+r.Header.Get("Authorization")+">")
}

func TestCredentialsAreSent(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(authorization))
	defer s.Close()
	base, _ := url.Parse(s.URL)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	tokenFile := filepath.Join(t.TempDir(), "token")
	writeFile(t, tokenFile, "from-file\n")
	for want, config := range map[string]Config{
		"<>":                       {},
		"<Bearer t0>":              {Token: "t0", Username: "me"},
		"<Bearer from-file>":       {Token: "t0", TokenFile: tokenFile},
		"<Basic bWU6aHVudGVyMg==>": {Username: "me", Password: secret},
	} {
		config.Server, config.CA = base, ca
		c, err := config.NewClient("slipway-test")
		must.NoError(t, err)
		n, err := c.GetNode(t.Context(), "n1")
		if err != nil || n.Name != want {
			t.Errorf("sent %v (%v), want %s", n, err, want)
		}
	}
	c, err := Config{Server: base}.NewClient("slipway-test")
	must.NoError(t, err)
	check.ErrorContains(t, check.Err(c.GetNode(t.Context(), "n1")), "certificate")
}

func TestTokenFileIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	synctest.Test(t, func(t *testing.T) {
		b := &bearer{file: path}
		expect := func(situation, want string) {
			t.Helper()
			if got, err := b.currentToken(); err != nil || got != want {
				t.Errorf("%s: %q and %v, want %q", situation, got, err, want)
			}
		}
		if got, err := b.currentToken(); err == nil {
			t.Errorf("without a file: %q", got)
		}
		writeFile(t, path, " \n")
		if got, err := b.currentToken(); err == nil || !strings.Contains(err.Error(), "is empty") {
			t.Errorf("with an empty file: %q and %v", got, err)
		}
		writeFile(t, path, "one\n")
		expect("at first", "one")
		writeFile(t, path, "two\n")
		time.Sleep(tokenLifetime - time.Second)
		expect("within a minute", "one")
		time.Sleep(time.Second)
		expect("after a minute", "two")
		must.NoError(t, os.Remove(path))
		time.Sleep(tokenLifetime)
		expect("when the file is away", "two")
		writeFile(t, path, "three\n")
		expect("when it is back", "three")
	})
}

func TestCredentialsDoNotFollowARedirect(t *testing.T) {
	var leaked string
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		leaked = r.Header.Get("Authorization") + " at " + r.URL.Path
	}))
	defer elsewhere.Close()
	s := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	defer s.Close()
	base, _ := url.Parse(s.URL)
	c, err := Config{Server: base, Token: secret}.NewClient("slipway-test")
	must.NoError(t, err)
	_, err = c.GetNode(t.Context(), "n1")
	if e := ToStatusError(err); e == nil || e.Code != http.StatusTemporaryRedirect {
		t.Errorf("got %v", err)
	}
	check.Is(t, "", leaked)
}

func TestRequestErrorsContainNoSecret(t *testing.T) {
	broken := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer broken.Close()
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, status(401, "Unauthorized", "Unauthorized"))
	}))
	defer refusing.Close()
	brokenURL, _ := url.Parse(broken.URL)
	refusingURL, _ := url.Parse(refusing.URL)
	noProxy, _ := url.Parse("http://me:hunter2@127.0.0.1:1")
	key := []byte("-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----")

	configs := map[string]Config{
		"broken connection":         {Server: brokenURL, Token: secret},
		"token refused":             {Server: refusingURL, Token: secret},
		"password refused":          {Server: refusingURL, Username: "me", Password: secret},
		"token with a line end":     {Server: refusingURL, Token: secret + "\r\nX: y"},
		"proxy out of reach":        {Server: &url.URL{Scheme: "http", Host: "api.test"}, Proxy: noProxy, Token: secret},
		"TLS to a plain server":     {Server: &url.URL{Scheme: "https", Host: refusingURL.Host}, Token: secret},
		"invalid key":               {Server: refusingURL, ClientCert: key, ClientKey: key},
		"key without a certificate": {Server: refusingURL, ClientKey: key},
		"invalid CA":                {Server: refusingURL, CA: key},
	}
	for name, config := range configs {
		c, err := config.NewClient("slipway-test")
		if err == nil {
			err = c.CreateEvent(t.Context(), Event{Metadata: ObjectMeta{Namespace: "default"}})
		}
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
