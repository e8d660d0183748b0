package kubeaware

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	provider "github.com/slipway-dev/slipway/internal/cloud/cloudpool"
	"github.com/slipway-dev/slipway/internal/compat"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// The known faults of kubeaware-cloudpool-proxy and their regression tests. Tests of its configuration are here, the others in
// the packages below. e2e is dev/e2e/cloudpool.
//
//	fault                                              package              test
//	a panic leaves the mutex locked                    internal/cloudpool   TestFaultPanicLeavesPoolLocked
//	an owner without "controller" causes a panic       internal/placement   TestRulesBlockNodeRemoval
//	nodes without allocatable cause a panic            internal/placement   TestRulesBlockNodeRemoval
//	machines and nodes are paired by external ID only  internal/cloudpool   TestPairingIsUnambiguousOrMissing
//	without external IDs nothing is checked            internal/cloudpool   TestFaultNodesWithoutExternalIDsAreUnguarded
//	PDBs are read in policy/v1beta1                    internal/cloudpool   TestFaultPDBsAreReadInRemovedVersion
//	a trailing slash bypasses the checks               internal/cloudpool   TestAmbiguousPathsMapToActions
//	                                                   internal/cloudpool   TestEvasivePathIsChecked
//	                                                   internal/cloudpool   TestRandomPathIsChecked
//	the query is dropped                               internal/cloudpool   TestForwardedRequestArrivesUnchanged
//	an encoded path is decoded                         internal/cloudpool   TestForwardedRequestArrivesUnchanged
//	hop-by-hop headers are forwarded                   internal/cloudpool   TestForwardedRequestArrivesUnchanged
//	an error is appended to half an answer             internal/cloudpool   TestServerFaultsAreForwardedOrReported
//	redirects are followed                             internal/cloudpool   TestServerFaultsAreForwardedOrReported
//	                                                   internal/cloud/cloudpool/wire
//	                                                                        TestI7MalformedResponseIsNotAnEmptyPool
//	the reason for "not evictable" is inverted         internal/cloudpool   TestProtectedMachinesStayAndCount
//	a failed termination is blamed on Kubernetes       internal/cloudpool   TestFailedTerminationIsReported
//	                                                   e2e                  TestI7InvalidResponseToChangeIsRetried
//	errors of the backend say "backend: backend:"      here                 TestFaultBackendErrorIsReportedTwice
//	a numeric timeout causes a panic                   here                 TestFaultNumericTimeoutPanics
//	a % in the backend's message is mangled            internal/cloudpool   TestFailuresHaveDistinctCodesUnlessStrict
//	                                                   e2e                  TestRefusedRequestsReportReasonAndChangeNothing
//	a PDB counts in every namespace                    internal/placement   TestPDBsAreAppliedLikeEvictionAPI
//	all terms of a node affinity have to match         internal/placement   TestFaultAllNodeAffinityTermsMustMatch
//	matchFields are unknown                            internal/placement   TestFaultMatchFieldsOfNodeAffinityAreUnknown
//	finished pods count as load                        internal/placement   TestFaultFinishedPodsCountAsLoad
//	400, 404 and 502 of the backend become 500         internal/cloudpool   TestFailuresHaveDistinctCodesUnlessStrict
//	                                                   internal/cloudpool   TestServerAnswerToRaiseIsForwarded
//	a success other than 200 is a failure              internal/cloud/cloudpool/wire
//	                                                                        TestFaultSuccessOtherThan200IsAFailure
//	X-Forwarded-For is wrong for IPv6                  internal/cloudpool   TestIPv6ClientIsForwarded
//	X-Forwarded-For is empty on its own requests       internal/cloud/cloudpool/wire
//	                                                                        TestFaultOwnRequestsAreForwardedForNobody
//	one check for all victims of an update             e2e                  TestI9LastTwoWorkersAreNotBothRemoved
//	                                                   e2e                  TestI2SharedPDBIsNotExceeded

const kube = `"apiServer": {"url": "https://k", "auth": {"kubeConfigPath": "/k"}}`

func TestFaultBackendErrorIsReportedTwice(t *testing.T) {
	for backend, want := range map[string]string{
		`{}`:                    "proxy config: backend: missing field: url",
		`{"url": "http://%zz"}`: "proxy config: backend: url: cannot be read as a URL",
	} {
		_, err := Parse([]byte(`{` + kube + `, "backend": ` + backend + `}`))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), "backend:") != 1 {
			t.Errorf("%s: %v, want %q", backend, err, want)
		}
	}
}

func TestFaultNumericTimeoutPanics(t *testing.T) {
	for _, text := range []string{"5", "0", "-1", "60", "1.5", "1e3", `""`, `"5"`, "true", "[]", "{}"} {
		for _, key := range []string{"server", "apiServer", "backend"} {
			_, err := Parse([]byte(`{"` + key + `": {"timeout": ` + text + `}}`))
			if err == nil || !strings.Contains(err.Error(), "failed to parse proxy config: "+key+".timeout: ") || !strings.Contains(err.Error(), `"60s"`) {
				t.Errorf("%s.timeout: %s: %v, want the key and the wanted format", key, text, err)
			}
		}
	}
	c, err := Parse([]byte(`{` + kube + `, "backend": {"url": "http://b", "timeout": null}}`))
	check.Not(t, err != nil || c.Backend.Timeout != 5*time.Minute, "null: %s, %v; want the default", c.Backend.Timeout, err)
}

const readmeExample = `{
  "server": {"timeout": "60s"},
  "apiServer": {"url": "https://kube:6443", "auth": {"clientCertPath": "/a.pem", "clientKeyPath": "/k.pem", "caCertPath": "/ca.pem"},
    "timeout": "10s"},
  "backend": {"cloudPoolUrl": "http://cloudpool:9010", "timeout": "300s"}
}`

func TestBothKeySpellingsAreRead(t *testing.T) {
	c, err := Parse([]byte(readmeExample))
	if err != nil || len(c.Warnings) > 0 {
		t.Fatal(err, c.Warnings)
	}
	if c.Backend.URL != "http://cloudpool:9010" || c.Backend.Timeout != 5*time.Minute || c.Server.Timeout != time.Minute || c.APIServer.Timeout != 10*time.Second {
		t.Errorf("%+v", c)
	}
	short := `{"APISERVER": {"URL": "https://k", "auth": {"kubeconfigpath": "/kc"}}, "backend": {"url": "http://b/cloudpools/web"}}`
	c, err = Parse([]byte(short))
	if err != nil || c.APIServer.Auth.KubeConfigPath != "/kc" || c.Server.Timeout != time.Minute || c.Backend.Timeout != 5*time.Minute {
		t.Errorf("%+v, %v", c, err)
	}
	p := c.ToPoolConfig(false).Pools[0]
	check.Not(t, p.Name != "web" || p.Multi, "%+v", p)
	front := c.ToCloudpoolConfig(&Flags{Port: 1, Namespace: "n", MetricsListen: ""})
	check.NoError(t, front.Validate())
	pool := c.ToPoolConfig(true)
	check.NoError(t, pool.Validate())
}

// TestUnusablePoolNameIsReplaced: the tool accepted every URL.
func TestUnusablePoolNameIsReplaced(t *testing.T) {
	for name, usable := range map[string]bool{
		"web": true, "Web_1.a": true, strings.Repeat("p", 53): true, strings.Repeat("p", 54): false, "web-": false, "": false,
	} {
		c, err := Parse([]byte(`{` + kube + `, "backend": {"url": "http://b/cloudpools/` + name + `"}}`))
		must.NoError(t, err)
		want := "cloudpool-" + c.BackendHash()
		if usable {
			want = name
		}
		pools := c.ToPoolConfig(false)
		check.Is(t, want, pools.Pools[0].Name)
		check.NoError(t, pools.Validate())
	}
}

func TestI10StartErrorsMatchTool(t *testing.T) {
	auth := `"auth": {"kubeConfigPath": "/k"}`
	for text, want := range map[string]string{
		`{`:  "could not parse config: failed to parse proxy config: unexpected end of JSON input",
		`{}`: "could not parse config: invalid proxy configuration: proxy config: apiServer: missing field: url",
		`{"apiServer": {"url": "https://%zz", ` + auth + `}}`:                              "proxy config: apiServer: url: ",
		`{"apiServer": {"url": "https://k"}}`:                                              "apiServer: auth: missing value: clientCertPath",
		`{"apiServer": {"url": "https://k", "auth": {"clientCertPath": "/c"}}}`:            "missing value: clientKeyPath",
		`{"apiServer": {"url": "https://k", ` + auth + `}}`:                                "proxy config: backend: missing field: url",
		`{"apiServer": {"url": "https://k", ` + auth + `}, "backend": {"url": "ftp://b"}}`: `backend: url: "ftp://b"`,
		`{"server": {"timeout": 5}}`:                                                       `failed to parse proxy config: server.timeout: 5: want a duration in quotes`,
		`{"server": {"timeout": "soon"}}`:                                                  `failed to parse proxy config: server.timeout: invalid duration "soon"`,
		`{"backend": {"timeout": [1]}}`:                                                    `backend.timeout: [1]: want a duration in quotes`,
		`{"apiServer": "x"}`:                                                               "failed to parse proxy config: apiServer: is a JSON string: want an object",
		`{"apiserver": {"auth": {"KubeConfigPath": 3}}}`:                                   "proxy config: apiServer.auth.kubeConfigPath: is a JSON number: want a text in quotes",
		`[]`: "failed to parse proxy config: is a JSON array: want an object",
		`{"server": {"timeout": null}, "apiServer": {"url": "https://k", "auth": {}}, "x": {}}`: "missing value: clientCertPath",
	} {
		_, err := Parse([]byte(text))
		check.Not(t, err == nil || !strings.Contains(err.Error(), want), "%s: %v, want %q", text, err, want)
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none")); err == nil || !strings.HasPrefix(err.Error(), "failed to open configuration file: ") {
		t.Error(err)
	}
}

func TestIgnoredSettingsAreReported(t *testing.T) {
	c, err := Parse([]byte(`{"servr": {}, "server": {"timeout": "-1s"}, "apiServer": {"url": "https://k", "auth": {"kubeConfigPath": "/k"}, "timout": "1s"},
		"backend": {"url": "http://b", "cloudPoolUrl": "http://c", "timeout": "3h"}}`))
	must.NoError(t, err)
	all := strings.Join(c.Warnings, "\n")
	check.Contains(t, all, "servr: unknown key", "did you mean server?", "apiServer.timout", "server.timeout: -1s", "http://c is ignored", "using 30m0s")
}

func TestI10PasswordInURLIsHidden(t *testing.T) {
	const kube = `"apiServer": {"url": "https://k", "auth": {"kubeConfigPath": "/k"}}`
	for text, want := range map[string]string{
		`{` + kube + `, "backend": {"url": "http://b", "cloudPoolUrl": "http://u:s3cret@c/x?token=s3cret"}}`:        "http://u:xxxxx@c/x is ignored",
		`{` + kube + `, "backend": {"url": "http://b", "cloudPoolUrl": "http://u:s3cret@c:%zz"}}`:                   "backend.cloudPoolUrl: (not shown) is ignored",
		`{` + kube + `, "backend": {"url": "http://u:s3cret@b:port"}}`:                                              "backend: url: cannot be read as a URL",
		`{` + kube + `, "backend": {"url": "http://u:s3cret/1@b"}}`:                                                 "backend: url: cannot be read as a URL",
		`{` + kube + `, "backend": {"url": "u:s3cret@b"}}`:                                                          "want http:// or https:// and a host",
		`{` + kube + `, "backend": {"url": "ftp://u:s3cret@b"}}`:                                                    "ftp://u:xxxxx@b",
		`{"apiServer": {"url": "https://u:s3cret@k:port", "auth": {"kubeConfigPath": "/k"}}}`:                       "apiServer: url: cannot be read as a URL",
		`{"apiServer": {"url": "https://u:s3cret%zz@k", "auth": {"kubeConfigPath": "/k"}}, "backend": {"url": ""}}`: "apiServer: url: cannot be read as a URL",
	} {
		c, err := Parse([]byte(text))
		output := fmt.Sprintf("%v\n%s", err, strings.Join(c.Warnings, "\n"))
		check.Not(t, !strings.Contains(output, want) || strings.Contains(output, "s3cret"), "%s: %s; want %q, and no password", text, output, want)
	}
}

func TestFlagsAcceptOneOrTwoDashes(t *testing.T) {
	env := func(string) string { return "" }
	f, err := ParseFlags([]string{"-config-file=/c", "--port", "9", "--v=4", "--logtostderr", "-log_dir", "/x"}, env, &bytes.Buffer{})
	if err != nil || f.ConfigFile != "/c" || f.ListenAddress() != ":9" || f.Verbosity != 4 || len(f.Warnings) != 1 || !f.InstallCRDs {
		t.Errorf("%+v, %v", f, err)
	}
	f, err = ParseFlags(nil, env, &bytes.Buffer{})
	check.Not(t, err != nil || f.ConfigFile != DefaultFile || f.Port != 8080 || f.StrictCompat || f.Namespace != "kube-system", "%+v, %v", f, err)
	usage := new(compat.UsageError)
	if _, err := ParseFlags([]string{"--prot=1"}, env, &bytes.Buffer{}); !errors.As(err, &usage) {
		t.Error(err)
	}
	if _, err := ParseFlags([]string{"-h"}, env, &bytes.Buffer{}); !errors.Is(err, flag.ErrHelp) {
		t.Error(err)
	}
}

const kubeconfig = `apiVersion: v1
kind: Config
current-context: two
clusters:
- {name: a, cluster: {server: "https://a:6443"}}
- {name: b, cluster: {server: "https://b:6443/"}}
contexts:
- {name: one, context: {cluster: b, user: first}}
- {name: two, context: {cluster: b, user: second}}
- {name: three, context: {cluster: a, user: nobody}}
users:
- {name: first, user: {token: t1}}
- {name: second, user: {token: t2}}
`

func TestKubeconfigClusterIsFoundByURL(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	must.NoError(t, os.WriteFile(path, []byte(kubeconfig), 0o600))
	at := func(url string) *APIServer { return &APIServer{URL: url, Auth: KubeAuth{KubeConfigPath: path}} }
	for range 5 { // map order varies
		c, err := at("https://b:6443").ToRESTConfig("me")
		must.Not(t, err != nil || c.BearerToken != "t2" || c.UserAgent != "me", "%+v, %v", c, err)
	}
	for url, want := range map[string]string{
		"https://c": "does not contain a cluster with api server URL https://c", "https://u:secret@c": "api server URL https://u:xxxxx@c", "https://a:6443": "does not contain a user named nobody",
	} {
		if _, err := at(url).ToRESTConfig(""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestFileIsMigrated(t *testing.T) {
	out, err := Migrate([]byte(readmeExample))
	must.NoError(t, err)
	// The commands do not use apiServer.url, so the output must name it.
	check.Contains(t, string(out), "url: http://cloudpool:9010", "--backend-timeout 5m0s", "current-context to the cluster https://kube:6443 (apiServer.url)",
		"instead of node-about-to-be-drained", "no NodeRetirement with the label "+BackendLabel)
}

func FuzzParse(f *testing.F) {
	f.Add(readmeExample)
	f.Add(`{"server": {"timeout": 5}}`)
	f.Add(`{"apiServer": {"auth": []}}`)
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse([]byte(text))
		check.Not(t, err == nil && (c.Backend.URL == "" || c.Backend.Timeout < time.Second), "%+v", c)
	})
}

func TestBackendURLCredentialsAreUsedAndHidden(t *testing.T) {
	var user, password string
	var shown bool
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { user, password, shown = r.BasicAuth() }))
	defer server.Close()
	for userinfo, want := range map[string][2]string{"bob:s3cret%40%2F1": {"bob", "s3cret@/1"}, "bob": {"bob", ""}} {
		for _, key := range []string{"url", "cloudPoolUrl"} {
			at := strings.Replace(server.URL, "://", "://"+userinfo+"@", 1) + "/x"
			raw := []byte(`{` + kube + `, "backend": {"` + key + `": "` + at + `"}}`)
			c, err := Parse(raw)
			must.Not(t, err != nil || len(c.Warnings) > 0, "%s: %v, %q", userinfo, err, c.Warnings)
			check.Not(t, c.ToCloudpoolConfig(&Flags{Port: 1, Namespace: "n"}).ForwardCredentials, "%s: clients' credentials are forwarded too", userinfo)
			pools := c.ToPoolConfig(false)
			p, err := provider.New(pools, provider.Options{})
			must.Not(t, err != nil, "%s: %v", userinfo, err)
			u, err := p.URL(t.Context(), pools.Pools[0].Name)
			check.Not(t, err != nil || u.User != nil || u.Path != "/x", "%s: %v, %v", userinfo, u, err)
			user, password, shown = "", "", false
			response, err := p.Transport().RoundTrip(httptest.NewRequestWithContext(t.Context(), http.MethodGet, u.String(), nil))
			must.NoError(t, err)
			_ = response.Body.Close()
			check.Not(t, !shown || [2]string{user, password} != want, "%s: the server got %q and %q", userinfo, user, password)
			file, err := Migrate(raw)
			said := fmt.Sprintf("%s %+v %+v", file, c, pools)
			if err != nil || strings.Contains(said, "s3cret") || !strings.Contains(string(file), "url: "+server.URL+"/x\n") ||
				!strings.Contains(string(file), "passwordFile: "+passwordFile) || !strings.Contains(string(file), "# - "+passwordFile+": must contain") {
				t.Errorf("%s: %v\n%s", userinfo, err, said)
			}
		}
	}
	for backend, refused := range map[string]bool{
		`"url": "https://bob:s3cret@h", "auth": {"username": "u", "passwordFile": "/p"}`: true,
		`"url": "https://bob:s3cret@h", "auth": {"tokenFile": "/t"}`:                     true,
		`"url": "https://bob:s3cret@h", "auth": {"certFile": "/c", "keyFile": "/k"}`:     false,
		`"url": "https://:s3cret@h"`: true,
	} {
		_, err := Parse([]byte(`{` + kube + `, "backend": {` + backend + `}}`))
		if (err != nil) != refused || err != nil && (strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), "backend: url: ")) {
			t.Errorf("%s: %v", backend, err)
		}
	}
}

func TestOldInputsKeepTheirMeaning(t *testing.T) {
	for address, want := range map[string]string{"": ":8080", "127.0.0.1": "127.0.0.1:8080", "::1": "[::1]:8080", "[::1]": "[::1]:8080"} {
		f, err := ParseFlags([]string{"-address", address}, func(string) string { return "" }, io.Discard)
		check.Not(t, err != nil || f.ListenAddress() != want, "-address %q: %v, %v; want %s", address, f, err, want)
		check.Is(t, "", f.MetricsListen)
	}
	c, err := Parse([]byte(`{"apiServer": {"url": "https://k", "auth": {"kubeConfigPath": "/k"}}, "backend": {"url": "http://b", "computerName": "os.host"}}`))
	check.Not(t, err != nil || len(c.Warnings) > 0 || c.ToPoolConfig(false).Pools[0].ComputerName != "os.host", "%+v, %v", c, err)
}
