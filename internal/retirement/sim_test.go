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
)

// sim is a cluster and a cloud in memory, in which a test can step in at every request. It breaks off with a violation
// when a request is made that an invariant forbids.
type sim struct {
	mu        sync.Mutex
	version   int
	nodes     map[string]*corev1.Node
	pods      map[string]*simPod
	volumes   []kubeapi.VolumeAttachment
	claims    map[string]string // namespace/name to the volume's name
	machines  map[string]*machine
	followers map[int]follower
	records   client.WithWatch
	groups    []v1alpha1.NodeGroup

	// at is asked at each request, before it is served and after; an error is what the process gets instead.
	at         func(moment, request string) error
	requests   []string
	stale      func(*corev1.Node) *corev1.Node // what the cache has in place of a Node; nil is the Node
	violations []string
	touched    map[string]bool // machines whose deletion was asked for
	gone       map[string]bool // retirements' machines that vanished by themselves
}

type simPod struct {
	kubeapi.Pod
	denied bool          // by a disruption budget
	stops  time.Duration // below zero is never
}

type machine struct {
	cloud.Instance
	takes time.Duration // to be deleted
	fails int           // so many deletions
	op    *simOp
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
	if err := errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	s := &sim{
		nodes: map[string]*corev1.Node{}, pods: map[string]*simPod{}, machines: map[string]*machine{},
		followers: map[int]follower{}, touched: map[string]bool{}, gone: map[string]bool{},
		at: func(string, string) error { return nil },
	}
	s.records = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.NodeRetirement{}).
		WithIndex(&v1alpha1.NodeRetirement{}, NodeNameField, func(o client.Object) []string {
			return []string{o.(*v1alpha1.NodeRetirement).Spec.NodeName}
		}).Build()
	return s
}

// ask serves one request of the process.
func (s *sim) ask(request string, serve func() error) error {
	s.mu.Lock()
	s.requests = append(s.requests, request)
	at := s.at
	s.mu.Unlock()
	if err := at("before", request); err != nil {
		return err
	}
	err := serve()
	return errors.Join(at("after", request), err)
}

// asks is how many requests were made so far.
func (s *sim) asks() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests)
}

// atEach has happens called before and after each request from now on. A drain may be asking for something meanwhile.
func (s *sim) atEach(happens func(moment, request string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = happens
}

// onceNodeDeleted has something happen when the API server has taken the first deletion of a Node.
func (s *sim) onceNodeDeleted(happens func()) {
	var once sync.Once
	s.atEach(func(moment, request string) error {
		if moment == "after" && request == "delete node" {
			once.Do(happens)
		}
		return nil
	})
}

func (s *sim) violate(format string, a ...any) {
	s.violations = append(s.violations, fmt.Sprintf(format, a...))
}

// client is the controller-runtime client of a process, whose every request is asked for. That of a manager reads from caches,
// which have all that the API server has.
func (s *sim) client(cached bool) client.Client {
	name := func(verb string, o any) string {
		if cached && (verb == "get" || verb == "list") {
			verb = "cached " + verb
		}
		return fmt.Sprintf("%s %T", verb, o)
	}
	return interceptor.NewClient(s.records, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if n, ok := o.(*corev1.Node); ok {
				return s.ask("cached get node", func() error { return s.cachedNode(key.Name, n) })
			}
			return s.ask(name("get", o), func() error { return c.Get(ctx, key, o, opts...) })
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if nodes, ok := list.(*corev1.NodeList); ok {
				return s.listNodes(nodes, opts...)
			}
			return s.ask(name("list", list), func() error { return c.List(ctx, list, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return s.ask(name("update", o), func() error { return c.Update(ctx, o, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return s.ask(name("delete", o), func() error { return c.Delete(ctx, o, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			return s.ask(name("update "+sub+" of", o), func() error { return c.SubResource(sub).Update(ctx, o, opts...) })
		},
	})
}

// cachedNode reads a Node from the cache.
func (s *sim) cachedNode(name string, into *corev1.Node) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[name]
	if s.stale != nil {
		n = s.stale(n)
	}
	if n == nil {
		return apierrors.NewNotFound(corev1.Resource("nodes"), name)
	}
	n.DeepCopyInto(into)
	return nil
}

// listNodes lists those of a group from a cache, and all of them, page by page, past it.
func (s *sim) listNodes(into *corev1.NodeList, opts ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(opts)
	list := func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
			n := s.nodes[name]
			if o.LabelSelector == nil || o.LabelSelector.Matches(labelsOf(n)) {
				into.Items = append(into.Items, *n.DeepCopy())
			}
		}
		return nil
	}
	if o.Limit == 0 {
		return list()
	}
	return s.ask("list nodes", list)
}

type labelSet map[string]string

func (l labelSet) Has(k string) bool              { _, ok := l[k]; return ok }
func (l labelSet) Get(k string) string            { return l[k] }
func (l labelSet) Lookup(k string) (string, bool) { v, ok := l[k]; return v, ok }
func labelsOf(n *corev1.Node) labelSet            { return n.Labels }
func (s *sim) List(context.Context) ([]v1alpha1.NodeGroup, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.groups), nil
}

func status(code int, reason, message string) error {
	return &kubeapi.StatusError{Code: code, Reason: reason, Message: message}
}

var errNotThere = status(http.StatusNotFound, "NotFound", "not found")

// addNode adds a Ready node with its machine.
func (s *sim) addNode(name string, labels map[string]string) *corev1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.register(name, "sim://"+name, labels)
	s.machines["sim://"+name] = newMachine(name)
	s.machines["sim://"+name].Group = labels[pool]
	return n.DeepCopy()
}

// register makes a Ready node of a machine.
func (s *sim) register(name, providerID string, labels map[string]string) *corev1.Node {
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

func newMachine(node string) *machine {
	return &machine{
		Instance: cloud.Instance{
			ProviderID: "sim://" + node, Name: "vm-" + node, ComputerName: node, UniqueID: "first-" + node, State: cloud.Running,
		},
		takes: 30 * time.Second,
	}
}

// bringBack has a Node that is still there report again, and its machine with it, unless that was deleted.
func (s *sim) bringBack(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[node]
	if n == nil || s.touched["sim://"+node] {
		return
	}
	if s.machines["sim://"+node] == nil {
		s.machines["sim://"+node] = newMachine(node)
	}
	n = n.DeepCopy()
	reports(corev1.ConditionTrue)(n)
	s.store(n)
}

// rename has a machine's kubelet register under another name, whether its Node is still there or not.
func (s *sim) rename(node, to string) {
	id := "sim://" + node
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.machines[id] == nil || s.touched[id] || s.nodes[to] != nil {
		return
	}
	delete(s.nodes, node)
	s.register(to, id, map[string]string{pool: "ci"})
}

// change changes a Node as somebody else would, if it is there.
func (s *sim) change(name string, how func(*corev1.Node)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[name]; n != nil {
		n = n.DeepCopy()
		how(n)
		s.store(n)
	}
}

func (s *sim) store(n *corev1.Node) {
	s.version++
	n.ResourceVersion = strconv.Itoa(s.version)
	s.nodes[n.Name] = n
}

func (s *sim) node(name string) *corev1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes[name].DeepCopy()
}

func small(n *corev1.Node) *kubeapi.Node {
	out, err := toKubeapi(n)
	if err != nil {
		panic(err)
	}
	return out
}

func (s *sim) GetNode(_ context.Context, name string) (out *kubeapi.Node, err error) {
	err = s.ask("get node", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		n := s.nodes[name]
		if n == nil {
			return errNotThere
		}
		out = small(n)
		return nil
	})
	return out, err
}

func (s *sim) PatchNode(_ context.Context, name string, patch []byte) (*kubeapi.Node, error) {
	return s.patch("patch node", name, patch, jsonpatch.MergePatch)
}

func (s *sim) PatchNodeStatus(_ context.Context, name string, patch []byte) (*kubeapi.Node, error) {
	return s.patch("patch node status", name, patch, func(doc, patch []byte) ([]byte, error) {
		return strategicpatch.StrategicMergePatch(doc, patch, corev1.Node{})
	})
}

func (s *sim) patch(request, name string, patch []byte, how func(doc, patch []byte) ([]byte, error)) (out *kubeapi.Node, err error) {
	err = s.ask(request, func() error {
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
		if err := json.Unmarshal(patch, &precondition); err != nil {
			return err
		}
		if v := precondition.Metadata.ResourceVersion; v != "" && v != n.ResourceVersion {
			return status(http.StatusConflict, "Conflict", "changed")
		}
		raw, err := json.Marshal(n)
		if err != nil {
			return err
		}
		if raw, err = how(raw, patch); err != nil {
			return err
		}
		var patched corev1.Node
		if err := json.Unmarshal(raw, &patched); err != nil {
			return err
		}
		s.mayTaint(n, &patched)
		s.store(&patched)
		out = small(&patched)
		return nil
	})
	return out, err
}

// mayTaint is what the invariants say of the taint that deletes all of a Node's pods.
func (s *sim) mayTaint(before, after *corev1.Node) {
	simCloud{s}.settle()
	if isOutOfService(small(after)) && !isOutOfService(small(before)) && s.machines[after.Spec.ProviderID] != nil {
		s.violate("I7: Node %s is tainted with %s, and its machine lives", after.Name, outOfService.Key)
	}
}

func (s *sim) DeleteNode(_ context.Context, name, uid, version string) (gone bool, err error) {
	err = s.ask("delete node", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		n := s.nodes[name]
		switch {
		case n == nil:
			return errNotThere
		case string(n.UID) != uid || n.ResourceVersion != version:
			return status(http.StatusConflict, "Conflict", "changed")
		}
		if others := cordon.Others(small(n)); len(others) > 0 {
			s.violate("I6: Node %s deleted while %v removes it", name, others)
		}
		if len(n.Finalizers) > 0 {
			n, now := n.DeepCopy(), metav1.Now()
			n.DeletionTimestamp = &now
			s.store(n)
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
	p := &simPod{stops: 5 * time.Second}
	yes := true
	p.Namespace, p.Name, p.UID, p.Spec.NodeName, p.Status.Phase = "ns", name, "uid-"+name, node, "Running"
	p.OwnerReferences = []kubeapi.OwnerReference{{Kind: "ReplicaSet", Name: "web", Controller: &yes}}
	if how != nil {
		how(p)
	}
	s.mu.Lock()
	s.pods[p.UID] = p
	s.mu.Unlock()
	s.tell(node)
}

func protectedPod(p *simPod) {
	p.Annotations = map[string]string{"slipway.dev/do-not-evict": "true"}
}

// allow lets every disruption budget allow evictions.
func (s *sim) allow() {
	for _, p := range s.pods {
		p.denied = false
	}
}

func uncordon(n *corev1.Node) { n.Spec.Unschedulable = false }

// unfinish takes the finalizers off a Node, which goes if it is being deleted.
func (s *sim) unfinish(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[node].DeepCopy()
	n.Finalizers = nil
	s.store(n)
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
		s.tell(p.Spec.NodeName)
	}
}

func (s *sim) podsOn(node string) []kubeapi.Pod {
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

func (s *sim) tell(node string) {
	s.mu.Lock()
	var told []follower
	for _, f := range s.followers {
		if f.node == node {
			told = append(told, f)
		}
	}
	s.mu.Unlock()
	for _, f := range told {
		f.h.Replaced(s.podsOn(node))
	}
}

func (s *sim) ListPodsOn(_ context.Context, node string) (all []kubeapi.Pod, err error) {
	err = s.ask("list pods", func() error { all = s.podsOn(node); return nil })
	return all, err
}

func (s *sim) FollowPodsOn(ctx context.Context, node string, h kubeapi.Handler[kubeapi.Pod]) error {
	for {
		err := s.ask("follow pods", func() error { return nil })
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
	h.Replaced(s.podsOn(node))
	<-ctx.Done()
	s.mu.Lock()
	delete(s.followers, id)
	s.mu.Unlock()
	return ctx.Err()
}

func (s *sim) Evict(_ context.Context, r kubeapi.Removal) error {
	return s.ask("evict", func() error {
		s.mu.Lock()
		p := s.pods[r.UID]
		switch {
		case p == nil:
			s.mu.Unlock()
			return errNotThere
		case p.denied:
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
			if p.stops >= 0 {
				time.AfterFunc(p.stops, func() { s.removePod(r.UID) })
			}
		}
		s.mu.Unlock()
		s.tell(p.Spec.NodeName)
		return nil
	})
}

func (s *sim) SetDisruptionTarget(context.Context, kubeapi.Disruption) error { return nil }

func (s *sim) DeletePod(context.Context, kubeapi.Removal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.violate("I2: a pod was deleted past its budget by a voluntary drain")
	return nil
}

// FollowBudgets implements drain.API: there are none.
func (s *sim) FollowBudgets(ctx context.Context, _ string, h kubeapi.Handler[kubeapi.PodDisruptionBudget]) error {
	for {
		err := s.ask("follow budgets", func() error { return nil })
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

func (s *sim) GetClaim(_ context.Context, namespace, name string) (claim *kubeapi.PersistentVolumeClaim, err error) {
	err = s.ask("get claim", func() error {
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
	err = s.ask("list volume attachments", func() error {
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

func (simCloud) KeepsMachines() {}

// IDOfSystem implements cloud.SystemIdentifier.
func (simCloud) IDOfSystem(uuid string) (string, bool) {
	return "sim://" + strings.ToLower(uuid), uuid != ""
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
	err = c.ask("cloud instances", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.settle()
		for _, m := range c.machines {
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

func (simCloud) Grow(context.Context, string, cloud.Order) (cloud.Operation, error) {
	return cloud.Operation{}, errors.New("not asked for")
}

func (c simCloud) Instance(_ context.Context, id string) (out cloud.Instance, err error) {
	err = c.ask("cloud instance", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.settle()
		m := c.machines[id]
		if m == nil {
			return &cloud.NotFoundError{Kind: "instance", Name: id}
		}
		out = m.Instance
		return nil
	})
	return out, err
}

// settle lets operations come to their ends.
func (c simCloud) settle() {
	for id, m := range c.machines {
		switch {
		case m.op == nil || time.Now().Before(m.op.ends):
		case m.op.err != nil:
			m.State = cloud.Failed
		default:
			delete(c.machines, id)
		}
	}
}

func (c simCloud) Delete(_ context.Context, id string) (op cloud.Operation, err error) {
	err = c.ask("cloud delete", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.settle()
		c.touched[id] = true
		m := c.machines[id]
		if m == nil {
			return &cloud.NotFoundError{Kind: "instance", Name: id}
		}
		c.mayDelete(m)
		if m.op == nil || m.op.err != nil {
			c.version++
			m.op = &simOp{id: fmt.Sprint("op-", c.version), ends: time.Now().Add(m.takes)}
			m.State = cloud.Deleting
			if m.fails > 0 {
				m.fails--
				m.op.err = errors.New("InternalExecutionError")
			}
		}
		op = cloud.Operation{ID: m.op.id, Started: time.Now()}
		return nil
	})
	return op, err
}

// mayDelete is what the invariants say of a deletion.
func (c simCloud) mayDelete(m *machine) {
	for _, p := range c.pods {
		facts := fromkubeapi.Pod(&p.Pod)
		if p.Spec.NodeName == m.ComputerName && podrules.Voluntary().Judge(&facts, time.Now()).Rule == podrules.ByProtected {
			c.violate("I1: machine %s deleted with the protected pod %s on it", m.Name, p.Name)
		}
	}
	for _, n := range c.nodes {
		if n.Spec.ProviderID == m.ProviderID {
			c.violate("I4: machine %s deleted while it is the Node %s (%s)", m.Name, n.Name, n.UID)
		}
	}
}

func (c simCloud) Status(_ context.Context, op cloud.Operation) (out cloud.Status, err error) {
	err = c.ask("cloud status", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		out.Done = true
		for _, m := range c.machines {
			if m.op != nil && m.op.id == op.ID {
				out.Done = !time.Now().Before(m.op.ends)
				if out.Done {
					out.Err = m.op.err
				}
			}
		}
		c.settle()
		return nil
	})
	return out, err
}

// controller is a process that has just started.
func (s *sim) controller(t *testing.T) *Controller {
	t.Helper()
	metrics, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return New(Options{
		Client: s.client(true), Live: s.client(false), API: s, Groups: s, Clouds: map[string]cloud.Provider{"sim": simCloud{s}},
		Events: &events.FakeRecorder{}, Metrics: metrics, Log: slog.New(slog.DiscardHandler), TTL: 1000 * time.Hour,
	})
}

// retire creates a NodeRetirement.
func (s *sim) retire(t *testing.T, name string, spec v1alpha1.NodeRetirementSpec) {
	t.Helper()
	rt := &v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID("rt-" + name), CreationTimestamp: metav1.Now(),
	}, Spec: spec}
	if err := s.records.Create(context.Background(), rt); err != nil {
		t.Fatal(err)
	}
}

// record reads a NodeRetirement; nil when it is gone.
func (s *sim) record(name string) *v1alpha1.NodeRetirement {
	rt := &v1alpha1.NodeRetirement{}
	if err := s.records.Get(context.Background(), client.ObjectKey{Name: name}, rt); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		panic(err)
	}
	return rt
}

// turn reconciles once, and waits for as long as is asked for, at the most 30 s.
func (s *sim) turn(ctx context.Context, c *Controller, name string) {
	result, err := c.Reconcile(ctx, reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
	pause := min(result.RequeueAfter, 30*time.Second)
	if err != nil {
		pause = time.Second
	}
	if pause > 0 {
		time.Sleep(pause)
	}
}

// settled reconciles until the retirement is over and let go of, or its record is gone, or the time is over.
func (s *sim) settled(ctx context.Context, c *Controller, name string, within time.Duration) *v1alpha1.NodeRetirement {
	for end := time.Now().Add(within); time.Now().Before(end); {
		rt := s.record(name)
		if rt == nil || rt.Status.Phase.Finished() && len(rt.Finalizers) == 0 {
			return rt
		}
		s.turn(ctx, c, name)
		time.Sleep(time.Millisecond)
	}
	return s.record(name)
}

// restored reports what of a retirement is still on a node (I3).
func restored(n *corev1.Node) error {
	if records, _ := cordon.List(small(n)); len(records) > 0 {
		return fmt.Errorf("I3: %s has records: %v", n.Name, records)
	}
	for _, t := range n.Spec.Taints {
		if t.Key == outOfService.Key {
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

// attachments is one volume attached to a node.
func attachments(node string) []kubeapi.VolumeAttachment {
	volume := "pv-1"
	var a kubeapi.VolumeAttachment
	a.Name, a.Spec.NodeName, a.Spec.Source.PersistentVolumeName = "va-1", node, &volume
	return []kubeapi.VolumeAttachment{a}
}
