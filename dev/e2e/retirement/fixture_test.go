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
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
	"github.com/slipway-dev/slipway/internal/cloud"
	provider "github.com/slipway-dev/slipway/internal/cloud/azure"
)

// patience bounds every wait of a test. Nothing takes nearly as long, but the machine may be busy.
const patience = 12 * time.Minute

// The account of the shipped manifests.
const (
	managerNamespace = "slipway"
	managerAccount   = "slipway-manager"
)

// shard is the label by which each test's manager finds its own retirements.
const shard = "e2e.slipway.dev/shard"

// fixture is a pool of machines, its NodeGroup, and a namespace of a test's own.
type fixture struct {
	bed
	t    *testing.T
	ctx  context.Context
	pool controlplane.AKSPool
	name string
	// secluded has the manager processes see nothing of the other tests.
	secluded bool
	// cloudGroups are those of the manager's configuration; a scale set needs none.
	cloudGroups []provider.GroupConfig
}

var rights struct {
	sync.Once
	err error
}

// newFixture makes a pool of n machines. The group's spec says all but its nodes and its cloud.
func newFixture(t *testing.T, name string, n int, group string) *fixture {
	t.Helper()
	return newMachines(t, name, n).grouped(group)
}

// grouped makes the NodeGroup and the namespace.
func (f *fixture) grouped(group string) *fixture {
	f.t.Helper()
	f.nodeGroup(f.pool.ScaleSet(), group)
	f.check(workload.Create(f.ctx, f.Client(), workload.Namespace(f.name)))
	return f
}

// newMachines is a fixture without a namespace and without a NodeGroup.
func newMachines(t *testing.T, name string, n int) *fixture {
	t.Helper()
	bed := withTypes(t)
	rights.Do(func() { rights.err = bed.Deploy(bed.Background(), "manager/rbac.yaml", "manager/admission.yaml") })
	if rights.err != nil {
		t.Fatal(rights.err)
	}
	return bed.machines(t, name, n)
}

// machines makes a pool of n machines.
func (b bed) machines(t *testing.T, name string, n int) *fixture {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	f := &fixture{bed: b, t: t, ctx: ctx, pool: controlplane.AKSPool{Name: name}, name: name}
	f.check(f.AddPool(ctx, f.pool, n))
	return f
}

// nodeGroup makes the pool's NodeGroup, of a group of the cloud. The spec says the rest.
func (f *fixture) nodeGroup(cloudGroup, spec string) {
	f.t.Helper()
	f.create("NodeGroup", f.name, fmt.Sprintf(`
nodeSelector: {matchLabels: {kubernetes.azure.com/agentpool: %s}}
cloud: {provider: azure, group: %s}
%s`, f.pool.Name, cloudGroup, spec))
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

// retire creates a NodeRetirement of one of the pool's nodes, named after the node.
func (f *fixture) retire(i int) string {
	f.t.Helper()
	node := f.pool.NodeName(i)
	f.create("NodeRetirement", node, "reason: Requested\nnodeName: "+node)
	return node
}

func (f *fixture) run(objects ...runtime.Object) {
	f.t.Helper()
	f.check(workload.CreateSettled(f.ctx, f.Client(), objects...))
}

// app is an App on one of the machines.
func (f *fixture) app(name string, i int, replicas int32) workload.App {
	return workload.App{Namespace: f.name, Name: name, Replicas: replicas, Node: f.pool.NodeName(i), Stop: "0.5"}
}

// awaitPhase waits until a retirement is over, and checks how.
func (f *fixture) awaitPhase(name string, want v1alpha1.Phase) *v1alpha1.NodeRetirement {
	f.t.Helper()
	rt := f.over(name)
	switch {
	case rt == nil:
		f.t.Fatalf("there is no NodeRetirement %s", name)
	case rt.Status.Phase != want:
		f.t.Fatalf("%s: %s, want %s", rt.Status.Phase, rt.Status.Message, want)
	}
	return rt
}

// await waits until a retirement is as wanted, or has been: a state that passes must not be missed on a busy machine.
func (f *fixture) await(name string, is func(*v1alpha1.NodeRetirement) bool) {
	f.t.Helper()
	for {
		seen, rt, changed := f.followed().history(name)
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

// gone waits until there is no NodeRetirement of that name.
func (f *fixture) gone(name string) {
	f.t.Helper()
	for {
		_, changed := f.followed().get(name)
		err := f.objects().Get(f.ctx, client.ObjectKey{Name: name}, &v1alpha1.NodeRetirement{})
		if apierrors.IsNotFound(err) {
			return
		}
		f.check(err)
		select {
		case <-changed:
		case <-f.ctx.Done():
			f.t.Fatalf("NodeRetirement %s is still there", name)
		}
	}
}

// over waits until a retirement is over, and returns its record: nil when there is none.
func (f *fixture) over(name string) *v1alpha1.NodeRetirement {
	f.t.Helper()
	for {
		rt, changed := f.followed().get(name)
		if rt == nil || rt.Status.Phase.Finished() {
			// What is followed may lag behind: the last word is the API server's.
			fresh := &v1alpha1.NodeRetirement{}
			err := f.objects().Get(f.ctx, client.ObjectKey{Name: name}, fresh)
			if apierrors.IsNotFound(err) {
				return nil
			}
			f.check(err)
			if fresh.Status.Phase.Finished() {
				return fresh
			}
		}
		select {
		case <-changed:
		case <-f.ctx.Done():
			f.t.Fatalf("the retirement of %s is not over: %+v", name, rt)
		}
	}
}

// left checks that of the pool's first n machines exactly the given ones are gone, with their nodes.
func (f *fixture) left(n int, gone ...int) {
	f.t.Helper()
	for i := range n {
		_, there := f.ARM.VM(f.pool.Resource(i))
		node, err := f.Client().CoreV1().Nodes().Get(f.ctx, f.pool.NodeName(i), metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			f.t.Fatal(err)
		}
		if want := !slices.Contains(gone, i); there != want || (err == nil) != want {
			f.t.Errorf("machine %d is there: %t, its node: %t, want both %t", i, there, err == nil, want)
		}
		if err == nil {
			f.untouched(node)
		}
	}
	if got := f.ARM.Capacity(f.pool.ScaleSet()); got != n-len(gone) {
		f.t.Errorf("I5: the scale set is meant to have %d machines, want %d", got, n-len(gone))
	}
}

// untouched checks that nothing of Slipway's is on a node (I3).
func (f *fixture) untouched(n *corev1.Node) {
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

// process is a manager process.
type process struct {
	*controlplane.Process
	proxy *faultproxy.Proxy
	mu    sync.Mutex
}

// revive kills a manager, unless it is dead already, and starts it again.
func (p *process) revive(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Alive() {
		if err := p.Kill(); err != nil {
			return err
		}
	}
	p.proxy.NextLife()
	return p.Restart(ctx)
}

// keep starts a manager again when it ends by itself, as a kubelet does: one that has lost its Lease exits, and on a busy
// machine the one that is to take over may be the one that loses it. Not for a manager that is killed.
func (f *fixture) keep(p *process) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-f.ctx.Done():
				return
			case <-p.Exited():
			}
			if err := p.revive(f.ctx); err != nil && f.ctx.Err() == nil {
				f.t.Error(err)
				return
			}
		}
	}()
	f.t.Cleanup(func() { <-ended }) // The test's context is over by then.
}

// manage starts a manager whose every request goes through the proxy, with the rights of the shipped manifests.
// The suffix tells the managers of one fixture apart.
func (f *fixture) manage(suffix string, proxy *faultproxy.Proxy, flags ...string) *process {
	f.t.Helper()
	path, err := testbed.Binary("slipway")
	f.check(err)
	args := []string{
		"manager", "--kubeconfig", f.kubeconfig(proxy), "--cloud-config", f.cloudConfig(proxy, "500ms"), "--listen", "",
		"--leader-elect=false",
	}
	args = append(args, f.atLeisure()...)
	started, err := f.Run(f.ctx, controlplane.Command{Name: "manager-" + f.name + suffix, Path: path, Args: append(args, flags...)})
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

// atLeisure are the flags of a manager that asks rarely: each request is one to be killed at.
func (f *fixture) atLeisure() []string {
	return []string{
		"--selector", shard + "=" + f.name, "--poll-interval", "1s", "--cloud-poll-interval", "500ms", "--retry-interval", "1s",
	}
}

func (f *fixture) kubeconfig(proxy *faultproxy.Proxy) string {
	f.t.Helper()
	credentials, err := f.ServiceAccountKubeconfig(f.ctx, managerNamespace, managerAccount, controlplane.TokenOptions{})
	f.check(err)
	return f.Behind(f.t, proxy, credentials, func(whole http.RoundTripper) http.RoundTripper {
		if f.secluded {
			return f.alone(whole).withItsPods(f)
		}
		return whole
	})
}

// cloudConfig is how the manager reaches ARM. Deletions wait so long for others to come with them.
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

// azure is the provider's configuration. Deletions wait so long for others to come with them.
func (f *fixture) azure(window string) provider.Config {
	f.t.Helper()
	config := f.AzureConfig()
	config.Groups = append(config.Groups, f.cloudGroups...)
	config.BatchWindow = new(cloud.Duration)
	f.check(config.BatchWindow.UnmarshalText([]byte(window)))
	return config
}
