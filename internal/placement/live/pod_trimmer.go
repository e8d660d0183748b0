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

// maxSharedSpecs is how many different pod specs are shared. A cluster has one per version of a workload. If one is
// evicted from the cache, the next pod adds it again.
const maxSharedSpecs = 8192

// podTrimmer reduces the memory of cached pods. 150,000 complete pods would need gigabytes. Most pods have the same
// content as their siblings, so that content is stored once.
type podTrimmer struct {
	sharedSpecs *lru.Cache // sha256 of a spec to *corev1.Pod
}

// NewPodTrimmer returns the transform function of a pod cache. It keeps what placement and the rules of NodeGroups read.
// Pods share their common parts, so the caller must not change them, as with all cached objects. It is safe for concurrent
// use.
func NewPodTrimmer() cache.TransformFunc { return podTrimmer{lru.New(maxSharedSpecs)}.trimPod }

func (t podTrimmer) trimPod(o any) (any, error) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil // such as the tombstone of a missed deletion
	}
	kind, err := t.internSharedParts(p)
	if err != nil {
		return nil, fmt.Errorf("pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	if isSameArray(p.Spec.Containers, kind.Spec.Containers) {
		return p, nil // already trimmed: informers transform the initial objects twice
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

// isSameArray reports whether two lists share their memory.
func isSameArray(a, b []corev1.Container) bool {
	return len(a) > 0 && len(a) == len(b) && &a[0] == &b[0]
}

// internSharedParts returns the common parts of a pod and its siblings: the stored ones, or new ones from this pod.
func (t podTrimmer) internSharedParts(p *corev1.Pod) (*corev1.Pod, error) {
	kind := saved.CopyPod(p)
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

// keepScheduledCondition keeps the PodScheduled condition, which says whether the pod is unschedulable.
func keepScheduledCondition(p *corev1.Pod) []corev1.PodCondition {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return []corev1.PodCondition{{Type: c.Type, Status: c.Status, Reason: c.Reason}}
		}
	}
	return nil
}

// internString shares equal strings.
func internString(s string) string { return unique.Make(s).Value() }
