package nodegroup

import (
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/drainability"
)

// Annotations of Nodes. Those of ours say which group they are of, and go when the group does not own the node any more
// (I3). What another group left behind counts as not there, and so does what is about other pods than the group's rule selects
// now. The scope is the selector of the manager that has set them: one with another selector, which may not even know the group,
// leaves them alone.
const (
	annotationGroup        = "nodegroup.slipway.dev/name"
	annotationScope        = "nodegroup.slipway.dev/scope"
	annotationSince        = "nodegroup.slipway.dev/idle-since"
	annotationUsed         = "nodegroup.slipway.dev/used"
	annotationSelectorHash = "nodegroup.slipway.dev/pod-selector-hash"
)

const annotationTrue = "true"

// Marks are what is written on a Node on a group's behalf, and survives a restart there.
type Marks struct {
	// Since is when the node was found idle; zero while it is not.
	Since time.Time
	// Used says that a pod has kept the node.
	Used bool
	// Kind is the kind of pods that Since and Used are about; see [idleRule.kind].
	Kind string
	// HoldsOff says that [drainability.ScaleDownDisabled] is ours.
	HoldsOff bool
	// Named says that the name of the group is there in any case, for those who want to know whose the node is: a group of a
	// file, or of a stand-in, has no object to look at.
	Named bool
}

// readMarks reads a group's marks about a kind of pods. A time that cannot be read is none: the cooldown begins anew. Of marks that
// do not say what pods they are about, as earlier versions left them, nobody knows whether it is these.
func readMarks(n *corev1.Node, group, kind string) Marks {
	a := n.Annotations
	m := Marks{HoldsOff: a[drainability.HoldsOff] == annotationTrue, Kind: kind}
	if a[annotationGroup] != group || a[annotationSelectorHash] != kind {
		return m
	}
	m.Used = a[annotationUsed] == annotationTrue
	if since, err := time.Parse(time.RFC3339, a[annotationSince]); err == nil {
		m.Since = since
	}
	return m
}

// withScaleDownDisabled says what is to become of drainability.ScaleDownDisabled: set where it is wanted and nobody else has set it, left alone
// where somebody has, and given up where it was changed from what we set.
func (m Marks) withScaleDownDisabled(n *corev1.Node, wanted bool) Marks {
	value, there := n.Annotations[drainability.ScaleDownDisabled]
	switch {
	case m.HoldsOff:
		m.HoldsOff = wanted && value == annotationTrue
	default:
		m.HoldsOff = wanted && !there
	}
	return m
}

// markOwner is whose marks those on a Node are.
type markOwner struct{ group, scope string }

// readMarkOwner is the owner of the marks that a Node has; its group is empty when it has none.
func readMarkOwner(n *corev1.Node) markOwner {
	return markOwner{n.Annotations[annotationGroup], n.Annotations[annotationScope]}
}

// changedAnnotations are those that a group's marks stand for; a nil value is one that has to go.
func (m Marks) changedAnnotations(n *corev1.Node, of markOwner) map[string]any {
	want := map[string]any{
		annotationGroup: nil, annotationScope: nil, annotationSince: nil, annotationUsed: nil, annotationSelectorHash: nil, drainability.HoldsOff: nil,
	}
	if m.Since.IsZero() && !m.Used {
		m.Kind = ""
	}
	if !m.Since.IsZero() {
		want[annotationSince] = m.Since.UTC().Format(time.RFC3339)
	}
	if m.Used {
		want[annotationUsed] = annotationTrue
	}
	if m.Kind != "" {
		want[annotationSelectorHash] = m.Kind
	}
	if m.HoldsOff {
		want[drainability.HoldsOff] = annotationTrue
	}
	if m != (Marks{}) {
		want[annotationGroup] = of.group
		if of.scope != "" {
			want[annotationScope] = of.scope
		}
	}
	held, is := n.Annotations[drainability.HoldsOff] == annotationTrue, n.Annotations[drainability.ScaleDownDisabled]
	switch {
	case m.HoldsOff:
		want[drainability.ScaleDownDisabled] = annotationTrue
	case held && is == annotationTrue:
		want[drainability.ScaleDownDisabled] = nil
	}
	for key, value := range want {
		old, there := n.Annotations[key]
		if value == nil && !there || there && value == old {
			delete(want, key)
		}
	}
	return want
}

// makePatch is the merge patch that makes a Node's annotations those of the marks; nil when they are. It holds for the Node
// as it was read alone: what somebody has set since must not be taken for ours.
func (m Marks) makePatch(n *corev1.Node, of markOwner) ([]byte, error) {
	change := m.changedAnnotations(n, of)
	if len(change) == 0 {
		return nil, nil
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{
		"annotations": change, "uid": n.UID, "resourceVersion": n.ResourceVersion,
	}})
}
