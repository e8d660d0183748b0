package plan

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/internal/placement/planner"
)

// headroomNamespace is not a valid name of a namespace, so that no real pod can be in it.
const headroomNamespace = "slipway:head-room"

// makeHeadroomPods returns the pods that represent a group's headroom. They fit only on nodes of the group.
func (r *forkedCluster) makeHeadroomPods(g *Group) []*corev1.Pod {
	up := g.scaleUpSpec()
	if up == nil || up.Headroom == nil || g.NotAccepted != "" {
		return nil
	}
	spec := corev1.PodSpec{
		Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: toNodeSelectorRequirements(&g.Group.Spec.NodeSelector)}},
			},
		}},
		Tolerations: r.makeTolerations(g),
		Containers:  []corev1.Container{{Name: "slot", Resources: corev1.ResourceRequirements{Requests: up.Headroom.Requests}}},
	}
	controlled := true
	slots := make([]*corev1.Pod, 0, up.Headroom.Slots)
	for i := range up.Headroom.Slots {
		slots = append(slots, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: headroomNamespace, Name: fmt.Sprintf("%s-%d", g.name(), i),
				OwnerReferences: []metav1.OwnerReference{{Kind: "NodeGroup", Name: g.name(), Controller: &controlled}},
			},
			Spec: spec, Status: corev1.PodStatus{Phase: corev1.PodPending},
		})
	}
	return slots
}

// toNodeSelectorRequirements converts a label selector to node affinity.
func toNodeSelectorRequirements(s *metav1.LabelSelector) (list []corev1.NodeSelectorRequirement) {
	for key, value := range s.MatchLabels {
		list = append(list, corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}})
	}
	for _, e := range s.MatchExpressions {
		list = append(list, corev1.NodeSelectorRequirement{Key: e.Key, Operator: corev1.NodeSelectorOperator(e.Operator), Values: e.Values})
	}
	return list
}

// makeTolerations returns tolerations for the taints of the group's templates.
func (r *forkedCluster) makeTolerations(g *Group) (list []corev1.Toleration) {
	add := func(taints []corev1.Taint) {
		for _, t := range taints {
			if isTemporaryTaint(t.Key, startupTaints(g.Group)) {
				continue
			}
			list = append(list, corev1.Toleration{Key: t.Key, Operator: corev1.TolerationOpEqual, Value: t.Value, Effect: t.Effect})
		}
	}
	for _, k := range r.templates {
		if k.group == g && k.Node != nil {
			add(k.Node.Spec.Taints)
		}
	}
	return list
}

// planHeadroomLaunches launches instances for the headroom pods that do not fit.
func (p *scaleUp) planHeadroomLaunches() error {
	for i := range p.Groups {
		g := &p.Groups[i]
		slots := p.headroomPods[g.name()]
		if len(slots) == 0 {
			continue
		}
		asked := false
		for _, t := range append(p.sortTemplatesIntoTiers(), launchTier{objective: planner.LeastWaste}) {
			templates := t.templates[:0:0]
			for _, k := range t.templates {
				if k.group == g {
					templates = append(templates, k)
				}
			}
			if len(templates) == 0 && (asked || len(t.templates) > 0) {
				continue
			}
			asked = true
			packing, err := planner.PackPods(p.Snapshot, slots, p.toPlannerTemplates(templates), t.objective)
			if err != nil {
				return err
			}
			why := fmt.Sprintf("the group's headroom is %d pods", g.scaleUpSpec().Headroom.Slots)
			if err := p.applyPacking(packing, SpareRoom, why); err != nil {
				return err
			}
			slots = nil
			for _, h := range packing.Unschedulable {
				slots = append(slots, h.Pod)
			}
			if len(slots) == 0 {
				break
			}
		}
		p.missingHeadroom += len(slots)
	}
	return nil
}
