// Package gcp_test runs real agents on nodes of Google Cloud, against a real control plane and an emulated metadata server.
package gcp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/gcp"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

func TestMain(m *testing.M) { os.Exit(testbed.RunTestsAndStopShared(m)) }

// fixture is a node of Compute Engine with its metadata server, and a namespace.
type fixture struct {
	*testbed.Testbed
	t   *testing.T
	ctx context.Context

	pool     controlplane.AKSPool // it only gives the node its name
	node, ns string
	metadata *gcp.Emulator
	url      string

	mu    sync.Mutex
	agent *testbed.Agent
}

// newFixture adds a node and a namespace with this name.
func newFixture(t *testing.T, name string, o gcp.Options) *fixture {
	t.Helper()
	pool := controlplane.AKSPool{Name: name}
	f := &fixture{Testbed: testbed.StartShared(t), t: t, ctx: testbed.TestContext(t), pool: pool, node: pool.NodeName(0), ns: name}
	spec := pool.Node(0)
	spec.ProviderID = "gce://project-1/europe-west4-a/" + f.node
	f.check(f.AddNodes(f.ctx, spec))
	f.check(workload.Create(f.ctx, f.Client(), workload.NewNamespace(f.ns)))
	o.Machines = f
	f.metadata = gcp.New(o)
	t.Cleanup(f.metadata.Close)
	f.metadata.AddVM(f.node)
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // returns at once
	f.check(err)
	server := &http.Server{Handler: f.metadata.Handler(), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	f.url = gcp.URL("http://"+listener.Addr().String(), f.node)
	return f
}

func (f *fixture) check(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// PowerOff implements gcp.Machines: it ends the agent and the node's kubelet.
func (f *fixture) PowerOff(ctx context.Context, node string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.agent != nil {
		if err := f.agent.KillIfAlive(); err != nil {
			return err
		}
	}
	return f.Testbed.PowerOff(ctx, node)
}

// PowerOn implements gcp.Machines.
func (f *fixture) PowerOn(ctx context.Context, node string) error {
	if err := f.Testbed.PowerOn(ctx, node); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.agent != nil {
		return f.agent.RestartIfDead(ctx)
	}
	return nil
}

// start starts the agent of the node.
func (f *fixture) start(flags ...string) *testbed.Agent {
	f.t.Helper()
	a, err := f.StartAgentProgram(f.ctx, f.pool, 0, "slipway-agent", "/readyz", func(w testbed.AgentSettings) (args, env []string) {
		return append([]string{"--node-name", w.Node, "--kubeconfig", w.Kubeconfig, "--endpoint", f.url, "--listen", w.Listen}, flags...), nil
	})
	f.check(err)
	f.mu.Lock()
	f.agent = a
	f.mu.Unlock()
	testbed.KillAgentAfterTest(f.t, a)
	return a
}

// run creates objects and waits until they have settled.
func (f *fixture) run(objects ...runtime.Object) {
	f.t.Helper()
	f.check(workload.CreateAndAwait(f.ctx, f.Client(), objects...))
}

// app returns an App on the node.
func (f *fixture) app(replicas int32) workload.App {
	return workload.App{Namespace: f.ns, Name: "web", Replicas: replicas, Node: f.node, StopSeconds: "1"}
}

func (f *fixture) awaitNode(state string, matches func(*corev1.Node) bool) *corev1.Node {
	f.t.Helper()
	n, err := f.AwaitNode(f.ctx, f.node, state, matches)
	f.check(err)
	return n
}

func isRestored(n *corev1.Node) bool {
	for key := range n.Annotations {
		if strings.Contains(key, "cordon.slipway.dev") {
			return false
		}
	}
	return !n.Spec.Unschedulable
}

func isDrained(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == "Drained" && c.Status == corev1.ConditionTrue {
			return n.Spec.Unschedulable
		}
	}
	return false
}

// awaitNoPods waits until no pod of the test's namespace is bound to the node, and returns when that was.
func (f *fixture) awaitNoPods() time.Time {
	f.t.Helper()
	_, err := f.AwaitPods(f.ctx, f.node, "gone", func(pods []corev1.Pod) bool {
		for _, p := range pods {
			if p.Namespace == f.ns {
				return false
			}
		}
		return true
	})
	f.check(err)
	return time.Now()
}

// patchNode patches the Node as GKE does.
func (f *fixture) patchNode(patch map[string]any) {
	f.t.Helper()
	raw, err := json.Marshal(patch)
	f.check(err)
	_, err = f.Client().CoreV1().Nodes().Patch(f.ctx, f.node, types.MergePatchType, raw, metav1.PatchOptions{})
	f.check(err)
}

// labelNode sets labels of the Node; nil removes a label.
func (f *fixture) labelNode(labels map[string]any) {
	f.t.Helper()
	f.patchNode(map[string]any{"metadata": map[string]any{"labels": labels}})
}

func (f *fixture) awaitMetric(a *testbed.Agent, series string, want float64) {
	f.t.Helper()
	f.check(testbed.PollUntil(f.ctx, fmt.Sprintf("%s is %v", series, want), func() bool {
		value, found := a.ReadMetric(f.ctx, series)
		return found && value == want
	}))
}

// lastEviction returns when the API server accepted the last eviction of the test's pods, and how many it accepted.
func (f *fixture) lastEviction() (at time.Time, accepted int) {
	f.t.Helper()
	events, err := f.ReadAuditLog(controlplane.AuditFilter{Resource: "pods/eviction", Namespace: f.ns})
	f.check(err)
	for _, e := range events {
		if e.ResponseStatus != nil && e.ResponseStatus.Code == http.StatusCreated {
			accepted++
			if e.StageTimestamp.After(at) {
				at = e.StageTimestamp.Time
			}
		}
	}
	return at, accepted
}
