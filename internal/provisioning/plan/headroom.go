package plan

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/internal/placement/planner"
)

// slotNamespace is no namespace that a cluster can have, so that no pod there is meant by mistake.
const slotNamespace = "slipway:head-room"

// headRoom makes the pods that stand for a group's spare room: they may run on its nodes, and nowhere else.
func (r *round) headRoom(g *Group) []*corev1.Pod {
	up := g.scaleUp()
	if up == nil || up.HeadRoom == nil || g.NotAccepted != "" {
		return nil
	}
	spec := corev1.PodSpec{
		Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: selects(&g.Group.Spec.NodeSelector)}},
			},
		}},
		Tolerations: r.tolerating(g),
		Containers:  []corev1.Container{{Name: "slot", Resources: corev1.ResourceRequirements{Requests: up.HeadRoom.Requests}}},
	}
	controlled := true
	slots := make([]*corev1.Pod, 0, up.HeadRoom.Slots)
	for i := range up.HeadRoom.Slots {
		slots = append(slots, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: slotNamespace, Name: fmt.Sprintf("%s-%d", g.name(), i),
				OwnerReferences: []metav1.OwnerReference{{Kind: "NodeGroup", Name: g.name(), Controller: &controlled}},
			},
			Spec: spec, Status: corev1.PodStatus{Phase: corev1.PodPending},
		})
	}
	return slots
}

// selects writes a group's selector as node affinity.
func selects(s *metav1.LabelSelector) (list []corev1.NodeSelectorRequirement) {
	for key, value := range s.MatchLabels {
		list = append(list, corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}})
	}
	for _, e := range s.MatchExpressions {
		list = append(list, corev1.NodeSelectorRequirement{Key: e.Key, Operator: corev1.NodeSelectorOperator(e.Operator), Values: e.Values})
	}
	return list
}

// tolerating lets a slot onto what the group's nodes keep other pods off with: the taints of their kind.
func (r *round) tolerating(g *Group) (list []corev1.Toleration) {
	add := func(taints []corev1.Taint) {
		for _, t := range taints {
			if passing(t.Key, startupTaints(g.Group)) {
				continue
			}
			list = append(list, corev1.Toleration{Key: t.Key, Operator: corev1.TolerationOpEqual, Value: t.Value, Effect: t.Effect})
		}
	}
	for _, k := range r.order {
		if k.group == g && k.template != nil {
			add(k.template.Spec.Taints)
		}
	}
	return list
}

// keepRoom orders what a group's spare room lacks.
func (p *plan) keepRoom() error {
	for i := range p.Groups {
		g := &p.Groups[i]
		slots := p.slots[g.name()]
		if len(slots) == 0 {
			continue
		}
		asked := false
		for _, t := range append(p.tiers(), tierOf{objective: planner.LeastWaste}) {
			kinds := t.kinds[:0:0]
			for _, k := range t.kinds {
				if k.group == g {
					kinds = append(kinds, k)
				}
			}
			if len(kinds) == 0 && (asked || len(t.kinds) > 0) {
				continue
			}
			asked = true
			packing, err := planner.Pack(p.Snapshot, slots, p.flavours(kinds), t.objective)
			if err != nil {
				return err
			}
			why := fmt.Sprintf("the group keeps room for %d more pods", g.scaleUp().HeadRoom.Slots)
			if err := p.carryOut(packing, SpareRoom, why); err != nil {
				return err
			}
			slots = nil
			for _, h := range packing.Helpless {
				slots = append(slots, h.Pod)
			}
			if len(slots) == 0 {
				break
			}
		}
		p.short += len(slots)
	}
	return nil
}
