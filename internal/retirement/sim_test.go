package retirement

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/drainability/fromkubeapi"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"

	"github.com/prometheus/client_golang/prometheus"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// sim is a cluster and a cloud in memory. A test can intercept every request. A request that an invariant forbids is
// recorded as a violation.
type sim struct {
	mu          sync.Mutex
	version     int
	nodes       map[string]*corev1.Node
	pods        map[string]*simPod
	volumes     []kubeapi.VolumeAttachment
	claims      map[string]string // namespace/name to the volume's name
	instances   map[string]*simInstance
	followers   map[int]follower
	retirements client.WithWatch
	groups      []v1alpha1.NodeGroup

	// intercept is called at each request, before and after it is served. Its error is the answer to the process.
	intercept         func(moment, request string) error
	requests          []string
	staleNode         func(*corev1.Node) *corev1.Node // the cached state of a Node; nil means the real one
	violations        []string
	deletionRequested map[string]bool // instances with a requested deletion
	vanished          map[string]bool // instances that disappeared without a deletion
}

type simPod struct {
	kubeapi.Pod
	evictionDenied bool          // by a PDB
	stopsAfter     time.Duration // negative is never
	onNewNode      bool          // a later Node of the same name has it, on another instance
}

type simInstance struct {
	cloud.Instance
	deletionTakes    time.Duration // duration of the deletion
	failingDeletions int           // number of deletions that fail
	op               *simOp
}

type simOp struct {
	id   string
	ends time.Time
	err  error
}

type follower struct {
	node string
	h    kubeapi.Handler[kubeapi.Pod]
}

func newSim(t *testing.T) *sim {
	t.Helper()
	scheme := runtime.NewScheme()
	must.NoError(t, errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)))
	s := &sim{
		nodes: map[string]*corev1.Node{}, pods: map[string]*simPod{}, instances: map[string]*simInstance{},
		followers: map[int]follower{}, deletionRequested: map[string]bool{}, vanished: map[string]bool{},
		intercept: func(string, string) error { return nil },
	}
	s.retirements = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.NodeRetirement{}).
		WithIndex(&v1alpha1.NodeRetirement{}, NodeNameField, func(o client.Object) []string {
			return []string{o.(*v1alpha1.NodeRetirement).Spec.NodeName}
		}).Build()
	return s
}

// serveRequest serves one request of the process.
func (s *sim) serveRequest(request string, serve func() error) error {
	s.mu.Lock()
	s.requests = append(s.requests, request)
	at := s.intercept
	s.mu.Unlock()
	if err := at("before", request); err != nil {
		return err
	}
	err := serve()
	return errors.Join(at("after", request), err)
}

// countRequests returns the number of requests so far.
func (s *sim) countRequests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests)
}

// interceptRequests calls a function before and after each request from now on. A drain may send requests concurrently.
func (s *sim) interceptRequests(happens func(moment, request string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.intercept = happens
}

// afterNodeDeletion calls a function after the first accepted deletion of a Node.
func (s *sim) afterNodeDeletion(happens func()) {
	var once sync.Once
	s.interceptRequests(func(moment, request string) error {
		if moment == "after" && request == "delete node" {
			once.Do(happens)
		}
		return nil
	})
}

func (s *sim) addViolation(format string, a ...any) {
	s.violations = append(s.violations, fmt.Sprintf(format, a...))
}

// newClient returns a process's client. Every request is intercepted. A cached client reads from caches that are up to
// date.
func (s *sim) newClient(cached bool) client.Client {
	name := func(verb string, o any) string {
		if cached && (verb == "get" || verb == "list") {
			verb = "cached " + verb
		}
		return fmt.Sprintf("%s %T", verb, o)
	}
	return interceptor.NewClient(s.retirements, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if n, ok := o.(*corev1.Node); ok {
				return s.serveRequest("cached get node", func() error { return s.getCachedNode(key.Name, n) })
			}
			return s.serveRequest(name("get", o), func() error { return c.Get(ctx, key, o, opts...) })
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if nodes, ok := list.(*corev1.NodeList); ok {
				return s.listNodes(nodes, opts...)
			}
			return s.serveRequest(name("list", list), func() error { return c.List(ctx, list, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return s.serveRequest(name("update", o), func() error { return c.Update(ctx, o, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return s.serveRequest(name("delete", o), func() error { return c.Delete(ctx, o, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			return s.serveRequest(name("update "+sub+" of", o), func() error { return c.SubResource(sub).Update(ctx, o, opts...) })
		},
	})
}

func (s *sim) getCachedNode(name string, into *corev1.Node) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[name]
	if s.staleNode != nil {
		n = s.staleNode(n)
	}
	if n == nil {
		return apierrors.NewNotFound(corev1.Resource("nodes"), name)
	}
	n.DeepCopyInto(into)
	return nil
}

// listNodes lists the selected nodes from a cache, or all of them page by page from the API server.
func (s *sim) listNodes(into *corev1.NodeList, opts ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(opts)
	list := func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
			n := s.nodes[name]
			if o.LabelSelector == nil || o.LabelSelector.Matches(toLabelSet(n)) {
				into.Items = append(into.Items, *n.DeepCopy())
			}
		}
		return nil
	}
	if o.Limit == 0 {
		return list()
	}
	return s.serveRequest("list nodes", list)
}

type labelSet map[string]string

func (l labelSet) Has(k string) bool              { _, ok := l[k]; return ok }
func (l labelSet) Get(k string) string            { return l[k] }
func (l labelSet) Lookup(k string) (string, bool) { v, ok := l[k]; return v, ok }
func toLabelSet(n *corev1.Node) labelSet          { return n.Labels }
func (s *sim) List(context.Context) ([]v1alpha1.NodeGroup, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.groups), nil
}

func newStatusError(code int, reason, message string) error {
	return &kubeapi.StatusError{Code: code, Reason: reason, Message: message}
}

var errNotThere = newStatusError(http.StatusNotFound, "NotFound", "not found")

// addNode adds a Ready node and its instance.
func (s *sim) addNode(name string, labels map[string]string) *corev1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.addReadyNode(name, "sim://"+name, labels)
	s.instances["sim://"+name] = newSimInstance(name)
	s.instances["sim://"+name].Group = labels[pool]
	return n.DeepCopy()
}

// addReadyNode adds a Ready node for an instance.
func (s *sim) addReadyNode(name, providerID string, labels map[string]string) *corev1.Node {
	s.version++
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID(fmt.Sprint("uid-", name, "-", s.version)), Labels: labels,
			ResourceVersion: strconv.Itoa(s.version),
		},
		Spec: corev1.NodeSpec{ProviderID: providerID},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue,
		}}},
	}
	s.nodes[name] = n
	return n
}

func newSimInstance(node string) *simInstance {
	return &simInstance{
		Instance: cloud.Instance{
			ProviderID: "sim://" + node, Name: "vm-" + node, ComputerName: node, UniqueID: "first-" + node, State: cloud.Running,
		},
		deletionTakes: 30 * time.Second,
	}
}

// reviveNode makes an existing Node Ready again and restores its instance, unless its deletion was requested.
func (s *sim) reviveNode(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[node]
	if n == nil || s.deletionRequested["sim://"+node] {
		return
	}
	if s.instances["sim://"+node] == nil {
		s.instances["sim://"+node] = newSimInstance(node)
	}
	n = n.DeepCopy()
	setReadyStatus(corev1.ConditionTrue)(n)
	s.storeNode(n)
}

// reregisterAs registers the instance's kubelet under another name. Its old Node is removed.
func (s *sim) reregisterAs(node, to string) {
	id := "sim://" + node
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.instances[id] == nil || s.deletionRequested[id] || s.nodes[to] != nil {
		return
	}
	delete(s.nodes, node)
	s.addReadyNode(to, id, map[string]string{pool: "ci"})
}

// changeNode changes a Node as another client would, if it exists.
func (s *sim) changeNode(name string, how func(*corev1.Node)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[name]; n != nil {
		n = n.DeepCopy()
		how(n)
		s.storeNode(n)
	}
}

func (s *sim) storeNode(n *corev1.Node) {
	s.version++
	n.ResourceVersion = strconv.Itoa(s.version)
	s.nodes[n.Name] = n
}

func (s *sim) getNode(name string) *corev1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes[name].DeepCopy()
}

func mustToKubeapi(n *corev1.Node) *kubeapi.Node {
	out, err := toKubeapiNode(n)
	if err != nil {
		panic(err)
	}
	return out
}

func (s *sim) GetNode(_ context.Context, name string) (out *kubeapi.Node, err error) {
	err = s.serveRequest("get node", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		n := s.nodes[name]
		if n == nil {
			return errNotThere
		}
		out = mustToKubeapi(n)
		return nil
	})
	return out, err
}

func (s *sim) PatchNode(_ context.Context, name string, patch []byte) (*kubeapi.Node, error) {
	return s.applyPatch("patch node", name, patch, jsonpatch.MergePatch)
}

func (s *sim) PatchNodeStatus(_ context.Context, name string, patch []byte) (*kubeapi.Node, error) {
	return s.applyPatch("patch node status", name, patch, func(doc, patch []byte) ([]byte, error) {
		return strategicpatch.StrategicMergePatch(doc, patch, corev1.Node{})
	})
}

func (s *sim) applyPatch(request, name string, applyPatch []byte, how func(doc, applyPatch []byte) ([]byte, error)) (out *kubeapi.Node, err error) {
	err = s.serveRequest(request, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		n := s.nodes[name]
		if n == nil {
			return errNotThere
		}
		var precondition struct {
			Metadata struct {
				ResourceVersion string `json:"resourceVersion"`
			} `json:"metadata"`
		}
		if err := json.Unmarshal(applyPatch, &precondition); err != nil {
			return err
		}
		if v := precondition.Metadata.ResourceVersion; v != "" && v != n.ResourceVersion {
			return newStatusError(http.StatusConflict, "Conflict", "changed")
		}
		raw, err := json.Marshal(n)
		if err != nil {
			return err
		}
		if raw, err = how(raw, applyPatch); err != nil {
			return err
		}
		var patched corev1.Node
		if err := json.Unmarshal(raw, &patched); err != nil {
			return err
		}
		s.checkTaintAllowed(n, &patched)
		s.storeNode(&patched)
		out = mustToKubeapi(&patched)
		return nil
	})
	return out, err
}

// checkTaintAllowed checks the invariants for the taint that deletes all pods of a Node.
func (s *sim) checkTaintAllowed(before, after *corev1.Node) {
	simCloud{s}.finishOperations()
	if hasOutOfServiceTaint(mustToKubeapi(after)) && !hasOutOfServiceTaint(mustToKubeapi(before)) && s.instances[after.Spec.ProviderID] != nil {
		s.addViolation("I7: Node %s is tainted with %s, and its instance lives", after.Name, outOfServiceTaint.Key)
	}
}

func (s *sim) DeleteNode(_ context.Context, name, uid, version string) (gone bool, err error) {
	err = s.serveRequest("delete node", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		n := s.nodes[name]
		switch {
		case n == nil:
			return errNotThere
		case string(n.UID) != uid || n.ResourceVersion != version:
			return newStatusError(http.StatusConflict, "Conflict", "changed")
		}
		if others := cordon.RemovingTools(mustToKubeapi(n)); len(others) > 0 {
			s.addViolation("I6: Node %s deleted while %v removes it", name, others)
		}
		if len(n.Finalizers) > 0 {
			n, now := n.DeepCopy(), metav1.Now()
			n.DeletionTimestamp = &now
			s.storeNode(n)
			return nil
		}
		delete(s.nodes, name)
		gone = true
		return nil
	})
	return gone && err == nil, err
}

// addPod binds a pod to a node.
func (s *sim) addPod(node, name string, how func(*simPod)) {
	p := &simPod{stopsAfter: 5 * time.Second}
	yes := true
	p.Namespace, p.Name, p.UID, p.Spec.NodeName, p.Status.Phase = "ns", name, "uid-"+name, node, "Running"
	p.OwnerReferences = []kubeapi.OwnerReference{{Kind: "ReplicaSet", Name: "web", Controller: &yes}}
	if how != nil {
		how(p)
	}
	s.mu.Lock()
	s.pods[p.UID] = p
	s.mu.Unlock()
	s.notifyFollowers(node)
}

func protectedPod(p *simPod) {
	p.Annotations = map[string]string{"slipway.dev/do-not-evict": "true"}
}

// allowEvictions makes every PDB allow evictions.
func (s *sim) allowEvictions() {
	for _, p := range s.pods {
		p.evictionDenied = false
	}
}

func uncordon(n *corev1.Node) { n.Spec.Unschedulable = false }

// removeNodeFinalizers removes the finalizers of a Node. If the Node is being deleted, it is then gone.
func (s *sim) removeNodeFinalizers(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[node].DeepCopy()
	n.Finalizers = nil
	s.storeNode(n)
	if n.DeletionTimestamp != nil {
		delete(s.nodes, node)
	}
}

func (s *sim) removePod(uid string) {
	s.mu.Lock()
	p := s.pods[uid]
	delete(s.pods, uid)
	s.mu.Unlock()
	if p != nil {
		s.notifyFollowers(p.Spec.NodeName)
	}
}

func (s *sim) listPodsOn(node string) []kubeapi.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []kubeapi.Pod
	for _, uid := range slices.Sorted(maps.Keys(s.pods)) {
		if p := s.pods[uid]; p.Spec.NodeName == node {
			all = append(all, p.Pod)
		}
	}
	return all
}

func (s *sim) notifyFollowers(node string) {
	s.mu.Lock()
	var events []follower
	for _, f := range s.followers {
		if f.node == node {
			events = append(events, f)
		}
	}
	s.mu.Unlock()
	for _, f := range events {
		f.h.Replaced(s.listPodsOn(node))
	}
}

func (s *sim) ListPodsOnNode(_ context.Context, node string) (all []kubeapi.Pod, err error) {
	err = s.serveRequest("list pods", func() error { all = s.listPodsOn(node); return nil })
	return all, err
}

func (s *sim) WatchPodsOnNode(ctx context.Context, node string, h kubeapi.Handler[kubeapi.Pod]) error {
	for {
		err := s.serveRequest("follow pods", func() error { return nil })
		if err == nil {
			break
		}
		h.Failed(err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
	s.mu.Lock()
	s.version++
	id := s.version
	s.followers[id] = follower{node, h}
	s.mu.Unlock()
	h.Replaced(s.listPodsOn(node))
	<-ctx.Done()
	s.mu.Lock()
	delete(s.followers, id)
	s.mu.Unlock()
	return ctx.Err()
}

func (s *sim) EvictPod(_ context.Context, r kubeapi.PodRemoval) error {
	return s.serveRequest("evict", func() error {
		s.mu.Lock()
		p := s.pods[r.UID]
		switch {
		case p == nil:
			s.mu.Unlock()
			return errNotThere
		case p.evictionDenied:
			s.mu.Unlock()
			return &kubeapi.StatusError{
				Code: http.StatusTooManyRequests, Reason: "TooManyRequests", Message: "Cannot evict pod as it would violate the pod's disruption budget.",
				Causes: []kubeapi.Cause{{Reason: "DisruptionBudget", Message: "The disruption budget web needs 1 healthy pods and has 1 currently"}},
			}
		}
		if p.DeletionTimestamp == nil {
			end, grace := time.Now().Add(30*time.Second), int64(30)
			changed := p.Pod
			changed.DeletionTimestamp, changed.DeletionGracePeriodSeconds = &end, &grace
			p.Pod = changed
			if p.stopsAfter >= 0 {
				time.AfterFunc(p.stopsAfter, func() { s.removePod(r.UID) })
			}
		}
		s.mu.Unlock()
		s.notifyFollowers(p.Spec.NodeName)
		return nil
	})
}

func (s *sim) SetDisruptionTarget(context.Context, kubeapi.PodDisruption) error { return nil }

func (s *sim) DeletePod(context.Context, kubeapi.PodRemoval) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addViolation("I2: a pod was deleted in spite of its PodDisruptionBudget by a voluntary drain")
	return nil
}

func (*sim) GetPodGroup(context.Context, string, string) (*kubeapi.PodGroup, error) {
	return nil, errors.New("podgroups are not served")
}

// WatchPodDisruptionBudgets returns no PDBs.
func (s *sim) WatchPodDisruptionBudgets(ctx context.Context, _ string, h kubeapi.Handler[kubeapi.PodDisruptionBudget]) error {
	for {
		err := s.serveRequest("follow budgets", func() error { return nil })
		if err == nil {
			break
		}
		h.Failed(err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
	h.Replaced(nil)
	<-ctx.Done()
	return ctx.Err()
}

func (s *sim) GetPersistentVolumeClaim(_ context.Context, namespace, name string) (claim *kubeapi.PersistentVolumeClaim, err error) {
	err = s.serveRequest("get claim", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		volume, ok := s.claims[namespace+"/"+name]
		if !ok {
			return errNotThere
		}
		claim = &kubeapi.PersistentVolumeClaim{}
		claim.Spec.VolumeName = volume
		return nil
	})
	return claim, err
}

func (s *sim) ListVolumeAttachments(context.Context) (all []kubeapi.VolumeAttachment, err error) {
	err = s.serveRequest("list volume attachments", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		all = slices.Clone(s.volumes)
		return nil
	})
	return all, err
}

// simCloud is the sim as a cloud.Provider.
type simCloud struct{ *sim }

func (simCloud) Name() string { return "sim" }

func (simCloud) ReportsDeletionProtection() {}

func (simCloud) ProviderIDFromSystemUUID(uuid string) (string, bool) {
	if uuid == "" {
		return "", false
	}
	return "sim://" + strings.ToLower(uuid), true
}

func (simCloud) Normalize(id string) (string, error) {
	if !strings.HasPrefix(id, "sim://") {
		return "", fmt.Errorf("%q: want sim://NAME", id)
	}
	return id, nil
}

func (simCloud) Group(context.Context, string) (cloud.Group, error) {
	return cloud.Group{}, errors.New("not asked for")
}

func (c simCloud) Instances(_ context.Context, group string) (all []cloud.Instance, err error) {
	err = c.serveRequest("cloud instances", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.finishOperations()
		for _, m := range c.instances {
			if m.Group == group {
				all = append(all, m.Instance)
			}
		}
		return nil
	})
	return all, err
}

func (simCloud) Templates(context.Context, string) ([]cloud.Template, error) {
	return nil, errors.New("not asked for")
}

func (simCloud) Grow(context.Context, string, cloud.LaunchRequest) (cloud.Operation, error) {
	return cloud.Operation{}, errors.New("not asked for")
}

func (c simCloud) Instance(_ context.Context, id string) (out cloud.Instance, err error) {
	err = c.serveRequest("cloud instance", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.finishOperations()
		m := c.instances[id]
		if m == nil {
			return &cloud.NotFoundError{Kind: "instance", Name: id}
		}
		out = m.Instance
		return nil
	})
	return out, err
}

// finishOperations applies the results of operations that are due.
func (c simCloud) finishOperations() {
	for id, m := range c.instances {
		switch {
		case m.op == nil || time.Now().Before(m.op.ends):
		case m.op.err != nil:
			m.State = cloud.Failed
		default:
			delete(c.instances, id)
		}
	}
}

func (c simCloud) Delete(_ context.Context, id string) (op cloud.Operation, err error) {
	err = c.serveRequest("cloud delete", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.finishOperations()
		c.deletionRequested[id] = true
		m := c.instances[id]
		if m == nil {
			return &cloud.NotFoundError{Kind: "instance", Name: id}
		}
		c.checkDeletionAllowed(m)
		if m.op == nil || m.op.err != nil {
			c.version++
			m.op = &simOp{id: fmt.Sprint("op-", c.version), ends: time.Now().Add(m.deletionTakes)}
			m.State = cloud.Deleting
			if m.failingDeletions > 0 {
				m.failingDeletions--
				m.op.err = errors.New("InternalExecutionError")
			}
		}
		op = cloud.Operation{ID: m.op.id, Started: time.Now()}
		return nil
	})
	return op, err
}

// checkDeletionAllowed checks the invariants for a deletion.
func (c simCloud) checkDeletionAllowed(m *simInstance) {
	for _, p := range c.pods {
		facts := fromkubeapi.PodFacts(&p.Pod)
		if p.Spec.NodeName == m.ComputerName && !p.onNewNode && podrules.VoluntaryPolicy().Decide(&facts, time.Now()).Rule == podrules.RuleProtected {
			c.addViolation("I1: instance %s deleted with the protected pod %s on it", m.Name, p.Name)
		}
	}
	for _, n := range c.nodes {
		if n.Spec.ProviderID == m.ProviderID {
			c.addViolation("I4: instance %s deleted while it is the Node %s (%s)", m.Name, n.Name, n.UID)
		}
	}
}

func (c simCloud) Status(_ context.Context, op cloud.Operation) (out cloud.OperationStatus, err error) {
	err = c.serveRequest("cloud status", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		out.Done = true
		for _, m := range c.instances {
			if m.op != nil && m.op.id == op.ID {
				out.Done = !time.Now().Before(m.op.ends)
				if out.Done {
					out.Err = m.op.err
				}
			}
		}
		c.finishOperations()
		return nil
	})
	return out, err
}

// newController returns the controller of a new process.
func (s *sim) newController(t *testing.T) *Controller {
	t.Helper()
	metrics := must.Get(NewMetrics(prometheus.NewRegistry()))(t)
	return New(Options{
		Client: s.newClient(true), LiveReader: s.newClient(false), API: s, Groups: s, Clouds: map[string]cloud.Provider{"sim": simCloud{s}},
		Events: &events.FakeRecorder{}, Metrics: metrics, Log: slog.New(slog.DiscardHandler), TTL: 1000 * time.Hour,
	})
}

// newRecordedController returns the controller of a new process. emitted returns the texts of its Events since the last
// call.
func (s *sim) newRecordedController(t *testing.T) (c *Controller, emitted func() []string) {
	t.Helper()
	c = s.newController(t)
	recorder := events.NewFakeRecorder(1000)
	c.options.Events, c.events = recorder, eventRecorder{recorder}
	return c, func() (all []string) {
		for len(recorder.Events) > 0 {
			all = append(all, <-recorder.Events)
		}
		return all
	}
}

// createRetirement creates a NodeRetirement.
func (s *sim) createRetirement(t *testing.T, name string, spec v1alpha1.NodeRetirementSpec) {
	t.Helper()
	rt := &v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID("rt-" + name), CreationTimestamp: metav1.Now(),
	}, Spec: spec}
	must.NoError(t, s.retirements.Create(context.Background(), rt))
}

// getRetirement returns a NodeRetirement, or nil if it does not exist.
func (s *sim) getRetirement(name string) *v1alpha1.NodeRetirement {
	rt := &v1alpha1.NodeRetirement{}
	if err := s.retirements.Get(context.Background(), client.ObjectKey{Name: name}, rt); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		panic(err)
	}
	return rt
}

// reconcileOnce reconciles once and waits for the requested pause, at most 30 s.
func (s *sim) reconcileOnce(ctx context.Context, c *Controller, name string) {
	result, err := c.Reconcile(ctx, reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
	pause := min(result.RequeueAfter, 30*time.Second)
	if err != nil {
		pause = time.Second
	}
	if pause > 0 {
		time.Sleep(pause)
	}
}

// reconcileUntilDone reconciles until the retirement is finished without a finalizer, its record is deleted, or the
// time has passed.
func (s *sim) reconcileUntilDone(ctx context.Context, c *Controller, name string, within time.Duration) *v1alpha1.NodeRetirement {
	for end := time.Now().Add(within); time.Now().Before(end); {
		rt := s.getRetirement(name)
		if rt == nil || rt.Status.Phase.IsFinal() && len(rt.Finalizers) == 0 {
			return rt
		}
		s.reconcileOnce(ctx, c, name)
		time.Sleep(time.Millisecond)
	}
	return s.getRetirement(name)
}

// checkRestored returns an error for everything that a retirement left on a node (I3).
func checkRestored(n *corev1.Node) error {
	if records, _ := cordon.ListRecords(mustToKubeapi(n)); len(records) > 0 {
		return fmt.Errorf("I3: %s has records: %v", n.Name, records)
	}
	for _, t := range n.Spec.Taints {
		if t.Key == outOfServiceTaint.Key {
			return fmt.Errorf("I3: %s has the taint %s", n.Name, t.Key)
		}
	}
	for _, c := range n.Status.Conditions {
		if c.Type == cordon.DrainInProgress {
			return fmt.Errorf("I3: %s has the condition %s", n.Name, c.Type)
		}
	}
	return nil
}

// setVolumes sets the attachments of volumes.
func (s *sim) setVolumes(attachments []kubeapi.VolumeAttachment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.volumes = attachments
}

// newAttachments returns the attachment of one volume to a node.
func newAttachments(node string) []kubeapi.VolumeAttachment {
	volume := "pv-1"
	var a kubeapi.VolumeAttachment
	a.Name, a.Spec.NodeName, a.Spec.Source.PersistentVolumeName = "va-1", node, &volume
	return []kubeapi.VolumeAttachment{a}
}
