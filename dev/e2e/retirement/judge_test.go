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

// judge checks every write request of a manager before the server receives it. It compares the request with the current
// state of the servers, which it reads directly, without faults. It does not see requests that never reach the server.
type judge struct {
	*fixture
	law law
	// uids are the original UIDs of the nodes.
	uids map[string]types.UID

	mu sync.Mutex
	// looks holds when the last answered list of the pods on a node was requested. deleted holds the time of the last
	// requested deletion, by Node.
	looks   map[look]time.Time
	deleted map[string]time.Time
	// weighed counts the requests that could have broken an invariant.
	weighed int
	// kept holds the protected pods, with their node and their start time.
	kept map[string]keptPod
}

// law holds the limits that differ between fixtures.
type law struct {
	// nodes is the number of nodes in the pool. minimum is the NodeGroup's minimum. budget is how many of its nodes may
	// be unavailable at once.
	nodes, minimum, budget int
	// bereft is set if other clients remove nodes. Then fewer nodes than the minimum may remain, without a fault of the
	// manager.
	bereft bool
	// pods is the namespace of the pods.
	pods string
	// stale is the maximum age of what a manager reads.
	stale time.Duration
}

// look identifies a list of the pods on a node. A manager does not know what a killed manager saw, and must list again.
// Managers in this process share their connections on a control plane, and count as one life there.
type look struct {
	life int
	node string
}

type keptPod struct {
	node  string
	since time.Time
}

func newJudge(f *fixture, l law) *judge {
	j := &judge{
		fixture: f, law: l, uids: map[string]types.UID{}, looks: map[look]time.Time{}, deleted: map[string]time.Time{},
		kept: map[string]keptPod{},
	}
	for i := range l.nodes {
		node, err := f.Client().CoreV1().Nodes().Get(f.ctx, f.pool.NodeName(i), metav1.GetOptions{})
		f.check(err)
		j.uids[node.Name] = node.UID
	}
	return j
}

// watches makes the judge check the managers behind a proxy.
func (j *judge) watches(proxy *faultproxy.Proxy) {
	proxy.OnResponse(j.answered)
	proxy.OnWrite(j.asked)
}

func (j *judge) protected(pod, node string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.kept[pod] = keptPod{node, time.Now()}
}

func (j *judge) unprotected(pod string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.kept, pod)
}

// answered records when a manager lists the pods of a node. A refused list, or a list without a received answer, does not
// count.
func (j *judge) answered(r faultproxy.Request, asked time.Time, status int) {
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
	if by := (look{r.Life, node}); asked.After(j.looks[by]) {
		j.looks[by] = asked
	}
}

// givingUp is how long a manager may take to cut off a request that it no longer waits for. A drain that ends in time
// leaves no eviction behind. But the judge may still check an eviction while the manager records the retirement's end.
// givingUp is shorter than any request timeout.
const givingUp = 5 * time.Second

// asked checks one request.
func (j *judge) asked(ctx context.Context, r faultproxy.Request, body []byte) {
	if j.ctx.Err() != nil {
		return
	}
	var err error
	segments := strings.Split(strings.Trim(r.Path, "/"), "/")
	last := segments[len(segments)-1]
	switch {
	case r.Server == "arm" && r.Method == http.MethodPost && (last == "delete" || last == "deleteMachines"):
		err = j.machines(r.Life, body)
	case r.Server == "arm" && strings.HasSuffix(r.Path, "/token"):
		return
	case r.Server == "arm":
		err = fmt.Errorf("want no such request of ARM")
	case r.Method == http.MethodDelete && strings.HasPrefix(r.Path, "/api/v1/nodes/"):
		err = j.node(r.Life, last, body)
	case r.Method == http.MethodPatch && strings.HasPrefix(r.Path, "/api/v1/nodes/"):
		err = j.patch(segments[3], body)
	case last == "eviction":
		err = j.eviction(segments[3], segments[5], body)
	case r.Method == http.MethodDelete && strings.Contains(r.Path, "/pods/"):
		err = fmt.Errorf("I2: pods are evicted, and never deleted")
	default:
		return
	}
	j.mu.Lock()
	j.weighed++
	j.mu.Unlock()
	if err == nil || j.ctx.Err() != nil {
		return
	}
	select {
	case <-ctx.Done(): // the server never receives it
	case <-time.After(givingUp):
		if ctx.Err() == nil { // on a busy host both may have happened
			j.t.Errorf("%s: %v\nbody: %s", r, err, body)
		}
	}
}

// truth is the actual state of the servers.
type truth struct {
	nodes   map[string]*corev1.Node
	records v1alpha1.NodeRetirementList
}

func (j *judge) truth() (truth, error) {
	now := truth{nodes: map[string]*corev1.Node{}}
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
func (now truth) inFlight() map[string]*v1alpha1.NodeRetirement {
	flying := map[string]*v1alpha1.NodeRetirement{}
	for i := range now.records.Items {
		rt := &now.records.Items[i]
		if meta.IsStatusConditionTrue(rt.Status.Conditions, v1alpha1.RetirementAdmitted) && !rt.Status.Phase.IsFinal() {
			flying[rt.Spec.NodeName] = rt
		}
	}
	return flying
}

// bounds checks the group's minimum and budget (I5), and that the node may be retired.
func (j *judge) bounds(now truth, node string) error {
	flying := now.inFlight()
	if flying[node] == nil {
		return fmt.Errorf("I5: no retirement of node %s is admitted and under way", node)
	}
	stay, leaving := 0, 0
	for name, n := range now.nodes {
		switch {
		case n.UID != j.uids[name]:
		case flying[name] == nil:
			stay++
		case flying[name].Status.InstanceGone && !j.machineThere(name):
			// Another client deleted it, and its cleanup disrupts nothing.
		default:
			leaving++
		}
	}
	if leaving > j.law.budget {
		return fmt.Errorf("I5: %d nodes are being retired, and the budget is %d", leaving, j.law.budget)
	}
	if stay < j.law.minimum && !j.law.bereft {
		return fmt.Errorf("I5: %d nodes stay, and the minimum is %d", stay, j.law.minimum)
	}
	return nil
}

// sawAll checks that the judge saw the requests. Without requests it would find no fault.
func (j *judge) sawAll(node string) {
	j.t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.weighed == 0 {
		j.t.Error("the judge has seen no request that could break an invariant")
	}
	_, err := j.Client().CoreV1().Nodes().Get(j.ctx, node, metav1.GetOptions{})
	if asked := !j.deleted[node].IsZero(); apierrors.IsNotFound(err) && !asked {
		j.t.Errorf("node %s is gone, and the judge has seen no deletion of it", node)
	}
}

// unprotectedNode checks that a node has no protected pod that was there, or could have been, at the last list (I1).
func (j *judge) unprotectedNode(life int, node string, since time.Time) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	last := j.looks[look{life, node}]
	if last.Before(since) || last.IsZero() {
		return fmt.Errorf("I1: this manager last looked at the pods on node %s at %s: want it after %s", node, last, since)
	}
	for pod, k := range j.kept {
		if k.node == node && k.since.Before(last.Add(-j.law.stale)) { // a read may be this old
			return fmt.Errorf("I1: the protected pod %s has been on node %s since %s, and was overlooked at %s", pod, node, k.since, last)
		}
	}
	return nil
}

// node checks the deletion of a Node.
func (j *judge) node(life int, name string, body []byte) error {
	var options metav1.DeleteOptions
	if err := json.Unmarshal(body, &options); err != nil {
		return err
	}
	p := options.Preconditions
	if p == nil || p.UID == nil || p.ResourceVersion == nil {
		return fmt.Errorf("I7: want it with the UID and the version of the Node that was looked at")
	}
	now, err := j.truth()
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
	case j.captured(now, name) != n.UID:
		return fmt.Errorf("I4: it is not the Node that the retirement captured, whose UID is %q", j.captured(now, name))
	case slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "ToBeDeletedByClusterAutoscaler" }):
		return fmt.Errorf("I6: another tool is removing the node")
	case !n.Spec.Unschedulable:
		return fmt.Errorf("the node is not cordoned")
	}
	if err := j.bounds(now, name); err != nil {
		return err
	}
	if rt := now.inFlight()[name]; rt.Status.InstanceGone {
		return nil // the previous pods are gone
	}
	if err := j.unprotectedNode(life, name, time.Time{}); err != nil {
		return err
	}
	return j.drained(name)
}

// captured returns the UID of the Node that the current retirement is for.
func (j *judge) captured(now truth, node string) types.UID {
	rt := now.inFlight()[node]
	if rt == nil || rt.Status.Captured == nil {
		return ""
	}
	return rt.Status.Captured.NodeUID
}

// drained checks that the pods that must be evicted are gone.
func (j *judge) drained(node string) error {
	selector := fields.OneTermEqualSelector("spec.nodeName", node).String()
	pods, err := j.Client().CoreV1().Pods(j.law.pods).List(j.ctx, metav1.ListOptions{FieldSelector: selector})
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

// machines checks the deletion of instances.
func (j *judge) machines(life int, body []byte) error {
	var request struct {
		InstanceIDs  []string `json:"instanceIds"`  // of a scale set
		MachineNames []string `json:"machineNames"` // of an agent pool
	}
	if err := json.Unmarshal(body, &request); err != nil {
		return err
	}
	now, err := j.truth()
	if err != nil {
		return err
	}
	for _, id := range request.InstanceIDs {
		instance, err := strconv.Atoi(id)
		if err != nil {
			return err
		}
		if err := j.machine(life, now, instance); err != nil {
			return fmt.Errorf("machine %s: %w", id, err)
		}
	}
	for _, name := range request.MachineNames {
		if err := j.machine(life, now, j.instance(name)); err != nil {
			return fmt.Errorf("machine %s: %w", name, err)
		}
	}
	return nil
}

func (j *judge) machine(life int, now truth, instance int) error {
	node := j.pool.NodeName(instance)
	if n := now.nodes[node]; n != nil && n.UID == j.captured(now, node) {
		return fmt.Errorf("I4: its Node is there")
	}
	rt := now.inFlight()[node]
	if rt == nil {
		return fmt.Errorf("I4: no retirement of node %s is under way", node)
	}
	if rt.Status.Captured == nil || !strings.EqualFold(rt.Status.Captured.ProviderID, j.pool.ProviderID(instance)) {
		return fmt.Errorf("I4: the retirement of node %s captured %v", node, rt.Status.Captured)
	}
	if rt.Status.Phase != v1alpha1.NodeDeleted {
		return fmt.Errorf("I8: the retirement of node %s is in phase %s, want it written down that the Node is deleted", node, rt.Status.Phase)
	}
	if err := j.bounds(now, node); err != nil {
		return err
	}
	j.mu.Lock()
	since := j.deleted[node]
	j.mu.Unlock()
	return j.unprotectedNode(life, node, since)
}

// patch checks a change of a Node.
func (j *judge) patch(name string, body []byte) error {
	if !strings.Contains(string(body), "node.kubernetes.io/out-of-service") {
		return nil
	}
	if j.machineThere(name) && !strings.Contains(string(body), `"taints":null`) {
		return fmt.Errorf("I7: the node is said to be out of service, and its machine is there")
	}
	return nil
}

// instance returns the number of a node's instance, or -1 if it is not in the pool.
func (j *judge) instance(node string) int {
	return slices.Index(slices.Collect(j.names()), node)
}

func (j *judge) machineThere(node string) bool {
	_, there := j.ARM.VM(j.pool.ResourceName(j.instance(node)))
	return there
}

func (j *judge) names() func(func(string) bool) {
	return func(yield func(string) bool) {
		for i := range j.law.nodes {
			if !yield(j.pool.NodeName(i)) {
				return
			}
		}
	}
}

// eviction checks the eviction of a pod.
func (j *judge) eviction(namespace, name string, body []byte) error {
	var eviction struct {
		DeleteOptions metav1.DeleteOptions `json:"deleteOptions"`
	}
	if err := json.Unmarshal(body, &eviction); err != nil {
		return err
	}
	p := eviction.DeleteOptions.Preconditions
	if p == nil || p.UID == nil {
		return fmt.Errorf("want it with the UID of the pod that was looked at")
	}
	pod, err := j.Client().CoreV1().Pods(namespace).Get(j.ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && pod.UID != *p.UID {
		return nil // the API server refuses it
	}
	if err != nil {
		return err
	}
	if _, kept := pod.Annotations["slipway.dev/do-not-evict"]; kept {
		return fmt.Errorf("I1: the pod asks not to be evicted")
	}
	now, err := j.truth()
	if err != nil {
		return err
	}
	return j.bounds(now, pod.Spec.NodeName)
}

// reached checks the final state after all retirements have ended.
func (s *stage) reached(ends map[int]*v1alpha1.NodeRetirement) {
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
		there := err == nil && node.UID == s.judge.uids[name]
		if err == nil {
			s.untouched(node)
		}
		switch rt := ends[i]; {
		case i >= s.retired:
			if !machine || !there {
				s.t.Errorf("node %s was not to be retired: it is there: %t, its machine: %t", name, there, machine)
			}
		case rt == nil: // cancelled
			if !s.has(i, cancel) {
				s.t.Errorf("the NodeRetirement of %s is gone, and nobody has called it off", name)
			}
			if machine != there && !s.has(i, lose, deleteNode, recreate) {
				s.t.Errorf("I8: the retirement of %s was cancelled: its node is there: %t, its machine: %t", name, there, machine)
			}
		default:
			s.ended(i, rt, there, machine)
		}
	}
	if got := s.ARM.Capacity(s.pool.ScaleSetName()); got != left {
		s.t.Errorf("I5: the scale set is meant to have %d machines, and has %d", got, left)
	}
}

// ended checks the remaining state of a node after its retirement has ended.
func (s *stage) ended(i int, rt *v1alpha1.NodeRetirement, there, machine bool) {
	s.t.Helper()
	phase, what := rt.Status.Phase, fmt.Sprintf("%s: %s", rt.Status.Phase, rt.Status.Message)
	switch {
	case phase == v1alpha1.Succeeded && (there || machine):
		s.t.Errorf("%s: its node is there: %t, its machine: %t", what, there, machine)
	case phase == v1alpha1.Succeeded:
	case !s.disturbed():
		s.t.Errorf("%s: want it to succeed", what)
	case phase == v1alpha1.Failed && !s.has(i, recreate):
		s.t.Errorf("%s: want it to be left half done only where the Node came back as another", what)
	case !machine && !s.has(i, lose):
		s.t.Errorf("%s: its machine is gone", what)
	case !there && !s.has(i, deleteNode, recreate, lose):
		s.t.Errorf("%s: its node is gone", what)
	}
}
