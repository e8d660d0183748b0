// Package agent_test runs real agents against a real control plane and an emulated Azure. It checks the results on the
// node, in the audit log, in the emulator's record, and in the emulator's pod ledger.
package agent_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

func TestMain(m *testing.M) { os.Exit(testbed.RunTestsAndStopShared(m)) }

const (
	// shortPolls saves time in tests that need many polls.
	shortPolls = "--poll-interval=200ms"
	// noApproval delays the start of an event while a test checks the effects of its notice. Otherwise, the agent of an
	// empty node approves the event at once.
	noApproval = "--acknowledge=false"
)

// fixture holds a test's own pool of instances and its own namespace.
type fixture struct {
	*testbed.Testbed
	t    testing.TB
	ctx  context.Context
	pool controlplane.AKSPool
	ns   string
	// virtual selects a testbed in memory, in virtual time.
	virtual bool
}

// newFixture adds a pool of n instances and a namespace, both with this name. The nodes carry marks of other tools.
func newFixture(t testing.TB, name string, n int) *fixture {
	t.Helper()
	return newFixtureOn(t, testbed.StartShared(t), name, n)
}

// inMemory returns a fixture of one instance in virtual time.
func inMemory(t *testing.T, name string) *fixture {
	t.Helper()
	bed := testbed.NewVirtualForTest(t, testbed.Options{Azure: azure.Options{Outage: time.Second}})
	f := newFixtureOn(t, bed, name, 1)
	f.virtual = true
	return f
}

func newFixtureOn(t testing.TB, bed *testbed.Testbed, name string, n int) *fixture {
	t.Helper()
	ctx := testbed.TestContext(t)
	f := &fixture{Testbed: bed, t: t, ctx: ctx, pool: controlplane.AKSPool{Name: name}, ns: name}
	f.Azure.EnsureScaleSet(f.pool.ScaleSetName())
	specs := f.pool.Nodes(n)
	for i := range specs {
		specs[i].Labels["example.com/team"] = "blue"
		specs[i].Annotations = map[string]string{"example.com/note": "foreign"}
		specs[i].Taints = []corev1.Taint{{Key: "example.com/team", Effect: corev1.TaintEffectPreferNoSchedule}}
	}
	f.check(f.AddNodes(ctx, specs...))
	f.check(workload.Create(ctx, f.Client(), workload.NewNamespace(f.ns)))
	return f
}

func (f *fixture) check(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) node(i int) string { return f.pool.NodeName(i) }

// app returns an App on the first instance.
func (f *fixture) app(name string, replicas int32) workload.App {
	return workload.App{Namespace: f.ns, Name: name, Replicas: replicas, Node: f.node(0)}
}

// run creates objects and waits until they have settled.
func (f *fixture) run(objects ...runtime.Object) {
	f.t.Helper()
	f.check(workload.CreateAndAwait(f.ctx, f.Client(), objects...))
}

// createPod creates a pod without a controller. It first waits for the namespace's ServiceAccount, because pods need one.
func (f *fixture) createPod(app workload.App) {
	f.t.Helper()
	f.check(testbed.PollUntil(f.ctx, "the namespace has its ServiceAccount", func() bool {
		_, err := f.Client().CoreV1().ServiceAccounts(f.ns).Get(f.ctx, "default", metav1.GetOptions{})
		return err == nil
	}))
	f.run(app.Pod())
}

// agent starts the agent of instance i and ends it with the test.
func (f *fixture) agent(i int, flags ...string) *testbed.Agent {
	f.t.Helper()
	return f.StartAgentForTest(f.ctx, f.t, f.pool, i, flags...)
}

// startInProcess runs the agent of the first instance in this process.
func (f *fixture) startInProcess(proxy *faultproxy.Proxy, flags ...string) killable {
	f.t.Helper()
	return f.StartInProcessAgentForTest(f.ctx, f.t, f.pool, 0, proxy, flags...)
}

// announce announces an event for some of the pool's instances. Without Resources, it announces it for the first
// instance.
func (f *fixture) announce(a azure.Announcement) azure.EventRecord {
	f.t.Helper()
	return f.AnnounceForTest(f.t, f.pool, a)
}

func (f *fixture) awaitNode(i int, what string, is func(*corev1.Node) bool) *corev1.Node {
	f.t.Helper()
	n, err := f.AwaitNode(f.ctx, f.node(i), what, is)
	f.check(err)
	return n
}

func (f *fixture) awaitNotice(id, what string, is func(azure.EventRecord) bool) azure.EventRecord {
	f.t.Helper()
	r, err := f.AwaitNotice(f.ctx, id, what, is)
	f.check(err)
	return r
}

func (f *fixture) awaitEnd(id string) azure.EventRecord {
	f.t.Helper()
	return f.awaitNotice(id, "ended", func(r azure.EventRecord) bool { return !r.IsListed() })
}

// checkApproved wants the event to have started because of an approval.
func (f *fixture) checkApproved(r azure.EventRecord) {
	f.t.Helper()
	if r.StartedBy != azure.ByApproval {
		f.t.Errorf("event %s was started %s, want it approved", r.EventID, r.StartedBy)
	}
}

func (f *fixture) awaitEvent(i int, reason string) *corev1.Event {
	f.t.Helper()
	e, err := f.AwaitEvent(f.ctx, f.node(i), reason)
	f.check(err)
	return e
}

// awaitPods waits until exactly want pods of the test's namespace are bound to node i.
func (f *fixture) awaitPods(i, want int) {
	f.t.Helper()
	_, err := f.AwaitPods(f.ctx, f.node(i), fmt.Sprintf("%d of the test's", want), func(pods []corev1.Pod) bool {
		n := 0
		for _, p := range pods {
			if p.Namespace == f.ns {
				n++
			}
		}
		return n == want
	})
	f.check(err)
}

func (f *fixture) awaitMetric(a *testbed.Agent, series string, is func(float64) bool) {
	f.t.Helper()
	f.check(testbed.PollUntil(f.ctx, series+" is as wanted", func() bool {
		value, ok := a.ReadMetric(f.ctx, series)
		return ok && is(value)
	}))
}

// awaitPolls waits until the agent has read the notices this many more times.
func (f *fixture) awaitPolls(a *testbed.Agent, more float64) {
	f.t.Helper()
	const read = `slipway_agent_polls_total{result="ok"}`
	before, ok := a.ReadMetric(f.ctx, read)
	if !ok {
		f.t.Fatalf("the agent has no metric %s", read)
	}
	f.awaitMetric(a, read, func(v float64) bool { return v >= before+more })
}

func atLeast(n float64) func(float64) bool { return func(v float64) bool { return v >= n } }

func (f *fixture) record(i int) *testbed.NodeHistory {
	f.t.Helper()
	h, err := f.RecordNodeStates(f.ctx, f.node(i))
	f.check(err)
	f.t.Cleanup(h.StopRecording)
	return h
}

func cordoned(n *corev1.Node) bool { return n.Spec.Unschedulable }

func condition(n *corev1.Node, kind string) *corev1.NodeCondition {
	for i, c := range n.Status.Conditions {
		if string(c.Type) == kind {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}

func hasCondition(kind string) func(*corev1.Node) bool {
	return func(n *corev1.Node) bool { return condition(n, kind) != nil }
}

// lifecycle lists the conditions that Slipway sets.
var lifecycle = []string{"DrainInProgress", "Drained", "MaintenancePlanned", "MaintenanceInProgress"}

// slipwayKeys lists what Slipway put on a node, and what follows from it.
func slipwayKeys(n *corev1.Node) []string {
	var found []string
	for _, keys := range [][]string{slices.Collect(maps.Keys(n.Annotations)), slices.Collect(maps.Keys(n.Labels))} {
		for _, key := range keys {
			if strings.Contains(key, "slipway.dev/") && !strings.HasPrefix(key, "dev.slipway.dev/") {
				found = append(found, key)
			}
		}
	}
	for _, taint := range n.Spec.Taints {
		if strings.Contains(taint.Key, "slipway.dev/") || taint.Key == corev1.TaintNodeUnschedulable {
			found = append(found, "taint "+taint.Key)
		}
	}
	for _, kind := range lifecycle {
		if condition(n, kind) != nil {
			found = append(found, "condition "+kind)
		}
	}
	if n.Spec.Unschedulable {
		found = append(found, "spec.unschedulable")
	}
	return found
}

// marks describes everything on a node except what changes without Slipway.
func marks(n *corev1.Node) string {
	var conditions []string
	for _, c := range n.Status.Conditions {
		conditions = append(conditions, fmt.Sprintf("%s=%s", c.Type, c.Status))
	}
	slices.Sort(conditions)
	annotations := maps.Clone(n.Annotations)
	delete(annotations, corev1.ObjectTTLAnnotationKey) // set by the TTL controller, by the size of the cluster
	return fmt.Sprint(n.Spec.Unschedulable, n.Spec.Taints, n.Labels, annotations, conditions)
}

func (f *fixture) marksOf(i int) string {
	f.t.Helper()
	return marks(f.awaitNode(i, "there", func(*corev1.Node) bool { return true }))
}

// awaitRestored waits until a node takes pods and carries nothing of Slipway's (I3). Then it compares the node with its
// earlier marks.
func (f *fixture) awaitRestored(i int, was string) {
	f.t.Helper()
	n := f.awaitNode(i, "restored", func(n *corev1.Node) bool { return len(slipwayKeys(n)) == 0 })
	if is := marks(n); is != was {
		f.t.Errorf("node %s is  %s\nit was %s", n.Name, is, was)
	}
}
