package snapshot

import (
	"github.com/slipway-dev/slipway/internal/drainability/fromcorev1"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/placement/filter"

	corev1 "k8s.io/api/core/v1"
)

// factsTable stores equal facts once.
type factsTable struct {
	byValue map[podrules.Facts]*filter.SharedFacts
	ids     idPool
}

// internFacts returns the shared facts about a pod, and counts the pod as a user of them.
func (t *factsTable) internFacts(o *corev1.Pod) *filter.SharedFacts {
	value := fromcorev1.PodFacts(o)
	f := t.byValue[value]
	if f == nil {
		f = &filter.SharedFacts{Facts: value, ID: t.ids.allocateID()}
		t.byValue[value] = f
	}
	f.Pods++
	return f
}

// releaseFacts removes one user of shared facts.
func (t *factsTable) releaseFacts(f *filter.SharedFacts) {
	if f.Pods--; f.Pods == 0 {
		delete(t.byValue, f.Facts)
		t.ids.releaseID(f.ID)
	}
}
