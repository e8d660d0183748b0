package filter

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/internal/placement"
)

const bindingPredicate = "VolumeBinding"

var (
	reasonVolumeAffinity = placement.Reason{
		Predicate: bindingPredicate, Message: "volume is not reachable from the node",
		Scheduler: "node(s) didn't match PersistentVolume's node affinity",
	}
	reasonNoVolume = placement.Reason{
		Predicate: bindingPredicate, Message: "no volume for an unbound claim",
		Scheduler: "node(s) didn't find available persistent volumes to bind",
	}
	reasonVolumeNotFound = placement.Reason{
		Predicate: bindingPredicate, Message: "claim is bound to a volume that does not exist",
		Scheduler: "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
	}
)

// checkVolumeBinding implements the plugin VolumeBinding. Bound volumes must be reachable from the node. Unbound
// claims that wait for their first consumer must be satisfiable. Only the labels of the node are compared, not its
// name.
func (h *Chain) checkVolumeBinding(c *PodClass, n *Node) (refused []placement.Reason, undecided *placement.Reason) {
	view := c.volumes.currentView(h.Storage)
	r, undecided := checkBoundVolumes(view.bound, n)
	if r != nil {
		refused = append(refused, *r)
	}
	noVolume := *dropSchedulerTextIfUndecided(&reasonNoVolume, undecided)
	for _, selected := range view.selectedNodes {
		if selected != n.Name() {
			return append(refused, noVolume), undecided
		}
	}
	if view.undecidable != nil {
		return refused, view.undecidable
	}
	isVolumeMissing := false
	for i := range view.limited {
		switch claim := &view.limited[i]; {
		case claim.isProvisionedFor(n):
		case claim.bindable != nil:
			return refused, claim.bindable
		default:
			isVolumeMissing = true
		}
	}
	if isVolumeMissing {
		refused = append(refused, noVolume)
	}
	return refused, undecided
}

// checkBoundVolumes checks the volumes in order and stops at the first refusal. If the node handles an in-tree volume
// with a CSI driver, the volume has a different affinity, which is not known.
func checkBoundVolumes(bound []*volume, n *Node) (refused, undecided *placement.Reason) {
	labelled := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: n.Object.Labels}}
	for _, v := range bound {
		switch {
		case v == nil:
			refused = &reasonVolumeNotFound
		case v.inTree != "" && n.migrates() && slices.Contains(n.migrated, v.inTree):
			text := fmt.Sprintf("volume of plugin %s is migrated on the node", v.inTree)
			undecided = &placement.Reason{Predicate: bindingPredicate, Message: text}
		case v.affinity != nil:
			if ok, _ := v.affinity.Match(labelled); !ok {
				refused = &reasonVolumeAffinity
			}
		}
		if refused != nil {
			return dropSchedulerTextIfUndecided(refused, undecided), nil
		}
	}
	return nil, undecided
}
