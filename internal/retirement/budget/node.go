package budget

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/drainability/fromcorev1"
	noderules "github.com/slipway-dev/slipway/internal/drainability/node"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// Node is one node of a group as a budget counts it.
type Node struct {
	Name string
	// Unavailable says why the node is not to be counted on, whoever made it so; empty means that it is.
	Unavailable string
	// Leaving nodes do not count towards the minimum: they are on their way out, whoever takes them.
	Leaving bool
}

// NodeOf counts one node. A retirement that has been admitted makes its node one that is leaving, whether anything is to
// be seen on the node yet or not.
func NodeOf(n *corev1.Node, retiring bool) Node {
	facts := fromcorev1.Node(n)
	reason, leaving := facts.Unavailable(retiring)
	return Node{Name: n.Name, Unavailable: reason, Leaving: leaving}
}

// Ready reports the condition Ready; one that is Unknown or missing is not.
func Ready(n *corev1.Node) bool { return fromcorev1.Node(n).Ready == noderules.True }

// IsLeaving reports whether a node is being taken out of service: it is deleted, another tool removes it, or Slipway has cordoned it.
func IsLeaving(n *corev1.Node) bool {
	claims, _ := cordon.List(&kubeapi.Node{ObjectMeta: kubeapi.ObjectMeta{Annotations: n.Annotations}})
	return n.DeletionTimestamp != nil || len(Others(n)) > 0 || len(claims) > 0
}

// Others names the tools that are removing the node; see [cordon.Others].
func Others(n *corev1.Node) []string { return fromcorev1.Node(n).RemovedBy }
