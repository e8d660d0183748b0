package snapshot

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	noderules "github.com/slipway-dev/slipway/internal/drainability/node"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/filter"
)

// ClassOfNewPod returns the class of a pod that is not in the snapshot. It is valid until a pod is deleted from the snapshot. It
// does not count as unused, so that asking again and again does not make the snapshot drop classes.
func (s *Snapshot) ClassOfNewPod(o *corev1.Pod) *filter.PodClass {
	return s.index.internPodClass(o, true)
}

func (s *Snapshot) compilePod(o *corev1.Pod) *filter.Pod {
	p := &filter.Pod{
		Key: placement.PodKey{Namespace: o.Namespace, Name: o.Name}, UID: o.UID, Node: filter.None, NodeName: o.Spec.NodeName,
		NominatedTo: readNominatedNode(o), Created: o.CreationTimestamp.Time, Terminating: o.DeletionTimestamp != nil,
		Unstarted: o.Status.Phase == corev1.PodPending, APIServer: noderules.IsAPIServerPod(o.Namespace, o.Name, o.Spec.NodeName, o.Labels), Facts: s.facts.internFacts(o),
	}
	for i := range o.Status.Conditions {
		if c := &o.Status.Conditions[i]; c.Type == corev1.PodReady {
			p.Ready = c.Status == corev1.ConditionTrue
		}
	}
	if o.Spec.Priority != nil {
		p.Priority = *o.Spec.Priority
	}
	p.Class = s.index.internPodClass(o, o.Spec.NodeName != "")
	p.Usage = p.Class.Usage
	if o.Spec.NodeName != "" && filter.HasResourcesInStatus(o) {
		if takes := s.Filters.Resources.ToAmounts(filter.RequestsWhenPlaced(o)); !slices.Equal(takes, p.Usage) {
			p.Usage = takes
		}
	}
	return p
}
