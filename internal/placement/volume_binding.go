package placement

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const bindingPredicate = "VolumeBinding"

var (
	reasonVolumeAffinity = Reason{
		bindingPredicate, "volume is not reachable from the node",
		"node(s) didn't match PersistentVolume's node affinity",
	}
	reasonNoVolume = Reason{
		bindingPredicate, "no volume for an unbound claim",
		"node(s) didn't find available persistent volumes to bind",
	}
	reasonVolumeGone = Reason{
		bindingPredicate, "claim is bound to a volume that does not exist",
		"node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
	}
)

// volumeBinding is the plugin of that name: bound volumes are reachable from the node, and unbound claims that wait for
// their first consumer could be met. Only the labels of the node are compared, not its name.
func (s *Snapshot) volumeBinding(c *class, n *node) (refused []Reason, undecided *Reason) {
	view := c.volumes.resolve(&s.storage)
	for _, plugin := range view.migratable {
		if slices.Contains(strings.Split(n.migrated, ","), plugin) {
			undecided = &Reason{Predicate: bindingPredicate, Text: fmt.Sprintf("volume of plugin %s is migrated on the node", plugin)}
		}
	}
	if r := boundReachable(view.bound, n); r != nil {
		refused = append(refused, *r)
	}
	for _, selected := range view.selected {
		if selected != n.name() {
			return append(refused, reasonNoVolume), undecided
		}
	}
	if view.undecidable != nil {
		return refused, view.undecidable
	}
	if view.unprovided {
		refused = append(refused, reasonNoVolume)
	}
	return refused, undecided
}

// boundReachable checks the volumes in order; the first that fails decides.
func boundReachable(bound []*volume, n *node) *Reason {
	labelled := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: n.object.Labels}}
	for _, v := range bound {
		if v == nil {
			return &reasonVolumeGone
		}
		if v.affinity == nil {
			continue
		}
		if ok, _ := v.affinity.Match(labelled); !ok {
			return &reasonVolumeAffinity
		}
	}
	return nil
}
