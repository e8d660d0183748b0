package openstack

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

const keystone = "https://keystone.example.com:5000/v3"

// validConfig returns a valid configuration.
func validConfig() Config {
	return Config{
		Auth: &Auth{
			URL: keystone, Username: "u", UserDomainName: "Default", Password: "p", ProjectID: "0123",
		},
		ClusterName: "prod",
		Groups: []GroupConfig{{
			Name: "workers", Flavors: []string{"m.2c4g"}, Image: Image{Name: "ubuntu"}, Networks: []string{"net"},
		}},
	}
}

func TestI10EachConfigurationFaultNamesItsField(t *testing.T) {
	quantity := func(text string) *resource.Quantity { q := resource.MustParse(text); return &q }
	if _, err := New(validConfig(), Options{}); err != nil {
		t.Fatalf("valid configuration: %v", err)
	}
	for want, change := range map[string]func(*Config){
		"clusterName:":                      func(c *Config) { c.ClusterName = "a/b" },
		"auth: ":                            func(c *Config) { c.Cloud = "x" },
		"interface:":                        func(c *Config) { c.Interface = "private" },
		"endpoints.volume:":                 func(c *Config) { c.Endpoints = map[string]string{"volume": "https://x"} },
		"endpoints.compute:":                func(c *Config) { c.Endpoints = map[string]string{"compute": "x"} },
		"requestTimeout:":                   func(c *Config) { c.RequestTimeout = cloud.Duration(time.Hour) },
		"parallelCreates:":                  func(c *Config) { c.ParallelCreates = 101 },
		"auth.url:":                         func(c *Config) { c.Auth.URL = "keystone" },
		"auth.username:":                    func(c *Config) { c.Auth.Username = "" },
		"auth.password:":                    func(c *Config) { c.Auth.Password = "" },
		"auth.projectID:":                   func(c *Config) { c.Auth.ProjectID = "" },
		"auth.userDomainName:":              func(c *Config) { c.Auth.UserDomainName = "" },
		"auth.projectDomainName:":           func(c *Config) { c.Auth.ProjectID, c.Auth.ProjectName = "", "x" },
		"auth.applicationCredentialSecret:": func(c *Config) { c.Auth = &Auth{URL: keystone, ApplicationCredentialID: "x"} },
		"groups[0].name:":                   func(c *Config) { c.Groups[0].Name = "" },
		"groups[1].name: \"workers\": want a name that": func(c *Config) { c.Groups = append(c.Groups, c.Groups[0]) },
		"groups[0].flavors:":                            func(c *Config) { c.Groups[0].Flavors = nil },
		"groups[0].flavors[1]:":                         func(c *Config) { c.Groups[0].Flavors = []string{"a", "a"} },
		"groups[0].flavorSelection.name:": func(c *Config) {
			c.Groups[0].Flavors, c.Groups[0].FlavorSelection = nil, &FlavorSelection{Name: "("}
		},
		"groups[0].flavorSelection.maxMemory:": func(c *Config) {
			c.Groups[0].Flavors, c.Groups[0].FlavorSelection = nil, &FlavorSelection{MinMemory: quantity("2Gi"), MaxMemory: quantity("1Gi")}
		},
		"groups[0].image:":              func(c *Config) { c.Groups[0].Image.Tag = "x" },
		"groups[0].image.id:":           func(c *Config) { c.Groups[0].Image = Image{ID: "x"} },
		"groups[0].bootVolume.sizeGiB:": func(c *Config) { c.Groups[0].BootVolume = &BootVolume{} },
		"groups[0].networks:":           func(c *Config) { c.Groups[0].Networks = nil },
		"groups[0].securityGroups[1]:":  func(c *Config) { c.Groups[0].SecurityGroups = []string{"a", "a"} },
		"groups[0].metadata:":           func(c *Config) { c.Groups[0].Metadata = map[string]string{GroupKey: "x"} },
		"groups[0].namePrefix:":         func(c *Config) { c.Groups[0].NamePrefix = "My_Workers" },
		"groups[0].nodes.reserved.cpu:": func(c *Config) {
			c.Groups[0].Nodes.Reserved = corev1.ResourceList{"cpu": resource.MustParse("-1")}
		},
		`groups[0].networks: "net": want at least one network`: func(c *Config) { c.Groups[0].Ports = []Port{{Network: "net"}} },
		"groups[0].ports[0].network:":                          func(c *Config) { c.Groups[0].Networks, c.Groups[0].Ports = nil, []Port{{}} },
		"groups[0].ports[0].vnicType:": func(c *Config) {
			c.Groups[0].Networks, c.Groups[0].Ports = nil, []Port{{Network: "n", VNICType: "fast"}}
		},
		"groups[0].ports[0].allowedAddressPairs[0].ipAddress:": func(c *Config) {
			c.Groups[0].Networks, c.Groups[0].Ports = nil, []Port{{Network: "n", AllowedAddressPairs: []AddressPair{{IPAddress: "10.0.0"}}}}
		},
		"groups[0].ports[0].allowedAddressPairs:": func(c *Config) {
			off := false
			c.Groups[0].Networks = nil
			c.Groups[0].Ports = []Port{{Network: "n", PortSecurity: &off, AllowedAddressPairs: []AddressPair{{IPAddress: "10.0.0.1"}}}}
		},
		"groups[0].image.visibility:":       func(c *Config) { c.Groups[0].Image.Visibility = "mine" },
		"groups[0].nodes.cost:":             func(c *Config) { c.Groups[0].Nodes.Cost = -1 },
		"groups[0].resources[0]:":           func(c *Config) { c.Groups[0].Resources = []ExtraSpecResource{{"a", "gpu"}} },
		"groups[0].userData:":               func(c *Config) { c.Groups[0].UserData, c.Groups[0].UserDataFile = "x", "y" },
		"groups[0].userDataFile: open /":    func(c *Config) { c.Groups[0].UserDataFile = "/does/not/exist" },
		"uses .Join, which needs a cluster": func(c *Config) { c.Groups[0].UserData = "{{.Join.Token}}" },
		"caFile:":                           func(c *Config) { c.CAFile = "/does/not/exist" },
		"auth: passwordFile":                func(c *Config) { c.Auth.Password, c.Auth.PasswordFile = "", "/does/not/exist" },
	} {
		c := validConfig()
		change(&c)
		check.ErrorContains(t, check.Err(New(c, Options{})), want)
	}
}

func TestAllCredentialSourcesAreEquivalent(t *testing.T) {
	for _, name := range []string{"OS_CLOUD", "OS_AUTH_URL", "OS_CLIENT_CONFIG_FILE", "OS_REGION_NAME", "OS_INTERFACE", "OS_CACERT"} {
		t.Setenv(name, "")
	}
	directory := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(directory, name)
		must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	file := write("clouds.yaml", `clouds:
  mine: {region_name: here, auth: {auth_url: "`+keystone+`", username: u, user_domain_name: Default, project_id: "0123"}}
  application: {auth: {auth_url: "`+keystone+`", application_credential_id: i, application_credential_secret: s, project_id: "0123"}}
  token: {auth: {auth_url: "`+keystone+`", token: t, project_id: "0123"}}
  empty: {region_name: here}
  nowhere: {auth: {username: u, password: p, user_domain_name: Default, project_id: "0123"}}
  nobody: {auth: {auth_url: "`+keystone+`", password: p, project_id: "0123"}}
  noproject: {auth: {auth_url: "`+keystone+`", username: u, password: p, user_domain_name: Default}}
`)
	write("secure.yaml", "clouds: {mine: {auth: {password: p}}}\n")
	password := write("password", "p\n")

	checkLogin := func(name string, c Config) {
		t.Helper()
		l, err := c.resolveLogin()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		a := l.auth
		if a.IdentityEndpoint != keystone || a.Username != "u" || a.Password != "p" || a.DomainName != "Default" ||
			a.Scope == nil || a.Scope.ProjectID != "0123" || !a.AllowReauth || l.region != "here" {
			t.Errorf("%s: %+v in region %q", name, a, l.region)
		}
	}
	checkLogin("clouds.yaml with secure.yaml", Config{Cloud: "mine", CloudsFile: file})
	checkLogin("inline", Config{Region: "here", Auth: &Auth{
		URL: keystone, Username: "u", UserDomainName: "Default", PasswordFile: password, ProjectID: "0123",
	}})
	application := Config{Cloud: "application", CloudsFile: file}
	if l, err := application.resolveLogin(); err != nil || l.auth.Scope != nil || l.auth.ApplicationCredentialSecret != "s" || l.auth.TenantID != "" {
		t.Errorf("application credential: %+v, %v", l, err)
	}
	for cloud, want := range map[string]string{
		"token": "cannot be renewed", "empty": "want one with auth", "nowhere": "auth_url", "nobody": "username", "noproject": "project_id",
		"missing": "not found in clouds.yaml",
	} {
		c := Config{Cloud: cloud, CloudsFile: file}
		if _, err := c.resolveLogin(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", cloud, err, want)
		}
	}
	check.ErrorContains(t, check.Err((&Config{Cloud: "mine", CloudsFile: file + "x"}).resolveLogin()))
	check.ErrorContains(t, check.Err((&Config{}).resolveLogin()), "OS_AUTH_URL")
	t.Setenv("OS_CLIENT_CONFIG_FILE", file)
	t.Setenv("OS_CLOUD", "mine")
	checkLogin("OS_CLOUD", Config{})
	t.Setenv("OS_CLOUD", "")
	for name, value := range map[string]string{
		"OS_AUTH_URL": keystone, "OS_USERNAME": "u", "OS_PASSWORD": "p", "OS_USER_DOMAIN_NAME": "Default", "OS_TENANT_ID": "0123",
		"OS_REGION_NAME": "here",
	} {
		t.Setenv(name, value)
	}
	checkLogin("openrc", Config{})
}

func FuzzConfig(f *testing.F) {
	raw, err := yaml.Marshal(validConfig())
	must.NoError(f, err)
	f.Add(string(raw))
	f.Add("groups: [{flavorSelection: {minMemory: 1Gi}, image: {tag: x}, nodes: {taints: [{key: a}]}}]")
	f.Fuzz(func(t *testing.T, text string) {
		var c Config
		if yaml.UnmarshalStrict([]byte(text), &c) != nil {
			return
		}
		for i := range c.Groups { // do not read files of this host
			c.Groups[i].UserDataFile = ""
		}
		check.Not(t, c.Validate() == nil && (c.ClusterName == "" || c.parallelCreates() < 1 || c.requestTimeout() <= 0), "%+v passes", c)
	})
}

// newRotatingProvider returns a provider that authenticated with a secret from a file, and a function that replaces it.
func newRotatingProvider(t *testing.T, s *fakeOpenStack) (p *Provider, write func(secret string)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "password")
	write = func(secret string) {
		must.NoError(t, os.WriteFile(path, []byte(secret+"\n"), 0o600))
	}
	write("first-secret")
	s.secret, s.project = "first-secret", "shop"
	c := validConfig()
	c.Auth.URL, c.Region, c.Auth.Password, c.Auth.PasswordFile = s.address+"/v3", "south", "", path
	p, err := New(c, Options{})
	must.NoError(t, err)
	must.NoError(t, check.Err(p.Instances(t.Context(), "workers")))
	p.servers.Outdate() // force a request
	return p, write
}

func TestRotatedSecretIsReadWhenTheTokenRenews(t *testing.T) {
	s := newFakeOpenStack(t)
	p, write := newRotatingProvider(t, s)
	write("second-secret")
	s.secret, s.revoked = "second-secret", true
	_, err := p.Instances(t.Context(), "workers")
	check.Not(t, err != nil || s.refusals != 0, "%v after %d refused authentications", err, s.refusals)
}

func TestRotatedSecretIsKeptWhileItsFileIsReplaced(t *testing.T) {
	s := newFakeOpenStack(t)
	p, write := newRotatingProvider(t, s)
	write("second-secret")
	s.secret, s.revoked = "second-secret", true
	must.NoError(t, check.Err(p.Instances(t.Context(), "workers")))
	write("") // the file cannot be used
	p.servers.Outdate()
	s.revoked = true
	_, err := p.Instances(t.Context(), "workers")
	check.Not(t, err != nil || s.refusals != 0, "%v after %d refused authentications", err, s.refusals)
}

func TestRefusedSecretIsNotRetriedInALoop(t *testing.T) {
	s := newFakeOpenStack(t)
	p, _ := newRotatingProvider(t, s)
	s.secret, s.revoked = "second-secret", true
	for range 5 {
		_, err := p.Instances(t.Context(), "workers")
		check.Not(t, cloud.RefusalOf(err) != cloud.NoRight, "%v, want the refusal %s", err, cloud.NoRight)
	}
	check.Is(t, 1, s.refusals)
}

// TestI7CredentialOfAnotherProjectIsRefused prevents all servers from appearing to be gone.
func TestI7CredentialOfAnotherProjectIsRefused(t *testing.T) {
	s := newFakeOpenStack(t)
	p, write := newRotatingProvider(t, s)
	write("second-secret")
	s.secret, s.revoked, s.project = "second-secret", true, "blog"
	check.ErrorContains(t, check.Err(p.Instances(t.Context(), "workers")))
}

func TestTokenIsNotSentToRedirects(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("request to another server, with token %q", r.Header.Get("X-Auth-Token"))
	}))
	defer other.Close()
	moved := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusFound))
	defer moved.Close()
	client := (&session{login: &login{}, timeout: 10 * time.Second}).httpClient()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, moved.URL, nil)
	must.NoError(t, err)
	r.Header.Set("X-Auth-Token", "secret")
	answer, err := client.Do(r)
	must.NoError(t, err)
	defer func() { _ = answer.Body.Close() }()
	check.Is(t, http.StatusFound, answer.StatusCode, answer.Status)
}
