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

// sources are what the autoscaler reads of the cluster, kept current by watches.
type sources struct {
	live    *live.Cluster
	nodes   corelisters.NodeLister
	daemons appslisters.DaemonSetLister
	hosts   *instances.Nodes
}

// watch begins to watch what placement reads, and returns when it has been read once.
func (a *Controller) watch(ctx context.Context) (*sources, error) {
	informers := a.o.Informers
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
	cluster, err := live.Watch(a.o.Kube.Discovery(), informers, a.o.Log)
	if err != nil {
		return nil, err
	}
	waiting, err := pods.AddEventHandler(a.waiter.handler())
	if err != nil {
		return nil, fmt.Errorf("watching pods: %w", err)
	}
	if err := cluster.WaitForSync(ctx); err != nil {
		return nil, err
	}
	if !cache.WaitForCacheSync(ctx.Done(), waiting.HasSynced, daemons.HasSynced) {
		return nil, fmt.Errorf("wait for the cluster to be read: %w", context.Cause(ctx))
	}
	return &sources{
		live: cluster, nodes: corelisters.NewNodeLister(nodes.GetIndexer()), daemons: appslisters.NewDaemonSetLister(daemons.GetIndexer()),
		hosts: &instances.Nodes{List: a.o.Kube.CoreV1().Nodes().List},
	}, nil
}

// waitingPod is a pod of which the scheduler has said that it finds no room.
type waitingPod struct {
	uid       types.UID
	nominated string
	since     time.Time // when this process heard of it
}

// waiter knows the pods that wait for room. It may be used concurrently.
type waiter struct {
	wake chan<- struct{}

	mu    sync.Mutex
	pods  map[placement.PodKey]waitingPod
	first time.Time // when the first pod came that was not taken yet; zero without one
}

func newWaiter(wake chan<- struct{}) *waiter {
	return &waiter{wake: wake, pods: map[placement.PodKey]waitingPod{}}
}

func (w *waiter) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { w.see(o) },
		UpdateFunc: func(_, o any) { w.see(o) },
		DeleteFunc: func(o any) {
			if name, err := cache.DeletionHandlingObjectToName(o); err == nil {
				w.mu.Lock()
				defer w.mu.Unlock()
				delete(w.pods, placement.PodKey{Namespace: name.Namespace, Name: name.Name})
			}
		},
	}
}

// unschedulable reports whether the scheduler has looked for room for a pod and found none. Its message is for people, and
// not read.
func unschedulable(p *corev1.Pod) bool {
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

func (w *waiter) see(o any) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	key := placement.PodKey{Namespace: p.Namespace, Name: p.Name}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !unschedulable(p) {
		delete(w.pods, key)
		return
	}
	before, there := w.pods[key]
	now := waitingPod{uid: p.UID, nominated: p.Status.NominatedNodeName, since: time.Now()}
	if there && before.uid == now.uid {
		now.since = before.since
	}
	w.pods[key] = now
	if there && before.uid == now.uid {
		return
	}
	if w.first.IsZero() {
		w.first = now.since
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// waited is for how long the first pod that was not taken yet has waited.
func (w *waiter) waited() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.first.IsZero() {
		return 0
	}
	return time.Since(w.first)
}

// take gives all pods that wait, those that were given before included.
func (w *waiter) take() map[placement.PodKey]waitingPod {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.first = time.Time{}
	out := make(map[placement.PodKey]waitingPod, len(w.pods))
	for key, p := range w.pods {
		out[key] = p
	}
	return out
}
