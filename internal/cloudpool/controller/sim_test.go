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
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// sim simulates a pool, its cluster, and the replicas that update it, in virtual time.
type sim struct {
	t       *testing.T
	kube    *fake.Clientset
	objects client.Client
	pool    *fakeServer
	leases  *fakeLeases
	// updatesUnreadable makes reads of PoolUpdates fail.
	updatesUnreadable atomic.Bool
}

// simulate runs a test in virtual time, with a pool of n machines that each have a node.
func simulate(t *testing.T, n int, do func(t *testing.T, s *sim)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		scheme := runtime.NewScheme()
		must.NoError(t, errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)))
		s := &sim{t: t, kube: fake.NewClientset(), pool: &fakeServer{size: n, failures: map[string]error{}}, leases: &fakeLeases{}}
		s.objects = clientfake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.NodeGroup{}, &v1alpha1.NodeRetirement{}, &v1alpha1.PoolUpdate{}).
			WithInterceptorFuncs(interceptor.Funcs{Create: createWithUID, Get: s.getObject, List: s.listObjects}).Build()
		s.kube.PrependReactor("patch", "*", func(a clienttesting.Action) (bool, runtime.Object, error) { // the fake ignores DryRun
			return len(a.(clienttesting.PatchActionImpl).PatchOptions.DryRun) > 0, nil, nil
		})
		for i := 1; i <= n; i++ {
			s.pool.addMachine(newMachine(i, api.Running, ""))
			s.createNode(fmt.Sprint("n", i), i)
		}
		do(t, s)
	})
}

// createNode creates the node of a machine. With machine 0 the node has no provider ID.
func (s *sim) createNode(name string, machine int) {
	s.t.Helper()
	n := newNode(name, "", "")
	if machine > 0 {
		n.Spec.ProviderID = "openstack:///" + newUUID(machine)
	}
	n.UID, n.CreationTimestamp = types.UID("uid-"+name), metav1.Now()
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	must.NoError(s.t, check.Err(s.kube.CoreV1().Nodes().Create(s.t.Context(), n, metav1.CreateOptions{})))
}

// createWithUID sets a UID on created objects, as the API server does.
func createWithUID(ctx context.Context, c client.WithWatch, o client.Object, more ...client.CreateOption) error {
	if o.GetUID() == "" {
		o.SetUID(types.UID(strings.ToLower(rand.Text())))
	}
	return c.Create(ctx, o, more...)
}

func (s *sim) getObject(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, o ...client.GetOption) error {
	if _, update := into.(*v1alpha1.PoolUpdate); update && s.updatesUnreadable.Load() {
		return errConnectionRefused
	}
	return c.Get(ctx, key, into, o...)
}

func (s *sim) listObjects(ctx context.Context, c client.WithWatch, into client.ObjectList, o ...client.ListOption) error {
	if _, updates := into.(*v1alpha1.PoolUpdateList); updates && s.updatesUnreadable.Load() {
		return errConnectionRefused
	}
	return c.List(ctx, into, o...)
}

// listUpdatesLive returns the pool's PoolUpdates.
func (s *sim) listUpdatesLive() []v1alpha1.PoolUpdate {
	s.t.Helper()
	var list v1alpha1.PoolUpdateList
	must.NoError(s.t, s.objects.List(s.t.Context(), &list))
	return list.Items
}

// rewriteStatus changes the status of an update, as another process does.
func (s *sim) rewriteStatus(up v1alpha1.PoolUpdate, change func(*v1alpha1.PoolUpdateStatus)) {
	change(&up.Status)
	check.NoError(s.t, s.objects.Status().Update(s.t.Context(), &up))
}

// reconcileUntilDone calls Reconcile on every change and interval, as a controller does.
func reconcileUntilDone(ctx context.Context, u *Updater) {
	for {
		func() {
			defer func() { _ = recover() }()
			_, _ = u.Reconcile(ctx, reconcile.Request{})
		}()
		wakes := u.changeSignal()
		select {
		case <-ctx.Done():
			return
		case <-wakes:
		case <-time.After(u.opts.Timeouts.PollInterval):
		}
	}
}

func newSizeSpec(n int) v1alpha1.PoolUpdateSpec {
	up := Update{Kind: SetSize, DesiredSize: n}
	return up.toSpec("workers")
}

// getUnfinishedUpdate returns the unfinished update of any process, or nil.
func getUnfinishedUpdate(ctx context.Context, u *Updater) (*v1alpha1.PoolUpdate, error) {
	all, err := u.listUpdatesLive(ctx)
	return findEarliestUnfinished(all), err
}

// cacheReader is a cache that reads from a client.
type cacheReader struct {
	cache.Cache
	from client.Client
}

func (r cacheReader) Get(ctx context.Context, key client.ObjectKey, into client.Object, o ...client.GetOption) error {
	return r.from.Get(ctx, key, into, o...)
}

func (r cacheReader) List(ctx context.Context, into client.ObjectList, o ...client.ListOption) error {
	return r.from.List(ctx, into, o...)
}

// newCluster returns a synced Cluster.
func (s *sim) newCluster(ctx context.Context, log *slog.Logger) (*Cluster, informers.SharedInformerFactory) {
	s.t.Helper()
	factory := informers.NewSharedInformerFactory(s.kube, 0)
	known := must.Get(live.WatchCluster(s.kube.Discovery(), live.InformersOfFactory(factory), log))(s.t)
	c := newCluster(s.kube, s.objects, log)
	c.cache, c.live, c.nodes, c.pods = cacheReader{from: s.objects}, known, factory.Core().V1().Nodes().Lister(), factory.Core().V1().Pods().Lister()
	close(c.synced)
	factory.StartWithContext(ctx)
	must.NoError(s.t, known.WaitForSync(ctx))
	return c, factory
}

// startReplica starts a process with the name. change may change its options.
func (s *sim) startReplica(name string, change ...func(*UpdaterOptions)) *Updater {
	s.t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(s.t.Context()))
	log := slog.New(slog.NewTextHandler(s.t.Output(), nil)).With("replica", name)
	c, watches := s.newCluster(ctx, log)
	o := UpdaterOptions{runForTest: reconcileUntilDone, Pool: "workers", Backend: s.pool, Cluster: c, Leases: s.leases.forHolder(name), Namespace: "slipway", Holder: name, Log: log}
	for _, more := range change {
		more(&o)
	}
	u := must.Get(NewUpdater(o))(s.t)
	done := make(chan struct{})
	go func() { defer close(done); _ = u.Run(ctx) }()
	s.t.Cleanup(func() { stop(); <-done; watches.Shutdown() })
	return u
}

// listRetirements returns all NodeRetirements.
func (s *sim) listRetirements() []v1alpha1.NodeRetirement {
	s.t.Helper()
	var list v1alpha1.NodeRetirementList
	must.NoError(s.t, s.objects.List(s.t.Context(), &list))
	return list.Items
}

// updateRetirementStatus changes the status of a retirement.
func (s *sim) updateRetirementStatus(name string, change func(*v1alpha1.NodeRetirement)) {
	s.t.Helper()
	rt := &v1alpha1.NodeRetirement{}
	err := s.objects.Get(s.t.Context(), client.ObjectKey{Name: name}, rt)
	if err == nil {
		change(rt)
		err = s.objects.Status().Update(s.t.Context(), rt)
	}
	must.NoError(s.t, err)
}

// completeRetirements carries out all unfinished retirements, as the manager does.
func (s *sim) completeRetirements() {
	s.t.Helper()
	for _, rt := range s.listRetirements() {
		if rt.Status.Phase.IsFinal() {
			continue
		}
		must.NoError(s.t, s.kube.CoreV1().Nodes().Delete(s.t.Context(), rt.Spec.NodeName, metav1.DeleteOptions{}))
		s.pool.removeMachine(rt.Spec.ProviderID[len("openstack:///"):], cloud.DeleteOptions{KeepSize: rt.Spec.KeepSize})
		s.updateRetirementStatus(rt.Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase = v1alpha1.Succeeded })
	}
}

// advance sleeps in virtual time until all goroutines wait.
func (s *sim) advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// fakeServer is a pool's server that carries out requests at once.
type fakeServer struct {
	proxiedPool // for the identities

	mu               sync.Mutex
	machines         []api.Machine
	size             int
	failures         map[string]error
	changes          []string // requests that change something
	deletionStatus   cloud.OperationStatus
	ignoresDeletions bool // deletions are accepted and lower the desired size, but the machine stays
}

func (s *fakeServer) lock() func() { s.mu.Lock(); return s.mu.Unlock }

func (s *fakeServer) addMachine(m api.Machine) { defer s.lock()(); s.machines = append(s.machines, m) }

// removeMachine removes a machine and lowers the desired size, unless it is kept.
func (s *fakeServer) removeMachine(id string, o cloud.DeleteOptions) {
	defer s.lock()()
	s.machines = slices.DeleteFunc(s.machines, func(m api.Machine) bool { return m.ID == id })
	if !o.KeepSize {
		s.size--
	}
}

// setFailure makes requests of a kind fail, or succeed if err is nil.
func (s *fakeServer) setFailure(what string, err error) { defer s.lock()(); s.failures[what] = err }

func (s *fakeServer) changeRequests() []string { defer s.lock()(); return slices.Clone(s.changes) }

func (s *fakeServer) Pool(context.Context) (api.Pool, error) {
	defer s.lock()()
	return api.Pool{Timestamp: time.Now(), Machines: slices.Clone(s.machines)}, s.failures["pool"]
}

func (s *fakeServer) Size(context.Context) (api.Size, error) {
	defer s.lock()()
	size := api.Size{Timestamp: time.Now(), Desired: s.size}
	for i := range s.machines {
		if s.machines[i].IsActive() {
			size.Active++
		}
	}
	return size, s.failures["size"]
}

func (s *fakeServer) SetDesiredSize(_ context.Context, n int) error {
	defer s.lock()()
	s.changes = append(s.changes, fmt.Sprint("size ", n))
	if err := s.failures["desired"]; err != nil {
		return err
	}
	s.size = n
	return nil
}

func (s *fakeServer) SetMembershipStatus(_ context.Context, want api.SetMembershipStatus) error {
	defer s.lock()()
	s.changes = append(s.changes, fmt.Sprintf("membership %s %+v", want.MachineID[len(want.MachineID)-1:], want.MembershipStatus))
	if err := s.failures["membership"]; err != nil {
		return err
	}
	for i := range s.machines {
		if s.machines[i].ID == want.MachineID {
			s.machines[i].Membership = &want.MembershipStatus
		}
	}
	return nil
}

func (s *fakeServer) Detach(_ context.Context, r api.Removal) error {
	defer s.lock()()
	s.changes = append(s.changes, "detach "+r.MachineID[len(r.MachineID)-1:])
	return nil
}

func (s *fakeServer) Delete(_ context.Context, m *api.Machine, o cloud.DeleteOptions) (cloud.Operation, error) {
	done := s.lock()
	s.changes = append(s.changes, "delete "+m.ID)
	err, stays := s.failures["delete"], s.ignoresDeletions
	if err == nil && stays && !o.KeepSize {
		s.size--
	}
	done()
	if err == nil && !stays {
		s.removeMachine(m.ID, o)
	}
	return cloud.Operation{ID: m.ID, Started: time.Now()}, err
}

func (s *fakeServer) Provider() (cloud.Provider, string) { return simProvider{server: s}, "workers" }

// simProvider is the provider of a fakeServer's pool.
type simProvider struct {
	cloud.Provider
	server *fakeServer
}

func (simProvider) Name() string { return "cloudpool" }

func (p simProvider) Status(context.Context, cloud.Operation) (cloud.OperationStatus, error) {
	defer p.server.lock()()
	return p.server.deletionStatus, nil
}

// fakeLeases stores Leases as the API server does.
type fakeLeases struct {
	mu          sync.Mutex
	stored      map[string]kubeapi.Lease
	unreachable map[string]bool // holders that cannot reach the API server
}

func (l *fakeLeases) forHolder(holder string) holderLeases { return holderLeases{l, holder} }

// setUnreachable sets whether the API server is unreachable for a holder.
func (l *fakeLeases) setUnreachable(holder string, off bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unreachable = map[string]bool{holder: off}
}

// holderLeases gives one process access to the Leases.
type holderLeases struct {
	*fakeLeases
	holder string
}

var errConnectionRefused = errors.New("connection refused")

func (l holderLeases) ListLeases(context.Context, string, string) (all []kubeapi.Lease, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unreachable[l.holder] {
		return nil, errConnectionRefused
	}
	for _, lease := range l.stored {
		all = append(all, lease)
	}
	return all, nil
}

func (l holderLeases) CreateLease(_ context.Context, want kubeapi.Lease) (*kubeapi.Lease, error) {
	return l.store(want, "")
}

func (l holderLeases) UpdateLease(_ context.Context, want kubeapi.Lease) (*kubeapi.Lease, error) {
	return l.store(want, want.ResourceVersion)
}

func (l holderLeases) store(want kubeapi.Lease, version string) (*kubeapi.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unreachable[l.holder] {
		return nil, errConnectionRefused
	}
	if l.stored[want.Name].ResourceVersion != version {
		return nil, &kubeapi.StatusError{Code: 409, Reason: "Conflict"}
	}
	n, _ := strconv.Atoi(version)
	want.ResourceVersion = strconv.Itoa(n + 1)
	if l.stored == nil {
		l.stored = map[string]kubeapi.Lease{}
	}
	l.stored[want.Name] = want
	return &want, nil
}
