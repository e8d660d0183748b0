package surge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

var _ API = (*kubeapi.Client)(nil)

// cluster behaves like the API server for the objects of one application, with the controllers that act on them: the
// Deployment and ReplicaSet controllers, the scheduler, a kubelet, the EndpointSlice controller, the
// HorizontalPodAutoscaler and KEDA. The application is a Deployment "web" with the ReplicaSet "web-1", or only the latter, which may
// also be a ReplicationController or a CloneSet of OpenKruise.
type cluster struct {
	t *testing.T

	mu         sync.Mutex
	version    int
	deployment *kubeapi.Workload // nil: the ReplicaSet has no owner
	replicaSet *kubeapi.Workload
	controller kubeapi.OwnerReference // to replicaSet
	hpa        *kubeapi.HorizontalPodAutoscaler
	scaled     *kubeapi.ScaledObject
	nodes      map[string]*kubeapi.Node
	pods       map[string]*kubeapi.Pod
	leases     map[string]*kubeapi.Lease
	claims     map[string]*kubeapi.PersistentVolumeClaim
	watchers   map[*watcher]bool

	launch     time.Duration // from the creation of a pod until an instance has joined for it
	startup    time.Duration // of a pod, from then to Ready
	noRoom     bool          // the scheduler finds no node
	noService  bool
	neverReady bool            // new pods do not become Ready
	unhealthy  map[string]bool // pods that do not become Ready
	// minAvailable is that of a PodDisruptionBudget; 0 is none.
	minAvailable int
	stuckScaler  bool // the autoscaler does not lower the size
	// deploymentLag is the time from a new size of the Deployment until its controller sees it, and unseen are the sizes that it has not
	// seen yet. It acts on the last one that it has seen.
	deploymentLag time.Duration
	unseen        []deploymentSize
	// removalLag is the time from chosenAt, when the ReplicaSet controller has chosen pods to delete, until it deletes them. It also deletes
	// them if other pods have left meanwhile, because its requests wait in a queue.
	removalLag time.Duration
	chosen     []*kubeapi.Pod
	chosenAt   time.Time
	stalledFor time.Duration // from stalledAt: the EndpointSlice controller does nothing
	stalledAt  time.Time
	watchLag   time.Duration // until a watch of pods shows a change
	readyLag   time.Duration // until the ReplicaSet controller sees that a pod is Ready
	minReady   time.Duration // spec.minReadySeconds of a CloneSet
	scaleLimit int           // spec.scaleStrategy.maxUnavailable of a CloneSet; 0 is none
	metric     int32
	gitOps     time.Duration // period in which a GitOps tool writes the wanted size; 0 is none

	// wanted is the size that the user wants, or the user's minimum of an autoscaler.
	wanted       int32
	wantedAbsent bool // the user's minimum is absent
	leastReady   int  // the least number of ready pods that stay, so far
	leastServing int  // the least number of ready endpoints, so far
	created      int
	lastScaling  time.Time
	scaledGoneAt time.Time // when the ScaledObject was deleted
	lastGitOps   time.Time
	forbidden    map[string]bool // requests by name
	noRecords    error           // the answer to the creation of a record, once its namespace is deleted
}

type deploymentSize struct {
	at         time.Time
	size       int32
	generation int64
}

// watcher receives the pods' events of one watch.
type watcher struct {
	selector labels.Selector
	events   chan func(h kubeapi.Handler[kubeapi.Pod])
}

const (
	namespace   = "shop"
	tick        = 400 * time.Millisecond
	podGrace    = time.Second
	hpaInterval = 15 * time.Second
	slowWebhook = 28 * time.Second // a little less than its longest timeout
)

// nodes are the nodes of a cluster. The scheduler prefers n2.
var nodes = []string{"n1", "n2", "n3"}

var errConnection = errors.New("connection reset")

func clone[T any](v *T) *T {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	var out T
	if err := json.Unmarshal(raw, &out); err != nil {
		panic(err)
	}
	return &out
}

func statusError(code int, reason string) error {
	return &kubeapi.StatusError{Code: code, Reason: reason}
}

func managedBy(manager, field string) []kubeapi.ManagedField {
	m := kubeapi.ManagedField{Manager: manager}
	m.FieldsV1.Spec = map[string]json.RawMessage{"f:" + field: json.RawMessage("{}")}
	return []kubeapi.ManagedField{m}
}

func isController() *bool { yes := true; return &yes }

// newCluster returns the cluster of a Deployment with this many ready pods, the first on the node n1. Its controllers run
// until stop is called.
func newCluster(t *testing.T, size int32) *cluster {
	c := &cluster{
		t: t, nodes: map[string]*kubeapi.Node{}, pods: map[string]*kubeapi.Pod{}, leases: map[string]*kubeapi.Lease{}, watchers: map[*watcher]bool{},
		claims: map[string]*kubeapi.PersistentVolumeClaim{}, forbidden: map[string]bool{}, unhealthy: map[string]bool{},
		startup: 20 * time.Second, wanted: size, metric: size,
	}
	c.deployment = &kubeapi.Workload{}
	c.deployment.Name, c.deployment.UID, c.deployment.Namespace = "web", "u-web", namespace
	c.deployment.Annotations = map[string]string{revisionAnnotation: "1"}
	c.deployment.Spec.Replicas, c.deployment.Generation = &size, 1
	c.deployment.ManagedFields = managedBy("kubectl", "replicas")
	c.replicaSet = clone(c.deployment)
	c.replicaSet.Name, c.replicaSet.UID = "web-1", "u-web-1"
	c.replicaSet.OwnerReferences = []kubeapi.OwnerReference{
		{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "u-web", Controller: isController()},
	}
	c.replicaSet.Spec.Selector = &kubeapi.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	c.controller = kubeapi.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-1", UID: "u-web-1", Controller: isController()}
	c.touch(&c.deployment.ObjectMeta)
	c.touch(&c.replicaSet.ObjectMeta)
	for _, name := range nodes {
		c.nodes[name] = &kubeapi.Node{ObjectMeta: kubeapi.ObjectMeta{Name: name}}
	}
	for i := range size {
		p := c.createPod(time.Now().Add(-time.Hour))
		p.Spec.NodeName, p.Status.Phase = "n1", "Running"
		if i > 0 {
			p.Spec.NodeName = "n2"
		}
		p.Status.Conditions = []kubeapi.Condition{{Type: "Ready", Status: "True", LastTransitionTime: p.CreationTimestamp.Add(c.startup)}}
	}
	c.leastReady, c.leastServing = int(size), int(size)
	c.updateStatus()
	return c
}

// withoutDeployment makes the ReplicaSet the owner.
func (c *cluster) withoutDeployment() *cluster {
	c.deployment, c.replicaSet.OwnerReferences = nil, nil
	return c
}

// withReplicationController makes a ReplicationController the owner.
func (c *cluster) withReplicationController() *cluster {
	return c.withController("v1", "ReplicationController")
}

// withCloneSet makes a CloneSet of OpenKruise the owner.
func (c *cluster) withCloneSet() *cluster {
	c.replicaSet.Status.CurrentRevision, c.replicaSet.Status.UpdateRevision = "web-1-a", "web-1-a"
	return c.withController("apps.kruise.io/v1alpha1", "CloneSet")
}

func (c *cluster) withController(apiVersion, kind string) *cluster {
	c.withoutDeployment()
	c.controller.APIVersion, c.controller.Kind = apiVersion, kind
	for _, p := range c.pods {
		p.OwnerReferences = []kubeapi.OwnerReference{c.controller}
	}
	c.updateStatus()
	return c
}

// withUnhealthyPod makes the second pod of the owner unready, and adds a PodDisruptionBudget that therefore allows no eviction.
func (c *cluster) withUnhealthyPod() *cluster {
	c.unhealthy["web-1-2"] = true
	c.pods["web-1-2"].Status.Conditions[0].Status = "False"
	c.minAvailable = len(c.pods) - 1
	c.leastReady, c.leastServing = c.minAvailable, c.minAvailable
	c.updateStatus()
	return c
}

func (c *cluster) isCloneSet() bool { return c.controller.Kind == "CloneSet" }

// withAutoscaler adds a HorizontalPodAutoscaler. Its metric wants the present size.
func (c *cluster) withAutoscaler(minReplicas, maxReplicas int32) *cluster {
	c.hpa = &kubeapi.HorizontalPodAutoscaler{}
	c.hpa.Name, c.hpa.UID, c.hpa.Namespace = "web", "u-hpa", namespace
	target := &c.hpa.Spec.ScaleTargetRef
	target.APIVersion, target.Kind, target.Name = "apps/v1", "Deployment", "web"
	if c.deployment == nil {
		target.APIVersion, target.Kind, target.Name = c.controller.APIVersion, c.controller.Kind, c.controller.Name
	}
	c.hpa.Spec.MinReplicas, c.hpa.Spec.MaxReplicas = &minReplicas, maxReplicas
	c.hpa.ManagedFields = managedBy("kubectl", "minReplicas")
	c.wanted = minReplicas
	c.touch(&c.hpa.ObjectMeta)
	return c
}

// withScaledObject adds a ScaledObject of KEDA without minReplicaCount, and its HorizontalPodAutoscaler.
func (c *cluster) withScaledObject() *cluster {
	c.withAutoscaler(1, 10)
	c.hpa.OwnerReferences = []kubeapi.OwnerReference{
		{APIVersion: "keda.sh/v1alpha1", Kind: "ScaledObject", Name: "web", UID: "u-keda", Controller: isController()},
	}
	c.scaled = &kubeapi.ScaledObject{}
	c.scaled.Name, c.scaled.UID, c.scaled.Namespace = "web", "u-keda", namespace
	c.wantedAbsent = true
	c.touch(&c.scaled.ObjectMeta)
	return c
}

func (c *cluster) touch(m *kubeapi.ObjectMeta) {
	c.version++
	m.ResourceVersion = strconv.Itoa(c.version)
}

func (c *cluster) createPod(at time.Time) *kubeapi.Pod {
	c.created++
	name := fmt.Sprintf("web-1-%d", c.created)
	p := &kubeapi.Pod{ObjectMeta: kubeapi.ObjectMeta{
		Name: name, Namespace: namespace, UID: "u-" + name, CreationTimestamp: at, Labels: map[string]string{"app": "web"},
		OwnerReferences: []kubeapi.OwnerReference{c.controller},
	}}
	p.Status.Phase = "Pending"
	c.pods[name] = p
	c.notify(p, false)
	return p
}

// notify stores a change of a pod, and passes it to the watches.
func (c *cluster) notify(p *kubeapi.Pod, deleted bool) {
	c.touch(&p.ObjectMeta)
	for w := range c.watchers {
		if !w.selector.Matches(labels.Set(p.Labels)) {
			continue
		}
		event := clone(p)
		w.events <- func(h kubeapi.Handler[kubeapi.Pod]) {
			if deleted {
				h.Deleted(*event)
			} else {
				h.Changed(*event)
			}
		}
	}
}

// run acts as the controllers until ctx ends.
func (c *cluster) run(ctx context.Context) {
	for elapsed.Sleep(ctx, tick) {
		c.mu.Lock()
		c.reconcile(time.Now())
		c.mu.Unlock()
	}
}

func (c *cluster) reconcile(now time.Time) {
	if c.gitOps > 0 && now.Sub(c.lastGitOps) >= c.gitOps {
		c.lastGitOps = now
		c.setReplicas(c.sized(), c.wanted, "argocd")
	}
	if c.scaled != nil {
		least := int32(1)
		if c.scaled.Spec.MinReplicaCount != nil {
			least = max(1, *c.scaled.Spec.MinReplicaCount)
		}
		if *c.hpa.Spec.MinReplicas != least {
			c.hpa.Spec.MinReplicas = &least
			c.touch(&c.hpa.ObjectMeta)
		}
	}
	if !c.scaledGoneAt.IsZero() && now.Sub(c.scaledGoneAt) >= 2*time.Second {
		c.hpa = nil // by the garbage collector
	}
	if c.hpa != nil && now.Sub(c.lastScaling) >= hpaInterval {
		c.lastScaling = now
		size := min(max(*c.hpa.Spec.MinReplicas, c.metric), c.hpa.Spec.MaxReplicas)
		if size > *c.sized().Spec.Replicas || !c.stuckScaler {
			c.setReplicas(c.sized(), size, "kube-controller-manager")
		}
	}
	for c.deployment != nil && len(c.unseen) > 0 && now.Sub(c.unseen[0].at) >= c.deploymentLag {
		c.setReplicas(c.replicaSet, c.unseen[0].size, "kube-controller-manager")
		c.unseen = c.unseen[1:]
	}
	c.reconcilePods(now)
	c.updateStatus()
}

// reconcilePods creates, deletes, schedules and starts pods.
func (c *cluster) reconcilePods(now time.Time) {
	var active []*kubeapi.Pod
	for _, p := range c.pods {
		switch {
		case p.DeletionTimestamp == nil:
			active = append(active, p)
		case now.Sub(*p.DeletionTimestamp) >= podGrace:
			delete(c.pods, p.Name)
			c.notify(p, true)
		}
	}
	size := int(*c.replicaSet.Spec.Replicas)
	unavailable := len(active) - c.countAvailable()
	missing := size - len(active)
	if c.scaleLimit > 0 {
		missing = min(missing, c.scaleLimit-unavailable) // scaleUpLimit of calculateDiffsWithExpectation
	}
	if len(c.chosen) == 0 { // otherwise it first awaits its deletions
		for range missing {
			c.createPod(now)
		}
		c.choosePods(active, size, unavailable)
		c.chosenAt = now
	}
	if len(c.chosen) > 0 && now.Sub(c.chosenAt) >= c.removalLag {
		ready, serving := c.countReady(), c.countServing(now)
		for _, p := range c.chosen {
			c.terminate(p, now)
		}
		c.chosen = nil
		if ready > 0 && c.countReady() == 0 || !c.noService && serving > 0 && c.countServing(now) == 0 {
			c.t.Errorf("the ReplicaSet controller has deleted the only ready pod or endpoint")
		}
	}
	for _, p := range c.pods {
		if p.DeletionTimestamp != nil {
			continue
		}
		scheduled := kubeapi.Condition{Type: "PodScheduled", Status: "True", LastTransitionTime: p.CreationTimestamp.Add(c.launch)}
		age := now.Sub(scheduled.LastTransitionTime)
		if len(p.Status.ContainerStatuses) > 0 {
			age = now.Sub(p.Status.ContainerStatuses[0].State.Running.StartedAt)
		}
		_, ready := p.ReadyTime()
		switch {
		case p.Spec.NodeName == "" && (c.noRoom || age < 0):
			if len(p.Status.Conditions) == 0 {
				p.Status.Conditions = []kubeapi.Condition{
					{Type: "PodScheduled", Status: "False", Reason: "Unschedulable", Message: "0/2 nodes are available"},
				}
				c.notify(p, false)
			}
		case p.Spec.NodeName == "":
			p.Spec.NodeName, p.Status.Conditions = "n2", []kubeapi.Condition{scheduled}
			if c.nodes["n2"].Spec.Unschedulable {
				p.Spec.NodeName = "n3"
			}
			c.notify(p, false)
		case p.Status.Phase == "Pending" && age >= c.startup/2:
			p.Status.Phase = "Running"
			c.notify(p, false)
		case p.Status.Phase == "Running" && !ready && age >= c.startup && !c.neverReady && !c.unhealthy[p.Name]:
			p.Status.Conditions = []kubeapi.Condition{scheduled, {Type: "Ready", Status: "True", LastTransitionTime: now}}
			c.notify(p, false)
		}
	}
	c.leastReady = min(c.leastReady, c.countReady())
	c.leastServing = min(c.leastServing, c.countServing(now))
}

// choosePods chooses the pods that the ReplicaSet controller deletes because there are too many.
func (c *cluster) choosePods(active []*kubeapi.Pod, size, unavailable int) {
	diff := len(active) - size
	if diff <= 0 {
		return
	}
	slices.SortFunc(active, c.compareForDeletion)
	mayDelete := len(active)
	if c.isCloneSet() {
		mayDelete = (size+4)/5 + diff - unavailable // deleteReadyLimit of calculateDiffsWithExpectation, with the default of 20 %
	}
	for _, p := range active[:diff] {
		if c.isCounted(p) {
			if mayDelete <= 0 {
				continue
			}
			mayDelete--
		}
		c.chosen = append(c.chosen, p)
	}
}

func (c *cluster) terminate(p *kubeapi.Pod, now time.Time) {
	if p.DeletionTimestamp == nil {
		p.DeletionTimestamp = &now
		c.notify(p, false)
	}
}

func (c *cluster) countReady() (n int) {
	for _, p := range c.pods {
		if _, ready := p.ReadyTime(); ready && p.DeletionTimestamp == nil {
			n++
		}
	}
	return n
}

// isServing reports whether the pod is a ready endpoint. The EndpointSlice controller is two seconds late.
func (c *cluster) isServing(p *kubeapi.Pod, now time.Time) bool {
	since, ready := p.ReadyTime()
	if now.After(c.stalledAt) && now.Sub(c.stalledAt) < c.stalledFor {
		now = c.stalledAt
	}
	return ready && p.DeletionTimestamp == nil && now.Sub(since) >= 2*time.Second
}

// stallEndpoints stops the EndpointSlice controller for a while.
func (c *cluster) stallEndpoints(d time.Duration) { c.stalledAt, c.stalledFor = time.Now(), d }

func (c *cluster) countServing(now time.Time) (n int) {
	for _, p := range c.pods {
		if c.isServing(p, now) {
			n++
		}
	}
	return n
}

// countHealthy returns how many pods the disruption controller counts as healthy. It sees them as the ReplicaSet controller does: both
// have the same informer of pods.
func (c *cluster) countHealthy() (n int) {
	for _, p := range c.pods {
		if c.isCounted(p) {
			n++
		}
	}
	return n
}

// isCounted reports whether the ReplicaSet controller knows that the pod is Ready.
func (c *cluster) isCounted(p *kubeapi.Pod) bool {
	since, ready := p.ReadyTime()
	return ready && p.DeletionTimestamp == nil && time.Since(since) >= c.readyLag
}

// isAvailable reports whether a CloneSet counts the pod as available. For the other kinds, that is the same as Ready.
func (c *cluster) isAvailable(p *kubeapi.Pod) bool {
	since, _ := p.ReadyTime()
	return c.isCounted(p) && time.Since(since) >= c.minReady
}

func (c *cluster) countAvailable() (n int) {
	for _, p := range c.pods {
		if c.isAvailable(p) {
			n++
		}
	}
	return n
}

// compareForDeletion is the order of ActivePodsWithRanks.Less of pkg/controller/controller_utils.go in Kubernetes 1.37. A CloneSet has the
// same order with one more step: Less of pkg/controller/cloneset/utils/pod_sorter.go in OpenKruise compares the availability before the
// readiness. Both rank pods on the same node after the deletion cost, which this cluster does not.
func (c *cluster) compareForDeletion(a, b *kubeapi.Pod) int {
	phases := map[string]int{"Pending": 0, "Unknown": 1, "Running": 2}
	toInt := func(v bool) int {
		if v {
			return 1
		}
		return 0
	}
	readyA, _ := a.ReadyTime()
	readyB, _ := b.ReadyTime()
	return cmp.Or(
		cmp.Compare(toInt(a.Spec.NodeName != ""), toInt(b.Spec.NodeName != "")),
		cmp.Compare(phases[a.Status.Phase], phases[b.Status.Phase]),
		cmp.Compare(toInt(c.isAvailable(a)), toInt(c.isAvailable(b))),
		cmp.Compare(toInt(c.isCounted(a)), toInt(c.isCounted(b))),
		cmp.Compare(toPodState(a).cost, toPodState(b).cost),
		readyB.Compare(readyA),
		b.CreationTimestamp.Compare(a.CreationTimestamp),
		cmp.Compare(a.UID, b.UID),
	)
}

func (c *cluster) updateStatus() {
	for _, w := range []*kubeapi.Workload{c.deployment, c.replicaSet} {
		if w == nil {
			continue
		}
		next, seen := w.Status, w.Generation
		if w == c.deployment && len(c.unseen) > 0 {
			seen = c.unseen[0].generation - 1
		}
		next.ObservedGeneration = json.RawMessage(strconv.FormatInt(seen, 10))
		next.Replicas, next.ReadyReplicas, next.AvailableReplicas = 0, 0, int32(c.countAvailable())
		for _, p := range c.pods {
			if p.DeletionTimestamp == nil {
				next.Replicas++
			}
			if c.isCounted(p) {
				next.ReadyReplicas++
			}
		}
		next.UpdatedReplicas = next.Replicas
		if next.Replicas != w.Status.Replicas || next.ReadyReplicas != w.Status.ReadyReplicas ||
			next.AvailableReplicas != w.Status.AvailableReplicas || string(next.ObservedGeneration) != string(w.Status.ObservedGeneration) {
			w.Status = next
			c.touch(&w.ObjectMeta)
		}
	}
}

// sized returns the workload that the user resizes.
func (c *cluster) sized() *kubeapi.Workload {
	if c.deployment != nil {
		return c.deployment
	}
	return c.replicaSet
}

// setReplicas changes the size of a workload. A write of the present value changes nothing, as in the API server.
func (c *cluster) setReplicas(w *kubeapi.Workload, size int32, manager string) {
	if *w.Spec.Replicas == size {
		return
	}
	w.Spec.Replicas, w.ManagedFields = &size, managedBy(manager, "replicas")
	w.Generation++
	if w == c.deployment {
		c.unseen = append(c.unseen, deploymentSize{time.Now(), size, w.Generation})
	}
	c.touch(&w.ObjectMeta)
}

// scaleByUser is kubectl scale. For an autoscaler it sets the minimum.
func (c *cluster) scaleByUser(size int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.scaled != nil:
		c.scaled.Spec.MinReplicaCount, c.scaled.ManagedFields, c.wantedAbsent = &size, managedBy("kubectl", "minReplicaCount"), false
		c.touch(&c.scaled.ObjectMeta)
	case c.hpa != nil:
		c.hpa.Spec.MinReplicas, c.hpa.ManagedFields = &size, managedBy("kubectl", "minReplicas")
		c.touch(&c.hpa.ObjectMeta)
	default:
		c.setReplicas(c.sized(), size, "kubectl")
	}
	c.wanted = size
	c.leastReady = min(c.leastReady, c.lowestReady())
}

// deleteTarget deletes the object that Slipway raises. The user then wants what it has wanted. A ReplicaSet without a Deployment stays.
func (c *cluster) deleteTarget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wanted, c.wantedAbsent = c.lowestWanted(), false
	switch {
	case c.scaled != nil:
		c.scaled, c.scaledGoneAt = nil, time.Now()
	case c.hpa != nil:
		c.hpa = nil
	case c.deployment != nil: // with --cascade=orphan
		c.deployment, c.replicaSet.OwnerReferences = nil, nil
	}
}

// lowestWanted returns the size below which the application must not be.
func (c *cluster) lowestWanted() int32 {
	if c.hpa != nil {
		return max(c.wanted, c.metric)
	}
	return c.wanted
}

// lowestReady returns how many pods have to be Ready at least.
func (c *cluster) lowestReady() int { return int(c.lowestWanted()) - len(c.unhealthy) }

// field returns the value that the user sets and Slipway raises.
func (c *cluster) field() *int32 {
	switch {
	case c.scaled != nil:
		return c.scaled.Spec.MinReplicaCount
	case c.hpa != nil:
		return c.hpa.Spec.MinReplicas
	}
	return c.sized().Spec.Replicas
}

func (c *cluster) cordon(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[node].Spec.Unschedulable = true
}

// podsOn returns the names of the pods on a node, in order.
func (c *cluster) podsOn(node string) (names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(c.pods)) {
		if c.pods[name].Spec.NodeName == node {
			names = append(names, name)
		}
	}
	return names
}

// currentField is field for a test.
func (c *cluster) currentField() int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v := c.field(); v != nil {
		return *v
	}
	return 0
}

// setReady makes a pod Ready, or not.
func (c *cluster) setReady(name string, ready bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	status := "False"
	if ready {
		status = "True"
	}
	c.pods[name].Status.Conditions = []kubeapi.Condition{{Type: "Ready", Status: status, LastTransitionTime: time.Now()}}
	c.notify(c.pods[name], false)
}

// restartContainer restarts the container of one of the pods that run.
func (c *cluster) restartContainer(r *rand.Rand) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(c.pods)) {
		if p := c.pods[name]; p.Status.Phase == "Running" && p.DeletionTimestamp == nil && r.IntN(2) == 0 {
			p.Status.ContainerStatuses = []kubeapi.ContainerStatus{restartedAt(time.Now())}
			p.Status.Conditions = []kubeapi.Condition{{Type: "Ready", Status: "False", LastTransitionTime: time.Now()}}
			c.notify(p, false)
			return
		}
	}
}

// longestStartup returns the longest start-up time that the pods show.
func (c *cluster) longestStartup() (longest time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pods {
		if took, known := toPodState(p).startup(); known {
			longest = max(longest, took)
		}
	}
	return longest
}

// leastCounts returns the least number of ready pods, and of ready endpoints, so far.
func (c *cluster) leastCounts() (ready, serving int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leastReady, c.leastServing
}

func (c *cluster) pod(name string) *kubeapi.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pods[name]; p != nil {
		return clone(p)
	}
	return nil
}

// findTraces returns a violation of I11 or the records that are left; empty if there is neither.
func (c *cluster) findTraces() string {
	violation := c.findI11Violation()
	c.mu.Lock()
	defer c.mu.Unlock()
	if violation == "" && len(c.leases) > 0 {
		return fmt.Sprintf("%d records are left over", len(c.leases))
	}
	return violation
}

// findI11Violation returns how the application differs from what its user wants; empty if it does not.
func (c *cluster) findI11Violation() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch v := c.field(); {
	case c.wantedAbsent && v != nil:
		return fmt.Sprintf("the minimum is %d, want it absent", *v)
	case !c.wantedAbsent && (v == nil || *v != c.wanted):
		return fmt.Sprintf("the field is %s, want %d", formatSize(v), c.wanted)
	case c.hpa != nil && !c.stuckScaler && *c.sized().Spec.Replicas != c.lowestWanted():
		return fmt.Sprintf("the autoscaler's size is %d, want %d", *c.sized().Spec.Replicas, c.lowestWanted())
	}
	for _, p := range c.pods {
		if _, ok := p.Annotations[DeletionCostAnnotation]; ok && p.DeletionTimestamp == nil {
			return fmt.Sprintf("pod %s still has a deletion cost", p.Name)
		}
	}
	return ""
}

// fault is what happens to one request.
type fault struct {
	before, after time.Duration
	fails         bool // before it is carried out
	overloaded    bool // the API server refuses it with code 429
	unanswered    bool // after it is carried out
	late          bool // it is carried out although the client no longer waits
	repeated      bool // a proxy sends a write twice, and the answer is the second one's
}

// client is the connection of one process.
type client struct {
	*cluster

	mu       sync.Mutex
	requests int
	dead     bool
	kill     context.CancelFunc
	// interruptAt interrupts the process at the request with this number.
	interruptAt  int
	interruption interruption
	nextFault    func(n int) fault
	faultOf      func(request string) fault // instead of nextFault
}

// interruption is how a process is interrupted at a request.
type interruption int

const (
	crashBefore interruption = iota // the request is not carried out
	crashAfter
	crashLate // a size or a deletion cost is changed after slowWebhook, other requests are not carried out
	cancelled // the process lives, and its context ends
)

func (i interruption) String() string {
	return [...]string{"not carried out before a crash", "carried out before a crash", "carried out long after a crash", "when the drain is cancelled"}[i]
}

func (c *cluster) newClient() *client { return &client{cluster: c, interruptAt: -1} }

// serve carries out one request of the process.
func (l *client) serve(ctx context.Context, name string, do func() error) error {
	l.mu.Lock()
	n := l.requests
	l.requests++
	dead, interrupted := l.dead, n == l.interruptAt
	crash := interrupted && l.interruption != cancelled
	var f fault
	if l.nextFault != nil {
		f = l.nextFault(n)
	}
	if l.faultOf != nil {
		f = l.faultOf(name)
	}
	if crash {
		l.dead = true
	}
	l.mu.Unlock()
	if dead {
		return errConnection
	}
	locked := func() error {
		l.cluster.mu.Lock()
		defer l.cluster.mu.Unlock()
		if l.forbidden[name] {
			return statusError(403, "Forbidden")
		}
		return do()
	}
	if crash {
		switch {
		case l.interruption == crashAfter:
			_ = locked()
		case l.interruption == crashLate && (name == "SetReplicas" || name == "SetMinSize" || name == "SetPodAnnotation"):
			time.AfterFunc(slowWebhook, func() { _ = locked() })
		}
		l.kill()
		return errConnection
	}
	if interrupted {
		l.kill()
	}
	switch {
	case f.fails:
		return errConnection
	case f.overloaded:
		return statusError(429, "TooManyRequests")
	}
	began := time.Now()
	if !elapsed.Sleep(ctx, time.Millisecond+f.before) {
		if f.late && isWrite(name) {
			go func() {
				time.Sleep(f.before - time.Since(began))
				_ = locked()
			}()
		}
		return ctx.Err()
	}
	if l.isDead() {
		return errConnection
	}
	err := locked()
	if f.repeated && isWrite(name) {
		err = locked()
	}
	if !elapsed.Sleep(ctx, f.after) {
		return ctx.Err()
	}
	if f.unanswered || l.isDead() {
		return errConnection
	}
	return err
}

func isWrite(request string) bool {
	return !strings.HasPrefix(request, "Get") && !strings.HasPrefix(request, "List") && !strings.HasPrefix(request, "Watch")
}

func (l *client) isDead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dead
}

func (l *client) requestCount() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.requests
}

// read carries out a request that returns a copy of an object, or of none.
func read[T any](ctx context.Context, l *client, name string, find func() *T) (out *T, err error) {
	err = l.serve(ctx, name, func() error {
		found := find()
		if found == nil {
			return statusError(404, "NotFound")
		}
		out = clone(found)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (l *client) findWorkload(r kubeapi.ObjectRef) *kubeapi.Workload {
	for _, w := range []*kubeapi.Workload{l.deployment, l.replicaSet} {
		if w != nil && w.Name == r.Name && (r.Kind == l.controller.Kind) == (w == l.replicaSet) {
			return w
		}
	}
	return nil
}

func (l *client) GetWorkload(ctx context.Context, r kubeapi.ObjectRef) (*kubeapi.Workload, error) {
	return read(ctx, l, "GetWorkload", func() *kubeapi.Workload { return l.findWorkload(r) })
}

func (l *client) GetHorizontalPodAutoscaler(ctx context.Context, _ kubeapi.ObjectRef) (*kubeapi.HorizontalPodAutoscaler, error) {
	return read(ctx, l, "GetHorizontalPodAutoscaler", func() *kubeapi.HorizontalPodAutoscaler { return l.hpa })
}

func (l *client) GetScaledObject(ctx context.Context, _ kubeapi.ObjectRef) (*kubeapi.ScaledObject, error) {
	return read(ctx, l, "GetScaledObject", func() *kubeapi.ScaledObject { return l.scaled })
}

func (l *client) ListHorizontalPodAutoscalers(ctx context.Context, _ string) (all []kubeapi.HorizontalPodAutoscaler, err error) {
	err = l.serve(ctx, "ListHorizontalPodAutoscalers", func() error {
		if l.hpa != nil {
			all = append(all, *clone(l.hpa))
		}
		return nil
	})
	return all, err
}

func checkPreconditions(m *kubeapi.ObjectMeta, uid, version string) error {
	if m.UID != uid || m.ResourceVersion != version {
		return statusError(409, "Conflict")
	}
	return nil
}

// checkNotBelow fails the test if Slipway writes a size below the user's, or raises it twice.
func (l *client) checkNotBelow(size *int32) {
	if l.hpa == nil && *size > l.wanted+1 {
		l.t.Errorf("Slipway sets %d, but the user wants %d", *size, l.wanted)
	}
	if size != nil && *size < l.wanted {
		l.t.Errorf("I11: Slipway sets %d, but the user wants %d", *size, l.wanted)
	}
}

func (l *client) SetReplicas(ctx context.Context, s kubeapi.SizeChange) error {
	return l.serve(ctx, "SetReplicas", func() error {
		w := l.findWorkload(s.Object)
		if w == nil {
			return statusError(404, "NotFound")
		}
		if err := checkPreconditions(&w.ObjectMeta, s.UID, s.ResourceVersion); err != nil {
			return err
		}
		l.checkNotBelow(s.Size)
		l.setReplicas(w, *s.Size, s.FieldManager)
		return nil
	})
}

func (l *client) SetMinSize(ctx context.Context, s kubeapi.SizeChange) error {
	return l.serve(ctx, "SetMinSize", func() error {
		isScaledObject := s.Object.Kind == "ScaledObject"
		if isScaledObject && l.scaled == nil || l.hpa == nil {
			return statusError(404, "NotFound")
		}
		meta, field, name := &l.hpa.ManagedMeta, &l.hpa.Spec.MinReplicas, "minReplicas"
		if isScaledObject {
			meta, field, name = &l.scaled.ManagedMeta, &l.scaled.Spec.MinReplicaCount, "minReplicaCount"
		}
		if err := checkPreconditions(&meta.ObjectMeta, s.UID, s.ResourceVersion); err != nil {
			return err
		}
		l.checkNotBelow(s.Size)
		if !isSame(*field, s.Size) {
			*field, meta.ManagedFields = s.Size, managedBy(s.FieldManager, name)
			l.touch(&meta.ObjectMeta)
		}
		return nil
	})
}

func (l *client) GetNode(ctx context.Context, name string) (*kubeapi.Node, error) {
	return read(ctx, l, "GetNode", func() *kubeapi.Node { return l.nodes[name] })
}

func (l *client) GetPod(ctx context.Context, _, name string) (*kubeapi.Pod, error) {
	return read(ctx, l, "GetPod", func() *kubeapi.Pod { return l.pods[name] })
}

func (l *client) listPods(selector labels.Selector) (all []kubeapi.Pod) {
	for _, p := range l.pods {
		if selector.Matches(labels.Set(p.Labels)) {
			all = append(all, *clone(p))
		}
	}
	return all
}

func (l *client) ListPods(ctx context.Context, _, selector string) (all []kubeapi.Pod, err error) {
	err = l.serve(ctx, "ListPods", func() error {
		s, err := labels.Parse(selector)
		all = l.listPods(s)
		return err
	})
	return all, err
}

func (l *client) WatchPods(ctx context.Context, _, selector string, h kubeapi.Handler[kubeapi.Pod]) error {
	s, err := labels.Parse(selector)
	if err != nil {
		return err
	}
	w := &watcher{selector: s, events: make(chan func(kubeapi.Handler[kubeapi.Pod]), 10000)}
	var all []kubeapi.Pod
	for l.serve(ctx, "WatchPods", func() error {
		all = l.listPods(s)
		l.watchers[w] = true
		return nil
	}) != nil {
		l.cluster.mu.Lock()
		delete(l.watchers, w)
		l.cluster.mu.Unlock()
		if !elapsed.Sleep(ctx, time.Second) {
			return ctx.Err()
		}
		w = &watcher{selector: s, events: make(chan func(kubeapi.Handler[kubeapi.Pod]), 10000)}
	}
	defer func() {
		l.cluster.mu.Lock()
		delete(l.watchers, w)
		l.cluster.mu.Unlock()
	}()
	h.Replaced(all)
	for {
		select {
		case event := <-w.events:
			if elapsed.Sleep(ctx, l.watchLag) && !l.isDead() {
				event(h)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *client) SetPodAnnotation(ctx context.Context, a kubeapi.AnnotationChange) error {
	return l.serve(ctx, "SetPodAnnotation", func() error {
		p := l.pods[a.Name]
		if p == nil {
			return statusError(404, "NotFound")
		}
		if err := checkPreconditions(&p.ObjectMeta, a.UID, a.ResourceVersion); err != nil {
			return err
		}
		if a.Value == nil {
			delete(p.Annotations, a.Key)
		} else {
			if p.Annotations == nil {
				p.Annotations = map[string]string{}
			}
			p.Annotations[a.Key] = *a.Value
		}
		l.notify(p, false)
		return nil
	})
}

func (l *client) ListEndpointSlices(ctx context.Context, _ string) (all []kubeapi.EndpointSlice, err error) {
	err = l.serve(ctx, "ListEndpointSlices", func() error {
		if l.noService {
			return nil
		}
		slice := kubeapi.EndpointSlice{ObjectMeta: kubeapi.ObjectMeta{
			Name: "web-x", Labels: map[string]string{"kubernetes.io/service-name": "web"},
		}}
		for _, p := range l.pods {
			ready := l.isServing(p, time.Now())
			e := kubeapi.Endpoint{TargetRef: &kubeapi.ObjectReference{Kind: "Pod", Name: p.Name, UID: p.UID}}
			e.Conditions.Ready = &ready
			slice.Endpoints = append(slice.Endpoints, e)
		}
		all = []kubeapi.EndpointSlice{slice}
		return nil
	})
	return all, err
}

func (l *client) GetPersistentVolumeClaim(ctx context.Context, _, name string) (*kubeapi.PersistentVolumeClaim, error) {
	return read(ctx, l, "GetPersistentVolumeClaim", func() *kubeapi.PersistentVolumeClaim { return l.claims[name] })
}

func (l *client) GetLease(ctx context.Context, _, name string) (*kubeapi.Lease, error) {
	return read(ctx, l, "GetLease", func() *kubeapi.Lease { return l.leases[name] })
}

func (l *client) ListCachedLeases(ctx context.Context, _, _ string) (all []kubeapi.Lease, err error) {
	err = l.serve(ctx, "ListCachedLeases", func() error {
		for _, lease := range l.leases {
			all = append(all, *clone(lease))
		}
		return nil
	})
	return all, err
}

func (l *client) putLease(lease kubeapi.Lease) *kubeapi.Lease {
	stored := clone(&lease)
	l.touch(&stored.ObjectMeta)
	if stored.UID == "" {
		stored.UID = "u-" + stored.ResourceVersion
	}
	l.leases[lease.Name] = stored
	return clone(stored)
}

// deleteRecordNamespace deletes the namespace of the records. The answer to the creation of another is then err.
func (c *cluster) deleteRecordNamespace(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.leases)
	c.noRecords = err
}

func (l *client) CreateLease(ctx context.Context, lease kubeapi.Lease) (*kubeapi.Lease, error) {
	var made *kubeapi.Lease
	err := l.serve(ctx, "CreateLease", func() error {
		if l.noRecords != nil {
			return l.noRecords
		}
		if l.leases[lease.Name] != nil {
			return statusError(409, "AlreadyExists")
		}
		made = l.putLease(lease)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return made, nil
}

func (l *client) UpdateLease(ctx context.Context, lease kubeapi.Lease) (*kubeapi.Lease, error) {
	var made *kubeapi.Lease
	err := l.serve(ctx, "UpdateLease", func() error {
		stored := l.leases[lease.Name]
		if stored == nil {
			return statusError(404, "NotFound")
		}
		if err := checkPreconditions(&stored.ObjectMeta, lease.UID, lease.ResourceVersion); err != nil {
			return err
		}
		made = l.putLease(lease)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return made, nil
}

func (l *client) DeleteLease(ctx context.Context, lease kubeapi.Lease) error {
	return l.serve(ctx, "DeleteLease", func() error {
		stored := l.leases[lease.Name]
		if stored == nil {
			return statusError(404, "NotFound")
		}
		if err := checkPreconditions(&stored.ObjectMeta, lease.UID, lease.ResourceVersion); err != nil {
			return err
		}
		delete(l.leases, lease.Name)
		return nil
	})
}
