package provisioning

import (
	"context"
	"fmt"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/slipway-dev/slipway/internal/instances"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/live"
)

// clusterCaches are the watched objects of the cluster.
type clusterCaches struct {
	cluster    *live.Cluster
	nodes      corelisters.NodeLister
	daemonSets appslisters.DaemonSetLister
	hosts      *instances.NodeReader
}

// startWatches starts the watches, and returns when all caches are filled.
func (a *Controller) startWatches(ctx context.Context) (*clusterCaches, error) {
	informers := a.options.Informers
	core, apps := corev1.SchemeGroupVersion, appsv1.SchemeGroupVersion
	pods, err := informers(core.WithResource("pods"), &corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("watching pods: %w", err)
	}
	nodes, err := informers(core.WithResource("nodes"), &corev1.Node{})
	if err != nil {
		return nil, fmt.Errorf("watching nodes: %w", err)
	}
	daemons, err := informers(apps.WithResource("daemonsets"), &appsv1.DaemonSet{})
	if err != nil {
		return nil, fmt.Errorf("watching DaemonSets: %w", err)
	}
	cluster, err := a.options.WatchCluster(a.options.Kube.Discovery())
	if err != nil {
		return nil, err
	}
	waiting, err := pods.AddEventHandler(a.pods.eventHandler())
	if err != nil {
		return nil, fmt.Errorf("watching pods: %w", err)
	}
	if err := cluster.WaitForSync(ctx); err != nil {
		return nil, err
	}
	if !cache.WaitForCacheSync(ctx.Done(), waiting.HasSynced, daemons.HasSynced) {
		return nil, fmt.Errorf("waiting for caches: %w", context.Cause(ctx))
	}
	return &clusterCaches{
		cluster: cluster, nodes: corelisters.NewNodeLister(nodes.GetIndexer()), daemonSets: appslisters.NewDaemonSetLister(daemons.GetIndexer()),
		hosts: &instances.NodeReader{List: a.options.Kube.CoreV1().Nodes().List},
	}, nil
}

// unschedulablePod is a pod that the scheduler could not place.
type unschedulablePod struct {
	uid       types.UID
	nominated string
	since     time.Time // when this process first saw it
}

// unschedulablePods is the set of unschedulable pods. It is safe for concurrent use.
type unschedulablePods struct {
	wake chan<- struct{}

	mu         sync.Mutex
	pods       map[placement.PodKey]unschedulablePod
	firstSince time.Time // when the first pod was added since listAndResetWait; zero if none
}

func newUnschedulablePods(wake chan<- struct{}) *unschedulablePods {
	return &unschedulablePods{wake: wake, pods: map[placement.PodKey]unschedulablePod{}}
}

func (w *unschedulablePods) eventHandler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { w.trackIfUnschedulable(o) },
		UpdateFunc: func(_, o any) { w.trackIfUnschedulable(o) },
		DeleteFunc: func(o any) {
			if name, err := cache.DeletionHandlingObjectToName(o); err == nil {
				w.mu.Lock()
				defer w.mu.Unlock()
				delete(w.pods, placement.PodKey{Namespace: name.Namespace, Name: name.Name})
			}
		},
	}
}

// isUnschedulable reports whether the scheduler has found no node for the pod. It does not read the condition's
// message, which is for people.
func isUnschedulable(p *corev1.Pod) bool {
	if p.Spec.NodeName != "" || p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodPending {
		return false
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
		}
	}
	return false
}

func (w *unschedulablePods) trackIfUnschedulable(o any) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	key := placement.PodKey{Namespace: p.Namespace, Name: p.Name}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !isUnschedulable(p) {
		delete(w.pods, key)
		return
	}
	before, there := w.pods[key]
	now := unschedulablePod{uid: p.UID, nominated: p.Status.NominatedNodeName, since: time.Now()}
	if there && before.uid == now.uid {
		now.since = before.since
	}
	w.pods[key] = now
	if there && before.uid == now.uid {
		return
	}
	if w.firstSince.IsZero() {
		w.firstSince = now.since
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// timeSinceFirstPod returns how long the first pod has waited that listAndResetWait has not returned yet.
func (w *unschedulablePods) timeSinceFirstPod() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.firstSince.IsZero() {
		return 0
	}
	return time.Since(w.firstSince)
}

// listAndResetWait returns all unschedulable pods, also those that it has returned before.
func (w *unschedulablePods) listAndResetWait() map[placement.PodKey]unschedulablePod {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.firstSince = time.Time{}
	out := make(map[placement.PodKey]unschedulablePod, len(w.pods))
	for key, p := range w.pods {
		out[key] = p
	}
	return out
}
