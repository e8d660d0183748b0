package retirement_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
	"github.com/slipway-dev/slipway/internal/cloud"
	provider "github.com/slipway-dev/slipway/internal/cloud/azure"
)

// testTimeout limits every wait of a test. Waits are far shorter, but the host may be busy.
const testTimeout = 12 * time.Minute

// This is the account of the shipped manifests.
const (
	managerNamespace = "slipway"
	managerAccount   = "slipway-manager"
)

// shard is the label that each test's manager selects its own retirements with.
const shard = "e2e.slipway.dev/shard"

// fixture holds a pool of instances, its NodeGroup, and a namespace for one test.
type fixture struct {
	bed
	t    *testing.T
	ctx  context.Context
	pool controlplane.AKSPool
	name string
	// isolated hides the other tests from the manager processes.
	isolated bool
	// cloudGroups are the groups of the manager's configuration. A scale set needs none.
	cloudGroups []provider.GroupConfig
}

var policies struct {
	sync.Once
	err error
}

// newFixture creates a pool of n instances. group is the NodeGroup's spec, except for its nodes and its cloud.
func newFixture(t *testing.T, name string, n int, group string) *fixture {
	t.Helper()
	return newPool(t, name, n).withGroup(group)
}

// withGroup creates the NodeGroup and the namespace.
func (f *fixture) withGroup(group string) *fixture {
	f.t.Helper()
	f.nodeGroup(group)
	f.check(workload.Create(f.ctx, f.Client(), workload.NewNamespace(f.name)))
	return f
}

// newPool creates a fixture without a namespace and without a NodeGroup.
func newPool(t *testing.T, name string, n int) *fixture {
	t.Helper()
	bed := withTypes(t)
	policies.Do(func() {
		policies.err = bed.ApplyManifests(bed.Background(), "manager/rbac.yaml", "manager/admission.yaml")
	})
	if policies.err != nil {
		t.Fatal(policies.err)
	}
	return bed.addPool(t, name, n)
}

// addPool creates a pool of n instances.
func (b bed) addPool(t *testing.T, name string, n int) *fixture {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	f := &fixture{bed: b, t: t, ctx: ctx, pool: controlplane.AKSPool{Name: name}, name: name}
	f.check(f.AddPool(ctx, f.pool, n))
	return f
}

// nodeGroup creates the pool's NodeGroup. spec holds the fields except for its nodes and its cloud.
func (f *fixture) nodeGroup(spec string) {
	f.t.Helper()
	cloudGroup := f.pool.ScaleSetName()
	if len(f.cloudGroups) > 0 {
		cloudGroup = f.cloudGroups[0].Name
	}
	f.create("NodeGroup", f.name, fmt.Sprintf(`
nodeSelector: {matchLabels: {kubernetes.azure.com/agentpool: %s}}
cloud: {provider: azure, group: %s}
%s`, f.pool.Name, cloudGroup, spec))
}

// ownedByAKS makes the instances part of an agent pool with the fixture's name, which the fixture's managers are
// configured for.
func (f *fixture) ownedByAKS() {
	f.t.Helper()
	f.check(f.ARM.AddAgentPool(azure.AgentPoolSpec{
		Cluster: testbed.ManagedClusterName, ResourceGroup: testbed.ManagedClusterGroup, Name: f.name, ScaleSet: f.pool.ScaleSetName(),
	}))
	f.cloudGroups = []provider.GroupConfig{{
		Name: f.name, ResourceGroup: testbed.ManagedClusterGroup, Cluster: testbed.ManagedClusterName, AgentPool: f.name,
	}}
}

func (f *fixture) check(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) create(kind, name, spec string) {
	f.t.Helper()
	f.check(f.tryCreate(kind, name, spec))
}

func (f *fixture) tryCreate(kind, name, spec string) error {
	o := parse(f.t, kind, spec)
	o.SetGenerateName("")
	o.SetName(name)
	o.SetLabels(map[string]string{shard: f.name})
	return f.objects().Create(f.ctx, o)
}

// retire creates a NodeRetirement for one of the pool's nodes, with the node's name.
func (f *fixture) retire(i int) string {
	f.t.Helper()
	node := f.pool.NodeName(i)
	f.create("NodeRetirement", node, "reason: Requested\nnodeName: "+node)
	return node
}

func (f *fixture) run(objects ...runtime.Object) {
	f.t.Helper()
	f.check(workload.CreateAndAwait(f.ctx, f.Client(), objects...))
}

// app returns an App on one of the instances.
func (f *fixture) app(name string, i int, replicas int32) workload.App {
	return workload.App{Namespace: f.name, Name: name, Replicas: replicas, Node: f.pool.NodeName(i), StopSeconds: "0.5"}
}

// awaitPhase waits until a retirement has ended, and checks its phase.
func (f *fixture) awaitPhase(name string, want v1alpha1.Phase) *v1alpha1.NodeRetirement {
	f.t.Helper()
	rt := f.awaitFinalPhase(name)
	switch {
	case rt == nil:
		f.t.Fatalf("NodeRetirement %s does not exist", name)
	case rt.Status.Phase != want:
		f.t.Fatalf("%s: %s, want %s", rt.Status.Phase, rt.Status.Message, want)
	}
	return rt
}

// await waits until a retirement has, or has had, the wanted state. On a busy host a short state must not be missed.
func (f *fixture) await(name string, is func(*v1alpha1.NodeRetirement) bool) {
	f.t.Helper()
	for {
		seen, rt, changed := f.records().history(name)
		if slices.ContainsFunc(seen, is) {
			return
		}
		select {
		case <-changed:
		case <-f.ctx.Done():
			f.t.Fatalf("the retirement of %s: %+v", name, rt)
		}
	}
}

// awaitDeleted waits until no NodeRetirement of that name exists.
func (f *fixture) awaitDeleted(name string) {
	f.t.Helper()
	for {
		_, changed := f.records().get(name)
		err := f.objects().Get(f.ctx, client.ObjectKey{Name: name}, &v1alpha1.NodeRetirement{})
		if apierrors.IsNotFound(err) {
			return
		}
		f.check(err)
		select {
		case <-changed:
		case <-f.ctx.Done():
			f.t.Fatalf("NodeRetirement %s still exists", name)
		}
	}
}

// awaitFinalPhase waits until a retirement has ended, and returns it. It returns nil if there is none.
func (f *fixture) awaitFinalPhase(name string) *v1alpha1.NodeRetirement {
	f.t.Helper()
	for {
		rt, changed := f.records().get(name)
		if rt == nil || rt.Status.Phase.IsFinal() {
			// The watch may lag, and the API server therefore decides.
			fresh := &v1alpha1.NodeRetirement{}
			err := f.objects().Get(f.ctx, client.ObjectKey{Name: name}, fresh)
			if apierrors.IsNotFound(err) {
				return nil
			}
			f.check(err)
			if fresh.Status.Phase.IsFinal() {
				return fresh
			}
		}
		select {
		case <-changed:
		case <-f.ctx.Done():
			f.t.Fatalf("the retirement of %s has not ended: %+v", name, rt)
		}
	}
}

// checkRemaining checks that exactly the given ones of the pool's first n instances are gone, with their nodes.
func (f *fixture) checkRemaining(n int, gone ...int) {
	f.t.Helper()
	for i := range n {
		_, there := f.ARM.VM(f.pool.ResourceName(i))
		node, err := f.Client().CoreV1().Nodes().Get(f.ctx, f.pool.NodeName(i), metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			f.t.Fatal(err)
		}
		if want := !slices.Contains(gone, i); there != want || (err == nil) != want {
			f.t.Errorf("instance %d exists: %t, its node exists: %t, want both %t", i, there, err == nil, want)
		}
		if err == nil {
			f.checkRestored(node)
		}
	}
	if got := f.ARM.Capacity(f.pool.ScaleSetName()); got != n-len(gone) {
		f.t.Errorf("I5: the capacity of the scale set is %d, want %d", got, n-len(gone))
	}
}

// checkRestored checks that a node has no marks of Slipway (I3).
func (f *fixture) checkRestored(n *corev1.Node) {
	f.t.Helper()
	for key := range n.Annotations {
		if strings.Contains(key, "cordon.slipway.dev/") {
			f.t.Errorf("I3: node %s has the annotation %s", n.Name, key)
		}
	}
	for _, c := range n.Status.Conditions {
		if c.Type == "DrainInProgress" {
			f.t.Errorf("I3: node %s has the condition %s", n.Name, c.Type)
		}
	}
	if n.Spec.Unschedulable {
		f.t.Errorf("I3: node %s is cordoned", n.Name)
	}
}

type process struct {
	*controlplane.Process
	proxy *faultproxy.Proxy
	mu    sync.Mutex
}

// killAndRestart kills a manager if it still runs, and starts it again.
func (p *process) killAndRestart(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.IsAlive() {
		if err := p.Kill(); err != nil {
			return err
		}
	}
	p.proxy.StartNextLife()
	return p.Restart(ctx)
}

// restartOnExit restarts a manager when it ends on its own, as a kubelet does. A manager that loses its Lease exits. On
// a busy host, the manager that must take over may be the one to lose its Lease. keep is not for a manager that the test
// kills.
func (f *fixture) restartOnExit(p *process) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-f.ctx.Done():
				return
			case <-p.Exited():
			}
			if err := p.killAndRestart(f.ctx); err != nil && f.ctx.Err() == nil {
				f.t.Error(err)
				return
			}
		}
	}()
	f.t.Cleanup(func() { <-ended }) // the test's context has ended by then
}

// manage starts a manager with the permissions of the shipped manifests, and sends all its requests through the proxy.
// The suffix distinguishes the managers of one fixture.
func (f *fixture) manage(suffix string, proxy *faultproxy.Proxy, flags ...string) *process {
	f.t.Helper()
	path, err := testbed.EnsureBinary("slipway")
	f.check(err)
	args := []string{
		"manager", "--kubeconfig", f.kubeconfig(proxy), "--cloud-config", f.cloudConfig(proxy, "500ms"), "--listen", "",
		"--leader-elect=false",
	}
	args = append(args, f.slowPollFlags()...)
	started, err := f.StartProcess(f.ctx, controlplane.Command{Name: "manager-" + f.name + suffix, Path: path, Args: append(args, flags...)})
	f.check(err)
	p := &process{Process: started, proxy: proxy}
	f.t.Cleanup(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		_ = p.Kill()
		_ = proxy.Close()
		if f.t.Failed() {
			raw, _ := os.ReadFile(p.LogFile())
			f.t.Logf("log of the manager:\n%s", raw)
		}
	})
	return p
}

// slowPollFlags returns the flags of a manager that polls rarely, because the test kills the manager at each request.
func (f *fixture) slowPollFlags() []string {
	return []string{
		"--selector", shard + "=" + f.name, "--poll-interval", "1s", "--cloud-poll-interval", "500ms", "--retry-interval", "1s",
	}
}

func (f *fixture) kubeconfig(proxy *faultproxy.Proxy) string {
	f.t.Helper()
	credentials, err := f.ServiceAccountKubeconfig(f.ctx, managerNamespace, managerAccount, controlplane.TokenOptions{})
	f.check(err)
	return f.WriteProxyKubeconfig(f.t, proxy, credentials, func(whole http.RoundTripper) http.RoundTripper {
		if f.isolated {
			return f.isolate(whole).withOwnPods(f)
		}
		return whole
	})
}

// cloudConfig returns the manager's configuration of ARM. window is how long a deletion waits for others to batch with.
func (f *fixture) cloudConfig(proxy *faultproxy.Proxy, window string) string {
	f.t.Helper()
	server := f.ARMServer()
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(server.CA)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12}}
	front, err := proxy.ServeTLS("arm", server.URL, transport, server.Certificate)
	f.check(err)
	config := f.azure(window)
	config.Endpoints.ResourceManager, config.Endpoints.Authority = front.String(), front.String()
	raw, err := yaml.Marshal(map[string]any{"azure": config})
	f.check(err)
	to := filepath.Join(f.t.TempDir(), "clouds.yaml")
	f.check(os.WriteFile(to, raw, 0o600))
	return to
}

// azure returns the provider's configuration. window is how long a deletion waits for others to batch with.
func (f *fixture) azure(window string) provider.Config {
	f.t.Helper()
	config := f.AzureProviderConfig()
	config.Groups = append(config.Groups, f.cloudGroups...)
	config.BatchWindow = new(cloud.Duration)
	f.check(config.BatchWindow.UnmarshalText([]byte(window)))
	return config
}
