// Package cloudpool_test sends the HTTP requests of cloudpool clients to the real process. The process runs in front of
// an emulated cloudpool server, with the real manager, on a real control plane. The nodes are the server's machines.
package cloudpool_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	emulator "github.com/slipway-dev/slipway/dev/cloudpool"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
	"github.com/slipway-dev/slipway/internal/cloud"
	provider "github.com/slipway-dev/slipway/internal/cloud/cloudpool"
)

func TestMain(m *testing.M) {
	testbed.DefaultParallel = 10 // most tests start a server and a manager, some of them several times
	os.Exit(testbed.RunTestsAndStopShared(m))
}

// testTimeout limits a test, starting when the control plane runs and the product is built. Tests need far less time, but
// the host may be busy.
const testTimeout = 8 * time.Minute

var (
	groups      = schema.GroupVersionResource{Group: "slipway.dev", Version: "v1alpha1", Resource: "nodegroups"}
	retirements = schema.GroupVersionResource{Group: "slipway.dev", Version: "v1alpha1", Resource: "noderetirements"}
)

// These are the accounts of the shipped manifests.
const (
	namespace        = "slipway"
	managerAccount   = "slipway-manager"
	cloudpoolAccount = "slipway-cloudpool"
)

// shard is the label that each test's manager selects its own retirements with.
const shard = "e2e.slipway.dev/shard"

var installed struct {
	sync.Once
	err error
}

// shared returns the package's testbed, with Slipway's types and permissions installed.
func shared(t *testing.T) *testbed.Testbed {
	t.Helper()
	bed := testbed.StartShared(t)
	installed.Do(func() {
		_, err := testbed.EnsureBinary("slipway") // builds outside the time limit of a test
		installed.err = errors.Join(err, bed.InstallCRDs(context.Background()),
			bed.ApplyManifests(context.Background(), "manager/rbac.yaml", "cloudpool/rbac.yaml", "cloudpool/native.yaml", "cloudpool/authorize.yaml"))
	})
	if installed.err != nil {
		t.Fatal(installed.err)
	}
	return bed
}

// fixture holds a pool of machines behind a cloudpool server, and a namespace for one test.
type fixture struct {
	*testbed.Testbed
	t       *testing.T
	ctx     context.Context
	name    string
	pool    *emulator.Pool
	server  *httptest.Server
	clouds  string
	address string // address of the process in front of the server
	auth    provider.Auth
	settle  time.Duration // how long the pool's server may show a machine that it has terminated
	// between, if set, is a proxy between the API server and all processes that start later.
	between *faultproxy.Proxy
	// selector selects the pool's nodes. cloud locates the machines of the pool's NodeGroup.
	selector map[string]string
	cloud    v1alpha1.CloudGroup
}

// options override the defaults of a fixture.
type options struct {
	pool emulator.Options
	// auth authenticates the product to the pool's server.
	auth provider.Auth
	// settle is how long the pool's server may show a machine that it has terminated. It must exceed the pool's lag.
	settle time.Duration
}

// newFixture creates a pool of n machines.
func newFixture(t *testing.T, name string, n int, o options) *fixture {
	t.Helper()
	bed := shared(t)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	f := &fixture{
		Testbed: bed, t: t, ctx: ctx, name: name, selector: map[string]string{emulator.PoolLabel: name},
		cloud: v1alpha1.CloudGroup{Provider: provider.Name, Group: name}, auth: o.auth, settle: cmp.Or(o.settle, 500*time.Millisecond),
	}
	o.pool.Name, o.pool.Nodes = name, emulator.ClusterNodes{Cluster: f.Cluster, Pool: name}
	f.pool = emulator.New(o.pool)
	t.Cleanup(f.pool.Close)
	_, err := f.pool.AddMachines(ctx, n)
	f.check(err)
	f.server = httptest.NewServer(f.pool.Handler())
	t.Cleanup(f.server.Close)
	f.clouds = f.file(f.pools(f.server.URL))
	f.prepare()
	return f
}

// pools returns the cloud configuration, with the pool's server at the given address.
func (f *fixture) pools(address string) map[string]any {
	settle := cloud.Duration(f.settle)
	return map[string]any{"cloudpool": provider.Config{
		Pools: []provider.PoolConfig{{Name: f.name, URL: address}}, SettleTime: &settle,
		PollInterval: cloud.Duration(200 * time.Millisecond), Auth: f.auth,
	}}
}

// file writes the cloud configuration to a file.
func (f *fixture) file(clouds map[string]any) string {
	f.t.Helper()
	raw, err := yaml.Marshal(clouds)
	f.check(err)
	path := filepath.Join(f.t.TempDir(), "clouds.yaml")
	f.check(os.WriteFile(path, raw, 0o600))
	return path
}

// prepare creates the namespace and the NodeGroup.
func (f *fixture) prepare() {
	f.t.Helper()
	f.check(workload.Create(f.ctx, f.Client(), workload.NewNamespace(f.name)))
	f.group()
}

// newNative creates a NodeGroup of n machines in the emulated Azure.
func newNative(t *testing.T, name string, n int) *fixture {
	t.Helper()
	bed := shared(t)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	pool := controlplane.AKSPool{Name: name}
	f := &fixture{
		Testbed: bed, t: t, ctx: ctx, name: name, selector: map[string]string{"kubernetes.azure.com/agentpool": name},
		cloud: v1alpha1.CloudGroup{Provider: "azure", Group: pool.ScaleSetName()},
	}
	f.check(f.AddPool(ctx, pool, n))
	f.clouds = f.file(map[string]any{"azure": f.AzureProviderConfig()})
	f.prepare()
	return f
}

// group creates the pool's NodeGroup. Without a group, only one node in the whole cluster may retire at a time, and the
// test would wait for other tests.
func (f *fixture) group() {
	f.t.Helper()
	g := &v1alpha1.NodeGroup{
		TypeMeta:   metav1.TypeMeta{APIVersion: groups.GroupVersion().String(), Kind: "NodeGroup"},
		ObjectMeta: metav1.ObjectMeta{Name: f.name, Labels: map[string]string{shard: f.name}},
		Spec: v1alpha1.NodeGroupSpec{
			NodeSelector: metav1.LabelSelector{MatchLabels: f.selector}, Cloud: f.cloud,
		},
	}
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(g)
	f.check(err)
	_, err = dynamic.NewForConfigOrDie(f.RESTConfig()).Resource(groups).Create(f.ctx, &unstructured.Unstructured{Object: raw}, metav1.CreateOptions{})
	f.check(err)
}

func (f *fixture) check(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// start starts a process of the product, and prints its log if the test fails.
func (f *fixture) start(name, ready string, args ...string) *controlplane.Process {
	f.t.Helper()
	path, err := testbed.EnsureBinary("slipway")
	f.check(err)
	p, err := f.StartProcess(f.ctx, controlplane.Command{Name: name + "-" + f.name, Path: path, Args: args, ReadyURL: ready})
	f.check(err)
	f.t.Cleanup(func() {
		_ = p.Kill()
		if f.t.Failed() || testing.Verbose() {
			raw, _ := os.ReadFile(p.LogFile())
			f.t.Logf("log of %s:\n%s", name, raw)
		}
	})
	return p
}

func (f *fixture) credentials(account string) string {
	f.t.Helper()
	path, err := f.ServiceAccountKubeconfig(f.ctx, namespace, account, controlplane.TokenOptions{})
	f.check(err)
	return path
}

// startManager starts a manager that carries out the test's retirements.
func (f *fixture) startManager() *controlplane.Process {
	f.t.Helper()
	credentials := f.credentials(managerAccount)
	if f.between != nil {
		credentials = f.WriteProxyKubeconfig(f.t, f.between, credentials)
	}
	return f.start("manager", "", "manager", "--kubeconfig", credentials, "--cloud-config", f.clouds, "--listen", "",
		"--leader-elect=false", "--selector", shard+"="+f.name, "--poll-interval", "500ms", "--cloud-poll-interval", "200ms",
		"--retry-interval", "300ms")
}

// startCloudpool starts slipway cloudpool in front of the server, with its own replica name.
func (f *fixture) startCloudpool(replica string, flags ...string) *controlplane.Process {
	f.t.Helper()
	address, err := controlplane.ReserveFreeAddress(f.ctx)
	f.check(err)
	health, err := controlplane.ReserveFreeAddress(f.ctx)
	f.check(err)
	credentials := f.credentials(cloudpoolAccount)
	if f.between != nil {
		credentials = f.WriteProxyKubeconfig(f.t, f.between, credentials)
	}
	args := []string{
		"cloudpool", "--kubeconfig", credentials, "--cloud-config", f.clouds, "--listen", address,
		"--metrics-listen", health, "--namespace", namespace, "--identity", replica, "--retirement-labels", shard + "=" + f.name,
		"--poll-interval", "200ms", "--failure-timeout", "20s", "--admission-wait", "1m", "--settle-time", "5s",
	}
	f.address = "http://" + address
	return f.start(replica, "http://"+health+"/readyz", append(args, flags...)...)
}

// answer is a response that a client received.
type answer struct {
	code    int
	header  http.Header
	body    string
	message string
	detail  string
}

func (a answer) String() string { return fmt.Sprintf("%d %s", a.code, a.body) }

// send sends a request with headers in the format "Name: value".
func (f *fixture) send(ctx context.Context, method, path, body string, headers ...string) (answer, error) {
	return send(ctx, http.DefaultClient, f.address, method, path, body, headers...)
}

func send(ctx context.Context, client *http.Client, front, method, path, body string, headers ...string) (answer, error) {
	r, err := http.NewRequestWithContext(ctx, method, front+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Add(name, value)
	}
	response, err := client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = response.Body.Close() }()
	raw, err := io.ReadAll(response.Body)
	a := answer{code: response.StatusCode, header: response.Header, body: string(raw)}
	var said struct{ Message, Detail string }
	if json.Unmarshal(raw, &said) == nil {
		a.message, a.detail = said.Message, said.Detail
	}
	return a, err
}

// ask repeats a request for as long as the answer says to retry. On a busy host, possibly no replica begins in time.
func (f *fixture) ask(front, method, path, body string, headers ...string) (answer, error) {
	for {
		a, err := send(f.ctx, http.DefaultClient, front, method, path, body, headers...)
		if err != nil || !strings.Contains(a.detail, "no replica has started PoolUpdate") {
			return a, err
		}
	}
}

func (f *fixture) post(path, body string, headers ...string) answer {
	f.t.Helper()
	a, err := f.ask(f.address, http.MethodPost, path, body, headers...)
	f.check(err)
	return a
}

func (f *fixture) get(path string) answer {
	f.t.Helper()
	a, err := f.send(f.ctx, http.MethodGet, path, "")
	f.check(err)
	return a
}

// want checks the code of an answer, and the words in its body.
func (f *fixture) want(a answer, code int, words ...string) {
	f.t.Helper()
	if a.code != code {
		f.t.Errorf("%s; want %d", a, code)
	}
	for _, w := range words {
		if !strings.Contains(a.message+" "+a.detail, w) {
			f.t.Errorf("%s; want it to contain %q", a, w)
		}
	}
	if code == http.StatusOK && len(words) == 0 && (a.body != "" || a.header.Get("Content-Type") != "") {
		f.t.Errorf("%s, %v; want only the code", a, a.header)
	}
}

// node returns the name of a machine's node, by the machine's number.
func (f *fixture) node(i int) string { return fmt.Sprintf("%s-%d", f.name, i) }

// machine returns the ID of an existing machine, by its number.
func (f *fixture) machine(i int) string {
	f.t.Helper()
	for _, m := range f.pool.Machines() {
		if m.Serial == i {
			return m.ID
		}
	}
	f.t.Fatalf("machine %d does not exist", i)
	return ""
}

// checkRemaining checks the desired size, and which machines have not begun to terminate, with their nodes.
func (f *fixture) checkRemaining(serials ...int) {
	f.t.Helper()
	var there []int
	var nodes []string
	for _, m := range f.pool.Machines() {
		if m.State.IsAllocated() {
			there = append(there, m.Serial)
		}
	}
	slices.Sort(there)
	if !slices.Equal(there, serials) {
		f.t.Errorf("the machines are %v, want %v", there, serials)
	}
	list, err := f.Client().CoreV1().Nodes().List(f.ctx, metav1.ListOptions{LabelSelector: emulator.PoolLabel + "=" + f.name})
	f.check(err)
	var want []string
	for _, n := range list.Items {
		nodes = append(nodes, n.Name)
		if n.Spec.Unschedulable {
			f.t.Errorf("I3: node %s is cordoned", n.Name)
		}
	}
	for _, s := range serials {
		want = append(want, f.node(s))
	}
	slices.Sort(nodes)
	slices.Sort(want)
	if !slices.Equal(nodes, want) {
		f.t.Errorf("the nodes are %v, want %v", nodes, want)
	}
	if f.pool.DesiredSize() != len(serials) {
		f.t.Errorf("the desired size is %d, want %d", f.pool.DesiredSize(), len(serials))
	}
}

func (f *fixture) create(objects ...runtime.Object) {
	f.t.Helper()
	f.check(workload.CreateAndAwait(f.ctx, f.Client(), objects...))
}

// app returns an App that runs on any of the pool's machines.
func (f *fixture) app(name string, replicas int32) workload.App {
	return workload.App{
		Namespace: f.name, Name: name, Replicas: replicas, StopSeconds: "0.3", NodeSelector: f.selector,
	}
}

// pods returns an app's bound pods that are not terminating, by node.
func (f *fixture) pods(app string) map[string][]corev1.Pod {
	f.t.Helper()
	list, err := f.Client().CoreV1().Pods(f.name).List(f.ctx, metav1.ListOptions{LabelSelector: workload.AppLabel + "=" + app})
	f.check(err)
	on := map[string][]corev1.Pod{}
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil && p.Spec.NodeName != "" {
			on[p.Spec.NodeName] = append(on[p.Spec.NodeName], p)
		}
	}
	return on
}

// listRetirements returns the test's NodeRetirements.
func (f *fixture) listRetirements() []v1alpha1.NodeRetirement {
	f.t.Helper()
	list, err := dynamic.NewForConfigOrDie(f.RESTConfig()).Resource(retirements).List(f.ctx, metav1.ListOptions{LabelSelector: shard + "=" + f.name})
	f.check(err)
	all := make([]v1alpha1.NodeRetirement, len(list.Items))
	for i := range list.Items {
		f.check(runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, &all[i]))
	}
	return all
}

func (f *fixture) await(what string, yes func() bool) {
	f.t.Helper()
	f.check(testbed.PollUntil(f.ctx, what, yes))
}

func size(n int) string { return fmt.Sprintf(`{"desiredSize":%d}`, n) }

func termination(id string, decrement bool) string {
	raw, _ := json.Marshal(map[string]any{"machineId": id, "decrementDesiredSize": decrement})
	return string(bytes.TrimSpace(raw))
}
