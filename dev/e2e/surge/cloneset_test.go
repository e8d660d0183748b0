package surge_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

// cloneSetType is the type of OpenKruise, as far as a surge uses it.
const cloneSetType = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"clonesets.apps.kruise.io"},
	"spec":{"group":"apps.kruise.io","names":{"plural":"clonesets","singular":"cloneset","kind":"CloneSet","listKind":"CloneSetList"},
	"scope":"Namespaced","versions":[{"name":"v1alpha1","served":true,"storage":true,
	"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}},
	"subresources":{"status":{},"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas"}}}]}}`

var (
	cloneSets    = schema.GroupVersionResource{Group: "apps.kruise.io", Version: "v1alpha1", Resource: "clonesets"}
	cloneSetKind = cloneSets.GroupVersion().WithKind("CloneSet")
)

// cloneSetController creates and deletes the pods of one CloneSet as OpenKruise 1.9 does (pkg/controller/cloneset), in a steady state: all
// pods have one revision, and there are no hooks and no volumes. It reads the API server, so it sees changes sooner than OpenKruise.
type cloneSetController struct {
	f        *fixture
	api      dynamic.ResourceInterface
	name     string
	template corev1.PodTemplateSpec

	mu      sync.Mutex
	deleted []string // names of pods
}

// startCloneSet creates a CloneSet of the App's pods, and acts as its controller until the test ends.
func (f *fixture) startCloneSet(app workload.App, minReadySeconds int64) *cloneSetController {
	f.t.Helper()
	const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	f.check(f.Client().Discovery().RESTClient().Post().AbsPath(definitions).Body([]byte(cloneSetType)).Do(f.ctx).Error())
	objects, err := dynamic.NewForConfig(f.RESTConfig())
	f.check(err)
	rc := app.ReplicationController()
	c := &cloneSetController{f: f, api: objects.Resource(cloneSets).Namespace(f.ns), name: app.Name, template: *rc.Spec.Template}
	set := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": app.Name},
		"spec": map[string]any{
			"replicas": int64(*rc.Spec.Replicas), "minReadySeconds": minReadySeconds,
			"selector": map[string]any{"matchLabels": map[string]any{workload.AppLabel: app.Name}},
		},
	}}
	set.SetGroupVersionKind(cloneSetKind)
	f.check(testbed.PollUntil(f.ctx, "the API server serves CloneSets", func() bool {
		_, err = c.api.Create(f.ctx, set, metav1.CreateOptions{FieldManager: userManager})
		return !apierrors.IsNotFound(err)
	}))
	f.check(err)
	ctx, stop := context.WithCancel(f.ctx)
	var done sync.WaitGroup
	done.Go(func() {
		last := ""
		for ctx.Err() == nil {
			if err := c.reconcile(ctx); err != nil && ctx.Err() == nil && err.Error() != last {
				last = err.Error()
				f.t.Logf("CloneSet: %v", err) // it tries again, as each controller does
			}
			_ = testbed.Sleep(ctx, 100*time.Millisecond)
		}
	})
	f.t.Cleanup(func() {
		stop()
		done.Wait()
	})
	return c
}

func (c *cloneSetController) deletedPods() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.deleted)
}

func (c *cloneSetController) reconcile(ctx context.Context) error {
	set, err := c.api.Get(ctx, c.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	spec := set.Object["spec"].(map[string]any)
	size, minReady := int(spec["replicas"].(int64)), time.Duration(spec["minReadySeconds"].(int64))*time.Second
	pods := c.f.Client().CoreV1().Pods(c.f.ns)
	list, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var active []corev1.Pod
	for _, p := range list.Items {
		owner := metav1.GetControllerOf(&p)
		if owner != nil && owner.UID == set.GetUID() && p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodFailed && p.Status.Phase != corev1.PodSucceeded {
			active = append(active, p)
		}
	}
	isReady := func(p corev1.Pod) bool { return isAvailable(p, 0) }
	available := countPods(active, func(p corev1.Pod) bool { return isAvailable(p, minReady) })
	for i := range size - len(active) {
		p := corev1.Pod{ObjectMeta: *c.template.ObjectMeta.DeepCopy(), Spec: c.template.Spec}
		id := strconv.FormatInt(time.Now().UnixNano()+int64(i), 36)
		p.Name, p.Labels = c.name+"-"+id, maps.Clone(p.Labels)
		p.Labels["apps.kruise.io/cloneset-instance-id"] = id
		p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, cloneSetKind)}
		if _, err := pods.Create(ctx, &p, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	if surplus := len(active) - size; surplus > 0 {
		victims := slices.SortedFunc(slices.Values(active), compareForDeletion(active, minReady))[:surplus]
		mayDelete := (size+4)/5 + surplus - (len(active) - available) // deleteReadyLimit, with updateStrategy.maxUnavailable of 20 %
		for _, p := range victims {
			if isReady(p) {
				if mayDelete--; mayDelete < 0 {
					continue
				}
			}
			c.mu.Lock()
			c.deleted = append(c.deleted, p.Name)
			c.mu.Unlock()
			if err := pods.Delete(ctx, p.Name, *metav1.NewPreconditionDeleteOptions(string(p.UID))); err != nil {
				return err
			}
		}
	}
	set.Object["status"] = map[string]any{
		"observedGeneration": set.GetGeneration(), "replicas": int64(len(active)), "updatedReplicas": int64(len(active)),
		"readyReplicas": int64(countPods(active, isReady)), "availableReplicas": int64(available),
		"currentRevision": c.name + "-a", "updateRevision": c.name + "-a",
	}
	_, err = c.api.UpdateStatus(ctx, set, metav1.UpdateOptions{FieldManager: "kruise-manager"})
	if apierrors.IsConflict(err) {
		return nil
	}
	return err
}

func countPods(pods []corev1.Pod, counts func(corev1.Pod) bool) (n int) {
	for _, p := range pods {
		if counts(p) {
			n++
		}
	}
	return n
}

// readyTime returns since when a pod is Ready.
func readyTime(p corev1.Pod) (since time.Time, ready bool) {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.LastTransitionTime.Time, c.Status == corev1.ConditionTrue
		}
	}
	return time.Time{}, false
}

func isAvailable(p corev1.Pod, minReady time.Duration) bool {
	since, ready := readyTime(p)
	return p.Status.Phase == corev1.PodRunning && ready && time.Since(since) >= minReady
}

// compareForDeletion is ActivePodsWithRanks.Less of pkg/controller/cloneset/utils/pod_sorter.go without topologySpreadConstraints. The first
// pod is deleted first.
func compareForDeletion(all []corev1.Pod, minReady time.Duration) func(a, b corev1.Pod) int {
	phases := map[corev1.PodPhase]int{corev1.PodPending: 0, corev1.PodUnknown: 1, corev1.PodRunning: 2}
	firstFalse := func(a, b bool) int {
		switch {
		case a == b:
			return 0
		case a:
			return 1
		}
		return -1
	}
	cost := func(p corev1.Pod) int64 {
		v, _ := strconv.ParseInt(p.Annotations[corev1.PodDeletionCost], 10, 32)
		return v
	}
	restarts := func(p corev1.Pod) (most int32) {
		for _, s := range p.Status.ContainerStatuses {
			most = max(most, s.RestartCount)
		}
		return most
	}
	ranks := map[types.UID]int{}
	compare := func(a, b corev1.Pod) int {
		sinceA, readyA := readyTime(a)
		sinceB, readyB := readyTime(b)
		return cmp.Or(
			firstFalse(a.Spec.NodeName != "", b.Spec.NodeName != ""),
			cmp.Compare(phases[a.Status.Phase], phases[b.Status.Phase]),
			firstFalse(isAvailable(a, minReady), isAvailable(b, minReady)),
			firstFalse(readyA, readyB),
			cmp.Compare(cost(a), cost(b)),
			cmp.Compare(ranks[b.UID], ranks[a.UID]),
			sinceB.Compare(sinceA),
			cmp.Compare(restarts(b), restarts(a)),
			b.CreationTimestamp.Compare(a.CreationTimestamp.Time),
		)
	}
	// sameNodeRanker: of the pods on one node, all but the last one get a rank.
	byNode := map[string][]corev1.Pod{}
	for _, p := range all {
		if p.Spec.NodeName != "" {
			byNode[p.Spec.NodeName] = append(byNode[p.Spec.NodeName], p)
		}
	}
	sameNode := map[types.UID]int{}
	for _, pods := range byNode {
		slices.SortFunc(pods, compare)
		for i, p := range pods[:len(pods)-1] {
			sameNode[p.UID] = len(pods) - 1 - i
		}
	}
	maps.Copy(ranks, sameNode)
	return compare
}

// TestAgentKeepsACloneSetServed has a CloneSet that first deletes pods which are Ready for less than 3 s.
func TestAgentKeepsACloneSetServed(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "cloneset")
	app := f.app("web", 1)
	app.MinAvailable, app.MaxUnavailable, app.StartSeconds = "1", "", "2"
	c := f.startCloneSet(app, 3)
	f.runAtHome(app.PodDisruptionBudget(), app.Service())
	pods, err := f.Client().CoreV1().Pods(f.ns).List(f.ctx, metav1.ListOptions{})
	f.check(err)
	if len(pods.Items) != 1 {
		t.Fatalf("%d pods, want 1", len(pods.Items))
	}
	f.checkAgentSurges(func() (metav1.Object, int64, error) {
		set, err := c.api.Get(f.ctx, app.Name, metav1.GetOptions{})
		f.check(err)
		size, _, err := unstructured.NestedInt64(set.Object, "spec", "replicas")
		return set, size, err
	})
	if deleted, want := fmt.Sprint(c.deletedPods()), fmt.Sprint([]string{pods.Items[0].Name}); deleted != want {
		t.Errorf("the CloneSet deleted %s, want %s", deleted, want)
	}
}

// checkAgentSurges gives the first instance a Spot notice, and checks that its agent drains it with a surge of the owner that read
// returns.
func (f *fixture) checkAgentSurges(read func() (o metav1.Object, size int64, err error)) {
	f.t.Helper()
	a := f.agent(home)
	f.announce(azure.Announcement{Type: azure.Preempt, Notice: 45 * time.Second})
	f.awaitHomeEmpty()
	f.checkNoGaps()
	f.awaitNoTraces(restoreTime, nil)
	f.awaitRestored(read)
	if a.HasLogged("pod gets no successor before it leaves") {
		f.t.Error("the agent refused a successor")
	}
	f.checkNoGaps()
}

// awaitRestored waits until the size of an owner is 1 again, by a surge, and the record is gone.
func (f *fixture) awaitRestored(read func() (o metav1.Object, size int64, err error)) {
	f.t.Helper()
	var size int64
	var manager string
	var record error
	if err := testbed.PollUntil(f.ctx, "the size is restored, without a record", func() bool {
		var o metav1.Object
		var err error
		o, size, err = read()
		f.check(err)
		manager = fieldManager(o.GetManagedFields(), "replicas")
		_, record = f.Client().CoordinationV1().Leases(testbed.AgentNamespace).Get(f.ctx, "slipway-surge-"+string(o.GetUID()), metav1.GetOptions{})
		return size == 1 && manager == surgeManager && apierrors.IsNotFound(record)
	}); err != nil {
		f.t.Errorf("%v: size %d by %s, record: %v", err, size, manager, record)
	}
}
