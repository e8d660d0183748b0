package top

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/live"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

const (
	// settle is the least time between two States: what happens meanwhile is shown at once.
	settle = 250 * time.Millisecond
	// share of the time, at most 1/effort, goes into making States.
	effort = 8
	// look is the time after which a State is made although nothing has happened: verdicts change by time alone.
	look = 2 * time.Second
	// stale is for how long a failed watch is told of. It is more than the longest pause of client-go's between two tries.
	stale = 65 * time.Second
)

// Watch keeps a State current. It lists and watches nodes, pods, NodeGroups and NodeRetirements, and nothing else.
type Watch struct {
	cache   cache.Cache
	pods    live.Pods
	kinds   []*kind
	contact *contact
	changed chan struct{}

	mu       sync.Mutex
	loads    *snapshot.Snapshot
	failures map[string]failure // by the kind's type
}

// kind is one of what is watched.
type kind struct {
	name     string
	object   client.Object
	informer cache.Informer
	// missing is why it cannot be watched at all.
	missing string
}

func (k *kind) ready() bool { return k.informer != nil && k.informer.HasSynced() }

type failure struct {
	at  time.Time
	err error
}

// NewWatch begins nothing yet. The error is that of a server that does not answer, or credentials it does not take.
func NewWatch(ctx context.Context, cfg *rest.Config) (*Watch, error) {
	w := &Watch{changed: make(chan struct{}, 1), loads: snapshot.New(), failures: map[string]failure{}}
	scheme := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	var err error
	if w.contact, err = newContact(cfg, w.poke); err != nil {
		return nil, err
	}
	w.cache, err = cache.New(cfg, cache.Options{
		Scheme: scheme, DefaultWatchErrorHandler: w.failed,
		ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: {Transform: live.TrimPods()}},
	})
	if err != nil {
		return nil, err
	}
	w.kinds = []*kind{
		{name: "nodes", object: &corev1.Node{}},
		{name: "pods", object: &corev1.Pod{}},
		{name: "NodeGroups", object: &v1alpha1.NodeGroup{}},
		{name: "NodeRetirements", object: &v1alpha1.NodeRetirement{}},
	}
	for _, k := range w.kinds {
		if err := w.follow(ctx, k); err != nil {
			return nil, fmt.Errorf("%s: %w", k.name, err)
		}
	}
	w.pods, err = live.CachedPods(live.OfCache(ctx, w.cache))
	return w, err
}

// follow begins to watch a kind. A server that does not know Slipway's types has none of them to show.
func (w *Watch) follow(ctx context.Context, k *kind) error {
	informer, err := w.cache.GetInformer(ctx, k.object, cache.BlockUntilSynced(false))
	if meta.IsNoMatchError(err) {
		k.missing = k.name + " are not known to the API server: the CRDs of Slipway are not installed"
		return nil
	}
	if err != nil {
		return err
	}
	k.informer = informer
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: w.set, UpdateFunc: func(_, o any) { w.set(o) }, DeleteFunc: w.remove,
	})
	return err
}

// set tells the loads of an object. What they do not take is not counted, and its node's load is told from the rest.
func (w *Watch) set(o any) {
	w.mu.Lock()
	switch o := o.(type) {
	case *corev1.Node:
		_ = w.loads.SetNode(o) // it fails while a plan is being made, which is never here
	case *corev1.Pod:
		_ = w.loads.SetPod(o)
	}
	w.mu.Unlock()
	w.poke()
}

func (w *Watch) remove(o any) {
	if gone, is := o.(toolscache.DeletedFinalStateUnknown); is {
		o = gone.Obj
	}
	w.mu.Lock()
	switch o := o.(type) {
	case *corev1.Node:
		_ = w.loads.DeleteNode(o.Name)
	case *corev1.Pod:
		_ = w.loads.DeletePod(placement.PodKey{Namespace: o.Namespace, Name: o.Name})
	}
	w.mu.Unlock()
	w.poke()
}

func (w *Watch) poke() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// failed takes note of a list or watch that failed. One that has merely ended is begun anew without a word.
func (w *Watch) failed(_ context.Context, r *toolscache.Reflector, err error) {
	if errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return
	}
	w.mu.Lock()
	w.failures[r.TypeDescription()] = failure{time.Now(), err}
	w.mu.Unlock()
	w.poke()
}

// Run watches until the context ends, and hands over a State whenever it may have changed: the first one when everything
// has been read that can be.
func (w *Watch) Run(ctx context.Context, show func(State)) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- w.cache.Start(ctx) }()
	go w.contact.keep(ctx)
	for {
		pause := settle
		if w.told() {
			began := time.Now()
			state, err := w.state(ctx)
			if err != nil {
				return err
			}
			show(state)
			pause = max(pause, effort*time.Since(began))
		}
		select {
		case err := <-ended:
			return cmp.Or(err, context.Cause(ctx))
		case <-time.After(pause):
		}
		select {
		case err := <-ended:
			return cmp.Or(err, context.Cause(ctx))
		case <-w.changed:
		case <-time.After(look):
		}
	}
}

// told reports whether of every kind either all is known, or why not.
func (w *Watch) told() bool {
	if w.contact.problem() != "" {
		return true
	}
	for _, k := range w.kinds {
		if !k.ready() && w.problem(k, time.Now()) == "" {
			return false
		}
	}
	return true
}

// problem is what is wrong with what is known of a kind; empty when nothing is.
func (w *Watch) problem(k *kind, now time.Time) string {
	if k.missing != "" {
		return k.missing
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for kind, f := range w.failures {
		if !strings.HasSuffix(kind, typeName(k.object)) || k.ready() && now.Sub(f.at) > stale {
			continue
		}
		if apierrors.IsForbidden(f.err) {
			return fmt.Sprintf("you may not list and watch %s: bind ClusterRole slipway-top (deploy/viewer)", k.name)
		}
		return fmt.Sprintf("%s may be out of date: %v", k.name, f.err)
	}
	return ""
}

// typeName is a type as a reflector describes it, without the package's path.
func typeName(o client.Object) string { return strings.TrimPrefix(fmt.Sprintf("%T", o), "*") }

// state makes a State of what is known now.
func (w *Watch) state(ctx context.Context) (State, error) {
	f := Facts{Now: time.Now(), Idle: map[string]nodegroup.Decision{}, Loads: map[string]planner.Load{}}
	if p := w.contact.problem(); p != "" {
		f.Problems = append(f.Problems, p)
	}
	whole := true
	for _, k := range w.kinds {
		if p := w.problem(k, f.Now); p != "" {
			f.Problems = append(f.Problems, p)
		}
		if !k.ready() {
			whole = false
			continue
		}
		if err := w.read(ctx, k, &f); err != nil {
			return State{}, fmt.Errorf("%s: %w", k.name, err)
		}
	}
	if whole {
		if err := w.forecast(ctx, &f); err != nil {
			return State{}, err
		}
	}
	return Build(f), nil
}

func (w *Watch) read(ctx context.Context, k *kind, f *Facts) error {
	switch k.object.(type) {
	case *corev1.Node:
		var list corev1.NodeList
		if err := w.cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
			return err
		}
		f.Nodes = list.Items
	case *corev1.Pod:
		w.weigh(f)
	case *v1alpha1.NodeGroup:
		var list v1alpha1.NodeGroupList
		if err := w.cache.List(ctx, &list); err != nil {
			return err
		}
		f.Groups = list.Items
	case *v1alpha1.NodeRetirement:
		var list v1alpha1.NodeRetirementList
		if err := w.cache.List(ctx, &list); err != nil {
			return err
		}
		f.Retirements = list.Items
	}
	return nil
}

// weigh reads the loads of the nodes, which come before the pods.
func (w *Watch) weigh(f *Facts) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range f.Nodes {
		if load, err := planner.MeasureRequests(w.loads, f.Nodes[i].Name); err == nil { // it may be on its way here still
			f.Loads[f.Nodes[i].Name] = load
		}
	}
}

// forecast is what a manager would decide about each node. A group that it cannot be told of is a problem of its own.
func (w *Watch) forecast(ctx context.Context, f *Facts) error {
	cluster, err := nodegroup.ReadCluster(ctx, w.cache, w.pods, f.Groups)
	if err != nil {
		return err
	}
	for i := range f.Groups {
		decisions, err := cluster.Forecast(ctx, &f.Groups[i])
		if err != nil {
			f.Problems = append(f.Problems, fmt.Sprintf("the idle nodes of %s cannot be told: %v", f.Groups[i].Name, err))
			continue
		}
		for _, d := range decisions {
			f.Idle[d.Node] = d
		}
	}
	slices.Sort(f.Problems)
	return nil
}
