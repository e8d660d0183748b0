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

// StopSecondsAnnotation says how many seconds a pod needs to stop. The development control plane makes its pods take
// so long; the ledger only repeats it.
const StopSecondsAnnotation = "dev.slipway.dev/stop-seconds"

// Pod is what was seen of one pod's life on its node. Times are those of the watch unless said otherwise.
type Pod struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	Node      string    `json:"node"`
	// Stays is "DaemonSet" or "mirror" for a pod that is to stay on its node, or else empty.
	Stays string `json:"stays,omitempty"`
	// StopSeconds is StopSecondsAnnotation as found.
	StopSeconds string `json:"stopSeconds,omitempty"`
	// WantedSeconds is spec.terminationGracePeriodSeconds.
	WantedSeconds int64 `json:"wantedSeconds"`
	// BoundAt is when the pod was on its node first; for a pod older than the watch, when it was created.
	BoundAt time.Time `json:"boundAt"`
	// AskedAt is when the pod was asked to go, to the second: its deletionTimestamp less its grace. Zero when never.
	AskedAt time.Time `json:"askedAt,omitzero"`
	// AskedSeenAt is when the watch said so.
	AskedSeenAt time.Time `json:"askedSeenAt,omitzero"`
	// GrantedSeconds is the last deletionGracePeriodSeconds, and FirstGrantedSeconds the first, which a later deletion
	// can only shorten. Both are without meaning while AskedAt is zero.
	GrantedSeconds      int64 `json:"grantedSeconds"`
	FirstGrantedSeconds int64 `json:"firstGrantedSeconds"`
	// EndedAt is when all containers were terminated, or when the pod was gone without that being seen.
	EndedAt time.Time `json:"endedAt,omitzero"`
	// Vanished is true when the object was removed without its containers having been seen to terminate.
	Vanished bool `json:"vanished,omitempty"`
	// FinishedAt is the latest finishedAt of the containers, to the second, where they have one.
	FinishedAt time.Time `json:"finishedAt,omitzero"`
	// ExitCode is 137 if a container was killed, else the first that is not zero, else zero; nil while not all are
	// terminated.
	ExitCode *int32 `json:"exitCode,omitempty"`
	// GoneAt is when the object was removed.
	GoneAt time.Time `json:"goneAt,omitzero"`
	// Unobserved is true when the watch missed the pod's last state.
	Unobserved bool `json:"unobserved,omitempty"`
}

// observe brings the record up to date with the pod as it is at that time. Nothing changes once it has ended: who
// removes the object of an ended pod does so with grace 0, which says nothing of what it was granted.
func (p *Pod) observe(pod *corev1.Pod, at time.Time) {
	if !p.EndedAt.IsZero() {
		return
	}
	if pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil {
		granted := *pod.DeletionGracePeriodSeconds
		if p.AskedSeenAt.IsZero() {
			p.AskedSeenAt, p.FirstGrantedSeconds = at, granted
		}
		p.GrantedSeconds = granted
		p.AskedAt = pod.DeletionTimestamp.Add(-time.Duration(granted) * time.Second)
	}
	if ended(pod) {
		p.ExitCode, p.FinishedAt = exit(pod)
		p.EndedAt = endOf(p.FinishedAt, at)
	}
}

// endOf is the latest at which a pod can have ended that was seen to have at some time: a watch may lag behind, and
// FinishedAt is of whole seconds, cut off.
func endOf(finished, seen time.Time) time.Time {
	if latest := finished.Add(time.Second); !finished.IsZero() && latest.Before(seen) {
		return latest
	}
	return seen
}

// ended reports whether nothing of the pod runs any more and nothing will: its containers are all terminated, and they
// are not to be restarted.
func ended(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return true
	}
	statuses := pod.Status.ContainerStatuses
	return pod.DeletionTimestamp != nil && len(statuses) > 0 &&
		!slices.ContainsFunc(statuses, func(s corev1.ContainerStatus) bool { return s.State.Terminated == nil })
}

// killed is the exit code of a container that had to be killed: 128 and SIGKILL.
const killed = 137

// exit sums up how the containers ended. A pod that says no more than its phase is taken at that word.
func exit(pod *corev1.Pod) (code *int32, finished time.Time) {
	worst := int32(0)
	terminated := 0
	for _, status := range pod.Status.ContainerStatuses {
		t := status.State.Terminated
		if t == nil {
			continue
		}
		terminated++
		if t.ExitCode == killed || worst == 0 {
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

// stays says why a pod is to stay on its node, or is empty.
func stays(pod *corev1.Pod) string {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return "mirror"
	}
	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "DaemonSet" {
		return "DaemonSet"
	}
	return ""
}

// PodWatch notes what happens to the pods of a cluster. It forgets none of them: it is for one demo, test or benchmark.
// Its methods may be called from several goroutines at once.
type PodWatch struct {
	nodes *Nodes

	mu   sync.Mutex
	pods map[types.UID]*Pod
}

// WatchPods watches all pods until ctx ends, and returns when it has seen those that there are.
func WatchPods(ctx context.Context, client kubernetes.Interface, nodes *Nodes) (*PodWatch, error) {
	w := &PodWatch{nodes: nodes, pods: map[types.UID]*Pod{}}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(slim))
	informer := factory.Core().V1().Pods().Informer()
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(obj any, initial bool) { w.note(obj, initial) },
		UpdateFunc: func(_, obj any) { w.note(obj, false) },
		DeleteFunc: func(obj any) { w.noteGone(obj) },
	})
	if err != nil {
		return nil, fmt.Errorf("watching pods: %w", err)
	}
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return nil, fmt.Errorf("watching pods: the first list did not come: %w", context.Cause(ctx))
	}
	return w, nil
}

// slim drops what the ledger never reads, which is most of a pod.
func slim(obj any) (any, error) {
	if pod, ok := obj.(*corev1.Pod); ok {
		pod.ManagedFields = nil
		pod.Spec.Containers, pod.Spec.InitContainers, pod.Spec.Volumes = nil, nil, nil
	}
	return obj, nil
}

func (w *PodWatch) note(obj any, initial bool) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noteLocked(pod, initial, time.Now())
}

func (w *PodWatch) noteLocked(pod *corev1.Pod, initial bool, now time.Time) *Pod {
	if pod.Spec.NodeName == "" {
		return nil // not on any machine yet
	}
	p := w.pods[pod.UID]
	if p == nil {
		p = &Pod{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Node: pod.Spec.NodeName, Stays: stays(pod),
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
	p.observe(pod, now)
	return p
}

func (w *PodWatch) noteGone(obj any) {
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
	p := w.noteLocked(pod, false, now)
	if p == nil {
		return
	}
	p.GoneAt = now
	if p.EndedAt.IsZero() {
		p.EndedAt, p.Vanished, p.Unobserved = now, true, missed
	}
}

// Pods gives a copy of all records, sorted by namespace, name and time of binding.
func (w *PodWatch) Pods() []Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	pods := make([]Pod, 0, len(w.pods))
	for _, p := range w.pods {
		pods = append(pods, *p) // ExitCode is shared, and never written to again
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

// Ledger settles the events of an emulator's state against the pods seen so far.
func (w *PodWatch) Ledger(state State) Ledger { return Settle(state, w.Pods(), w.nodes.Node) }
