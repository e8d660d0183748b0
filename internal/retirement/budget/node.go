package budget

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/cordon"
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
	counted := Node{Name: n.Name}
	others := Others(n)
	switch {
	case retiring:
		counted.Leaving, counted.Unavailable = true, "is being retired"
	case n.DeletionTimestamp != nil:
		counted.Leaving, counted.Unavailable = true, "is being deleted"
	case len(others) > 0:
		counted.Leaving, counted.Unavailable = true, "is being removed by "+strings.Join(others, ", ")
	case !Ready(n):
		counted.Unavailable = "is not Ready"
	case n.Spec.Unschedulable:
		counted.Unavailable = "is cordoned"
	}
	return counted
}

// Ready reports the condition Ready; one that is Unknown or missing is not.
func Ready(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// Others names the tools that are taking the node away; see [cordon.Others].
func Others(n *corev1.Node) []string {
	seen := kubeapi.Node{ObjectMeta: kubeapi.ObjectMeta{Annotations: n.Annotations}}
	for _, t := range n.Spec.Taints {
		seen.Spec.Taints = append(seen.Spec.Taints, kubeapi.Taint{Key: t.Key, Value: t.Value, Effect: string(t.Effect)})
	}
	return cordon.Others(&seen)
}
