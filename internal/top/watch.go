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
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
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
	"github.com/slipway-dev/slipway/internal/retirement"
)

const (
	// minUpdatePause is the shortest time between two States. Changes in between are shown together.
	minUpdatePause = 250 * time.Millisecond
	// maxBuildShare limits the share of time for building States to 1/maxBuildShare.
	maxBuildShare = 8
	// rebuildInterval is the time after which a State is built without a change, because decisions depend on the
	// time.
	rebuildInterval = 2 * time.Second
	// failureRetention is how long the failure of a watch is shown. It is longer than the longest retry pause of
	// client-go.
	failureRetention = 65 * time.Second
)

// Watcher keeps a [State] current. It lists and watches nodes, pods, NodeGroups, NodeRetirements, Events, and what the rules of
// slipway why read.
type Watcher struct {
	cache      cache.Cache
	pods       live.PodReader
	kinds      []*watchedKind
	connection *serverConnection
	changed    chan struct{}
	events     *recentEvents
	evictions  evictionCounter

	mu    sync.Mutex
	loads *snapshot.Snapshot
	// marked are the nodes that loads has with a mark of removal.
	marked   map[string]bool
	failures map[string]failure // by the reflector's type description
}

// watchedKind is one kind of object that a Watcher watches.
type watchedKind struct {
	name     string
	object   client.Object
	informer cache.Informer
	// optional is true if only the pane with a node's pods needs the kind.
	optional bool
	// missing says why the kind cannot be watched at all.
	missing string
}

func (k *watchedKind) isSynced() bool { return k.informer != nil && k.informer.HasSynced() }

type failure struct {
	at  time.Time
	err error
}

// NewWatcher returns a Watcher, which the caller starts with Run. It returns an error if the API server does not answer
// or rejects the credentials.
func NewWatcher(ctx context.Context, cfg *rest.Config) (*Watcher, error) {
	w := &Watcher{changed: make(chan struct{}, 1), loads: snapshot.New(), marked: map[string]bool{}, failures: map[string]failure{}, evictions: evictionCounter{at: map[types.UID]time.Time{}}}
	scheme := runtime.NewScheme()
	err := errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme), policyv1.AddToScheme(scheme), storagev1.AddToScheme(scheme))
	if err != nil {
		return nil, err
	}
	if w.events, err = newRecentEvents(cfg, w.signalChange); err != nil {
		return nil, err
	}
	if w.connection, err = newServerConnection(cfg, w.signalChange); err != nil {
		return nil, err
	}
	w.cache, err = cache.New(cfg, cache.Options{
		Scheme: scheme, DefaultWatchErrorHandler: w.recordWatchFailure,
		DefaultTransform: trimUnlessNode,
		ByObject:         map[client.Object]cache.ByObject{&corev1.Pod{}: {Transform: w.evictions.newPodTransform()}},
	})
	if err != nil {
		return nil, err
	}
	w.kinds = []*watchedKind{
		{name: "nodes", object: &corev1.Node{}},
		{name: "pods", object: &corev1.Pod{}},
		{name: "NodeGroups", object: &v1alpha1.NodeGroup{}},
		{name: "NodeRetirements", object: &v1alpha1.NodeRetirement{}},
		{name: "poddisruptionbudgets", object: &policyv1.PodDisruptionBudget{}, optional: true},
		{name: "namespaces", object: &corev1.Namespace{}, optional: true},
		{name: "persistentvolumeclaims", object: &corev1.PersistentVolumeClaim{}, optional: true},
		{name: "persistentvolumes", object: &corev1.PersistentVolume{}, optional: true},
		{name: "storageclasses", object: &storagev1.StorageClass{}, optional: true},
		{name: "csinodes", object: &storagev1.CSINode{}, optional: true},
		{name: "csidrivers", object: &storagev1.CSIDriver{}, optional: true},
		{name: "volumeattachments", object: &storagev1.VolumeAttachment{}, optional: true},
	}
	for _, k := range w.kinds {
		if err := w.startInformer(ctx, k); err != nil {
			return nil, fmt.Errorf("%s: %w", k.name, err)
		}
	}
	w.pods, err = live.NewCachedPodReader(live.InformersOfCache(ctx, w.cache))
	return w, err
}

// trimUnlessNode removes what nothing reads. The managed fields of a Node say who cordoned it.
func trimUnlessNode(o any) (any, error) {
	if _, is := o.(*corev1.Node); is {
		return o, nil
	}
	return cache.TransformStripManagedFields()(o)
}

// startInformer starts to watch one kind. If the API server does not serve Slipway's types, that is not an error.
func (w *Watcher) startInformer(ctx context.Context, k *watchedKind) error {
	informer, err := w.cache.GetInformer(ctx, k.object, cache.BlockUntilSynced(false))
	if meta.IsNoMatchError(err) {
		k.missing = k.name + " are not served by the API server: the CRDs of Slipway are not installed"
		if k.optional {
			k.missing = k.name + " are not served by the API server"
		}
		return nil
	}
	if err != nil {
		return err
	}
	k.informer = informer
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: w.setObject, UpdateFunc: func(_, o any) { w.setObject(o) }, DeleteFunc: w.deleteObject,
	})
	return err
}

// setObject updates the loads with an object. It ignores an object that the loads reject.
func (w *Watcher) setObject(o any) {
	w.mu.Lock()
	switch o := o.(type) {
	case *corev1.Node:
		_ = w.loads.SetNode(o) // it fails only while a plan is made, which also needs the lock
	case *corev1.Pod:
		_ = w.loads.SetPod(o)
	case *corev1.Namespace:
		_ = w.loads.SetNamespace(o)
	case *policyv1.PodDisruptionBudget:
		_ = w.loads.PDBs.Set(o)
	case *corev1.PersistentVolumeClaim:
		_ = w.loads.Storage.SetPersistentVolumeClaim(o)
	case *corev1.PersistentVolume:
		_ = w.loads.Storage.SetPersistentVolume(o)
	case *storagev1.StorageClass:
		_ = w.loads.Storage.SetStorageClass(o)
	case *storagev1.CSINode:
		_ = w.loads.Storage.SetCSINode(o)
	case *storagev1.CSIDriver:
		_ = w.loads.Storage.SetCSIDriver(o)
	case *storagev1.VolumeAttachment:
		_ = w.loads.Storage.SetVolumeAttachment(o)
	}
	w.mu.Unlock()
	w.signalChange()
}

func (w *Watcher) deleteObject(o any) {
	if gone, is := o.(toolscache.DeletedFinalStateUnknown); is {
		o = gone.Obj
	}
	w.mu.Lock()
	switch o := o.(type) {
	case *corev1.Node:
		_ = w.loads.DeleteNode(o.Name)
	case *corev1.Pod:
		_ = w.loads.DeletePod(placement.PodKey{Namespace: o.Namespace, Name: o.Name})
	case *corev1.Namespace:
		_ = w.loads.DeleteNamespace(o.Name)
	case *policyv1.PodDisruptionBudget:
		_ = w.loads.PDBs.Delete(placement.PodKey{Namespace: o.Namespace, Name: o.Name})
	case *corev1.PersistentVolumeClaim:
		_ = w.loads.Storage.DeletePersistentVolumeClaim(placement.PodKey{Namespace: o.Namespace, Name: o.Name})
	case *corev1.PersistentVolume:
		_ = w.loads.Storage.DeletePersistentVolume(o.Name)
	case *storagev1.StorageClass:
		_ = w.loads.Storage.DeleteStorageClass(o.Name)
	case *storagev1.CSINode:
		_ = w.loads.Storage.DeleteCSINode(o.Name)
	case *storagev1.CSIDriver:
		_ = w.loads.Storage.DeleteCSIDriver(o.Name)
	case *storagev1.VolumeAttachment:
		_ = w.loads.Storage.DeleteVolumeAttachment(o.Name)
	}
	w.mu.Unlock()
	w.signalChange()
}

func (w *Watcher) signalChange() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// recordWatchFailure records the error of a failed list or watch. It ignores a watch that ended normally.
func (w *Watcher) recordWatchFailure(_ context.Context, r *toolscache.Reflector, err error) {
	if errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return
	}
	w.mu.Lock()
	w.failures[r.TypeDescription()] = failure{time.Now(), err}
	w.mu.Unlock()
	w.signalChange()
}

// Run watches until ctx ends. It calls show with each State that may have changed. The first call follows when every
// readable kind has been read.
func (w *Watcher) Run(ctx context.Context, show func(State)) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- w.cache.Start(ctx) }()
	go w.connection.pingUntilDone(ctx)
	go w.events.watchUntilDone(ctx)
	for {
		pause := minUpdatePause
		if w.isReadyToShow() {
			began := time.Now()
			state, err := w.buildState(ctx)
			if err != nil {
				return err
			}
			show(state)
			pause = max(pause, maxBuildShare*time.Since(began))
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
		case <-time.After(rebuildInterval):
		}
	}
}

// isReadyToShow reports whether every kind has been read or has a known problem. It also returns true if the connection
// has a problem.
func (w *Watcher) isReadyToShow() bool {
	if w.connection.findProblem() != "" {
		return true
	}
	for _, k := range w.kinds {
		if !k.optional && !k.isSynced() && w.findKindProblem(k, time.Now()) == "" {
			return false
		}
	}
	return true
}

// findKindProblem returns the problem with watching a kind as text. It returns "" if there is none.
func (w *Watcher) findKindProblem(k *watchedKind, now time.Time) string {
	if k.missing != "" {
		return k.missing
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for kind, f := range w.failures {
		if !strings.HasSuffix(kind, typeName(k.object)) || k.isSynced() && now.Sub(f.at) > failureRetention {
			continue
		}
		if apierrors.IsForbidden(f.err) {
			return fmt.Sprintf("you may not list and watch %s: bind ClusterRole slipway-top (deploy/viewer)", k.name)
		}
		return fmt.Sprintf("%s can be out of date: %v", k.name, f.err)
	}
	return ""
}

// typeName returns the name of an object's type in a reflector's description.
func typeName(o client.Object) string { return strings.TrimPrefix(fmt.Sprintf("%T", o), "*") }

// buildState returns the State for the current content of the caches.
func (w *Watcher) buildState(ctx context.Context) (State, error) {
	f := Facts{Now: time.Now(), Decisions: map[string]nodegroup.Decision{}, Loads: map[string]planner.Utilization{}}
	if p := w.connection.findProblem(); p != "" {
		f.Problems = append(f.Problems, p)
	}
	whole := true
	for _, k := range w.kinds {
		if k.optional {
			continue
		}
		if p := w.findKindProblem(k, f.Now); p != "" {
			f.Problems = append(f.Problems, p)
		}
		if !k.isSynced() {
			whole = false
			continue
		}
		if err := w.readKindFromCache(ctx, k, &f); err != nil {
			return State{}, fmt.Errorf("%s: %w", k.name, err)
		}
	}
	if whole {
		w.markNodesBeingRemoved(f.Nodes, f.Retirements)
		if err := w.readDecisions(ctx, &f); err != nil {
			return State{}, err
		}
	}
	state := BuildState(f)
	state.Events, state.EventProblem = w.events.list()
	state.Evictions = w.evictions.count(f.Now)
	return state, nil
}

func (w *Watcher) readKindFromCache(ctx context.Context, k *watchedKind, f *Facts) error {
	switch k.object.(type) {
	case *corev1.Node:
		var list corev1.NodeList
		if err := w.cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
			return err
		}
		f.Nodes = list.Items
	case *corev1.Pod:
		w.readLoads(f)
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

// markNodesBeingRemoved marks the nodes in loads that are being taken out of service, so that the pane with a node's pods
// moves none there, as slipway why does.
func (w *Watcher) markNodesBeingRemoved(nodes []corev1.Node, retirements []v1alpha1.NodeRetirement) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range nodes {
		n := &nodes[i]
		marked := retirement.MarkIfBeingRemoved(n, retirements)
		if marked != n || w.marked[n.Name] {
			_ = w.loads.SetNode(marked) // it fails only while a plan is made, which also needs the lock
		}
		if marked == n {
			delete(w.marked, n.Name)
		} else {
			w.marked[n.Name] = true
		}
	}
}

// readLoads sets the loads of the nodes in f. The caller must have read the nodes before.
func (w *Watcher) readLoads(f *Facts) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range f.Nodes {
		if load, err := planner.MeasureTotalUtilization(w.loads, f.Nodes[i].Name); err == nil { // the node may not have arrived yet
			f.Loads[f.Nodes[i].Name] = load
		}
	}
}

// readDecisions sets the manager's decision for each node in f. An error for one group becomes a problem in the view.
func (w *Watcher) readDecisions(ctx context.Context, f *Facts) error {
	cluster, err := nodegroup.ReadCluster(ctx, w.cache, w.pods, f.Groups)
	if err != nil {
		return err
	}
	for i := range f.Groups {
		decisions, err := cluster.PredictDecisionsByIdleRule(ctx, &f.Groups[i])
		if err != nil {
			f.Problems = append(f.Problems, fmt.Sprintf("idle nodes of %s are unknown: %v", f.Groups[i].Name, err))
			continue
		}
		for _, d := range decisions {
			f.Decisions[d.Node] = d
		}
	}
	slices.Sort(f.Problems)
	return nil
}
