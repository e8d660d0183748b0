// Package surge_test drains nodes with pods that need a successor first, on a real control plane and in virtual time. It
// checks for how long the pods' Services have no ready endpoint, and the sizes of the pods' owners.
package surge_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	// home is the instance that the tests drain. The others take the successors.
	home    = 0
	refuges = 2
	// restoreTime is how long after a crash the size of an owner may differ from its user's wish (I11).
	restoreTime = time.Minute
	// recordTime is how long after that a record may exist, and with it the deletion cost of its pod. Both stay for 30 s if a request for
	// the surge may still be carried out. They stay for up to 2 min until a controller has removed the pod that is too many.
	recordTime = 150 * time.Second
)

// shard is the label of the nodes that run a test's pods, and of the objects that the test's manager manages. Its value is the test's
// namespace.
const shard = "e2e.slipway.dev/shard"

// fixture holds a test's own pool of instances and its own namespace.
type fixture struct {
	*testbed.Testbed
	t    testing.TB
	ctx  context.Context
	pool controlplane.AKSPool
	ns   string
	gaps *testbed.ServiceGaps
	// recordNamespace is the namespace of the records of surges.
	recordNamespace string
	instances       map[string]int // by pool
}

var permissions struct {
	sync.Once
	err error
}

// newFixture adds a pool of one instance and a namespace, both with this name, to the shared control plane. runAtHome adds
// the other instances.
func newFixture(t testing.TB, name string) *fixture {
	t.Helper()
	bed := testbed.StartShared(t)
	permissions.Do(func() { permissions.err = bed.InstallSurgePermissions(context.Background()) })
	if permissions.err != nil {
		t.Fatal(permissions.err)
	}
	return newFixtureOn(t, bed, name)
}

// inMemory returns a fixture in virtual time.
func inMemory(t *testing.T, name string) *fixture {
	t.Helper()
	return newFixtureOn(t, testbed.NewVirtualForTest(t, testbed.Options{Azure: azure.Options{Outage: time.Second}}), name)
}

func newFixtureOn(t testing.TB, bed *testbed.Testbed, name string) *fixture {
	t.Helper()
	f := &fixture{
		Testbed: bed, t: t, ctx: testbed.TestContext(t), pool: controlplane.AKSPool{Name: name}, ns: name,
		recordNamespace: testbed.AgentNamespace, instances: map[string]int{},
	}
	f.addInstances(f.pool, home+1)
	f.check(workload.Create(f.ctx, f.Client(), workload.NewNamespace(f.ns)))
	return f
}

func (f *fixture) check(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) node(i int) string { return f.pool.NodeName(i) }

// addInstances adds n instances to a pool, and their nodes. The nodes run the test's pods.
func (f *fixture) addInstances(pool controlplane.AKSPool, n int) {
	f.t.Helper()
	f.Azure.EnsureScaleSet(pool.ScaleSetName())
	nodes := pool.Nodes(f.instances[pool.Name] + n)[f.instances[pool.Name]:]
	for _, node := range nodes {
		node.Labels[shard] = f.ns
	}
	f.check(f.AddNodes(f.ctx, nodes...))
	f.instances[pool.Name] += n
}

// surgeFlags turn surges on for an agent.
func (f *fixture) surgeFlags() []string {
	return []string{"--surge=always", "--namespace=" + f.recordNamespace}
}

// app returns an App that only the test's instances run. Its PDB allows no eviction, however many pods there are.
func (f *fixture) app(name string, replicas int32) workload.App {
	return workload.App{
		Namespace: f.ns, Name: name, Replicas: replicas, NodeSelector: map[string]string{shard: f.ns},
		MaxUnavailable: "0", GracePeriod: 2 * time.Second, StopSeconds: "1",
	}
}

// objects returns the App's Deployment, PDB and Service.
func objects(app workload.App) []runtime.Object {
	return []runtime.Object{app.Deployment(), app.PodDisruptionBudget(), app.Service()}
}

// runAtHome creates objects and waits until all pods run on the first instance. Then it adds the others, so that only
// successors run there.
func (f *fixture) runAtHome(all ...runtime.Object) {
	f.t.Helper()
	f.run(all...)
	f.addInstances(f.pool, refuges)
	f.gaps.Reset()
}

// run creates objects and waits until all pods run and all Services have endpoints. It then measures the gaps of the Services.
func (f *fixture) run(all ...runtime.Object) {
	f.t.Helper()
	f.check(workload.CreateAndAwait(f.ctx, f.Client(), all...))
	services := 0
	for _, o := range all {
		if _, ok := o.(*corev1.Service); ok {
			services++
		}
	}
	gaps, err := f.WatchServiceGaps(f.ctx, f.ns)
	f.check(err)
	f.t.Cleanup(gaps.Stop)
	f.gaps = gaps
	f.check(gaps.AwaitServed(f.ctx, services))
	gaps.Reset()
}

// checkNoGaps checks that each Service always had a ready endpoint, except for the named ones.
func (f *fixture) checkNoGaps(except ...string) {
	f.t.Helper()
	gaps, err := f.gaps.Gaps()
	f.check(err)
	for service, gap := range gaps {
		if !slices.Contains(except, service) {
			f.t.Errorf("Service %s had no ready endpoint for %s", service, gap.Round(time.Millisecond))
		}
	}
}

// agent starts the agent of instance i with surges on, and ends it with the test.
func (f *fixture) agent(i int, flags ...string) *testbed.Agent {
	f.t.Helper()
	return f.StartAgentForTest(f.ctx, f.t, f.pool, i, append(f.surgeFlags(), flags...)...)
}

// startInProcess runs the agent of instance i in this process, with surges on.
func (f *fixture) startInProcess(i int, proxy *faultproxy.Proxy, flags ...string) *testbed.InProcessAgent {
	f.t.Helper()
	return f.StartInProcessAgentForTest(f.ctx, f.t, f.pool, i, proxy, append(f.surgeFlags(), flags...)...)
}

// announce announces an event for the first instance.
func (f *fixture) announce(a azure.Announcement) azure.EventRecord {
	f.t.Helper()
	return f.AnnounceForTest(f.t, f.pool, a)
}

// awaitHomeEmpty waits until none of the test's pods is on the first instance.
func (f *fixture) awaitHomeEmpty() {
	f.t.Helper()
	f.check(f.awaitEmpty(f.ctx))
}

func (f *fixture) awaitEmpty(ctx context.Context) error {
	_, err := f.AwaitPods(ctx, f.node(home), "none of the test's", func(pods []corev1.Pod) bool {
		return !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Namespace == f.ns })
	})
	return err
}

// describeTraces returns what surges have left: sizes that differ from want, which has the size by Deployment, and if withRecords also
// records and deletion costs. An empty result is none.
func (f *fixture) describeTraces(want map[string]int32, withRecords bool) (traces []string, err error) {
	list, err := f.Client().AppsV1().Deployments(f.ns).List(f.ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, d := range list.Items {
		if size, ok := want[d.Name]; ok && *d.Spec.Replicas != size {
			traces = append(traces, fmt.Sprintf("Deployment %s has %d replicas, want %d", d.Name, *d.Spec.Replicas, size))
		}
	}
	if !withRecords {
		return traces, nil
	}
	for _, d := range list.Items {
		_, err := f.Client().CoordinationV1().Leases(f.recordNamespace).Get(f.ctx, "slipway-surge-"+string(d.UID), metav1.GetOptions{})
		if err == nil {
			traces = append(traces, "the record of Deployment "+d.Name+" exists")
		} else if !apierrors.IsNotFound(err) {
			return nil, err
		}
	}
	pods, err := f.Client().CoreV1().Pods(f.ns).List(f.ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, p := range pods.Items {
		if cost, ok := p.Annotations[corev1.PodDeletionCost]; ok && p.DeletionTimestamp == nil {
			traces = append(traces, fmt.Sprintf("pod %s has the deletion cost %s", p.Name, cost))
		}
	}
	return traces, nil
}

// awaitNoTraces waits until all sizes are as their users want, at most for the given time. Then it waits until records and deletion
// costs are gone.
func (f *fixture) awaitNoTraces(most time.Duration, want map[string]int32) {
	f.t.Helper()
	await := func(withRecords bool, most time.Duration) {
		ctx, cancel := context.WithTimeout(f.ctx, most)
		defer cancel()
		var traces []string
		var failed error
		if err := testbed.PollUntil(ctx, "surges have left nothing", func() bool {
			traces, failed = f.describeTraces(want, withRecords)
			return failed == nil && len(traces) == 0
		}); err != nil {
			f.t.Errorf("%v: %s, %v", err, strings.Join(traces, "; "), failed)
		}
	}
	await(false, most)
	await(true, recordTime)
}
