package top

import (
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/internal/placement/live"
)

const (
	// evictionWindow is how long evictions are counted, in steps of evictionInterval.
	evictionWindow   = 10 * time.Minute
	evictionInterval = 10 * time.Second
)

// evictionCounter counts the evictions of the last evictionWindow from the pods' DisruptionTarget conditions
// (https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions).
type evictionCounter struct {
	mu sync.Mutex
	at map[types.UID]time.Time
}

// newPodTransform returns a transform function that records an eviction and then trims the pod like other pod caches.
func (c *evictionCounter) newPodTransform() func(any) (any, error) {
	trim := live.NewPodTrimmer()
	return func(o any) (any, error) {
		if p, ok := o.(*corev1.Pod); ok {
			c.record(p)
		}
		return trim(o)
	}
}

func (c *evictionCounter) record(p *corev1.Pod) {
	for _, is := range p.Status.Conditions {
		if is.Type != corev1.DisruptionTarget || is.Status != corev1.ConditionTrue || !isEvictionReason(is.Reason) {
			continue
		}
		c.mu.Lock()
		c.at[p.UID] = is.LastTransitionTime.Time
		c.mu.Unlock()
	}
}

// isEvictionReason reports whether a DisruptionTarget condition has a reason of the eviction API or of a drain.
func isEvictionReason(reason string) bool {
	switch reason {
	case "EvictionByEvictionAPI", "DeletionByNodeTermination", "DeletionByNodeDrain":
		return true
	}
	return false
}

// count returns the evictions per evictionInterval, the oldest first. It forgets older ones.
func (c *evictionCounter) count(now time.Time) []int {
	counts := make([]int, evictionWindow/evictionInterval)
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.at, func(_ types.UID, at time.Time) bool { return now.Sub(at) >= evictionWindow })
	for _, at := range c.at {
		counts[len(counts)-1-int(max(now.Sub(at), 0)/evictionInterval)]++
	}
	return counts
}
