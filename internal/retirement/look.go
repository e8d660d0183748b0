package retirement

import (
	"context"
	"strings"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// look reads the Node, and stops when it is another one of the same name, or when another tool is removing it (I6).
func (p *passage) look(ctx context.Context) error {
	node, err := p.c.o.API.GetNode(ctx, p.rt.Spec.NodeName)
	if err != nil && !kubeapi.IsNotFound(err) {
		return err
	}
	if err != nil {
		node = nil
	}
	captured := p.rt.Status.Captured
	if node != nil && captured != nil && node.UID != string(captured.NodeUID) {
		p.replacement = node
		if !p.reached(v1alpha1.Drained) {
			return end(NodeReplaced, "the Node is another one of the same name: its UID is %s, want %s", node.UID, captured.NodeUID)
		}
		return nil // the Node is gone as it should be; what its machine does now decides
	}
	p.node = node
	if node == nil || p.reached(v1alpha1.NodeDeleted) {
		return nil
	}
	if err := leftToOthers(node); err != nil {
		return err
	}
	if node.DeletionTimestamp != nil && !p.reached(v1alpha1.Drained) && !p.nodeGoing() {
		return end(BeingRemoved, "somebody else is deleting the Node, and it is left to them")
	}
	return nil
}

// leftToOthers ends the retirement of a node that another tool is removing.
func leftToOthers(n *kubeapi.Node) error {
	if others := cordon.Others(n); len(others) > 0 {
		return end(BeingRemoved, "the node is being removed by %s, and is left to it", strings.Join(others, ", "))
	}
	return nil
}

// ready reports that the node lifecycle controller counts on the Node. One that is gone is not ready.
func ready(n *kubeapi.Node) bool {
	if n == nil {
		return false
	}
	for _, c := range n.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True"
		}
	}
	return false
}
