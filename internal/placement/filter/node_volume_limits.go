package filter

import (
	"fmt"
	"slices"

	"github.com/slipway-dev/slipway/internal/placement"
)

const limitsPredicate = "NodeVolumeLimits"

var reasonLimit = placement.Reason{Predicate: limitsPredicate, Text: "too many volumes attached", Scheduler: "node(s) exceed max volume count"}

// volumeLimits is the plugin NodeVolumeLimits: the node has the drivers that ask for it, and can attach the volumes that
// the pod adds, beside the volumes of its pods and VolumeAttachments. Volumes of in-tree plugins are counted for a CSI driver
// under translated names; where that matters the answer is not known.
func (h *Chain) volumeLimits(c *Class, n *Node) (refused, undecided *placement.Reason) {
	view := c.volumes.resolve(h.Storage)
	if view.brokenOwner != nil {
		return view.brokenOwner, nil
	}
	undecided = h.translated(c.volumes, n)
	if len(view.attach) == 0 && (!n.csiNode || len(c.volumes.inTree)+len(view.inTree) == 0) {
		return nil, undecided
	}
	for _, a := range view.attach {
		if h.Storage.lacks(n, a.driver) {
			return unlessEarlier(reasonDriverMissing(a.driver), undecided), nil
		}
	}
	if len(n.limits) == 0 {
		return nil, undecided
	}
	attached := map[attachable]bool{}
	var broken *placement.Reason
	for other := range n.volumePods {
		theirs := other.volumes.resolve(h.Storage)
		broken = firstByText(broken, theirs.brokenOwner)
		for _, a := range theirs.attach {
			attached[a] = true
		}
		undecided = firstByText(undecided, h.translated(other.volumes, n))
	}
	if broken != nil && len(view.attach) > 0 {
		return broken, nil
	}
	undecided = firstByText(undecided, broken)
	added := map[string]int64{}
	for _, a := range view.attach {
		if !attached[a] {
			added[a.driver]++
		}
	}
	h.Storage.addAttachments(n, attached)
	for a := range attached {
		if added[a.driver] > 0 {
			added[a.driver]++
		}
	}
	for driver, count := range added {
		if limit, ok := n.limits[driver]; ok && count > limit {
			return unlessEarlier(&reasonLimit, undecided), nil
		}
	}
	return nil, undecided
}

// firstByText returns the reason whose text sorts first, so that it does not depend on the order of the node's pods. Nil is none.
func firstByText(a, b *placement.Reason) *placement.Reason {
	if a == nil || b != nil && b.Text < a.Text {
		return b
	}
	return a
}

// unlessEarlier returns a refusal without the scheduler's words for it, where what is not decided may have come before it.
func unlessEarlier(refused, undecided *placement.Reason) *placement.Reason {
	if undecided == nil {
		return refused
	}
	return &placement.Reason{Predicate: refused.Predicate, Text: refused.Text}
}

// addAttachments adds what is attached to the node though no pod of it may use it any more.
func (st *Storage) addAttachments(n *Node, attached map[attachable]bool) {
	for name := range st.attachedTo[n.Name()] {
		a := st.attachments[name]
		if v := st.volumes[a.volume]; v != nil && (v.driver != "" || v.handle != "") {
			attached[attachable{a.driver, v.handle}] = true
		}
	}
}

// translated says which in-tree plugin's volumes count for a CSI driver, if it matters on a node that has a CSINode: the
// driver is limited or missing, or the pod itself describes a volume that cannot always be translated.
func (h *Chain) translated(needs *volumeNeeds, n *Node) *placement.Reason {
	if !n.csiNode {
		return nil
	}
	named := "" // the first of their names, so that the reason does not follow the order of the claims' names
	for i, plugin := range slices.Concat(needs.inTree, needs.resolve(h.Storage).inTree) {
		driver := inTreeDrivers[plugin]
		_, limited := n.limits[driver]
		fallible := i < len(needs.inTree) && (plugin == "kubernetes.io/aws-ebs" || plugin == "kubernetes.io/azure-disk")
		if counts := limited || fallible || h.Storage.lacks(n, driver); counts && (named == "" || plugin < named) {
			named = plugin
		}
	}
	if named == "" {
		return nil
	}
	return &placement.Reason{Predicate: limitsPredicate, Text: fmt.Sprintf("volume of plugin %s counts for CSI driver %s", named, inTreeDrivers[named])}
}

func reasonDriverMissing(driver string) *placement.Reason {
	text := fmt.Sprintf("%s CSI driver is not installed on the node", driver)
	return &placement.Reason{Predicate: limitsPredicate, Text: "CSI driver " + driver + " is not on the node", Scheduler: text}
}
