package retirement_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/faultproxy"
)

// requestChecker checks every write request of a manager before the server receives it. It compares the request with the
// current state of the servers, which it reads directly, without faults. It does not see requests that never reach the
// server.
type requestChecker struct {
	*fixture
	limits limits
	// uids are the original UIDs of the nodes.
	uids map[string]types.UID

	mu sync.Mutex
	// podLists holds when the last answered list of the pods on a node was requested. deleted holds the time of the last
	// requested deletion, by Node.
	podLists map[listKey]time.Time
	deleted  map[string]time.Time
	// checkedRequests counts the requests that could have broken an invariant.
	checkedRequests int
	// protectedPods holds the protected pods, with their node and their start time.
	protectedPods map[string]protectedPod
}

// limits holds the limits that differ between fixtures.
type limits struct {
	// nodes is the number of nodes in the pool. minimum is the NodeGroup's minimum. budget is how many of its nodes may
	// be unavailable at once.
	nodes, minimum, budget int
	// othersRemoveNodes is set if other clients remove nodes. Then fewer nodes than the minimum may remain, without a
	// fault of the manager.
	othersRemoveNodes bool
	// pods is the namespace of the pods.
	pods string
	// maxAge is the maximum age of what a manager reads.
	maxAge time.Duration
}

// listKey identifies a list of the pods on a node. A manager does not know what a killed manager saw, and must list again.
// Managers in this process share their connections on a control plane, and count as one life there.
type listKey struct {
	life int
	node string
}

type protectedPod struct {
	node  string
	since time.Time
}

func newRequestChecker(f *fixture, l limits) *requestChecker {
	j := &requestChecker{
		fixture: f, limits: l, uids: map[string]types.UID{}, podLists: map[listKey]time.Time{}, deleted: map[string]time.Time{},
		protectedPods: map[string]protectedPod{},
	}
	for i := range l.nodes {
		node, err := f.Client().CoreV1().Nodes().Get(f.ctx, f.pool.NodeName(i), metav1.GetOptions{})
		f.check(err)
		j.uids[node.Name] = node.UID
	}
	return j
}

// attach makes the checker check the managers behind a proxy.
func (j *requestChecker) attach(proxy *faultproxy.Proxy) {
	proxy.OnResponse(j.recordPodList)
	proxy.OnWrite(j.checkRequest)
}

func (j *requestChecker) addProtectedPod(pod, node string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.protectedPods[pod] = protectedPod{node, time.Now()}
}

func (j *requestChecker) removeProtectedPod(pod string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.protectedPods, pod)
}

// recordPodList records when a manager lists the pods of a node. A refused list, or a list without a received answer,
// does not count.
func (j *requestChecker) recordPodList(r faultproxy.Request, asked time.Time, status int) {
	if status != http.StatusOK || j.ctx.Err() != nil {
		return
	}
	if r.Server != "api" || r.Method != http.MethodGet || r.Path != "/api/v1/pods" {
		return
	}
	if strings.Contains(r.Query, "status.phase%21%3DSucceeded") {
		return // this list fills the caches, which no retirement relies on
	}
	_, node, ok := strings.Cut(r.Query, "spec.nodeName%3D")
	if !ok {
		j.t.Errorf("%s lists the pods of more than a node", r)
		return
	}
	node, _, _ = strings.Cut(node, "&")
	j.mu.Lock()
	defer j.mu.Unlock()
	if by := (listKey{r.Life, node}); asked.After(j.podLists[by]) {
		j.podLists[by] = asked
	}
}

// cancelGrace is how long a manager may take to cut off a request that it no longer waits for. A drain that ends in time
// leaves no eviction behind. But the checker may still check an eviction while the manager records the retirement's end.
// cancelGrace is shorter than any request timeout.
const cancelGrace = 5 * time.Second

// checkRequest checks one request.
func (j *requestChecker) checkRequest(ctx context.Context, r faultproxy.Request, body []byte) {
	if j.ctx.Err() != nil {
		return
	}
	var err error
	segments := strings.Split(strings.Trim(r.Path, "/"), "/")
	last := segments[len(segments)-1]
	switch {
	case r.Server == "arm" && r.Method == http.MethodPost && (last == "delete" || last == "deleteMachines"):
		err = j.checkInstanceDeletions(r.Life, body)
	case r.Server == "arm" && strings.HasSuffix(r.Path, "/token"):
		return
	case r.Server == "arm":
		err = fmt.Errorf("unexpected request to ARM")
	case r.Method == http.MethodDelete && strings.HasPrefix(r.Path, "/api/v1/nodes/"):
		err = j.checkNodeDeletion(r.Life, last, body)
	case r.Method == http.MethodPatch && strings.HasPrefix(r.Path, "/api/v1/nodes/"):
		err = j.checkPatch(segments[3], body)
	case last == "eviction":
		err = j.checkEviction(segments[3], segments[5], body)
	case r.Method == http.MethodDelete && strings.Contains(r.Path, "/pods/"):
		err = fmt.Errorf("I2: pods are evicted, and never deleted")
	default:
		return
	}
	j.mu.Lock()
	j.checkedRequests++
	j.mu.Unlock()
	if err == nil || j.ctx.Err() != nil {
		return
	}
	select {
	case <-ctx.Done(): // the server never receives it
	case <-time.After(cancelGrace):
		if ctx.Err() == nil { // on a busy host both may have happened
			j.t.Errorf("%s: %v\nbody: %s", r, err, body)
		}
	}
}

// clusterState is the actual state of the servers.
type clusterState struct {
	nodes   map[string]*corev1.Node
	records v1alpha1.NodeRetirementList
}

func (j *requestChecker) readState() (clusterState, error) {
	now := clusterState{nodes: map[string]*corev1.Node{}}
	var nodes corev1.NodeList
	err := errors.Join(
		j.objects().List(j.ctx, &now.records, client.MatchingLabels{shard: j.name}),
		j.objects().List(j.ctx, &nodes, client.MatchingLabels{"kubernetes.azure.com/agentpool": j.pool.Name}),
	)
	for i := range nodes.Items {
		now.nodes[nodes.Items[i].Name] = &nodes.Items[i]
	}
	return now, err
}

// inFlight returns the retirements that are admitted and have not ended, by node.
func (now clusterState) inFlight() map[string]*v1alpha1.NodeRetirement {
	flying := map[string]*v1alpha1.NodeRetirement{}
	for i := range now.records.Items {
		rt := &now.records.Items[i]
		if meta.IsStatusConditionTrue(rt.Status.Conditions, v1alpha1.RetirementAdmitted) && !rt.Status.Phase.IsFinal() {
			flying[rt.Spec.NodeName] = rt
		}
	}
	return flying
}

// checkGroupLimits checks the group's minimum and budget (I5), and that the node may be retired.
func (j *requestChecker) checkGroupLimits(now clusterState, node string) error {
	flying := now.inFlight()
	if flying[node] == nil {
		return fmt.Errorf("I5: node %s has no admitted retirement", node)
	}
	stay, leaving := 0, 0
	for name, n := range now.nodes {
		switch {
		case n.UID != j.uids[name]:
		case flying[name] == nil:
			stay++
		case flying[name].Status.InstanceGone && !j.hasInstance(name):
			// Another client deleted it, and its cleanup disrupts nothing.
		default:
			leaving++
		}
	}
	if leaving > j.limits.budget {
		return fmt.Errorf("I5: %d nodes are being retired, and the budget is %d", leaving, j.limits.budget)
	}
	if stay < j.limits.minimum && !j.limits.othersRemoveNodes {
		return fmt.Errorf("I5: %d nodes remain, and the minimum is %d", stay, j.limits.minimum)
	}
	return nil
}

// checkSawRequests checks that the checker saw the requests. Without requests it would find no fault.
func (j *requestChecker) checkSawRequests(node string) {
	j.t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.checkedRequests == 0 {
		j.t.Error("the checker has seen no request that could break an invariant")
	}
	_, err := j.Client().CoreV1().Nodes().Get(j.ctx, node, metav1.GetOptions{})
	if asked := !j.deleted[node].IsZero(); apierrors.IsNotFound(err) && !asked {
		j.t.Errorf("node %s is gone, and the checker has seen no deletion of it", node)
	}
}

// checkNoProtectedPod checks that a node has no protected pod that was there, or could have been, at the last list (I1).
func (j *requestChecker) checkNoProtectedPod(life int, node string, since time.Time) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	last := j.podLists[listKey{life, node}]
	if last.Before(since) || last.IsZero() {
		return fmt.Errorf("I1: this manager last listed the pods on node %s at %s, want a list after %s", node, last, since)
	}
	for pod, k := range j.protectedPods {
		if k.node == node && k.since.Before(last.Add(-j.limits.maxAge)) { // a read may be this old
			return fmt.Errorf("I1: the protected pod %s has been on node %s since %s, and the list of %s lacked it", pod, node, k.since, last)
		}
	}
	return nil
}

// checkNodeDeletion checks the deletion of a Node.
func (j *requestChecker) checkNodeDeletion(life int, name string, body []byte) error {
	var options metav1.DeleteOptions
	if err := json.Unmarshal(body, &options); err != nil {
		return err
	}
	p := options.Preconditions
	if p == nil || p.UID == nil || p.ResourceVersion == nil {
		return fmt.Errorf("I7: want preconditions with the UID and the resourceVersion of the Node")
	}
	now, err := j.readState()
	if err != nil {
		return err
	}
	n := now.nodes[name]
	if n == nil || n.UID != *p.UID || n.ResourceVersion != *p.ResourceVersion {
		return nil // the API server refuses it
	}
	j.mu.Lock()
	j.deleted[name] = time.Now()
	j.mu.Unlock()
	switch {
	case j.capturedUID(now, name) != n.UID:
		return fmt.Errorf("I4: it is not the Node that the retirement captured, whose UID is %q", j.capturedUID(now, name))
	case slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "ToBeDeletedByClusterAutoscaler" }):
		return fmt.Errorf("I6: another tool is removing the node")
	case !n.Spec.Unschedulable:
		return fmt.Errorf("the node is not cordoned")
	}
	if err := j.checkGroupLimits(now, name); err != nil {
		return err
	}
	if rt := now.inFlight()[name]; rt.Status.InstanceGone {
		return nil // the previous pods are gone
	}
	if err := j.checkNoProtectedPod(life, name, time.Time{}); err != nil {
		return err
	}
	return j.checkDrained(name)
}

// capturedUID returns the UID of the Node that the current retirement is for.
func (j *requestChecker) capturedUID(now clusterState, node string) types.UID {
	rt := now.inFlight()[node]
	if rt == nil || rt.Status.Captured == nil {
		return ""
	}
	return rt.Status.Captured.NodeUID
}

// checkDrained checks that the pods that must be evicted are gone.
func (j *requestChecker) checkDrained(node string) error {
	selector := fields.OneTermEqualSelector("spec.nodeName", node).String()
	pods, err := j.Client().CoreV1().Pods(j.limits.pods).List(j.ctx, metav1.ListOptions{FieldSelector: selector})
	if err != nil {
		return err
	}
	for _, p := range pods.Items {
		if _, kept := p.Annotations["slipway.dev/do-not-evict"]; !kept {
			return fmt.Errorf("pod %s is still on the node", p.Name)
		}
	}
	return nil
}

// checkInstanceDeletions checks the deletion of instances.
func (j *requestChecker) checkInstanceDeletions(life int, body []byte) error {
	var request struct {
		InstanceIDs  []string `json:"instanceIds"`  // of a scale set
		MachineNames []string `json:"machineNames"` // of an agent pool
	}
	if err := json.Unmarshal(body, &request); err != nil {
		return err
	}
	now, err := j.readState()
	if err != nil {
		return err
	}
	for _, id := range request.InstanceIDs {
		instance, err := strconv.Atoi(id)
		if err != nil {
			return err
		}
		if err := j.checkInstanceDeletion(life, now, instance); err != nil {
			return fmt.Errorf("instance %s: %w", id, err)
		}
	}
	for _, name := range request.MachineNames {
		if err := j.checkInstanceDeletion(life, now, j.instanceNumber(name)); err != nil {
			return fmt.Errorf("instance %s: %w", name, err)
		}
	}
	return nil
}

func (j *requestChecker) checkInstanceDeletion(life int, now clusterState, instance int) error {
	node := j.pool.NodeName(instance)
	if n := now.nodes[node]; n != nil && n.UID == j.capturedUID(now, node) {
		return fmt.Errorf("I4: its Node exists")
	}
	rt := now.inFlight()[node]
	if rt == nil {
		return fmt.Errorf("I4: node %s has no admitted retirement", node)
	}
	if rt.Status.Captured == nil || !strings.EqualFold(rt.Status.Captured.ProviderID, j.pool.ProviderID(instance)) {
		return fmt.Errorf("I4: the retirement of node %s captured %v", node, rt.Status.Captured)
	}
	if rt.Status.Phase != v1alpha1.NodeDeleted {
		return fmt.Errorf("I8: the retirement of node %s is in phase %s, want NodeDeleted", node, rt.Status.Phase)
	}
	if err := j.checkGroupLimits(now, node); err != nil {
		return err
	}
	j.mu.Lock()
	since := j.deleted[node]
	j.mu.Unlock()
	return j.checkNoProtectedPod(life, node, since)
}

// checkPatch checks a change of a Node.
func (j *requestChecker) checkPatch(name string, body []byte) error {
	if !strings.Contains(string(body), "node.kubernetes.io/out-of-service") {
		return nil
	}
	if j.hasInstance(name) && !strings.Contains(string(body), `"taints":null`) {
		return fmt.Errorf("I7: the node is marked as out of service, and its instance exists")
	}
	return nil
}

// instanceNumber returns the number of a node's instance, or -1 if it is not in the pool.
func (j *requestChecker) instanceNumber(node string) int {
	return slices.Index(slices.Collect(j.nodeNames()), node)
}

func (j *requestChecker) hasInstance(node string) bool {
	_, there := j.ARM.VM(j.pool.ResourceName(j.instanceNumber(node)))
	return there
}

func (j *requestChecker) nodeNames() func(func(string) bool) {
	return func(yield func(string) bool) {
		for i := range j.limits.nodes {
			if !yield(j.pool.NodeName(i)) {
				return
			}
		}
	}
}

// checkEviction checks the eviction of a pod.
func (j *requestChecker) checkEviction(namespace, name string, body []byte) error {
	var eviction struct {
		DeleteOptions metav1.DeleteOptions `json:"deleteOptions"`
	}
	if err := json.Unmarshal(body, &eviction); err != nil {
		return err
	}
	p := eviction.DeleteOptions.Preconditions
	if p == nil || p.UID == nil {
		return fmt.Errorf("want a precondition with the UID of the pod")
	}
	pod, err := j.Client().CoreV1().Pods(namespace).Get(j.ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && pod.UID != *p.UID {
		return nil // the API server refuses it
	}
	if err != nil {
		return err
	}
	if _, kept := pod.Annotations["slipway.dev/do-not-evict"]; kept {
		return fmt.Errorf("I1: the pod is protected")
	}
	now, err := j.readState()
	if err != nil {
		return err
	}
	return j.checkGroupLimits(now, pod.Spec.NodeName)
}

// checkEndState checks the final state after all retirements have ended.
func (s *scheduleRun) checkEndState(ends map[int]*v1alpha1.NodeRetirement) {
	s.t.Helper()
	left := 0
	for i := range s.nodes {
		name := s.pool.NodeName(i)
		_, machine := s.ARM.VM(s.pool.ResourceName(i))
		node, err := s.Client().CoreV1().Nodes().Get(s.ctx, name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			s.t.Fatal(err)
		}
		if machine {
			left++
		}
		there := err == nil && node.UID == s.checker.uids[name]
		if err == nil {
			s.checkRestored(node)
		}
		switch rt := ends[i]; {
		case i >= s.retired:
			if !machine || !there {
				s.t.Errorf("node %s has no retirement: it exists: %t, its instance exists: %t", name, there, machine)
			}
		case rt == nil: // cancelled
			if !s.has(i, cancel) {
				s.t.Errorf("the NodeRetirement of %s is gone without a cancellation", name)
			}
			if machine != there && !s.has(i, instanceLost, deleteNode, recreate) {
				s.t.Errorf("I8: the retirement of %s was cancelled: its node exists: %t, its instance exists: %t", name, there, machine)
			}
		default:
			s.checkEndedNode(i, rt, there, machine)
		}
	}
	if got := s.ARM.Capacity(s.pool.ScaleSetName()); got != left {
		s.t.Errorf("I5: the capacity of the scale set is %d, and it has %d instances", got, left)
	}
}

// checkEndedNode checks the remaining state of a node after its retirement has ended.
func (s *scheduleRun) checkEndedNode(i int, rt *v1alpha1.NodeRetirement, there, machine bool) {
	s.t.Helper()
	phase, what := rt.Status.Phase, fmt.Sprintf("%s: %s", rt.Status.Phase, rt.Status.Message)
	switch {
	case phase == v1alpha1.Succeeded && (there || machine):
		s.t.Errorf("%s: its node exists: %t, its instance exists: %t", what, there, machine)
	case phase == v1alpha1.Succeeded:
	case !s.mayNotSucceed():
		s.t.Errorf("%s: want it to succeed", what)
	case phase == v1alpha1.Failed && !s.has(i, recreate):
		s.t.Errorf("%s: want it to fail only if the Node was created again", what)
	case !machine && !s.has(i, instanceLost):
		s.t.Errorf("%s: its instance is gone", what)
	case !there && !s.has(i, deleteNode, recreate, instanceLost):
		s.t.Errorf("%s: its node is gone", what)
	}
}
