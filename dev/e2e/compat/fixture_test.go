// Package compat_test runs the compatibility modes against a real control plane and an emulated Azure. It compares their
// output with the output of the original tools. A test named W… or M… covers a fault of such a tool.
package compat_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

func TestMain(m *testing.M) { os.Exit(testbed.RunTestsAndStopShared(m)) }

// fixture holds a pool of instances and a namespace for one test.
type fixture struct {
	*testbed.Testbed
	t    testing.TB
	ctx  context.Context
	pool controlplane.AKSPool
	ns   string
}

func newFixture(t testing.TB, name string) *fixture {
	t.Helper()
	bed := testbed.StartShared(t) // this call and the next may be slow the first time
	if _, err := testbed.EnsureBinary("slipway"); err != nil {
		t.Fatal(err)
	}
	ctx := testbed.TestContext(t)
	f := &fixture{Testbed: bed, t: t, ctx: ctx, pool: controlplane.AKSPool{Name: name}, ns: name}
	f.check(f.AddPool(ctx, f.pool, 1))
	f.check(workload.Create(ctx, f.Client(), workload.NewNamespace(f.ns)))
	return f
}

func (f *fixture) check(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) node() string { return f.pool.NodeName(0) }

func (f *fixture) app(name string, replicas int32) workload.App {
	return workload.App{Namespace: f.ns, Name: name, Replicas: replicas, Node: f.node()}
}

func (f *fixture) run(objects ...runtime.Object) {
	f.t.Helper()
	f.check(workload.CreateAndAwait(f.ctx, f.Client(), objects...))
}

// aksnth starts the compatibility mode for aks-node-termination-handler.
func (f *fixture) aksnth(flags ...string) *testbed.Agent {
	f.t.Helper()
	return f.start(func(w testbed.AgentSettings) (args, env []string) {
		args = []string{
			"aks-node-termination-handler", "-kubeconfig=" + w.Kubeconfig, "--endpoint", w.Endpoint, "-web.address=" + w.Listen,
			"-period=200ms",
		}
		return append(args, flags...), []string{"MY_NODE_NAME=" + w.Node}
	})
}

// mechanic starts the compatibility mode for mechanic with the file at path.
func (f *fixture) mechanic(path string, flags ...string) *testbed.Agent {
	f.t.Helper()
	return f.start(func(w testbed.AgentSettings) (args, env []string) {
		args = []string{"mechanic", "--config=" + path, "--kubeconfig=" + w.Kubeconfig, "--endpoint=" + w.Endpoint, "--listen=" + w.Listen}
		return append(args, flags...), []string{"MECHANIC_NODE_NAME=" + w.Node}
	})
}

func (f *fixture) start(command func(testbed.AgentSettings) (args, env []string)) *testbed.Agent {
	f.t.Helper()
	a, err := f.StartAgentProgram(f.ctx, f.pool, 0, "slipway", "/readyz", command)
	f.check(err)
	f.t.Cleanup(func() {
		if err := a.KillIfAlive(); err != nil {
			f.t.Error(err)
		}
		if f.t.Failed() {
			raw, _ := os.ReadFile(a.LogFile())
			f.t.Logf("log of %s:\n%s", a.Node, raw)
		}
	})
	return a
}

// announce announces an event for the instance.
func (f *fixture) announce(a azure.Announcement) azure.EventRecord {
	f.t.Helper()
	return f.AnnounceForTest(f.t, f.pool, a)
}

func (f *fixture) getNode() *corev1.Node {
	f.t.Helper()
	n, err := f.Client().CoreV1().Nodes().Get(f.ctx, f.node(), metav1.GetOptions{})
	f.check(err)
	return n
}

func (f *fixture) awaitNode(what string, is func(*corev1.Node) bool) *corev1.Node {
	f.t.Helper()
	n, err := f.AwaitNode(f.ctx, f.node(), what, is)
	f.check(err)
	return n
}

func (f *fixture) awaitEnd(id string) azure.EventRecord {
	f.t.Helper()
	r, err := f.AwaitNotice(f.ctx, id, "ended", func(r azure.EventRecord) bool { return !r.IsListed() })
	f.check(err)
	return r
}

func (f *fixture) awaitEvent(reason string) *corev1.Event {
	f.t.Helper()
	e, err := f.AwaitEvent(f.ctx, f.node(), reason)
	f.check(err)
	return e
}

// awaitPods waits until exactly want pods of the test's namespace are bound to the node.
func (f *fixture) awaitPods(want int) {
	f.t.Helper()
	_, err := f.AwaitPods(f.ctx, f.node(), "all expected", func(pods []corev1.Pod) bool { return f.count(pods) == want })
	f.check(err)
}

func (f *fixture) count(pods []corev1.Pod) (n int) {
	for _, p := range pods {
		if p.Namespace == f.ns {
			n++
		}
	}
	return n
}

func (f *fixture) awaitMetric(a *testbed.Agent, series string, least float64) {
	f.t.Helper()
	f.check(testbed.PollUntil(f.ctx, series+" is at least as high as expected", func() bool {
		value, ok := a.ReadMetric(f.ctx, series)
		return ok && value >= least
	}))
}

// cordon cordons the node as another user does.
func (f *fixture) cordon() {
	f.t.Helper()
	_, err := f.Client().CoreV1().Nodes().Patch(f.ctx, f.node(), types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{})
	f.check(err)
}

// ask sends an HTTP request to the agent.
func (f *fixture) ask(a *testbed.Agent, method, path string, header http.Header) (int, string) {
	f.t.Helper()
	r, err := http.NewRequestWithContext(f.ctx, method, "http://"+a.MetricsAddress()+path, nil)
	f.check(err)
	r.Header = header
	resp, err := http.DefaultClient.Do(r)
	f.check(err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	f.check(err)
	return resp.StatusCode, string(body)
}

// slipway runs the command-line program and returns its output.
func (f *fixture) slipway(args ...string) (string, error) {
	f.t.Helper()
	var out bytes.Buffer
	cmd := testbed.NewCommand(f.ctx, f.t, "slipway", args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

func isCordoned(n *corev1.Node) bool { return n.Spec.Unschedulable }

func isRestored(n *corev1.Node) bool {
	for key := range n.Annotations {
		if strings.HasPrefix(key, "cordon.slipway.dev/") {
			return false
		}
	}
	return !n.Spec.Unschedulable
}

func tainted(key, value string, effect corev1.TaintEffect) func(*corev1.Node) bool {
	return func(n *corev1.Node) bool {
		for _, t := range n.Spec.Taints {
			if t.Key == key && t.Value == value && t.Effect == effect {
				return true
			}
		}
		return false
	}
}

// receiver is a server that accepts every request.
type receiver struct {
	*httptest.Server
	mu  sync.Mutex
	got []string // method, path, content type and body, in lines
}

func newReceiver(t testing.TB) *receiver {
	in := &receiver{}
	in.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		in.mu.Lock()
		defer in.mu.Unlock()
		in.got = append(in.got, strings.Join([]string{r.Method, r.URL.Path, r.Header.Get("Content-Type"), string(body)}, "\n"))
	}))
	t.Cleanup(in.Close)
	return in
}

func (in *receiver) messages() []string {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.Clone(in.got)
}

// awaitMessage waits for a message to a path.
func (f *fixture) awaitMessage(in *receiver, method, path string) string {
	f.t.Helper()
	found := ""
	f.check(testbed.PollUntil(f.ctx, "a message arrives at "+path, func() bool {
		for _, m := range in.messages() {
			if strings.HasPrefix(m, method+"\n"+path+"\n") {
				found = m
			}
		}
		return found != ""
	}))
	return strings.TrimPrefix(found, method+"\n"+path+"\n")
}
