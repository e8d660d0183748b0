// Package manager_test runs the shipped manager on real control planes. It checks the start, the manifests, and the
// reaction to instances that their cloud deletes.
package manager_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/testbed"
)

func TestMain(m *testing.M) { os.Exit(testbed.RunTestsAndStopShared(m)) }

// This is the account of the shipped manifests.
const (
	namespace = "slipway"
	account   = "slipway-manager"
)

var (
	groups      = v1alpha1.GroupVersion.WithResource("nodegroups")
	retirements = v1alpha1.GroupVersion.WithResource("noderetirements")
)

// bed holds a testbed, and a test that runs on it.
type bed struct {
	*testbed.Testbed
	t   *testing.T
	ctx context.Context
}

func on(t *testing.T, shared *testbed.Testbed) bed {
	t.Helper()
	ctx := testbed.TestContext(t)
	return bed{shared, t, ctx}
}

func (b bed) check(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// deploy applies files of deploy/manager.
func (b bed) deploy(files ...string) {
	b.t.Helper()
	root, err := testbed.RepositoryRoot()
	b.check(err)
	for _, file := range files {
		b.check(b.ApplyFile(b.ctx, filepath.Join(root, "deploy", "manager", file)))
	}
}

// credentials returns the kubeconfig of the shipped account.
func (b bed) credentials() string {
	b.t.Helper()
	path, err := b.ServiceAccountKubeconfig(b.ctx, namespace, account, controlplane.TokenOptions{})
	b.check(err)
	return path
}

// through returns a kubeconfig of the shipped account that sends all requests through a proxy.
func (b bed) through(proxy *faultproxy.Proxy) string {
	b.t.Helper()
	b.t.Cleanup(func() { _ = proxy.Close() })
	return b.WriteProxyKubeconfig(b.t, proxy, b.credentials())
}

// clouds returns a file for --cloud-config with the testbed's Azure and the given additional clouds.
func (b bed) clouds(more map[string]any) string {
	b.t.Helper()
	raw, err := json.Marshal(b.AzureProviderConfig())
	b.check(err)
	azure := map[string]any{}
	b.check(json.Unmarshal(raw, &azure))
	for key, value := range more {
		azure[key] = value
	}
	file, err := yaml.Marshal(map[string]any{"azure": azure})
	b.check(err)
	to := filepath.Join(b.t.TempDir(), "clouds.yaml")
	b.check(os.WriteFile(to, file, 0o600))
	return to
}

type process struct {
	*controlplane.Process
	bed
	address string
}

// start starts a manager, and does not wait for it.
func (b bed) start(name string, args ...string) *process {
	b.t.Helper()
	path, err := testbed.EnsureBinary("slipway")
	b.check(err)
	address, err := controlplane.ReserveFreeAddress(b.ctx)
	b.check(err)
	started := b.StartProcessForTest(b.ctx, b.t, controlplane.Command{
		Name: name, Path: path, Args: append([]string{"manager", "--listen", address}, args...), Env: []string{"POD_NAMESPACE=" + namespace},
	})
	return &process{started, b, address}
}

func (p *process) log() string {
	raw, err := os.ReadFile(p.LogFile())
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

// get requests a path of the manager's own server. Status 0 means no answer.
func (p *process) get(path string) (status int, body string) {
	r, err := http.NewRequestWithContext(p.ctx, http.MethodGet, "http://"+p.address+path, nil)
	p.check(err)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, ""
	}
	defer func() { _ = answer.Body.Close() }() // read only
	var text bytes.Buffer
	_, _ = io.Copy(&text, answer.Body)
	return answer.StatusCode, text.String()
}

// await waits until an answer matches, while the manager lives.
func (p *process) await(path, what string, is func(status int, body string) bool) {
	p.t.Helper()
	status, body, died := 0, "", false
	err := testbed.PollUntil(p.ctx, path+" "+what, func() bool {
		if died = !p.IsAlive(); died {
			return true
		}
		status, body = p.get(path)
		return is(status, body)
	})
	if err != nil || died {
		p.t.Fatalf("%v: it is %d %q; ended: %t", err, status, body, died)
	}
}

func (p *process) awaitReady() {
	p.t.Helper()
	p.await("/readyz", "is good", func(status int, _ string) bool { return status == http.StatusOK })
}

// ended waits until the manager has exited, and returns its output.
func (p *process) ended() string {
	p.t.Helper()
	p.check(testbed.PollUntil(p.ctx, "the manager has ended", func() bool { return !p.IsAlive() }))
	return p.log()
}

var installed struct {
	sync.Once
	err error
}

// ready returns the package's shared testbed, with Slipway's types and the manager's permissions installed.
func ready(t *testing.T) bed {
	t.Helper()
	b := on(t, testbed.StartShared(t))
	installed.Do(func() {
		b.deploy("namespace.yaml", "rbac.yaml", "admission.yaml")
		root, err := testbed.RepositoryRoot()
		if err == nil {
			err = b.ApplyCRDs(b.ctx, filepath.Join(root, "api", "crds"), v1alpha1.GroupVersion, groups.Resource, retirements.Resource)
		}
		installed.err = err
	})
	b.check(installed.err)
	return b
}
