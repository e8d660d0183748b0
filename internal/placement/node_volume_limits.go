package placement

import (
	"fmt"
	"slices"
)

const limitsPredicate = "NodeVolumeLimits"

var reasonLimit = Reason{limitsPredicate, "too many volumes attached", "node(s) exceed max volume count"}

// volumeLimits is the plugin NodeVolumeLimits: the node can attach the volumes that the pod adds to those of its pods
// and of its VolumeAttachments. Volumes of in-tree plugins are counted by their CSI driver under translated names; where
// such a driver is limited the sum is not known.
func (s *Snapshot) volumeLimits(c *class, n *node) (refused, undecided *Reason) {
	view := c.volumes.resolve(&s.storage)
	if view.brokenOwner != nil {
		return view.brokenOwner, nil
	}
	if len(n.limits) == 0 || len(view.attach)+len(view.inTree) == 0 {
		return nil, nil
	}
	for _, driver := range view.inTree {
		if _, limited := n.limits[driver]; limited {
			undecided = inTreeUndecided(driver)
		}
	}
	attached := map[attachable]bool{}
	for other := range n.volumePods {
		theirs := other.volumes.resolve(&s.storage)
		if theirs.brokenOwner != nil {
			return theirs.brokenOwner, nil
		}
		for _, a := range theirs.attach {
			attached[a] = true
		}
		for _, driver := range theirs.inTree {
			adds := slices.ContainsFunc(view.attach, func(a attachable) bool { return a.driver == driver })
			if _, limited := n.limits[driver]; limited && adds {
				undecided = inTreeUndecided(driver)
			}
		}
	}
	added := map[string]int64{}
	for _, a := range view.attach {
		if !attached[a] {
			added[a.driver]++
		}
	}
	s.storage.addAttachments(n, attached)
	for a := range attached {
		if added[a.driver] > 0 {
			added[a.driver]++
		}
	}
	for driver, count := range added {
		if limit, ok := n.limits[driver]; ok && count > limit {
			return &reasonLimit, nil
		}
	}
	return nil, undecided
}

// addAttachments adds what is attached to the node though no pod of it may use it any more.
func (st *storage) addAttachments(n *node, attached map[attachable]bool) {
	for name := range st.attachedTo[n.name()] {
		a := st.attachments[name]
		if v := st.volumes[a.volume]; v != nil && (v.driver != "" || v.handle != "") {
			attached[attachable{a.driver, v.handle}] = true
		}
	}
}

func inTreeUndecided(driver string) *Reason {
	return &Reason{Predicate: limitsPredicate, Text: fmt.Sprintf("in-tree volumes count against the limit of %s", driver)}
}
