package disruptionbudget

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
	// UnavailableReason says why the node is unavailable, for any cause. Empty means available.
	UnavailableReason string
	// BeingRemoved nodes do not count towards the minimum size: they are being removed by any tool.
	BeingRemoved bool
}

// NewNode returns the Node as disruption budgets count it. If retiring is true, an admitted retirement removes the
// node. The node then counts as being removed, even if the Node object does not show that yet.
func NewNode(n *corev1.Node, retiring bool) Node {
	facts := fromcorev1.NodeFacts(n)
	reason, leaving := facts.UnavailableReason(retiring)
	return Node{Name: n.Name, UnavailableReason: reason, BeingRemoved: leaving}
}

// IsReady reports whether the condition Ready is True. Unknown or missing is not.
func IsReady(n *corev1.Node) bool { return fromcorev1.NodeFacts(n).ReadyStatus == noderules.ReadyTrue }

// IsBeingRemoved reports whether a node is being removed: it is deleted, another tool removes it, or Slipway has cordoned
// it.
func IsBeingRemoved(n *corev1.Node) bool {
	claims, _ := cordon.ListRecords(&kubeapi.Node{ObjectMeta: kubeapi.ObjectMeta{Annotations: n.Annotations}})
	return n.DeletionTimestamp != nil || len(FindRemovingTools(n)) > 0 || len(claims) > 0
}

// FindRemovingTools returns the tools that are removing the node; see [cordon.RemovingTools].
func FindRemovingTools(n *corev1.Node) []string { return fromcorev1.NodeFacts(n).RemovedBy }
