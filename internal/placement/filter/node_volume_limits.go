package filter

import (
	"fmt"
	"slices"

	"github.com/slipway-dev/slipway/internal/placement"
)

const limitsPredicate = "NodeVolumeLimits"

var reasonVolumeLimit = placement.Reason{Predicate: limitsPredicate, Message: "too many volumes attached", Scheduler: "node(s) exceed max volume count"}

// checkVolumeLimits implements the plugin NodeVolumeLimits. The node must have the required drivers and must be able
// to attach the pod's new volumes. The volumes of its other pods and its VolumeAttachments count too. Volumes of
// in-tree plugins count for a CSI driver under translated names, which are unknown; if that matters, the result is
// undecided.
func (h *Chain) checkVolumeLimits(c *PodClass, n *Node) (refused, undecided *placement.Reason) {
	view := c.volumes.currentView(h.Storage)
	if view.wrongOwner != nil {
		return view.wrongOwner, nil
	}
	undecided = h.findMigratedVolume(c.volumes, n)
	if len(view.attachables) == 0 && (!n.migrates() || len(c.volumes.inTree)+len(view.inTree) == 0) {
		return nil, undecided
	}
	for _, a := range view.attachables {
		if h.Storage.isDriverMissing(n, a.driver) {
			return dropSchedulerTextIfUndecided(newDriverMissingReason(a.driver), undecided), nil
		}
	}
	if len(n.limits) == 0 {
		return nil, undecided
	}
	attached := map[attachable]bool{}
	var broken *placement.Reason
	for other := range n.volumePods {
		theirs := other.volumes.currentView(h.Storage)
		broken = pickFirstByText(broken, theirs.wrongOwner)
		for _, a := range theirs.attachables {
			attached[a] = true
		}
		undecided = pickFirstByText(undecided, h.findMigratedVolume(other.volumes, n))
	}
	if broken != nil && len(view.attachables) > 0 {
		return broken, nil
	}
	undecided = pickFirstByText(undecided, broken)
	added := map[string]int64{}
	for _, a := range view.attachables {
		if !attached[a] {
			added[a.driver]++
		}
	}
	h.Storage.addNodeAttachments(n, attached)
	for a := range attached {
		if added[a.driver] > 0 {
			added[a.driver]++
		}
	}
	for driver, count := range added {
		if limit, ok := n.limits[driver]; ok && count > limit {
			return dropSchedulerTextIfUndecided(&reasonVolumeLimit, undecided), nil
		}
	}
	return nil, undecided
}

// pickFirstByText returns the reason with the first text in alphabetical order. The result therefore does not depend
// on the order of the node's pods. Nil means no reason.
func pickFirstByText(a, b *placement.Reason) *placement.Reason {
	if a == nil || b != nil && b.Message < a.Message {
		return b
	}
	return a
}

// dropSchedulerTextIfUndecided removes the scheduler's text from a refusal if another check is undecided, because the scheduler may
// have refused for that check first.
func dropSchedulerTextIfUndecided(refused, undecided *placement.Reason) *placement.Reason {
	if undecided == nil {
		return refused
	}
	return &placement.Reason{Predicate: refused.Predicate, Message: refused.Message}
}

// addNodeAttachments adds the volumes that are attached to the node, whether or not a pod on it uses them.
func (st *Storage) addNodeAttachments(n *Node, attached map[attachable]bool) {
	for name := range st.attachedTo[n.Name()] {
		a := st.attachments[name]
		if v := st.volumes[a.volume]; v != nil && (v.driver != "" || v.handle != "") {
			attached[attachable{a.driver, v.handle}] = true
		}
	}
}

// findMigratedVolume returns a reason if a volume of an in-tree plugin counts for a CSI driver and that can change the
// verdict on this node. It can if the driver is limited or missing, or if the pod describes a volume that cannot always
// be translated. It never can on a node without CSINode, or on a new node.
func (h *Chain) findMigratedVolume(needs *volumeNeeds, n *Node) *placement.Reason {
	if !n.migrates() {
		return nil
	}
	named := "" // the first name in alphabetical order, so that the reason does not depend on the order of the claims
	for i, plugin := range slices.Concat(needs.inTree, needs.currentView(h.Storage).inTree) {
		driver := inTreeDrivers[plugin]
		_, limited := n.limits[driver]
		fallible := i < len(needs.inTree) && (plugin == "kubernetes.io/aws-ebs" || plugin == "kubernetes.io/azure-disk")
		if counts := limited || fallible || h.Storage.isDriverMissing(n, driver); counts && (named == "" || plugin < named) {
			named = plugin
		}
	}
	if named == "" {
		return nil
	}
	return &placement.Reason{Predicate: limitsPredicate, Message: fmt.Sprintf("volume of plugin %s counts for CSI driver %s", named, inTreeDrivers[named])}
}

func newDriverMissingReason(driver string) *placement.Reason {
	text := fmt.Sprintf("%s CSI driver is not installed on the node", driver)
	return &placement.Reason{Predicate: limitsPredicate, Message: "CSI driver " + driver + " is not on the node", Scheduler: text}
}
