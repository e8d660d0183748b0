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
)

// pool is a cloud with one group of machines.
type pool struct {
	cloud.Provider
	mu        sync.Mutex
	machines  []cloud.Instance
	next      int              // the number of the next machine
	refuse    map[string]error // by template
	unread    error
	unlisted  error // what Templates answers
	orders    []cloud.Order
	deleted   []string
	templates []string
	partly    int           // how many machines of an order are made before it is refused
	names     bool          // Grow names the machines
	says      *string       // what machines say of their type, if not the template's name
	asked     int           // how often Grow was called
	reads     int           // how often Instances was called
	busy      chan struct{} // until it is closed, Grow answers nothing
	silent    chan struct{} // until it is closed, Instances answers nothing
	stuck     chan struct{} // until it is closed, Instance answers nothing
	looked    []string      // the machines that Instance was asked for
}

// held waits for a channel, if there is one.
func (p *pool) held(which func() chan struct{}) {
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
func (p *pool) locked() func()                      { p.mu.Lock(); return p.mu.Unlock }
func (p *pool) change(do func())                    { defer p.locked()(); do() }
func (p *pool) ordered() (orders []cloud.Order)     { defer p.locked()(); return slices.Clone(p.orders) }

func (p *pool) made(i cloud.Instance)                    { p.change(func() { p.machines = append(p.machines, i) }) }
func (p *pool) isThere(id string, i cloud.Instance) bool { return i.ProviderID == id }

func (p *pool) Group(context.Context, string) (cloud.Group, error) {
	defer p.locked()()
	return cloud.Group{Name: "web", Size: p.size()}, p.unread
}

func (p *pool) Instances(context.Context, string) ([]cloud.Instance, error) {
	p.held(func() chan struct{} { p.reads++; return p.silent })
	defer p.locked()()
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
	defer p.locked()()
	for _, i := range p.machines {
		if p.isThere(id, i) {
			return i, nil
		}
	}
	return cloud.Instance{}, &cloud.NotFoundError{Kind: "instance", Name: id}
}

func (p *pool) Templates(context.Context, string) (list []cloud.Template, err error) {
	defer p.locked()()
	for _, name := range p.templates {
		list = append(list, cloud.Template{Name: name, Shape: cloud.Shape{Capacity: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("16Gi"),
		}}})
	}
	return list, p.unlisted
}

func (p *pool) Grow(_ context.Context, _ string, o cloud.Order) (cloud.Operation, error) {
	p.held(func() chan struct{} { p.asked++; return p.busy })
	defer p.locked()()
	if err := p.refuse[o.Template]; err != nil {
		return p.launch(min(p.partly, o.Count), o.Template), err
	}
	p.orders = append(p.orders, o)
	return p.launch(o.Count, o.Template), nil
}

// launch makes machines.
func (p *pool) launch(count int, kind string) (op cloud.Operation) {
	if p.says != nil {
		kind = *p.says
	}
	for range count {
		p.next = max(p.next, len(p.machines)) // an ID does not come again
		i := cloud.Instance{
			ProviderID: fmt.Sprintf("id-%d", p.next), Name: fmt.Sprintf("machine-%d", p.next), Type: kind,
			State: cloud.Pending, Created: time.Now(),
		}
		p.machines = append(p.machines, i)
		p.next++
		if p.names {
			op.Machines = append(op.Machines, i.ProviderID)
		}
	}
	return op
}

func (p *pool) Delete(_ context.Context, id string) (cloud.Operation, error) {
	defer p.locked()()
	p.deleted = append(p.deleted, id)
	p.machines = slices.DeleteFunc(p.machines, func(i cloud.Instance) bool { return p.isThere(id, i) })
	return cloud.Operation{}, nil
}

// fixture is an autoscaler of one group that has not begun to work by itself: each look is asked for.
type fixture struct {
	*Controller
	t       *testing.T
	pool    *pool
	kube    *fake.Clientset
	client  client.Client
	watches *watches
	sources *sources
	events  *events.FakeRecorder
}

type listed struct{ client.Client }

func (l listed) List(ctx context.Context) ([]v1alpha1.NodeGroup, error) {
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
		Cloud:        v1alpha1.CloudGroup{Provider: "pool", Group: "web"}, Maximum: &most, ScaleUp: &v1alpha1.ScaleUp{},
	}
	g.Status.Conditions = []metav1.Condition{{Type: v1alpha1.GroupAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.AcceptedReason}}
	if change != nil {
		change(g)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	metrics, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	var watched []runtime.Object
	for _, o := range objects {
		watched = append(watched, o)
	}
	f := &fixture{
		t: t, pool: &pool{templates: []string{"m4"}, refuse: map[string]error{}}, kube: fake.NewClientset(watched...),
		client: clientfake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(g).WithObjects(append(objects, g)...).Build(),
		events: events.NewFakeRecorder(1000),
	}
	f.watches = watchesOf(f.kube)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	f.Controller = New(Options{
		Client: f.client, Launches: launch.New(f.client, f.client).StoreFiles(f.client, "slipway"), Informers: started(ctx, f.kube), Pods: live.ListedPods(f.client), Kube: f.kube, Groups: listed{f.client}, Clouds: map[string]cloud.Provider{"pool": f.pool}, Events: f.events,
		Metrics: metrics, Log: slog.New(slog.DiscardHandler),
	})
	f.followPause = time.Millisecond
	f.patience = time.Minute // this cloud answers, however much else the machine does
	if f.sources, err = f.watch(ctx); err != nil {
		t.Fatal(err)
	}
	return f
}

// withoutSpot has a group whose first kind of machine its cloud refuses.
func withoutSpot(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t, func(g *v1alpha1.NodeGroup) { g.Spec.ScaleUp.Policy = v1alpha1.ByPriority })
	f.pool.change(func() {
		f.pool.templates = []string{"spot", "m4"}
		f.pool.refuse["spot"] = &cloud.RefusedError{Reason: cloud.NoCapacity, Err: errors.New("no valid host was found")}
	})
	return f
}

// started gives informers that work at once, as those of a manager's cache do.
func started(ctx context.Context, kube *fake.Clientset) live.Informers {
	factory := informers.NewSharedInformerFactory(kube, 0)
	of := live.OfFactory(factory)
	return func(resource schema.GroupVersionResource, kind client.Object) (cache.SharedIndexInformer, error) {
		informer, err := of(resource, kind)
		factory.Start(ctx.Done())
		return informer, err
	}
}

// look has the autoscaler look once.
func (f *fixture) look() {
	f.t.Helper()
	if _, err := f.Controller.look(f.t.Context(), f.sources, true); err != nil {
		f.t.Fatal(err)
	}
}

// until waits for what a watch tells.
func (f *fixture) until(what string, is func() bool) {
	f.t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Fatalf("%s: not within a minute", what)
		}
	}
}

// waitingPodOf is a pod that finds no room.
func waitingPodOf(namespace, name string) *corev1.Pod {
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

// wait makes pods that find no room, and waits until that is known.
func (f *fixture) wait(pods ...string) {
	f.t.Helper()
	for _, name := range pods {
		f.waitFor(waitingPodOf("apps", name))
	}
}

func (f *fixture) waitFor(p *corev1.Pod) {
	f.t.Helper()
	f.create(p)
	f.until("pod "+p.Name+" waits", func() bool { return f.pending(p) && f.waits(p) })
}

func (f *fixture) create(p *corev1.Pod) {
	f.t.Helper()
	if _, err := f.kube.CoreV1().Pods(p.Namespace).Create(f.t.Context(), p, metav1.CreateOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) remove(p *corev1.Pod) {
	f.t.Helper()
	if err := f.kube.CoreV1().Pods(p.Namespace).Delete(f.t.Context(), p.Name, metav1.DeleteOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

func keyOf(p *corev1.Pod) placement.PodKey {
	return placement.PodKey{Namespace: p.Namespace, Name: p.Name}
}

// pending reports whether placement knows a pod as one without a node.
func (f *fixture) pending(p *corev1.Pod) (is bool) {
	_ = f.sources.live.With(func(s *snapshot.Snapshot) error { is = s.IsPending(keyOf(p)); return nil })
	return is
}

// waits reports whether a pod is known as one that finds no room.
func (f *fixture) waits(p *corev1.Pod) bool {
	f.waiter.mu.Lock()
	defer f.waiter.mu.Unlock()
	_, waits := f.waiter.pods[keyOf(p)]
	return waits
}

// written is what the status of the group says.
type written struct {
	OnTheWay int32
	Awaited  []launch.Instance
	Orders   []v1alpha1.Launch // those that instances are not seen of
	BackOffs []v1alpha1.BackOff
	Learned  []v1alpha1.LearnedTemplate
}

func (f *fixture) status() written {
	f.t.Helper()
	var g v1alpha1.NodeGroup
	if err := f.client.Get(f.t.Context(), types.NamespacedName{Name: "web"}, &g); err != nil {
		f.t.Fatal(err)
	}
	p := g.Status.Provisioning
	if p == nil {
		f.t.Fatal("there is no record of launches")
	}
	out := written{OnTheWay: p.Provisioning, BackOffs: p.BackOffs, Learned: p.Learned}
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

func (f *fixture) told(reason eventReason) (notes []string) {
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

func TestMachinesAreOrderedOnceForPodsThatKeepWaiting(t *testing.T) {
	f := newFixture(t, nil)
	f.wait("a", "b")
	f.look()
	for range 3 {
		f.look()
	}
	if got := f.pool.ordered(); len(got) != 1 || got[0] != (cloud.Order{Count: 2, Template: "m4"}) {
		t.Fatalf("orders are %v, want one of 2", got)
	}
	if s := f.status(); s.OnTheWay != 2 || len(s.Awaited) != 2 {
		t.Errorf("status is %+v, want two machines that are awaited", s)
	}
	if notes := f.told(eventOrdered); len(notes) != 3 {
		t.Errorf("Events are %q, want one for each pod and one for the group", notes)
	}
}

func TestWhenACloudCannotBeReadNothingIsOrdered(t *testing.T) { // I7
	f := newFixture(t, nil)
	f.pool.change(func() { f.pool.unread = errors.New("503") })
	f.wait("a")
	f.look()
	if got := f.pool.ordered(); len(got) != 0 {
		t.Fatalf("orders are %v", got)
	}
	if notes := f.told(eventHelpless); len(notes) != 1 || !strings.Contains(notes[0], plan.CloudUnreadable) || !strings.Contains(notes[0], "503") {
		t.Errorf("Events are %q", notes)
	}
	f.pool.change(func() { f.pool.unread = nil })
	f.look()
	if got := f.pool.ordered(); len(got) != 1 {
		t.Errorf("orders are %v once it can be read", got)
	}
}

// huge is a pod that no machine of the group takes.
func huge(name string) *corev1.Pod {
	p := waitingPodOf("apps", name)
	p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("64")
	return p
}

func TestAGroupWhoseCloudHasNeverAnsweredKeepsPodsFromBeingToldForAMinuteOnly(t *testing.T) {
	f := newFixture(t, nil)
	mute := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "mute", UID: "mute"}}
	mute.Spec = v1alpha1.NodeGroupSpec{
		Cloud: v1alpha1.CloudGroup{Provider: "pool", Group: "mute"}, Maximum: new(int32(1)), ScaleUp: &v1alpha1.ScaleUp{},
	}
	mute.Spec.NodeSelector.MatchLabels = map[string]string{"pool": "mute"}
	mute.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.GroupAccepted, Status: metav1.ConditionUnknown, Reason: "CloudUnreadable", Message: "the cloud has not answered yet",
	}}
	if err := f.client.Create(t.Context(), mute); err != nil {
		t.Fatal(err)
	}
	f.waitFor(huge("huge"))
	f.look()
	if notes := f.told(eventHelpless); len(notes) > 0 {
		t.Errorf("Events are %q before the cloud had its time to answer", notes)
	}
	f.memory["mute"].watched = time.Now().Add(-tellAfter)
	f.look()
	notes := f.told(eventHelpless)
	if len(notes) != 1 || !strings.Contains(notes[0], "web/m4: DoesNotFit") ||
		!strings.Contains(notes[0], "mute: NotAccepted: the NodeGroup is not acted on: the cloud has not answered yet") {
		t.Errorf("Events are %q, want one that says why of either group", notes)
	}
}

func TestARefusedKindIsLeftAloneAlsoAfterARestartAndTheNextIsTaken(t *testing.T) {
	f := withoutSpot(t)
	f.wait("a")
	f.look()
	if s := f.status(); len(s.BackOffs) != 1 || s.BackOffs[0].Template != "spot" || s.BackOffs[0].Reason != "NoCapacity" {
		t.Fatalf("status is %+v, want spot left alone", s)
	}
	f.memory = map[string]*memory{} // as after a restart
	f.look()
	if got := f.pool.ordered(); len(got) != 1 || got[0].Template != "m4" {
		t.Errorf("orders are %v, want one of m4", got)
	}
}

// dead is an autoscaler that has ordered a machine which the cloud could not make.
func dead(t *testing.T, objects ...client.Object) *fixture {
	t.Helper()
	f := newFixture(t, nil, objects...)
	f.wait("a")
	f.look()
	f.look() // sees the machine, and writes it down
	f.pool.change(func() { f.pool.machines[0].State, f.pool.machines[0].Refusal = cloud.Failed, cloud.NoQuota })
	return f
}

func TestAFailedMachineOfOursIsDeletedAndItsKindLeftAlone(t *testing.T) {
	f := dead(t)
	f.look()
	f.work.Wait()
	if !slices.Equal(f.pool.deleted, []string{"id-0"}) {
		t.Fatalf("deleted is %v", f.pool.deleted)
	}
	f.look()
	if s := f.status(); len(s.BackOffs) != 1 || s.BackOffs[0].Reason != "NoQuota" || s.OnTheWay != 0 || len(s.Awaited) != 0 {
		t.Errorf("status is %+v", s)
	}
	if got := f.pool.ordered(); len(got) != 1 {
		t.Errorf("orders are %v: the kind is not left alone", got)
	}
}

func TestTheKindThatWasOrderedIsLeftAloneHoweverItsMachinesSayIt(t *testing.T) {
	for _, as := range []string{"", "M4"} {
		for reason, fail := range map[string]func(*fixture){
			launch.Failed:      func(f *fixture) { f.fails("id-0") },
			launch.NeverJoined: func(f *fixture) { f.overdue() },
		} {
			t.Run(reason+" of type "+as, func(t *testing.T) {
				f := newFixture(t, nil)
				f.pool.change(func() { f.pool.says = &as })
				f.wait("a")
				f.looks(2)
				fail(f)
				for range 3 {
					f.look()
					f.work.Wait()
				}
				if got := f.pool.ordered(); len(got) != 1 || len(f.pool.deleted) != 1 {
					t.Errorf("orders are %v, deleted is %v, want one each", got, f.pool.deleted)
				}
				if notes := f.told(eventGivenUp); len(notes) != 1 || !strings.Contains(notes[0], reason) {
					t.Errorf("Events are %q, want one that says %s", notes, reason)
				}
				if s := f.status(); len(s.BackOffs) != 1 || s.BackOffs[0].Template != "m4" || s.BackOffs[0].Reason != reason {
					t.Errorf("status is %+v, want m4 left alone", s)
				}
			})
		}
	}
}

func TestWhileACloudDoesNotSayWhichKindsThereAreItsMachinesAreSeenToAndPodsAreTold(t *testing.T) {
	f := dead(t)
	f.pool.change(func() { f.pool.unlisted = errors.New("no image has the name kube") })
	f.look()
	f.work.Wait()
	if !slices.Equal(f.pool.deleted, []string{"id-0"}) {
		t.Errorf("deleted is %v", f.pool.deleted)
	}
	if notes := f.told(eventHelpless); len(notes) != 1 || !strings.Contains(notes[0], "no image has the name kube") {
		t.Errorf("Events are %q", notes)
	}
	f.memory["web"].backOffs = map[string]v1alpha1.BackOff{} // as when it is over
	f.look()
	if got := f.pool.ordered(); len(got) != 1 {
		t.Errorf("orders are %v, one of a kind that may be no more", got)
	}
	f.pool.change(func() { f.pool.unlisted = nil })
	f.look()
	if got := f.pool.ordered(); len(got) != 2 {
		t.Errorf("orders are %v once it says so", got)
	}
}

func TestACloudThatHasNeverSaidWhichKindsThereAreIsNotAskedWithoutAPause(t *testing.T) {
	f := newFixture(t, nil)
	f.pool.change(func() { f.pool.unlisted = errors.New("no image has the name kube") })
	f.look()
	if f.woken() {
		t.Error("the next look is to begin soon")
	}
}

func TestAMachineIsNotGivenUpWhenTheAPIServerKnowsItsNode(t *testing.T) { // I4, I7
	f := dead(t)
	// The watch has not told of the Node yet; the API server knows it.
	groups := f.survey1()
	if len(groups[0].memory.survey.Dead) != 1 {
		t.Fatalf("the survey is %+v", groups[0].memory.survey)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "machine-0"}}
	if _, err := f.kube.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.giveUp(t.Context(), f.sources, groups)
	f.work.Wait()
	if len(f.pool.deleted) != 0 {
		t.Errorf("deleted is %v", f.pool.deleted)
	}
}

func TestAMachineThatHasMovedOnIsNotGivenUp(t *testing.T) {
	f := dead(t)
	groups := f.survey1()
	f.pool.change(func() { f.pool.machines[0].State = cloud.Running })
	f.giveUp(t.Context(), f.sources, groups)
	f.work.Wait()
	if len(f.pool.deleted) != 0 {
		t.Errorf("deleted is %v", f.pool.deleted)
	}
}

// survey1 reads the groups and asks their clouds, and does nothing about it.
func (f *fixture) survey1() []*known {
	f.t.Helper()
	_, groups, err := f.read(f.t.Context(), f.sources)
	if err != nil {
		f.t.Fatal(err)
	}
	f.recall(groups)
	f.survey(f.t.Context(), f.sources, groups)
	return groups
}

func TestAMachineThatWasOrderedBeforeItsKindFailedDoesNotEndThatItIsLeftAlone(t *testing.T) {
	f := newFixture(t, nil)
	join := func(name string) {
		t.Helper()
		if _, err := f.kube.CoreV1().Nodes().Create(t.Context(), idle(name, ""), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		f.until(name+" is known", func() bool { _, err := f.sources.nodes.Get(name); return err == nil })
		f.look()
	}
	leftAlone := func() bool { _, is := f.memory["web"].backOffs["m4"]; return is }
	f.wait("a")
	f.look()
	f.look() // sees the machine
	f.pool.change(func() {
		f.pool.refuse["m4"] = &cloud.RefusedError{Reason: cloud.NoQuota, Err: errors.New("no cores left")}
	})
	f.wait("b", "c")
	f.look()
	join("machine-0")
	if !leftAlone() || f.calls() != 2 {
		t.Fatal("the kind is not left alone after the join of a machine that was ordered before the quota was used up")
	}
	f.pool.change(func() { f.pool.refuse = nil })
	over := f.memory["web"].backOffs["m4"]
	over.Until = metav1.NewTime(time.Now().Add(-time.Second)) // records are in whole seconds
	f.memory["web"].backOffs["m4"] = over
	f.look()
	f.look()
	join("machine-1")
	if leftAlone() {
		t.Error("the failure is remembered after the join of a machine that was ordered later")
	}
}

func TestAMachineOfNobodyIsLeftAlone(t *testing.T) { // I4
	f := newFixture(t, nil)
	f.pool.made(cloud.Instance{ProviderID: "theirs", State: cloud.Failed, Created: time.Now().Add(-time.Hour)})
	f.look()
	f.look()
	if len(f.pool.deleted) != 0 {
		t.Errorf("deleted is %v", f.pool.deleted)
	}
}

// idle is a node of the group that nothing runs on, with what is written on it.
func idle(name, since string) *corev1.Node {
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
		n.Annotations = map[string]string{plan.SinceAnnotation: since}
	}
	return n
}

func (f *fixture) mark(name string) string {
	f.t.Helper()
	var n corev1.Node
	if err := f.client.Get(f.t.Context(), types.NamespacedName{Name: name}, &n); err != nil {
		f.t.Fatal(err)
	}
	return n.Annotations[plan.SinceAnnotation]
}

// TestTheCooldownOfAnUnderusedNodeBeginsAnewAfterARestart has what an earlier process wrote not count: what happened to the node
// meanwhile is not known.
func TestTheCooldownOfAnUnderusedNodeBeginsAnewAfterARestart(t *testing.T) {
	long := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	f := newFixture(t, func(g *v1alpha1.NodeGroup) {
		g.Spec.ScaleDown = &v1alpha1.ScaleDown{Underused: &v1alpha1.UnderusedNodes{}}
	}, idle("new", ""), idle("old", long), func() *corev1.Node {
		n := idle("other", long) // of no group any more
		n.Labels = nil
		return n
	}())
	f.look()
	if f.mark("new") == "" || f.mark("old") == long || f.mark("old") == "" {
		t.Errorf("marks are %q and %q, want new ones", f.mark("new"), f.mark("old"))
	}
	if mark := f.mark("other"); mark != "" { // I3
		t.Errorf("the mark of a node that is of no group is %q", mark)
	}
	var all v1alpha1.NodeRetirementList
	if err := f.client.List(t.Context(), &all); err != nil || len(all.Items) != 0 {
		t.Fatalf("retirements are %+v, %v; want none before this process has observed the cooldown", all.Items, err)
	}
	f = newFixture(t, func(g *v1alpha1.NodeGroup) {
		g.Spec.ScaleDown = &v1alpha1.ScaleDown{Underused: &v1alpha1.UnderusedNodes{}}
	}, idle("new", ""), idle("old", long))
	f.hasObserved("old", "new")
	f.look()
	if err := f.client.List(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	if len(all.Items) != 1 || all.Items[0].Spec.NodeName != "old" || all.Items[0].Spec.Reason != v1alpha1.Underused {
		t.Fatalf("retirements are %+v, want one of old", all.Items)
	}
	f.look()
	if err := f.client.List(t.Context(), &all); err != nil || len(all.Items) != 1 {
		t.Errorf("%d retirements after another look, %v", len(all.Items), err)
	}
}

func TestOnlyWhatTheSchedulerSaysMakesAPodWait(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"it finds no room":             {func(*corev1.Pod) {}, true},
		"its gates are closed":         {func(p *corev1.Pod) { p.Status.Conditions[0].Reason = corev1.PodReasonSchedulingGated }, false},
		"nobody has looked at it":      {func(p *corev1.Pod) { p.Status.Conditions = nil }, false},
		"another condition says so":    {func(p *corev1.Pod) { p.Status.Conditions[0].Type = corev1.PodReady }, false},
		"it is bound":                  {func(p *corev1.Pod) { p.Spec.NodeName = "a" }, false},
		"it is being deleted":          {func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }, false},
		"it has failed":                {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, false},
		"its message speaks of no cpu": {func(p *corev1.Pod) { p.Status.Conditions[0].Message = "kein Platz" }, true},
	} {
		p := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "Insufficient cpu",
		}}}}
		c.change(p)
		if got := unschedulable(p); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestI4AMachineIsNotGivenUpWhenAnythingSaysThatANodeIsOnIt(t *testing.T) {
	for name, change := range map[string]func(*corev1.Node){
		"its name with a domain": func(n *corev1.Node) { n.Name = "machine-0.novalocal" },
		"its system's UUID":      func(n *corev1.Node) { n.Name, n.Status.NodeInfo.SystemUUID = "elsewhere", "ID-0" },
		"its provider ID":        func(n *corev1.Node) { n.Name, n.Spec.ProviderID = "elsewhere", "id-0" },
	} {
		t.Run(name, func(t *testing.T) {
			f := dead(t)
			groups := f.survey1()
			if len(groups[0].memory.survey.Dead) != 1 {
				t.Fatalf("the survey is %+v", groups[0].memory.survey)
			}
			node := &corev1.Node{}
			change(node)
			// Only the API server knows it when the machine is about to be given up; later the watch does too.
			if _, err := f.kube.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			f.giveUp(t.Context(), f.sources, groups)
			f.work.Wait()
			f.until("the watch has told of the Node", func() bool {
				_, err := f.sources.nodes.Get(node.Name)
				return err == nil
			})
			if groups = f.survey1(); len(groups[0].memory.survey.Dead) != 0 || len(f.pool.deleted) != 0 {
				t.Errorf("deleted is %v, and the survey %+v", f.pool.deleted, groups[0].memory.survey)
			}
		})
	}
}
