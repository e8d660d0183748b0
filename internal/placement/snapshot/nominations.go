package snapshot

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/filter"
)

// readNominatedNode returns the node that the scheduler reserves for a pending pod after preemption, or an empty
// string. Pods of other schedulers are not in its queue, and it reserves nothing for them.
func readNominatedNode(o *corev1.Pod) string {
	if o.Spec.NodeName != "" || cmp.Or(o.Spec.SchedulerName, corev1.DefaultSchedulerName) != corev1.DefaultSchedulerName {
		return ""
	}
	return o.Status.NominatedNodeName
}

// nominations holds the nominated pending pods by node name.
type nominations map[string][]*filter.Pod

func (m nominations) add(p *filter.Pod) {
	if p.NominatedTo != "" {
		m[p.NominatedTo] = append(m[p.NominatedTo], p)
	}
}

func (m nominations) remove(p *filter.Pod) {
	if p.NominatedTo == "" {
		return
	}
	list := slices.DeleteFunc(m[p.NominatedTo], func(other *filter.Pod) bool { return other == p })
	if m[p.NominatedTo] = list; len(list) == 0 {
		delete(m, p.NominatedTo)
	}
}

// listPreceding lists the pods nominated to a node that precede a pod of a class: they have the same or a higher
// priority and another UID. A pod that a plan has placed counts only where it was placed.
func (m nominations) listPreceding(c *filter.PodClass, uid types.UID, n *filter.Node, pending map[*filter.Pod]struct{}) []*filter.Pod {
	if len(m) == 0 {
		return nil
	}
	var list []*filter.Pod
	for _, q := range m[n.Name()] {
		if _, ok := pending[q]; ok && q.Priority >= c.Priority && q.UID != uid {
			list = append(list, q)
		}
	}
	return list
}

// filterWithNominated runs the filters as if the nominated pods were on the node.
func (s *Snapshot) filterWithNominated(c *filter.PodClass, n *filter.Node, nominated []*filter.Pod) placement.Verdict {
	met := c.NeedsPodAffinityCheck()
	fork := s.Fork()
	for _, q := range nominated {
		fork.PlacePod(q, n)
		filter.AdjustCountersForNominatedPod(&s.Storage, c, q, n, met, 1)
	}
	v := s.Filters.RunFilters(c, n)
	for _, q := range nominated {
		filter.AdjustCountersForNominatedPod(&s.Storage, c, q, n, met, -1)
	}
	fork.Rollback()
	return v
}
