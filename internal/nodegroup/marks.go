package nodegroup

import (
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/drainability"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// These annotations of Nodes store what a group knows about the node. They contain the group's name, and are removed
// when the group no longer owns the node (invariant I3). A group ignores annotations with another group's name, and
// annotations about pods that its rule does not select any more. The scope is the selector of the manager that has
// written the annotations. A manager with another selector does not remove them, because it may not know the group.
const (
	annotationGroup        = "nodegroup.slipway.dev/name"
	annotationScope        = "nodegroup.slipway.dev/scope"
	annotationSince        = retirement.IdleSinceAnnotation
	annotationUsed         = "nodegroup.slipway.dev/used"
	annotationSelectorHash = "nodegroup.slipway.dev/pod-selector-hash"
)

const annotationTrue = "true"

// Marks holds the values of a group's annotations on a Node. They survive a restart of the manager.
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

// readMarks reads a group's marks from a Node. It ignores marks with another selector hash, and marks of earlier
// versions, which have none. An invalid time counts as no time, and the cooldown starts again.
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

// withScaleDownDisabled returns the marks with the decision whether the group sets drainability.ScaleDownDisabled on
// the Node. The group sets it if it is wanted and not set by another client. If another client has changed the value,
// the annotation no longer counts as set by the group.
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

// markOwner identifies the owner of the marks on a Node: the group's name, and the selector of its manager.
type markOwner struct{ group, scope string }

// readMarkOwner returns the owner of the marks on a Node. Without marks, the name of its group is "".
func readMarkOwner(n *corev1.Node) markOwner {
	return markOwner{n.Annotations[annotationGroup], n.Annotations[annotationScope]}
}

// changedAnnotations returns the annotations of the Node that must change. A nil value removes an annotation.
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

// makePatch returns the merge patch that writes the marks on a Node, or nil if nothing changes. The patch fails if the
// Node has changed since it was read, because another client may have set a newer value.
func (m Marks) makePatch(n *corev1.Node, owner markOwner) ([]byte, error) {
	change := m.changedAnnotations(n, owner)
	if len(change) == 0 {
		return nil, nil
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{
		"annotations": change, "uid": n.UID, "resourceVersion": n.ResourceVersion,
	}})
}
