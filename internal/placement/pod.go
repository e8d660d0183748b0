package placement

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PodKey names a pod, or another object of a namespace. In JSON and YAML it is "namespace/name".
type PodKey struct{ Namespace, Name string }

// String returns "namespace/name".
func (k PodKey) String() string { return k.Namespace + "/" + k.Name }

// MarshalText returns what String does.
func (k PodKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads "namespace/name".
func (k *PodKey) UnmarshalText(text []byte) error {
	namespace, name, ok := strings.Cut(string(text), "/")
	if !ok || strings.Contains(name, "/") {
		return fmt.Errorf("pod %q is not namespace/name", text)
	}
	k.Namespace, k.Name = namespace, name
	return nil
}

// pod is one pod of the snapshot: where it is, and what the rules of eviction read. Its needs are in its class.
type pod struct {
	key   PodKey
	uid   types.UID
	class *class
	takes []amount // what it takes on its node: that of its class, unless it is being resized

	node     int32  // none while it is pending or its node is not known
	nodeName string // as bound, empty while pending
	moved    bool   // a fork has taken it off the node it was on
	place    int32  // in its node's list
	rank     int32  // in its labels' list

	priority    int32
	created     time.Time
	terminating bool
	eviction    evictionFacts
}

// evictionFacts is what the rules on taking a pod off its node read.
type evictionFacts struct {
	mirror, daemonSet, controlled bool
	pending, healthy, apiServer   bool
	safe                          bool      // said to be safe to evict
	localVolume                   string    // name of a volume that is lost with the node
	heldFor                       string    // annotation that forbids moving the pod
	heldUntil                     time.Time // zero for as long as the annotation is there
}

func finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// newPod compiles a pod object.
func (s *Snapshot) newPod(o *corev1.Pod) *pod {
	p := &pod{
		key: PodKey{Namespace: o.Namespace, Name: o.Name}, uid: o.UID, node: none, nodeName: o.Spec.NodeName,
		created: o.CreationTimestamp.Time, terminating: o.DeletionTimestamp != nil, eviction: evictionFactsOf(o),
	}
	if o.Spec.Priority != nil {
		p.priority = *o.Spec.Priority
	}
	p.class = s.classOf(o, o.Spec.NodeName != "")
	p.takes = p.class.takes
	if o.Spec.NodeName != "" && resized(o) {
		if takes := s.resources.sparse(requestsInPlace(o)); !slices.Equal(takes, p.takes) {
			p.takes = takes
		}
	}
	return p
}

// replaces reports whether p, freshly compiled, can take the place of old without touching any counter.
func (p *pod) replaces(old *pod) bool {
	return p.uid == old.uid && p.class == old.class && p.nodeName == old.nodeName && p.terminating == old.terminating &&
		slices.Equal(p.takes, old.takes)
}

// controllerOf returns the owner that controls the pod; an owner reference without the controller flag is no controller.
func controllerOf(o *corev1.Pod) *metav1.OwnerReference {
	for i := range o.OwnerReferences {
		if r := &o.OwnerReferences[i]; r.Controller != nil && *r.Controller {
			return r
		}
	}
	return nil
}
