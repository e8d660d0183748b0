package controller

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/placement/live"
)

// sim is a pool, its cluster and the processes that update it, in virtual time.
type sim struct {
	t       *testing.T
	kube    *fake.Clientset
	objects client.Client
	pool    *server
	leases  *leases
	// away says that PoolUpdates cannot be read.
	away atomic.Bool
}

// simulate runs a test in virtual time, with a pool of n machines that each have a node.
func simulate(t *testing.T, n int, do func(t *testing.T, s *sim)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		scheme := runtime.NewScheme()
		if err := errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
			t.Fatal(err)
		}
		s := &sim{t: t, kube: fake.NewClientset(), pool: &server{size: n, fails: map[string]error{}}, leases: &leases{}}
		s.objects = clientfake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.NodeGroup{}, &v1alpha1.NodeRetirement{}, &v1alpha1.PoolUpdate{}).
			WithInterceptorFuncs(interceptor.Funcs{Create: giveUID, Get: s.get, List: s.list}).Build()
		s.kube.PrependReactor("patch", "*", func(a clienttesting.Action) (bool, runtime.Object, error) { // of which the fake does not know
			return len(a.(clienttesting.PatchActionImpl).PatchOptions.DryRun) > 0, nil, nil
		})
		for i := 1; i <= n; i++ {
			s.pool.add(machine(i, api.Running, ""))
			s.node(fmt.Sprint("n", i), i)
		}
		do(t, s)
	})
}

// node makes the node of a machine; 0 is one that says of itself no machine.
func (s *sim) node(name string, machine int) {
	s.t.Helper()
	n := node(name, "", "")
	if machine > 0 {
		n.Spec.ProviderID = "openstack:///" + uuid(machine)
	}
	n.UID, n.CreationTimestamp = types.UID("uid-"+name), metav1.Now()
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if _, err := s.kube.CoreV1().Nodes().Create(s.t.Context(), n, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// giveUID gives objects what the API server does.
func giveUID(ctx context.Context, c client.WithWatch, o client.Object, more ...client.CreateOption) error {
	if o.GetUID() == "" {
		o.SetUID(types.UID(strings.ToLower(rand.Text())))
	}
	return c.Create(ctx, o, more...)
}

func (s *sim) get(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, o ...client.GetOption) error {
	if _, update := into.(*v1alpha1.PoolUpdate); update && s.away.Load() {
		return errCut
	}
	return c.Get(ctx, key, into, o...)
}

func (s *sim) list(ctx context.Context, c client.WithWatch, into client.ObjectList, o ...client.ListOption) error {
	if _, updates := into.(*v1alpha1.PoolUpdateList); updates && s.away.Load() {
		return errCut
	}
	return c.List(ctx, into, o...)
}

// updates are the pool's PoolUpdates.
func (s *sim) updates() []v1alpha1.PoolUpdate {
	s.t.Helper()
	var list v1alpha1.PoolUpdateList
	if err := s.objects.List(s.t.Context(), &list); err != nil {
		s.t.Fatal(err)
	}
	return list.Items
}

// rewrite changes the status of an update as another process does.
func (s *sim) rewrite(up v1alpha1.PoolUpdate, change func(*v1alpha1.PoolUpdateStatus)) {
	change(&up.Status)
	if err := s.objects.Status().Update(s.t.Context(), &up); err != nil {
		s.t.Error(err)
	}
}

// drive has a replica reconcile as a controller does that hears of everything.
func drive(ctx context.Context, u *Updater) {
	for {
		func() {
			defer func() { _ = recover() }()
			_, _ = u.Reconcile(ctx, reconcile.Request{})
		}()
		wakes := u.wakes()
		select {
		case <-ctx.Done():
			return
		case <-wakes:
		case <-time.After(u.o.Pace.Poll):
		}
	}
}

// sized is what asks for a size.
func sized(n int) v1alpha1.PoolUpdateSpec {
	up := Update{Kind: SetSize, DesiredSize: n}
	return up.spec("workers")
}

// busy reports the update that is under way, in whichever process; nil when there is none.
func busy(ctx context.Context, u *Updater) (*v1alpha1.PoolUpdate, error) {
	all, err := u.updates(ctx)
	return underway(all), err
}

// reader reads as a cache does.
type reader struct {
	cache.Cache
	from client.Client
}

func (r reader) Get(ctx context.Context, key client.ObjectKey, into client.Object, o ...client.GetOption) error {
	return r.from.Get(ctx, key, into, o...)
}

func (r reader) List(ctx context.Context, into client.ObjectList, o ...client.ListOption) error {
	return r.from.List(ctx, into, o...)
}

// cluster is the cluster as a process knows it.
func (s *sim) cluster(ctx context.Context, log *slog.Logger) (*Cluster, informers.SharedInformerFactory) {
	s.t.Helper()
	factory := informers.NewSharedInformerFactory(s.kube, 0)
	known, err := live.Watch(s.kube.Discovery(), live.OfFactory(factory), log)
	if err != nil {
		s.t.Fatal(err)
	}
	c := newCluster(s.kube, s.objects, log)
	c.cache, c.live, c.nodes, c.pods = reader{from: s.objects}, known, factory.Core().V1().Nodes().Lister(), factory.Core().V1().Pods().Lister()
	close(c.read)
	factory.StartWithContext(ctx)
	if err := known.WaitForSync(ctx); err != nil {
		s.t.Fatal(err)
	}
	return c, factory
}

// replica starts a process of a name, of which a test may change what it works with.
func (s *sim) replica(name string, change ...func(*UpdaterOptions)) *Updater {
	s.t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(s.t.Context()))
	log := slog.New(slog.NewTextHandler(s.t.Output(), nil)).With("replica", name)
	c, watches := s.cluster(ctx, log)
	o := UpdaterOptions{run: drive, Pool: "workers", Backend: s.pool, Cluster: c, Slots: s.leases.of(name), Namespace: "slipway", Holder: name, Log: log}
	for _, more := range change {
		more(&o)
	}
	u, err := NewUpdater(o)
	if err != nil {
		s.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = u.Run(ctx) }()
	s.t.Cleanup(func() { stop(); <-done; watches.Shutdown() })
	return u
}

// retirements are all that there are.
func (s *sim) retirements() []v1alpha1.NodeRetirement {
	s.t.Helper()
	var list v1alpha1.NodeRetirementList
	if err := s.objects.List(s.t.Context(), &list); err != nil {
		s.t.Fatal(err)
	}
	return list.Items
}

// retired says what becomes of a retirement.
func (s *sim) retired(name string, change func(*v1alpha1.NodeRetirement)) {
	s.t.Helper()
	rt := &v1alpha1.NodeRetirement{}
	err := s.objects.Get(s.t.Context(), client.ObjectKey{Name: name}, rt)
	if err == nil {
		change(rt)
		err = s.objects.Status().Update(s.t.Context(), rt)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// manage carries out all retirements that are under way, as a manager does that has nothing in its way.
func (s *sim) manage() {
	s.t.Helper()
	for _, rt := range s.retirements() {
		if rt.Status.Phase.Finished() {
			continue
		}
		if err := s.kube.CoreV1().Nodes().Delete(s.t.Context(), rt.Spec.NodeName, metav1.DeleteOptions{}); err != nil {
			s.t.Fatal(err)
		}
		s.pool.end(rt.Spec.ProviderID[len("openstack:///"):], cloud.DeleteOptions{KeepSize: rt.Spec.KeepSize})
		s.retired(rt.Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase = v1alpha1.Succeeded })
	}
}

// passes lets time pass until everybody waits.
func (s *sim) passes(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// server is a pool's server that does at once what it is asked.
type server struct {
	proxied // how machines and nodes say which they are

	mu       sync.Mutex
	machines []api.Machine
	size     int
	fails    map[string]error
	asked    []string // the requests that change something
	status   cloud.Status
	stays    bool // terminations are taken, lower the desired size, and do not happen
}

func (s *server) locked() func() { s.mu.Lock(); return s.mu.Unlock }

func (s *server) add(m api.Machine) { defer s.locked()(); s.machines = append(s.machines, m) }

// end has a machine gone, and the desired size one less unless it is kept.
func (s *server) end(id string, o cloud.DeleteOptions) {
	defer s.locked()()
	s.machines = slices.DeleteFunc(s.machines, func(m api.Machine) bool { return m.ID == id })
	if !o.KeepSize {
		s.size--
	}
}

// fail has requests of a kind fail from now on; nil has them succeed.
func (s *server) fail(what string, err error) { defer s.locked()(); s.fails[what] = err }

func (s *server) requests() []string { defer s.locked()(); return slices.Clone(s.asked) }

func (s *server) Pool(context.Context) (api.Pool, error) {
	defer s.locked()()
	return api.Pool{Timestamp: time.Now(), Machines: slices.Clone(s.machines)}, s.fails["pool"]
}

func (s *server) Size(context.Context) (api.Size, error) {
	defer s.locked()()
	size := api.Size{Timestamp: time.Now(), Desired: s.size}
	for i := range s.machines {
		if s.machines[i].Active() {
			size.Active++
		}
	}
	return size, s.fails["size"]
}

func (s *server) SetDesiredSize(_ context.Context, n int) error {
	defer s.locked()()
	s.asked = append(s.asked, fmt.Sprint("size ", n))
	if err := s.fails["desired"]; err != nil {
		return err
	}
	s.size = n
	return nil
}

func (s *server) SetMembershipStatus(_ context.Context, want api.SetMembershipStatus) error {
	defer s.locked()()
	s.asked = append(s.asked, fmt.Sprintf("membership %s %+v", want.MachineID[len(want.MachineID)-1:], want.MembershipStatus))
	if err := s.fails["membership"]; err != nil {
		return err
	}
	for i := range s.machines {
		if s.machines[i].ID == want.MachineID {
			s.machines[i].Membership = &want.MembershipStatus
		}
	}
	return nil
}

func (s *server) Detach(_ context.Context, r api.Removal) error {
	defer s.locked()()
	s.asked = append(s.asked, "detach "+r.MachineID[len(r.MachineID)-1:])
	return nil
}

func (s *server) Delete(_ context.Context, m *api.Machine, o cloud.DeleteOptions) (cloud.Operation, error) {
	done := s.locked()
	s.asked = append(s.asked, "delete "+m.ID)
	err, stays := s.fails["delete"], s.stays
	if err == nil && stays && !o.KeepSize {
		s.size--
	}
	done()
	if err == nil && !stays {
		s.end(m.ID, o)
	}
	return cloud.Operation{ID: m.ID, Started: time.Now()}, err
}

func (s *server) Provider() (cloud.Provider, string) { return simProvider{server: s}, "workers" }

// simProvider is the provider of a server's pool.
type simProvider struct {
	cloud.Provider
	server *server
}

func (simProvider) Name() string { return "cloudpool" }

func (p simProvider) Status(context.Context, cloud.Operation) (cloud.Status, error) {
	defer p.server.locked()()
	return p.server.status, nil
}

// leases keeps Leases as the API server does.
type leases struct {
	mu   sync.Mutex
	kept map[string]kubeapi.Lease
	cut  map[string]bool // holders that do not reach the API server
}

func (l *leases) of(holder string) holderLeases { return holderLeases{l, holder} }

// cutOff says whether a holder reaches the API server.
func (l *leases) cutOff(holder string, off bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = map[string]bool{holder: off}
}

// holderLeases are the Leases as one process reaches them.
type holderLeases struct {
	*leases
	holder string
}

var errCut = errors.New("connection refused")

func (l holderLeases) ListLeases(context.Context, string, string) (all []kubeapi.Lease, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut[l.holder] {
		return nil, errCut
	}
	for _, one := range l.kept {
		all = append(all, one)
	}
	return all, nil
}

func (l holderLeases) CreateLease(_ context.Context, want kubeapi.Lease) (*kubeapi.Lease, error) {
	return l.put(want, "")
}

func (l holderLeases) UpdateLease(_ context.Context, want kubeapi.Lease) (*kubeapi.Lease, error) {
	return l.put(want, want.ResourceVersion)
}

func (l holderLeases) put(want kubeapi.Lease, version string) (*kubeapi.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut[l.holder] {
		return nil, errCut
	}
	if l.kept[want.Name].ResourceVersion != version {
		return nil, &kubeapi.StatusError{Code: 409, Reason: "Conflict"}
	}
	n, _ := strconv.Atoi(version)
	want.ResourceVersion = strconv.Itoa(n + 1)
	if l.kept == nil {
		l.kept = map[string]kubeapi.Lease{}
	}
	l.kept[want.Name] = want
	return &want, nil
}
