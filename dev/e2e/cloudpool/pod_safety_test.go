package cloudpool_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/workload"
	"github.com/slipway-dev/slipway/internal/cloudpool/controller"
)

// proxyWithChecks checks every later request of the product before the server receives it. When the request deletes a Node or a
// machine, no pod may be on it. do, if set, also runs at each request. ended returns how many machines were requested to
// end.
func (f *fixture) proxyWithChecks(do func(r faultproxy.Request, body []byte)) (ended func() int) {
	f.t.Helper()
	var machines atomic.Int32
	f.between = faultproxy.New(kindOf)
	f.t.Cleanup(func() { _ = f.between.Close() })
	f.between.OnWrite(func(_ context.Context, r faultproxy.Request, body []byte) {
		switch {
		case r.Server == "server" && strings.HasSuffix(r.Path, "/terminate"):
			machines.Add(1)
			var asked struct{ MachineID string }
			if err := json.Unmarshal(body, &asked); err != nil {
				f.t.Errorf("%s %s: %v", r.Path, body, err)
			}
			for _, m := range f.pool.Machines() {
				if m.ID == asked.MachineID {
					f.checkNodeEmpty(m.NodeName, "its machine is to be terminated")
				}
			}
		case r.Server == "api" && r.Kind == "api DELETE nodes":
			f.checkNodeEmpty(path.Base(r.Path), "it is to be deleted")
		}
		if do != nil {
			do(r, body)
		}
	})
	server, err := url.Parse(f.server.URL)
	f.check(err)
	server, err = f.between.Serve("server", server, nil)
	f.check(err)
	f.clouds = f.file(f.pools(server.String()))
	return func() int { return int(machines.Load()) }
}

// checkNodeEmpty checks that no pod is on a node, not even a terminating pod. Any goroutine may call it.
func (f *fixture) checkNodeEmpty(node, when string) {
	pods, err := f.Client().CoreV1().Pods("").List(f.ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
	})
	if err != nil {
		f.t.Errorf("node %s, when %s: %v", node, when, err)
		return
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if owner := metav1.GetControllerOf(p); owner == nil || owner.Kind != "DaemonSet" {
			f.t.Errorf("I1: node %s, when %s: pod %s/%s is on it until %v", node, when, p.Namespace, p.Name, p.DeletionTimestamp)
		}
	}
}

// evictions counts the requested evictions of a pod. An empty name means all pods.
func (f *fixture) evictions(pod string) int {
	n := 0
	for _, r := range f.between.Requests() {
		if strings.HasSuffix(r.Path, "/eviction") && (pod == "" || path.Base(path.Dir(r.Path)) == pod) {
			n++
		}
	}
	return n
}

func TestI1NoMachineIsTerminatedWhilePodsStop(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "grace", 3, options{})
	slow, deaf, system := f.app("slow", 3), f.app("deaf", 3), f.app("grace-of-the-system", 3)
	slow.StopSeconds, slow.GracePeriod = "4", time.Minute
	deaf.StopSeconds, deaf.GracePeriod = controlplane.Never, 5*time.Second
	system.Namespace, system.StopSeconds = metav1.NamespaceSystem, "3"
	f.create(spread(slow), spread(deaf), spread(system))
	t.Cleanup(func() {
		_ = f.Client().AppsV1().Deployments(system.Namespace).Delete(context.WithoutCancel(t.Context()), system.Name, metav1.DeleteOptions{})
	})
	ended := f.proxyWithChecks(nil)
	f.startManager()
	f.startCloudpool("a")
	f.want(f.post("/pool/size", size(1)), http.StatusOK)
	if n := len(f.pool.Machines()); n != 1 || f.pool.DesiredSize() != 1 || ended() < 2 {
		t.Errorf("%d machines, a desired size of %d, %d terminations; want 1, 1 and 2", n, f.pool.DesiredSize(), ended())
	}
	if n := f.evictions(""); n < 3 {
		t.Errorf("%d evictions, want at least 3", n)
	}
}

// TestI2DeniedEvictionIsRetried makes the API server too busy for the first evictions. Before the next
// eviction it creates a PDB that the plan does not know, and the eviction API denies the eviction.
func TestI2DeniedEvictionIsRetried(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "denied", 3, options{})
	app := f.app("db", 3)
	f.create(spread(app))
	app.MinAvailable = "3"
	const eviction, throttled = "api POST pods/eviction", 2
	var made sync.Once
	f.proxyWithChecks(func(r faultproxy.Request, _ []byte) {
		if r.Kind != eviction {
			return
		}
		made.Do(func() {
			if err := workload.CreateAndAwait(f.ctx, f.Client(), app.PodDisruptionBudget()); err != nil {
				t.Error(err)
			}
		})
	})
	f.between.SetFaults(func(r faultproxy.Request) faultproxy.Fault {
		if r.Kind == eviction && r.Nth <= throttled {
			return faultproxy.Fault{Status: http.StatusTooManyRequests}
		}
		return faultproxy.Fault{}
	})
	f.startManager()
	f.startCloudpool("a")
	accepted := f.post("/pool/size", size(2), "Prefer: respond-async")
	f.want(accepted, http.StatusAccepted)
	var waiting v1alpha1.NodeRetirement
	f.await("the PDB blocks the drain", func() bool {
		records := f.listRetirements()
		if len(records) == 0 {
			return false
		}
		if waiting = records[0]; waiting.Status.Phase.IsFinal() {
			t.Fatalf("the retirement has ended: %s: %s", waiting.Status.Phase, waiting.Status.Message)
		}
		d := waiting.Status.Drain
		return d != nil && strings.Contains(d.Summary, "disruption-budget "+f.name+"/db")
	})
	if waiting.Status.Phase != v1alpha1.Draining {
		t.Errorf("the retirement is %s: %s; want Draining", waiting.Status.Phase, waiting.Status.Message)
	}
	_, err := f.Client().PolicyV1().PodDisruptionBudgets(f.name).Patch(f.ctx, app.Name, types.MergePatchType,
		[]byte(`{"spec":{"minAvailable":2}}`), metav1.PatchOptions{})
	f.check(err)
	if up := f.awaitUpdate(accepted.header.Get("Location")); up.Outcome.Result != controller.Done || up.Outcome.Removed != 1 {
		t.Errorf("%+v, want one machine removed", up.Outcome)
	}
	records := f.listRetirements()
	if len(records) != 1 || records[0].UID != waiting.UID || records[0].Status.Phase != v1alpha1.Succeeded {
		t.Errorf("%d retirements, %+v; want the one that was blocked, and that it succeeded", len(records), records)
	}
	if n := f.evictions(""); n <= throttled+1 {
		t.Errorf("%d evictions; want more than %d throttled ones, one denied by the PDB, and one accepted", n, throttled)
	}
}

// TestI1PodBoundBeforeCordonIsEvicted binds a pod to a node immediately before the API server receives
// the cordon.
func TestI1PodBoundBeforeCordonIsEvicted(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "between", 3, options{})
	f.create(spread(f.app("web", 3)))
	owner, err := f.Client().CoreV1().ConfigMaps(f.name).Create(f.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	f.check(err)
	app := f.app("arrived", 1)
	app.StopSeconds = "3"
	pod := app.Pod()
	// A controller would recreate the pod. Here no controller does, and the test can identify the pod.
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("ConfigMap"))}
	var cordoned sync.Once
	ended := f.proxyWithChecks(func(r faultproxy.Request, body []byte) {
		if r.Kind != "api PATCH nodes" || !bytes.Contains(body, []byte(`"unschedulable":true`)) {
			return
		}
		cordoned.Do(func() {
			pod.Spec.NodeName = path.Base(r.Path)
			if err := workload.CreateAndAwait(f.ctx, f.Client(), pod); err != nil {
				t.Error(err)
			}
		})
	})
	f.startManager()
	f.startCloudpool("a")
	f.want(f.post("/pool/size", size(2)), http.StatusOK)
	records := f.listRetirements()
	if len(records) != 1 || records[0].Spec.NodeName != pod.Spec.NodeName || records[0].Status.Phase != v1alpha1.Succeeded || ended() < 1 {
		t.Errorf("%+v; want the retirement of node %q, which got a pod", records, pod.Spec.NodeName)
	}
	if _, err := f.Client().CoreV1().Pods(f.name).Get(f.ctx, pod.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("pod %s: %v, want it gone", pod.Name, err)
	}
	if f.evictions(pod.Name) == 0 {
		t.Errorf("pod %s was not evicted", pod.Name)
	}
}

// TestI4NodeTaintedByClusterAutoscalerIsNotTouched sets cluster-autoscaler's taint on the node that Slipway would remove
// first.
func TestI4NodeTaintedByClusterAutoscalerIsNotTouched(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "foreign", 3, options{})
	mark := corev1.Taint{Key: "ToBeDeletedByClusterAutoscaler", Value: "1800000000", Effect: corev1.TaintEffectNoSchedule}
	marked := f.node(1)
	f.taint(marked, mark)
	// The marked node counts as unavailable. The disruption budget must not be the reason why the other nodes stay.
	_, err := dynamic.NewForConfigOrDie(f.RESTConfig()).Resource(groups).Patch(f.ctx, f.name, types.MergePatchType,
		[]byte(`{"spec":{"disruptionBudgets":[{"nodes":"100%"}]}}`), metav1.PatchOptions{})
	f.check(err)
	f.create(spread(f.app("web", 2)))
	f.startManager()
	f.startCloudpool("a")
	f.await("the taint is known", func() bool {
		return strings.Contains(f.get("/slipway/v1/pools/"+f.name+"/plan?desiredSize=0").body, "being-removed")
	})
	f.want(f.post("/pool/terminate", termination(f.machine(1), true)), http.StatusConflict, marked+" is not a viable", "(being-removed)")
	f.want(f.post("/pool/membershipStatus", membership(f.machine(1), false, true)), http.StatusConflict, "(being-removed)")
	f.want(f.post("/pool/size", size(2)), http.StatusOK)
	// The pods of the last unmarked node have no other node, because no new pod may start on a node under removal.
	f.want(f.post("/pool/size", size(1)), http.StatusConflict, "(being-removed)", "(no-room)")
	for _, rt := range f.listRetirements() {
		if rt.Spec.NodeName == marked {
			t.Errorf("node %s has a retirement", marked)
		}
	}
	n, err := f.Client().CoreV1().Nodes().Get(f.ctx, marked, metav1.GetOptions{})
	f.check(err)
	if n.Spec.Unschedulable || !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&mark) && t.Value == mark.Value }) {
		t.Errorf("node %s: %+v; want it unchanged", marked, n.Spec)
	}
	if f.machine(1); len(f.pool.Machines()) != 2 || f.pool.DesiredSize() != 2 {
		t.Errorf("%d machines, a desired size of %d; want 2", len(f.pool.Machines()), f.pool.DesiredSize())
	}
}

// taint adds a taint to a node.
func (f *fixture) taint(node string, more corev1.Taint) {
	f.t.Helper()
	nodes := f.Client().CoreV1().Nodes()
	f.await("the node is tainted", func() bool {
		n, err := nodes.Get(f.ctx, node, metav1.GetOptions{})
		f.check(err)
		n.Spec.Taints = append(n.Spec.Taints, more)
		_, err = nodes.Update(f.ctx, n, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) {
			return false
		}
		f.check(err)
		return true
	})
}

// TestI1DisposalAndDetachBypassNoCheck makes one machine disposable, which its server would end at once, and detaches another
// machine.
func TestI1DisposalAndDetachBypassNoCheck(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "bypass", 3, options{})
	slow := f.app("slow", 3)
	slow.StopSeconds = "3"
	f.create(spread(slow))
	ended := f.proxyWithChecks(nil)
	f.startManager()
	f.startCloudpool("a")
	f.want(f.post("/pool/membershipStatus", membership(f.machine(0), false, true)), http.StatusOK)
	if records := f.listRetirements(); len(records) != 1 || records[0].Spec.NodeName != f.node(0) || records[0].Status.Phase != v1alpha1.Succeeded || ended() < 1 {
		t.Fatalf("%+v; want one retirement, of node %s", records, f.node(0))
	}
	f.await("the machine is replaced", func() bool { return len(f.runningMachines()) == 3 && f.countNodes() == 3 })
	for _, r := range f.pool.Requests() {
		if strings.HasSuffix(r.Path, "/membershipStatus") && strings.Contains(r.Body, `"active":false`) {
			t.Errorf("the server received %s, and would terminate the machine on its own", r.Body)
		}
	}
	// A detached machine continues to run, and so do its pods, when the pool changes.
	own := f.app("own", 2)
	own.Node = f.node(1)
	f.create(own.Deployment())
	before := f.uids(own.Name)
	f.want(f.post("/pool/detach", termination(f.machine(1), true)), http.StatusOK)
	f.want(f.post("/pool/size", size(1)), http.StatusOK)
	if after := f.uids(own.Name); len(before) != 2 || !slices.Equal(before, after) {
		t.Errorf("the pods of the detached machine changed from %v to %v", before, after)
	}
	n, err := f.Client().CoreV1().Nodes().Get(f.ctx, f.node(1), metav1.GetOptions{})
	f.check(err)
	if n.Spec.Unschedulable || len(n.Spec.Taints) > 0 || len(f.pool.Machines()) != 1 || f.pool.DesiredSize() != 1 {
		t.Errorf("node %s: %+v; %d machines, a desired size of %d", n.Name, n.Spec, len(f.pool.Machines()), f.pool.DesiredSize())
	}
	if n := len(f.listRetirements()); n != 2 {
		t.Errorf("%d retirements, want 2", n)
	}
}

// uids returns the sorted UIDs of an app's pods that are not terminating.
func (f *fixture) uids(app string) []types.UID {
	f.t.Helper()
	var uids []types.UID
	for _, pods := range f.pods(app) {
		for _, p := range pods {
			uids = append(uids, p.UID)
		}
	}
	slices.Sort(uids)
	return uids
}
