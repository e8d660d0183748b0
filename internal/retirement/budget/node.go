package budget

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/drainability/fromcorev1"
	noderules "github.com/slipway-dev/slipway/internal/drainability/node"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// Node is one node of a group as a disruption budget counts it.
type Node struct {
	Name string
	// Unavailable says why the node is unavailable, for any cause. Empty means available.
	Unavailable string
	// Leaving nodes do not count towards the minimum size: they are being removed by any tool.
	Leaving bool
}

// NodeOf converts a Node. With retiring, an admitted retirement removes it, even if that is not visible on the Node
// yet.
func NodeOf(n *corev1.Node, retiring bool) Node {
	facts := fromcorev1.Node(n)
	reason, leaving := facts.Unavailable(retiring)
	return Node{Name: n.Name, Unavailable: reason, Leaving: leaving}
}

// Ready reports whether the condition Ready is True. Unknown or missing is not.
func Ready(n *corev1.Node) bool { return fromcorev1.Node(n).Ready == noderules.True }

// IsLeaving reports whether a node is being removed: it is deleted, another tool removes it, or Slipway has cordoned
// it.
func IsLeaving(n *corev1.Node) bool {
	claims, _ := cordon.List(&kubeapi.Node{ObjectMeta: kubeapi.ObjectMeta{Annotations: n.Annotations}})
	return n.DeletionTimestamp != nil || len(Others(n)) > 0 || len(claims) > 0
}

// Others returns the tools that are removing the node; see [cordon.Others].
func Others(n *corev1.Node) []string { return fromcorev1.Node(n).RemovedBy }
