// Package aws_test runs real agents against a real control plane and an emulated AWS. It checks the results on the node
// and in the emulator's records.
package aws_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/dev/aws"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

func TestMain(m *testing.M) { os.Exit(testbed.RunTestsAndStopShared(m)) }

// fixture is an EC2 instance with its Node, and a namespace.
type fixture struct {
	*testbed.Testbed
	*aws.Instance

	t    testing.TB
	ctx  context.Context
	pool controlplane.AKSPool // only names the node
	ns   string
}

func newFixture(t testing.TB, name string) *fixture {
	t.Helper()
	sum := fnv.New64a()
	sum.Write([]byte(name))
	id := fmt.Sprintf("i-%017x", sum.Sum64())
	f := &fixture{Testbed: testbed.StartShared(t), t: t, ctx: testbed.TestContext(t), pool: controlplane.AKSPool{Name: name}, ns: name}
	f.Instance = aws.StartInstance(id)
	t.Cleanup(f.Instance.Close)
	specs := f.pool.Nodes(1)
	specs[0].ProviderID = "aws:///eu-west-1a/" + id
	f.check(f.AddNodes(f.ctx, specs...))
	f.check(workload.Create(f.ctx, f.Client(), workload.NewNamespace(f.ns)))
	return f
}

func (f *fixture) check(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) node() string { return f.pool.NodeName(0) }

// runPods runs a Deployment on the node.
func (f *fixture) runPods(replicas int32, stopSeconds string) {
	f.t.Helper()
	app := workload.App{Namespace: f.ns, Name: "web", Replicas: replicas, Node: f.node(), StopSeconds: stopSeconds}
	f.check(workload.CreateAndAwait(f.ctx, f.Client(), app.Deployment()))
}

// agent starts the agent of the node, and ends it with the test. The agent finds its cloud by the provider ID.
func (f *fixture) agent(flags ...string) *testbed.Agent {
	f.t.Helper()
	a, err := f.StartAgentProgram(f.ctx, f.pool, 0, "slipway-agent", "/readyz", func(w testbed.AgentSettings) (args, env []string) {
		return append([]string{
			"--node-name", w.Node, "--kubeconfig", w.Kubeconfig, "--listen", w.Listen, "--endpoint", f.Instance.URL(), "--poll-interval=100ms",
		}, flags...), nil
	})
	f.check(err)
	testbed.KillAgentAfterTest(f.t, a)
	return a
}

func (f *fixture) awaitNode(what string, is func(*corev1.Node) bool) *corev1.Node {
	f.t.Helper()
	n, err := f.AwaitNode(f.ctx, f.node(), what, is)
	f.check(err)
	return n
}

// awaitPods waits until the namespace has this number of pods on the node.
func (f *fixture) awaitPods(want int) {
	f.t.Helper()
	_, err := f.AwaitPods(f.ctx, f.node(), fmt.Sprintf("%d of the test's", want), func(pods []corev1.Pod) bool {
		return len(slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.Namespace != f.ns })) == want
	})
	f.check(err)
}

func (f *fixture) awaitEvent(reason string) *corev1.Event {
	f.t.Helper()
	e, err := f.AwaitEvent(f.ctx, f.node(), reason)
	f.check(err)
	return e
}

func (f *fixture) awaitMetric(a *testbed.Agent, series string, want float64) {
	f.t.Helper()
	f.check(testbed.PollUntil(f.ctx, series+" is as wanted", func() bool {
		value, ok := a.ReadMetric(f.ctx, series)
		return ok && value == want
	}))
}

// drained reports whether the node is cordoned and the agent has drained it.
func drained(n *corev1.Node) bool {
	return n.Spec.Unschedulable && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return string(c.Type) == "Drained" && c.Status == corev1.ConditionTrue
	})
}

func cordoned(n *corev1.Node) bool { return n.Spec.Unschedulable }

// untouched reports whether the node takes pods and has nothing of the agent.
func untouched(n *corev1.Node) bool {
	for key := range n.Annotations {
		if strings.Contains(key, "slipway.dev/") && !strings.HasPrefix(key, "dev.slipway.dev/") {
			return false
		}
	}
	return !n.Spec.Unschedulable
}

// awaitPolls waits until the agent has read its Spot notice this many more times.
func (f *fixture) awaitPolls(more int) {
	f.t.Helper()
	before := f.Instance.Requests("GET", aws.SpotPath)
	f.check(testbed.PollUntil(f.ctx, "the notices are read again", func() bool { return f.Instance.Requests("GET", aws.SpotPath) >= before+more }))
}

const week = 7 * 24 * time.Hour
