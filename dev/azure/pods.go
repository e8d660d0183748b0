package azure

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// StopSecondsAnnotation holds the seconds that a pod needs to stop. The development control plane applies it; the ledger
// only repeats it.
const StopSecondsAnnotation = "dev.slipway.dev/stop-seconds"

// Pod is the observed life of one pod on its node. Times are those of the watch unless stated otherwise.
type Pod struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	Node      string    `json:"node"`
	// StayReason is "DaemonSet" or "mirror" for a pod that stays on its node, or else empty.
	StayReason string `json:"stays,omitempty"`
	// StopSeconds is the value of StopSecondsAnnotation.
	StopSeconds string `json:"stopSeconds,omitempty"`
	// WantedSeconds is spec.terminationGracePeriodSeconds.
	WantedSeconds int64 `json:"wantedSeconds"`
	// BoundAt is the time of binding to the node. For a pod older than the watch it is the creation time.
	BoundAt time.Time `json:"boundAt"`
	// DeletedAt is the time of deletion, to the second: deletionTimestamp minus grace period. Zero means not deleted.
	DeletedAt time.Time `json:"askedAt,omitzero"`
	// DeletionSeenAt is the time when the watch reported the deletion.
	DeletionSeenAt time.Time `json:"askedSeenAt,omitzero"`
	// GrantedSeconds is the last deletionGracePeriodSeconds, and FirstGrantedSeconds the first. A later deletion can only
	// shorten it. Both are meaningless while DeletedAt is zero.
	GrantedSeconds      int64 `json:"grantedSeconds"`
	FirstGrantedSeconds int64 `json:"firstGrantedSeconds"`
	// EndedAt is the time when all containers had terminated, or when the pod vanished before that was seen.
	EndedAt time.Time `json:"endedAt,omitzero"`
	// Vanished is true if the object was removed before its containers were seen to terminate.
	Vanished bool `json:"vanished,omitempty"`
	// FinishedAt is the latest withFinishedAt of the containers, to the second, if they have one.
	FinishedAt time.Time `json:"finishedAt,omitzero"`
	// ExitCode is 137 if a container was killed, or else the first non-zero code, or else zero. Nil means that not all
	// have terminated.
	ExitCode *int32 `json:"exitCode,omitempty"`
	// RemovedAt is the time when the object was removed.
	RemovedAt time.Time `json:"goneAt,omitzero"`
	// Unobserved is true if the watch missed the pod's last state.
	Unobserved bool `json:"unobserved,omitempty"`
}

// updateUnlessEnded updates the record with the pod's state at a time. Nothing changes once the pod has ended. Its object is then
// removed with grace 0, which differs from the granted grace.
func (p *Pod) updateUnlessEnded(pod *corev1.Pod, at time.Time) {
	if !p.EndedAt.IsZero() {
		return
	}
	if pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil {
		granted := *pod.DeletionGracePeriodSeconds
		if p.DeletionSeenAt.IsZero() {
			p.DeletionSeenAt, p.FirstGrantedSeconds = at, granted
		}
		p.GrantedSeconds = granted
		p.DeletedAt = pod.DeletionTimestamp.Add(-time.Duration(granted) * time.Second)
	}
	if hasEnded(pod) {
		p.ExitCode, p.FinishedAt = summarizeExit(pod)
		p.EndedAt = latestPossibleEnd(p.FinishedAt, at)
	}
}

// latestPossibleEnd returns the latest possible end of a pod. A watch may lag, and FinishedAt has truncated seconds.
func latestPossibleEnd(finished, seen time.Time) time.Time {
	if latest := finished.Add(time.Second); !finished.IsZero() && latest.Before(seen) {
		return latest
	}
	return seen
}

// hasEnded reports whether all containers of the pod have terminated and will not restart.
func hasEnded(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return true
	}
	statuses := pod.Status.ContainerStatuses
	return pod.DeletionTimestamp != nil && len(statuses) > 0 &&
		!slices.ContainsFunc(statuses, func(s corev1.ContainerStatus) bool { return s.State.Terminated == nil })
}

// killedExitCode is the exit code of a killed container: 128 plus SIGKILL.
const killedExitCode = 137

// summarizeExit summarizes how the containers ended. A pod without container statuses is judged by its phase.
func summarizeExit(pod *corev1.Pod) (code *int32, finished time.Time) {
	worst := int32(0)
	terminated := 0
	for _, status := range pod.Status.ContainerStatuses {
		t := status.State.Terminated
		if t == nil {
			continue
		}
		terminated++
		if t.ExitCode == killedExitCode || worst == 0 {
			worst = t.ExitCode
		}
		if t.FinishedAt.After(finished) {
			finished = t.FinishedAt.Time
		}
	}
	switch {
	case terminated > 0:
		return new(worst), finished
	case pod.Status.Phase == corev1.PodSucceeded:
		return new(int32(0)), finished
	}
	return nil, finished
}

// stayReason returns why a pod stays on its node, or empty.
func stayReason(pod *corev1.Pod) string {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return "mirror"
	}
	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "DaemonSet" {
		return "DaemonSet"
	}
	return ""
}

// PodWatch records what happens to the pods of a cluster. It never forgets a pod, so use it for one demo, test or
// benchmark. Its methods may be called concurrently.
type PodWatch struct {
	nodes *NodeMap

	mu   sync.Mutex
	pods map[types.UID]*Pod
}

// WatchPods watches all pods until ctx ends, and returns when it has seen the existing pods.
func WatchPods(ctx context.Context, client kubernetes.Interface, nodes *NodeMap) (*PodWatch, error) {
	w := &PodWatch{nodes: nodes, pods: map[types.UID]*Pod{}}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(dropUnusedFields))
	informer := factory.Core().V1().Pods().Informer()
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(obj any, initial bool) { w.recordPod(obj, initial) },
		UpdateFunc: func(_, obj any) { w.recordPod(obj, false) },
		DeleteFunc: func(obj any) { w.recordRemoval(obj) },
	})
	if err != nil {
		return nil, fmt.Errorf("watching pods: %w", err)
	}
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return nil, fmt.Errorf("watching pods: no first list: %w", context.Cause(ctx))
	}
	return w, nil
}

// dropUnusedFields drops the parts of a pod that the ledger does not read, to save memory.
func dropUnusedFields(obj any) (any, error) {
	if pod, ok := obj.(*corev1.Pod); ok {
		pod.ManagedFields = nil
		pod.Spec.Containers, pod.Spec.InitContainers, pod.Spec.Volumes = nil, nil, nil
	}
	return obj, nil
}

func (w *PodWatch) recordPod(obj any, initial bool) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.recordPodLocked(pod, initial, time.Now())
}

func (w *PodWatch) recordPodLocked(pod *corev1.Pod, initial bool, now time.Time) *Pod {
	if pod.Spec.NodeName == "" {
		return nil // not bound yet
	}
	p := w.pods[pod.UID]
	if p == nil {
		p = &Pod{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Node: pod.Spec.NodeName, StayReason: stayReason(pod),
			StopSeconds: pod.Annotations[StopSecondsAnnotation], BoundAt: now,
			WantedSeconds: corev1.DefaultTerminationGracePeriodSeconds,
		}
		if grace := pod.Spec.TerminationGracePeriodSeconds; grace != nil {
			p.WantedSeconds = *grace
		}
		if initial {
			p.BoundAt = pod.CreationTimestamp.Time
		}
		w.pods[pod.UID] = p
	}
	p.updateUnlessEnded(pod, now)
	return p
}

func (w *PodWatch) recordRemoval(obj any) {
	now := time.Now()
	tombstone, missed := obj.(cache.DeletedFinalStateUnknown)
	if missed {
		obj = tombstone.Obj
	}
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.recordPodLocked(pod, false, now)
	if p == nil {
		return
	}
	p.RemovedAt = now
	if p.EndedAt.IsZero() {
		p.EndedAt, p.Vanished, p.Unobserved = now, true, missed
	}
}

// Pods returns a copy of all records, sorted by namespace, name and binding time.
func (w *PodWatch) Pods() []Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	pods := make([]Pod, 0, len(w.pods))
	for _, p := range w.pods {
		pods = append(pods, *p) // ExitCode is shared, but never modified
	}
	slices.SortFunc(pods, func(a, b Pod) int {
		if c := strings.Compare(a.Namespace, b.Namespace); c != 0 {
			return c
		}
		if c := strings.Compare(a.Name, b.Name); c != 0 {
			return c
		}
		return a.BoundAt.Compare(b.BoundAt)
	})
	return pods
}

// Ledger makes the ledger from an emulator's events and the pods seen so far.
func (w *PodWatch) Ledger(state State) Ledger {
	return NewLedger(state, w.Pods(), w.nodes.NodeOfEventResource)
}
