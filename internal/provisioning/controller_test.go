package provisioning

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/live"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// pool is a fake cloud with one group.
type pool struct {
	cloud.Provider
	mu        sync.Mutex
	machines  []cloud.Instance
	next      int              // the number of the next instance
	refuse    map[string]error // by template
	unread    error
	unlisted  error // what Templates answers
	orders    []cloud.LaunchRequest
	deleted   []string
	templates []string
	partly    int           // how many instances of a launch are created before it is refused
	names     bool          // Grow returns the names of the instances
	says      *string       // the type that instances report, if not the template's name
	asked     int           // how often Grow was called
	reads     int           // how often Instances was called
	busy      chan struct{} // Grow blocks until it is closed
	silent    chan struct{} // Instances blocks until it is closed
	stuck     chan struct{} // Instance blocks until it is closed
	looked    []string      // the instances that Instance was called for

	costs map[string]float64 // by template
}

// block waits for the channel, if there is one.
func (p *pool) block(which func() chan struct{}) {
	p.mu.Lock()
	until := which()
	p.mu.Unlock()
	if until != nil {
		<-until
	}
}

func (p *pool) Name() string                        { return "pool" }
func (p *pool) Normalize(id string) (string, error) { return id, nil }
func (p *pool) size() int                           { return len(p.machines) }
func (p *pool) lock() func()                        { p.mu.Lock(); return p.mu.Unlock }
func (p *pool) change(do func())                    { defer p.lock()(); do() }
func (p *pool) launches() (orders []cloud.LaunchRequest) {
	defer p.lock()()
	return slices.Clone(p.orders)
}

func (p *pool) add(i cloud.Instance)                     { p.change(func() { p.machines = append(p.machines, i) }) }
func (p *pool) matches(id string, i cloud.Instance) bool { return i.ProviderID == id }

func (p *pool) Group(context.Context, string) (cloud.Group, error) {
	defer p.lock()()
	return cloud.Group{Name: "web", Size: p.size()}, p.unread
}

func (p *pool) Instances(context.Context, string) ([]cloud.Instance, error) {
	p.block(func() chan struct{} { p.reads++; return p.silent })
	defer p.lock()()
	return slices.Clone(p.machines), p.unread
}

func (p *pool) Instance(ctx context.Context, id string) (cloud.Instance, error) {
	var until chan struct{}
	p.change(func() { p.looked, until = append(p.looked, id), p.stuck })
	if until != nil {
		select {
		case <-until:
		case <-ctx.Done():
			return cloud.Instance{}, ctx.Err()
		}
	}
	defer p.lock()()
	for _, i := range p.machines {
		if p.matches(id, i) {
			return i, nil
		}
	}
	return cloud.Instance{}, &cloud.NotFoundError{Kind: "instance", Name: id}
}

func (p *pool) Templates(context.Context, string) (list []cloud.Template, err error) {
	defer p.lock()()
	for _, name := range p.templates {
		list = append(list, cloud.Template{Name: name, NodeShape: cloud.NodeShape{Cost: p.costs[name], Capacity: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("16Gi"),
		}}})
	}
	return list, p.unlisted
}

func (p *pool) Grow(_ context.Context, _ string, o cloud.LaunchRequest) (cloud.Operation, error) {
	p.block(func() chan struct{} { p.asked++; return p.busy })
	defer p.lock()()
	if err := p.refuse[o.Template]; err != nil {
		return p.launch(min(p.partly, o.Count), o.Template), err
	}
	p.orders = append(p.orders, o)
	return p.launch(o.Count, o.Template), nil
}

// launch creates instances.
func (p *pool) launch(count int, kind string) (op cloud.Operation) {
	if p.says != nil {
		kind = *p.says
	}
	for range count {
		p.next = max(p.next, len(p.machines)) // IDs are never used again
		i := cloud.Instance{
			ProviderID: fmt.Sprintf("id-%d", p.next), Name: fmt.Sprintf("machine-%d", p.next), Type: kind,
			State: cloud.Pending, Created: time.Now(),
		}
		p.machines = append(p.machines, i)
		p.next++
		if p.names {
			op.ProviderIDs = append(op.ProviderIDs, i.ProviderID)
		}
	}
	return op
}

func (p *pool) Delete(_ context.Context, id string) (cloud.Operation, error) {
	defer p.lock()()
	p.deleted = append(p.deleted, id)
	p.machines = slices.DeleteFunc(p.machines, func(i cloud.Instance) bool { return p.matches(id, i) })
	return cloud.Operation{}, nil
}

// fixture is a Controller of one group. A test calls each reconcile.
type fixture struct {
	*Controller
	t       *testing.T
	pool    *pool
	kube    *fake.Clientset
	client  client.Client
	watches *watches
	sources *clusterCaches
	events  *events.FakeRecorder
}

type clientGroups struct{ client.Client }

func (l clientGroups) List(ctx context.Context) ([]v1alpha1.NodeGroup, error) {
	var list v1alpha1.NodeGroupList
	err := l.Client.List(ctx, &list)
	return list.Items, err
}

func newFixture(t *testing.T, change func(*v1alpha1.NodeGroup), objects ...client.Object) *fixture {
	t.Helper()
	g := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "group"}}
	most := int32(10)
	g.Spec = v1alpha1.NodeGroupSpec{
		NodeSelector: metav1.LabelSelector{MatchLabels: map[string]string{"pool": "web"}},
		Cloud:        v1alpha1.CloudGroup{Provider: "pool", Group: "web"}, MaxSize: &most, ScaleUp: &v1alpha1.ScaleUp{},
	}
	g.Status.Conditions = []metav1.Condition{{Type: v1alpha1.GroupAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.AcceptedReason}}
	if change != nil {
		change(g)
	}
	scheme := runtime.NewScheme()
	must.NoError(t, errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)))
	metrics, err := NewMetrics(prometheus.NewRegistry())
	must.NoError(t, err)
	var watched []runtime.Object
	for _, o := range objects {
		watched = append(watched, o)
	}
	f := &fixture{
		t: t, pool: &pool{templates: []string{"m4"}, refuse: map[string]error{}}, kube: fake.NewClientset(watched...),
		client: clientfake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(g).WithObjects(append(objects, g)...).Build(),
		events: events.NewFakeRecorder(1000),
	}
	f.watches = recordWatches(f.kube)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	f.Controller = New(Options{
		Client: f.client, Launches: launch.NewRecord(f.client, f.client).UseConfigMaps(f.client, "slipway"), Informers: startInformers(ctx, f.kube), Pods: live.NewListingPodReader(f.client), Kube: f.kube, Groups: clientGroups{f.client}, Clouds: map[string]cloud.Provider{"pool": f.pool}, Events: f.events,
		Metrics: metrics, Log: slog.New(slog.DiscardHandler),
	})
	f.pollInterval = time.Millisecond
	f.answerTimeout = time.Minute // the fake cloud answers at once, even on a busy computer
	if f.sources, err = f.startWatches(ctx); err != nil {
		t.Fatal(err)
	}
	return f
}

// newFixtureWithoutSpot returns a fixture with a cloud that refuses the first template.
func newFixtureWithoutSpot(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t, func(g *v1alpha1.NodeGroup) { g.Spec.ScaleUp.Policy = v1alpha1.FirstTemplate })
	f.pool.change(func() {
		f.pool.templates = []string{"spot", "m4"}
		f.pool.refuse["spot"] = &cloud.RefusedError{Reason: cloud.NoCapacity, Err: errors.New("no valid host was found")}
	})
	return f
}

// startInformers returns running informers, like those of a manager's cache.
func startInformers(ctx context.Context, kube *fake.Clientset) live.Informers {
	factory := informers.NewSharedInformerFactory(kube, 0)
	of := live.InformersOfFactory(factory)
	return func(resource schema.GroupVersionResource, kind client.Object) (cache.SharedIndexInformer, error) {
		informer, err := of(resource, kind)
		factory.Start(ctx.Done())
		return informer, err
	}
}

func (f *fixture) reconcile() {
	f.t.Helper()
	must.NoError(f.t, check.Err(f.Controller.reconcile(f.t.Context(), f.sources, true)))
}

// waitUntil waits until a watch has delivered what the condition needs.
func (f *fixture) waitUntil(what string, is func() bool) {
	f.t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		must.Not(f.t, time.Now().After(deadline), "%s: not within a minute", what)
	}
}

func newUnschedulablePod(namespace, name string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + namespace + "-" + name)}}
	p.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("3"),
	}}}}
	p.Status.Phase = corev1.PodPending
	p.Status.Conditions = []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/1 Knoten",
	}}
	return p
}

// addUnschedulable creates unschedulable pods, and waits until the controller has seen them.
func (f *fixture) addUnschedulable(pods ...string) {
	f.t.Helper()
	for _, name := range pods {
		f.addUnschedulablePod(newUnschedulablePod("apps", name))
	}
}

func (f *fixture) addUnschedulablePod(p *corev1.Pod) {
	f.t.Helper()
	f.createPod(p)
	f.waitUntil("pod "+p.Name+" waits", func() bool { return f.isPending(p) && f.isUnschedulable(p) })
}

func (f *fixture) createPod(p *corev1.Pod) {
	f.t.Helper()
	must.NoError(f.t, check.Err(f.kube.CoreV1().Pods(p.Namespace).Create(f.t.Context(), p, metav1.CreateOptions{})))
}

func (f *fixture) removePod(p *corev1.Pod) {
	f.t.Helper()
	must.NoError(f.t, f.kube.CoreV1().Pods(p.Namespace).Delete(f.t.Context(), p.Name, metav1.DeleteOptions{}))
}

func keyOf(p *corev1.Pod) placement.PodKey {
	return placement.PodKey{Namespace: p.Namespace, Name: p.Name}
}

// isPending reports whether placement knows the pod and it has no node.
func (f *fixture) isPending(p *corev1.Pod) (is bool) {
	_ = f.sources.cluster.WithSnapshot(func(s *snapshot.Snapshot) error { is = s.IsPending(keyOf(p)); return nil })
	return is
}

// isUnschedulable reports whether the controller knows the pod as unschedulable.
func (f *fixture) isUnschedulable(p *corev1.Pod) bool {
	f.pods.mu.Lock()
	defer f.pods.mu.Unlock()
	_, waits := f.pods.pods[keyOf(p)]
	return waits
}

// written is the recorded status of the group.
type written struct {
	Provisioning int32
	Awaited      []launch.Instance
	Orders       []v1alpha1.Launch // launches with instances that were not seen
	BackOffs     []v1alpha1.BackOff
	Learned      []v1alpha1.LearnedTemplate
}

func (f *fixture) status() written {
	f.t.Helper()
	var g v1alpha1.NodeGroup
	must.NoError(f.t, f.client.Get(f.t.Context(), types.NamespacedName{Name: "web"}, &g))
	p := g.Status.Provisioning
	if p == nil {
		f.t.Fatal("there is no record of launches")
	}
	out := written{Provisioning: p.Provisioning, BackOffs: p.BackOffs, Learned: p.Learned}
	for _, l := range p.Launches {
		if l.Count > 0 {
			out.Orders = append(out.Orders, l)
		}
		for _, i := range l.Instances {
			out.Awaited = append(out.Awaited, launch.Instance{ProviderID: i.ProviderID, Template: l.Template, Launch: l.ID, Since: i.Since})
		}
	}
	return out
}

func (f *fixture) eventNotes(reason eventReason) (notes []string) {
	for {
		select {
		case e := <-f.events.Events:
			if strings.Contains(e, " "+string(reason)+" ") {
				notes = append(notes, e)
			}
		default:
			return notes
		}
	}
}

func TestUnschedulablePodsLaunchOnce(t *testing.T) {
	f := newFixture(t, nil)
	f.addUnschedulable("a", "b")
	f.reconcile()
	for range 3 {
		f.reconcile()
	}
	if got := f.pool.launches(); len(got) != 1 || got[0] != (cloud.LaunchRequest{Count: 2, Template: "m4"}) {
		t.Fatalf("launches are %v, want one of 2", got)
	}
	if s := f.status(); s.Provisioning != 2 || len(s.Awaited) != 2 {
		t.Errorf("status is %+v, want two instances that are awaited", s)
	}
	if notes := f.eventNotes(eventLaunched); len(notes) != 3 {
		t.Errorf("Events are %q, want one for each pod and one for the group", notes)
	}
}

func TestUnreadableCloudLaunchesNothing(t *testing.T) { // I7
	f := newFixture(t, nil)
	f.pool.change(func() { f.pool.unread = errors.New("503") })
	f.addUnschedulable("a")
	f.reconcile()
	if got := f.pool.launches(); len(got) != 0 {
		t.Fatalf("launches are %v", got)
	}
	if notes := f.eventNotes(eventUnplaceable); len(notes) != 1 || !strings.Contains(notes[0], plan.CloudUnreadable) || !strings.Contains(notes[0], "503") {
		t.Errorf("Events are %q", notes)
	}
	f.pool.change(func() { f.pool.unread = nil })
	f.reconcile()
	if got := f.pool.launches(); len(got) != 1 {
		t.Errorf("launches are %v once it can be read", got)
	}
}

// newHugePod returns a pod that fits on no instance of the group.
func newHugePod(name string) *corev1.Pod {
	p := newUnschedulablePod("apps", name)
	p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("64")
	return p
}

func TestUnknownGroupDelaysPodEventsForOneMinute(t *testing.T) {
	f := newFixture(t, nil)
	mute := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "mute", UID: "mute"}}
	mute.Spec = v1alpha1.NodeGroupSpec{
		Cloud: v1alpha1.CloudGroup{Provider: "pool", Group: "mute"}, MaxSize: new(int32(1)), ScaleUp: &v1alpha1.ScaleUp{},
	}
	mute.Spec.NodeSelector.MatchLabels = map[string]string{"pool": "mute"}
	mute.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.GroupAccepted, Status: metav1.ConditionUnknown, Reason: "CloudUnreadable", Message: "waiting for the cloud's first answer",
	}}
	must.NoError(t, f.client.Create(t.Context(), mute))
	f.addUnschedulablePod(newHugePod("huge"))
	f.reconcile()
	if notes := f.eventNotes(eventUnplaceable); len(notes) > 0 {
		t.Errorf("Events are %q before the cloud had its time to answer", notes)
	}
	f.states["mute"].watchedSince = time.Now().Add(-unknownGroupGrace)
	f.reconcile()
	notes := f.eventNotes(eventUnplaceable)
	if len(notes) != 1 || !strings.Contains(notes[0], "web/m4: DoesNotFit") ||
		!strings.Contains(notes[0], "mute: NotAccepted: the NodeGroup is not accepted: waiting for the cloud's first answer") {
		t.Errorf("Events are %q, want one that says why of either group", notes)
	}
}

func TestBackOffSurvivesARestart(t *testing.T) {
	f := newFixtureWithoutSpot(t)
	f.addUnschedulable("a")
	f.reconcile()
	if s := f.status(); len(s.BackOffs) != 1 || s.BackOffs[0].Template != "spot" || s.BackOffs[0].Reason != "NoCapacity" {
		t.Fatalf("status is %+v, want spot backed off", s)
	}
	f.states = map[string]*groupState{} // as after a restart
	f.reconcile()
	if got := f.pool.launches(); len(got) != 1 || got[0].Template != "m4" {
		t.Errorf("launches are %v, want one of m4", got)
	}
}

// newFixtureWithFailedInstance returns a fixture with a launched instance that the cloud could not create.
func newFixtureWithFailedInstance(t *testing.T, objects ...client.Object) *fixture {
	t.Helper()
	f := newFixture(t, nil, objects...)
	f.addUnschedulable("a")
	f.reconcile()
	f.reconcile() // finds and records the instance
	f.pool.change(func() { f.pool.machines[0].State, f.pool.machines[0].Refusal = cloud.Failed, cloud.NoQuota })
	return f
}

func TestFailedInstanceIsDeletedAndItsTemplateBacksOff(t *testing.T) {
	f := newFixtureWithFailedInstance(t)
	f.reconcile()
	f.calls.Wait()
	must.Not(t, !slices.Equal(f.pool.deleted, []string{"id-0"}), "deleted is %v", f.pool.deleted)
	f.reconcile()
	if s := f.status(); len(s.BackOffs) != 1 || s.BackOffs[0].Reason != "NoQuota" || s.Provisioning != 0 || len(s.Awaited) != 0 {
		t.Errorf("status is %+v", s)
	}
	if got := f.pool.launches(); len(got) != 1 {
		t.Errorf("launches are %v: the template is not backed off", got)
	}
}

func TestRequestedTemplateBacksOffWhateverTypeInstancesReport(t *testing.T) {
	for _, as := range []string{"", "M4"} {
		for reason, fail := range map[string]func(*fixture){
			launch.Failed:      func(f *fixture) { f.failInstance("id-0") },
			launch.NeverJoined: func(f *fixture) { f.makeOverdue() },
		} {
			t.Run(reason+" of type "+as, func(t *testing.T) {
				f := newFixture(t, nil)
				f.pool.change(func() { f.pool.says = &as })
				f.addUnschedulable("a")
				f.reconcileTimes(2)
				fail(f)
				for range 3 {
					f.reconcile()
					f.calls.Wait()
				}
				if got := f.pool.launches(); len(got) != 1 || len(f.pool.deleted) != 1 {
					t.Errorf("launches are %v, deleted is %v, want one each", got, f.pool.deleted)
				}
				if notes := f.eventNotes(eventInstanceDeleted); len(notes) != 1 || !strings.Contains(notes[0], reason) {
					t.Errorf("Events are %q, want one that says %s", notes, reason)
				}
				if s := f.status(); len(s.BackOffs) != 1 || s.BackOffs[0].Template != "m4" || s.BackOffs[0].Reason != reason {
					t.Errorf("status is %+v, want m4 backed off", s)
				}
			})
		}
	}
}

func TestUnlistedTemplatesStillTrackInstancesAndEmitEvents(t *testing.T) {
	f := newFixtureWithFailedInstance(t)
	f.pool.change(func() { f.pool.unlisted = errors.New("no image has the name kube") })
	f.reconcile()
	f.calls.Wait()
	check.Not(t, !slices.Equal(f.pool.deleted, []string{"id-0"}), "deleted is %v", f.pool.deleted)
	if notes := f.eventNotes(eventUnplaceable); len(notes) != 1 || !strings.Contains(notes[0], "no image has the name kube") {
		t.Errorf("Events are %q", notes)
	}
	f.states["web"].backOffs = map[string]v1alpha1.BackOff{} // as after their end
	f.reconcile()
	if got := f.pool.launches(); len(got) != 1 {
		t.Errorf("launches are %v, one of a template that may be no more", got)
	}
	f.pool.change(func() { f.pool.unlisted = nil })
	f.reconcile()
	if got := f.pool.launches(); len(got) != 2 {
		t.Errorf("launches are %v once it says so", got)
	}
}

func TestUnlistedTemplatesAreReadWithAPause(t *testing.T) {
	f := newFixture(t, nil)
	f.pool.change(func() { f.pool.unlisted = errors.New("no image has the name kube") })
	f.reconcile()
	check.Not(t, f.isRequeued(), "want another reconcile soon")
}

func TestInstanceWhoseStateChangedIsKept(t *testing.T) {
	f := newFixtureWithFailedInstance(t)
	groups := f.readCloudOnce()
	f.pool.change(func() { f.pool.machines[0].State = cloud.Running })
	f.startFailedInstanceDeletions(t.Context(), f.sources, groups)
	f.calls.Wait()
	check.Is(t, 0, len(f.pool.deleted), f.pool.deleted)
}

// readCloudOnce reads the groups and their clouds, without any action.
func (f *fixture) readCloudOnce() []*managedGroup {
	f.t.Helper()
	_, groups, err := f.readCluster(f.t.Context(), f.sources)
	must.NoError(f.t, err)
	f.loadStates(groups)
	f.readCloudsUntilTimeout(f.t.Context(), f.sources, groups)
	return groups
}

func TestInstanceLaunchedBeforeTheFailureKeepsTheBackOff(t *testing.T) {
	f := newFixture(t, nil)
	join := func(name string) {
		t.Helper()
		must.NoError(t, check.Err(f.kube.CoreV1().Nodes().Create(t.Context(), newIdleNode(name, ""), metav1.CreateOptions{})))
		f.waitUntil(name+" is known", func() bool { _, err := f.sources.nodes.Get(name); return err == nil })
		f.reconcile()
	}
	leftAlone := func() bool { _, is := f.states["web"].backOffs["m4"]; return is }
	f.addUnschedulable("a")
	f.reconcile()
	f.reconcile() // finds the instance
	f.pool.change(func() {
		f.pool.refuse["m4"] = &cloud.RefusedError{Reason: cloud.NoQuota, Err: errors.New("no cores left")}
	})
	f.addUnschedulable("b", "c")
	f.reconcile()
	join("machine-0")
	if !leftAlone() || f.launchCount() != 2 {
		t.Fatal("the template is not backed off after the join of an instance that was launched before the quota was used up")
	}
	f.pool.change(func() { f.pool.refuse = nil })
	over := f.states["web"].backOffs["m4"]
	over.Until = metav1.NewTime(time.Now().Add(-time.Second)) // records have whole seconds
	f.states["web"].backOffs["m4"] = over
	f.reconcile()
	f.reconcile()
	join("machine-1")
	check.Not(t, leftAlone(), "the failure is remembered after the join of an instance that was launched later")
}

func TestUnknownInstanceIsKept(t *testing.T) { // I4
	f := newFixture(t, nil)
	f.pool.add(cloud.Instance{ProviderID: "theirs", State: cloud.Failed, Created: time.Now().Add(-time.Hour)})
	f.reconcile()
	f.reconcile()
	check.Is(t, 0, len(f.pool.deleted), f.pool.deleted)
}

// newIdleNode returns a node of the group without pods, with the given annotation.
func newIdleNode(name, since string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"pool": "web"},
		CreationTimestamp: metav1.NewTime(time.Now().Add(-24 * time.Hour)),
	}}
	n.Spec.ProviderID = "id-" + name
	n.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("16Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if since != "" {
		n.Annotations = map[string]string{plan.UnderutilizedSinceAnnotation: since}
	}
	return n
}

// newRunningPod returns a pod of a ReplicaSet on a node.
func newRunningPod(name, node, cpu string) *corev1.Pod {
	controlled := true
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "apps", Name: name, UID: types.UID("uid-" + name), OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web", Controller: &controlled}},
	}}
	p.Spec.NodeName, p.Status.Phase = node, corev1.PodRunning
	p.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu),
	}}}}
	return p
}

func (f *fixture) sinceAnnotation(name string) string {
	f.t.Helper()
	var n corev1.Node
	must.NoError(f.t, f.client.Get(f.t.Context(), types.NamespacedName{Name: name}, &n))
	return n.Annotations[plan.UnderutilizedSinceAnnotation]
}

// TestRestartStartsANewUnderutilizedCooldown ignores the time of an earlier process: it is unknown what happened
// meanwhile.
func TestRestartStartsANewUnderutilizedCooldown(t *testing.T) {
	long := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	f := newFixture(t, func(g *v1alpha1.NodeGroup) {
		g.Spec.ScaleDown = &v1alpha1.ScaleDown{Underutilized: &v1alpha1.UnderutilizedRule{}}
	}, newIdleNode("new", ""), newIdleNode("old", long), func() *corev1.Node {
		n := newIdleNode("other", long) // no longer in a group
		n.Labels = nil
		return n
	}())
	f.reconcile()
	if f.sinceAnnotation("new") == "" || f.sinceAnnotation("old") == long || f.sinceAnnotation("old") == "" {
		t.Errorf("marks are %q and %q, want new ones", f.sinceAnnotation("new"), f.sinceAnnotation("old"))
	}
	if mark := f.sinceAnnotation("other"); mark != "" { // I3
		t.Errorf("the mark of a node that is of no group is %q", mark)
	}
	var all v1alpha1.NodeRetirementList
	if err := f.client.List(t.Context(), &all); err != nil || len(all.Items) != 0 {
		t.Fatalf("retirements are %+v, %v; want none before this process has observed the cooldown", all.Items, err)
	}
	f = newFixture(t, func(g *v1alpha1.NodeGroup) {
		g.Spec.ScaleDown = &v1alpha1.ScaleDown{Underutilized: &v1alpha1.UnderutilizedRule{}}
	}, newIdleNode("new", ""), newIdleNode("old", long))
	f.observeSince("old", "new")
	f.reconcile()
	must.NoError(t, f.client.List(t.Context(), &all))
	if len(all.Items) != 1 || all.Items[0].Spec.NodeName != "old" || all.Items[0].Spec.Reason != v1alpha1.Underutilized {
		t.Fatalf("retirements are %+v, want one of old", all.Items)
	}
	f.reconcile()
	if err := f.client.List(t.Context(), &all); err != nil || len(all.Items) != 1 {
		t.Errorf("%d retirements after another reconcile, %v", len(all.Items), err)
	}
}

// TestI9RetiringNodeOutsideTheGroupsReservesRoom has room for one of the pods of a and r on t. Only a is in a group.
func TestI9RetiringNodeOutsideTheGroupsReservesRoom(t *testing.T) {
	for phase, want := range map[v1alpha1.Phase]int{v1alpha1.Draining: 0, v1alpha1.Aborted: 1} {
		leaving, other := newIdleNode("r", ""), newIdleNode("t", "")
		leaving.Labels, leaving.Spec.Unschedulable, other.Labels = nil, true, nil
		f := newFixture(t, func(g *v1alpha1.NodeGroup) {
			g.Spec.ScaleDown = &v1alpha1.ScaleDown{Underutilized: &v1alpha1.UnderutilizedRule{}}
		}, newIdleNode("a", time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)), leaving, other,
			newRunningPod("x", "a", "1"), newRunningPod("y", "r", "2"), newRunningPod("z", "t", "2"))
		must.NoError(t, f.client.Create(t.Context(), &v1alpha1.NodeRetirement{
			ObjectMeta: metav1.ObjectMeta{Name: "r"}, Spec: v1alpha1.NodeRetirementSpec{NodeName: "r"}, Status: v1alpha1.NodeRetirementStatus{
				Phase: phase, Conditions: []metav1.Condition{{Type: v1alpha1.RetirementAdmitted, Status: metav1.ConditionTrue}},
			},
		}))
		f.observeSince("a")
		f.reconcile()
		check.Is(t, want, len(f.listRetirements())-1, "retirements of a, that of r is", phase)
	}
}

func TestOnlyTheSchedulersConditionMakesAPodUnschedulable(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"the scheduler found no node":        {func(*corev1.Pod) {}, true},
		"it has scheduling gates":            {func(p *corev1.Pod) { p.Status.Conditions[0].Reason = corev1.PodReasonSchedulingGated }, false},
		"it has no conditions":               {func(p *corev1.Pod) { p.Status.Conditions = nil }, false},
		"the reason is on another condition": {func(p *corev1.Pod) { p.Status.Conditions[0].Type = corev1.PodReady }, false},
		"it is bound":                        {func(p *corev1.Pod) { p.Spec.NodeName = "a" }, false},
		"it is being deleted":                {func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }, false},
		"it has failed":                      {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, false},
		"its message is in another language": {func(p *corev1.Pod) { p.Status.Conditions[0].Message = "kein Platz" }, true},
	} {
		p := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "Insufficient cpu",
		}}}}
		c.change(p)
		check.Is(t, c.want, isUnschedulable(p), name)
	}
}

func TestI4InstanceWithAnySignOfANodeIsKept(t *testing.T) {
	for name, change := range map[string]func(*corev1.Node){
		"its name":               func(n *corev1.Node) { n.Name = "machine-0" },
		"its name with a domain": func(n *corev1.Node) { n.Name = "machine-0.novalocal" },
		"its system's UUID":      func(n *corev1.Node) { n.Name, n.Status.NodeInfo.SystemUUID = "elsewhere", "ID-0" },
		"its provider ID":        func(n *corev1.Node) { n.Name, n.Spec.ProviderID = "elsewhere", "id-0" },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixtureWithFailedInstance(t)
			groups := f.readCloudOnce()
			must.Not(t, len(groups[0].state.tracking.FailedWithoutNode) != 1, "the survey is %+v", groups[0].state.tracking)
			node := &corev1.Node{}
			change(node)
			// First only the API server knows the Node, and later the watch too.
			must.NoError(t, check.Err(f.kube.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})))
			f.startFailedInstanceDeletions(t.Context(), f.sources, groups)
			f.calls.Wait()
			f.waitUntil("the watch has told of the Node", func() bool {
				_, err := f.sources.nodes.Get(node.Name)
				return err == nil
			})
			if groups = f.readCloudOnce(); len(groups[0].state.tracking.FailedWithoutNode) != 0 || len(f.pool.deleted) != 0 {
				t.Errorf("deleted is %v, and the survey %+v", f.pool.deleted, groups[0].state.tracking)
			}
		})
	}
}
