package snapshot

import (
	"github.com/slipway-dev/slipway/internal/drainability/fromcorev1"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/placement/filter"

	corev1 "k8s.io/api/core/v1"
)

// facts holds every fact once.
type facts struct {
	byValue map[podrules.Facts]*filter.Fact
	ids     idPool
}

// intern returns the fact about a pod, and counts the pod.
func (t *facts) intern(o *corev1.Pod) *filter.Fact {
	value := fromcorev1.Pod(o)
	f := t.byValue[value]
	if f == nil {
		f = &filter.Fact{Facts: value, ID: t.ids.take()}
		t.byValue[value] = f
	}
	f.Pods++
	return f
}

// release takes back what intern has counted.
func (t *facts) release(f *filter.Fact) {
	if f.Pods--; f.Pods == 0 {
		delete(t.byValue, f.Facts)
		t.ids.put(f.ID)
	}
}
