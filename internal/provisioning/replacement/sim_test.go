package replacement

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/retirement"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// sim is an API server and a cloud in memory. A test can intercept every request.
type sim struct {
	records client.WithWatch
	group   v1alpha1.NodeGroup
	beside  []v1alpha1.NodeGroup // more groups
	events  *events.FakeRecorder

	mu            sync.Mutex
	size          int
	machines      map[string]cloud.Instance
	next          int
	grown         int
	slow          time.Duration // the time until a launched instance is listed
	refuse        error         // the error of launches
	done          bool          // the operations of launches are done
	maximum       int
	restores      bool // the size keeps counting an evicted instance
	unschedulable []UnschedulablePod
	placementErr  error
	at            func(moment, request string) error
	requests      []string
}

const groupName = "ci"

// kinds are created once, because that takes longer than most tests.
var kinds = sync.OnceValues(func() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	return scheme, errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme), storagev1.AddToScheme(scheme))
})

func newSim(t *testing.T, machines int) *sim {
	t.Helper()
	scheme := must.Get(kinds())(t)
	s := &sim{machines: map[string]cloud.Instance{}, at: func(string, string) error { return nil }, events: events.NewFakeRecorder(1000)}
	s.records = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.NodeRetirement{}, &v1alpha1.NodeGroup{}).
		WithIndex(&v1alpha1.NodeRetirement{}, retirement.NodeNameField, func(o client.Object) []string {
			return []string{o.(*v1alpha1.NodeRetirement).Spec.NodeName}
		}).Build()
	s.group = v1alpha1.NodeGroup{
		ObjectMeta: metav1.ObjectMeta{Name: groupName},
		Spec: v1alpha1.NodeGroupSpec{
			NodeSelector: metav1.LabelSelector{MatchLabels: map[string]string{"pool": groupName}},
			Cloud:        v1alpha1.CloudGroup{Provider: "sim", Group: "set"}, Replacement: v1alpha1.ReplaceAlways,
		},
	}
	for range machines {
		s.joinInstance()
	}
	time.Sleep(time.Second) // instances are older than any launch
	s.size = machines
	return s
}

// joinInstance creates the next instance and its Node.
func (s *sim) joinInstance() string {
	name := fmt.Sprint("vm-", s.next)
	s.next++
	s.machines[name] = cloud.Instance{Name: name, ComputerName: name, ProviderID: "sim://" + name, State: cloud.Running, Created: time.Now()}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"pool": groupName}, CreationTimestamp: metav1.Now(),
		},
		Spec:   corev1.NodeSpec{ProviderID: "sim://" + name},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
	if err := s.records.Create(context.Background(), node); err != nil {
		panic(err)
	}
	return name
}

// addNotice makes the agent on a node report a notice.
func (s *sim) addNotice(t *testing.T, node, kind string) {
	t.Helper()
	s.changeNode(t, node, func(n *corev1.Node) {
		n.Annotations = map[string]string{"cordon.slipway.dev/azure-e-" + node: fmt.Sprintf(
			`{"owner":"azure-e-%s","since":"2026-01-01T00:00:00Z","state":{"notice":{"ID":"e-%s","Source":"azure","Type":%q}}}`, node, node, kind)}
		n.Spec.Unschedulable = true
	})
}

func (s *sim) changeNode(t *testing.T, node string, how func(*corev1.Node)) {
	t.Helper()
	n := &corev1.Node{}
	err := s.records.Get(t.Context(), client.ObjectKey{Name: node}, n)
	if err == nil {
		how(n)
		state := n.Status
		if err = s.records.Update(t.Context(), n); err == nil {
			n.Status = state
			err = s.records.Status().Update(t.Context(), n)
		}
	}
	must.NoError(t, err)
}

// evictInstance removes an instance, as its cloud does.
func (s *sim) evictInstance(t *testing.T, node string) {
	t.Helper()
	s.mu.Lock()
	delete(s.machines, node)
	if !s.restores {
		s.size--
	}
	s.mu.Unlock()
	s.setNodeNotReady(t, node)
}

func (s *sim) setNodeNotReady(t *testing.T, node string) {
	t.Helper()
	s.changeNode(t, node, func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown })
}

func (s *sim) List(context.Context) ([]v1alpha1.NodeGroup, error) {
	g := s.group
	if g.UID != "" {
		if err := s.records.Get(context.Background(), client.ObjectKey{Name: g.Name}, &g); err != nil {
			return nil, err
		}
	}
	return append([]v1alpha1.NodeGroup{g}, s.beside...), nil
}

// serveRequest records and serves one request of the process.
func (s *sim) serveRequest(request string, serve func() error) error {
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

func (s *sim) newClient() client.Client {
	name := func(verb string, o any) string { return fmt.Sprintf("%s %T", verb, o) }
	return interceptor.NewClient(s.records, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			return s.serveRequest(name("get", o), func() error { return c.Get(ctx, key, o, opts...) })
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			return s.serveRequest(name("list", list), func() error { return c.List(ctx, list, opts...) })
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			o.SetUID(types.UID("uid-" + o.GetName()))
			return s.serveRequest(name("create", o), func() error { return c.Create(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return s.serveRequest(name("update", o), func() error { return c.Update(ctx, o, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			return s.serveRequest(name("update "+sub+" of", o), func() error { return c.SubResource(sub).Update(ctx, o, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			return s.serveRequest(name("update "+sub+" of", o), func() error { return c.SubResource(sub).Patch(ctx, o, p, opts...) })
		},
	})
}

func (s *sim) ListPodsNeedingNode(context.Context, string) ([]UnschedulablePod, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unschedulable, s.placementErr
}

func (s *sim) Name() string { return "sim" }

func (s *sim) Normalize(id string) (string, error) { return id, nil }

func (s *sim) Group(context.Context, string) (g cloud.Group, err error) {
	err = s.serveRequest("cloud group", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		g = cloud.Group{Name: "set", Size: s.size, Max: s.maximum}
		return nil
	})
	return g, err
}

func (s *sim) Instances(context.Context, string) (all []cloud.Instance, err error) {
	err = s.serveRequest("cloud instances", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, m := range s.machines {
			all = append(all, m)
		}
		return nil
	})
	return all, err
}

func (s *sim) Instance(_ context.Context, id string) (out cloud.Instance, err error) {
	err = s.serveRequest("cloud instance", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		m, ok := s.machines[id[len("sim://"):]]
		if !ok {
			return &cloud.NotFoundError{Kind: "instance", Name: id}
		}
		out = m
		return nil
	})
	return out, err
}

func (s *sim) Delete(context.Context, string) (cloud.Operation, error) {
	return cloud.Operation{}, errors.New("not asked for")
}

func (s *sim) Templates(context.Context, string) ([]cloud.Template, error) {
	return nil, errors.New("not asked for")
}

func (s *sim) Grow(_ context.Context, _ string, o cloud.LaunchRequest) (op cloud.Operation, err error) {
	err = s.serveRequest("cloud grow", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.refuse != nil {
			return s.refuse
		}
		s.grown += o.Count
		s.size += o.Count
		time.AfterFunc(s.slow, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.joinInstance()
		})
		op = cloud.Operation{ID: "op", Started: time.Now()}
		return nil
	})
	return op, err
}

func (s *sim) Status(context.Context, cloud.Operation) (out cloud.OperationStatus, err error) {
	err = s.serveRequest("cloud status", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		out.Done = s.done
		return nil
	})
	return out, err
}

// newController returns the controller of a new manager process.
func (s *sim) newController(t *testing.T) *Controller {
	t.Helper()
	metrics := must.Get(NewMetrics(prometheus.NewRegistry()))(t)
	return New(Options{
		Client: s.newClient(), APIReader: s.newClient(), Groups: s, Selector: labels.Everything(), Clouds: map[string]cloud.Provider{"sim": s}, Launches: launch.NewRecord(s.newClient(), s.newClient()).UseConfigMaps(s.newClient(), "slipway"),
		Placement: s, Events: s.events, Metrics: metrics, ReportCall: func(string, string, error) {}, Log: slog.New(slog.DiscardHandler),
	})
}

// reconcileAll reconciles every Node and every retirement once.
func (s *sim) reconcileAll(ctx context.Context, c *Controller) {
	var nodes corev1.NodeList
	var all v1alpha1.NodeRetirementList
	if err := errors.Join(s.records.List(ctx, &nodes), s.records.List(ctx, &all)); err != nil {
		panic(err)
	}
	for i := range nodes.Items {
		_, _ = NoticeRetirementReconciler{c}.Reconcile(ctx, reconcile.Request{NamespacedName: types.NamespacedName{Name: nodes.Items[i].Name}})
	}
	for i := range all.Items {
		_, _ = c.Reconcile(ctx, reconcile.Request{NamespacedName: types.NamespacedName{Name: all.Items[i].Name}})
	}
}

// turns is the pause between two calls of reconcileAll.
const turns = 5 * time.Second

// run runs a manager for a while.
func (s *sim) run(ctx context.Context, c *Controller, during time.Duration) {
	for end := time.Now().Add(during); time.Now().Before(end); time.Sleep(turns) {
		s.reconcileAll(ctx, c)
	}
}

func (s *sim) listRetirements(t *testing.T) []v1alpha1.NodeRetirement {
	t.Helper()
	var all v1alpha1.NodeRetirementList
	must.NoError(t, s.records.List(t.Context(), &all))
	return all.Items
}

func (s *sim) retirementByNode(t *testing.T) map[string]v1alpha1.NodeRetirement {
	t.Helper()
	by := map[string]v1alpha1.NodeRetirement{}
	for _, rt := range s.listRetirements(t) {
		by[rt.Spec.NodeName] = rt
	}
	return by
}

func (s *sim) replacementOfNode(t *testing.T, node string) v1alpha1.Replacement {
	t.Helper()
	rt, ok := s.retirementByNode(t)[node]
	if !ok || rt.Status.Replacement == nil {
		return v1alpha1.Replacement{}
	}
	return *rt.Status.Replacement
}

func hasReason(r v1alpha1.Replacement, code string) bool {
	return hasCode(r.Reasons, code)
}
