package nodegroup

import (
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/drainability"
)

// Annotations of Nodes. They name their group, and are removed when the group no longer owns the node (I3). Annotations
// of another group, or about other pods than the group's rule selects now, do not count. The scope is the selector of
// the manager that has set them. A manager with another selector may not know the group, and keeps them.
const (
	annotationGroup        = "nodegroup.slipway.dev/name"
	annotationScope        = "nodegroup.slipway.dev/scope"
	annotationSince        = "nodegroup.slipway.dev/idle-since"
	annotationUsed         = "nodegroup.slipway.dev/used"
	annotationSelectorHash = "nodegroup.slipway.dev/pod-selector-hash"
)

const annotationTrue = "true"

// Marks are a group's annotations on a Node. They survive a restart.
type Marks struct {
	// Since is when the node became idle. It is zero while a pod keeps it.
	Since time.Time
	// Used means that a pod has kept the node.
	Used bool
	// SelectorHash is the hash of the pods that Since and Used are about; see [idleRule.podSelectorHash].
	SelectorHash string
	// SetScaleDownDisabled means that this group has set [drainability.ScaleDownDisabled].
	SetScaleDownDisabled bool
	// AlwaysNamed means that the group's name is always written. A group of a file, or of a compatibility mode, has no object
	// to look up.
	AlwaysNamed bool
}

// readMarks reads a group's marks about the pods with this hash. An invalid time counts as none, and the cooldown
// starts again. Marks without a hash, from earlier versions, do not count.
func readMarks(n *corev1.Node, group, selectorHash string) Marks {
	a := n.Annotations
	m := Marks{SetScaleDownDisabled: a[drainability.ScaleDownDisabledBySlipway] == annotationTrue, SelectorHash: selectorHash}
	if a[annotationGroup] != group || a[annotationSelectorHash] != selectorHash {
		return m
	}
	m.Used = a[annotationUsed] == annotationTrue
	if since, err := time.Parse(time.RFC3339, a[annotationSince]); err == nil {
		m.Since = since
	}
	return m
}

// withScaleDownDisabled decides about drainability.ScaleDownDisabled. It is set if wanted, unless another client has set
// it. It no longer counts as ours if another client has changed the value.
func (m Marks) withScaleDownDisabled(n *corev1.Node, wanted bool) Marks {
	value, there := n.Annotations[drainability.ScaleDownDisabled]
	switch {
	case m.SetScaleDownDisabled:
		m.SetScaleDownDisabled = wanted && value == annotationTrue
	default:
		m.SetScaleDownDisabled = wanted && !there
	}
	return m
}

// markOwner is the group and manager that own the marks on a Node.
type markOwner struct{ group, scope string }

// readMarkOwner returns the owner of the marks on a Node. Its group is empty if there are none.
func readMarkOwner(n *corev1.Node) markOwner {
	return markOwner{n.Annotations[annotationGroup], n.Annotations[annotationScope]}
}

// changedAnnotations returns the annotations to change on the Node. A nil value removes one.
func (m Marks) changedAnnotations(n *corev1.Node, owner markOwner) map[string]any {
	want := map[string]any{
		annotationGroup: nil, annotationScope: nil, annotationSince: nil, annotationUsed: nil, annotationSelectorHash: nil, drainability.ScaleDownDisabledBySlipway: nil,
	}
	if m.Since.IsZero() && !m.Used {
		m.SelectorHash = ""
	}
	if !m.Since.IsZero() {
		want[annotationSince] = m.Since.UTC().Format(time.RFC3339)
	}
	if m.Used {
		want[annotationUsed] = annotationTrue
	}
	if m.SelectorHash != "" {
		want[annotationSelectorHash] = m.SelectorHash
	}
	if m.SetScaleDownDisabled {
		want[drainability.ScaleDownDisabledBySlipway] = annotationTrue
	}
	if m != (Marks{}) {
		want[annotationGroup] = owner.group
		if owner.scope != "" {
			want[annotationScope] = owner.scope
		}
	}
	held, is := n.Annotations[drainability.ScaleDownDisabledBySlipway] == annotationTrue, n.Annotations[drainability.ScaleDownDisabled]
	switch {
	case m.SetScaleDownDisabled:
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

// makePatch returns the merge patch that writes the marks on a Node. It returns nil if nothing changes. It applies only
// to the Node as it was read, because a later value may be another client's.
func (m Marks) makePatch(n *corev1.Node, owner markOwner) ([]byte, error) {
	change := m.changedAnnotations(n, owner)
	if len(change) == 0 {
		return nil, nil
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{
		"annotations": change, "uid": n.UID, "resourceVersion": n.ResourceVersion,
	}})
}
