package live

import (
	"crypto/sha256"
	"fmt"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/lru"

	"github.com/slipway-dev/slipway/internal/placement/saved"
)

// maxSharedSpecs is how many kinds of pods are shared at the most. A cluster has as many as it has workloads and versions of them;
// of those that are forgotten the next pod only makes a new one.
const maxSharedSpecs = 8192

// podTrimmer makes pods small. Of 150,000 pods whole the caches would be gigabytes; but most of what a pod says it says word
// for word as its siblings do, so that it is kept once for all of them.
type podTrimmer struct {
	sharedSpecs *lru.Cache // of sha256 of a kind, to *corev1.Pod
}

// TrimPods returns the transform of a cache of pods. It keeps what placement and the rules of NodeGroups read. What pods
// have in common is shared by them: like all that is in a cache, it must not be changed. It may be called concurrently.
func TrimPods() cache.TransformFunc { return podTrimmer{lru.New(maxSharedSpecs)}.trimPod }

func (t podTrimmer) trimPod(o any) (any, error) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil // such as what is known of a deletion that was missed
	}
	kind, err := t.internSharedParts(p)
	if err != nil {
		return nil, fmt.Errorf("pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	if isSameArray(p.Spec.Containers, kind.Spec.Containers) {
		return p, nil // trimmed already: what an informer reads first it transforms twice
	}
	spec := kind.Spec
	spec.NodeName = internString(p.Spec.NodeName)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: internString(p.Namespace), Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion,
			CreationTimestamp: p.CreationTimestamp, DeletionTimestamp: p.DeletionTimestamp,
			Labels: kind.Labels, Annotations: kind.Annotations, OwnerReferences: kind.OwnerReferences,
		},
		Spec:   spec,
		Status: kind.Status,
	}, nil
}

// isSameArray reports whether two lists are one in memory.
func isSameArray(a, b []corev1.Container) bool {
	return len(a) > 0 && len(a) == len(b) && &a[0] == &b[0]
}

// internSharedParts is what a pod has in common with its siblings: the one that was seen before, or this one's.
func (t podTrimmer) internSharedParts(p *corev1.Pod) (*corev1.Pod, error) {
	kind := saved.Pod(p)
	kind.ObjectMeta = metav1.ObjectMeta{Labels: kind.Labels, Annotations: kind.Annotations, OwnerReferences: kind.OwnerReferences}
	kind.Spec.NodeName = ""
	if p.Spec.NodeName != "" {
		kind.Status.NominatedNodeName = ""
	} else {
		kind.Status.Conditions = append(kind.Status.Conditions, keepScheduledCondition(p)...)
	}
	raw, err := kind.Marshal()
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(raw)
	if known, ok := t.sharedSpecs.Get(sum); ok {
		return known.(*corev1.Pod), nil
	}
	t.sharedSpecs.Add(sum, kind)
	return kind, nil
}

// keepScheduledCondition is whether the scheduler has found no room for a pod.
func keepScheduledCondition(p *corev1.Pod) []corev1.PodCondition {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return []corev1.PodCondition{{Type: c.Type, Status: c.Status, Reason: c.Reason}}
		}
	}
	return nil
}

// internString is a name that many have.
func internString(s string) string { return unique.Make(s).Value() }
