package retirement

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// fetchNode reads the Node from the cache. It ends the retirement if this is another Node of the same name, or if
// another tool is removing it (invariant I6). The cache is recent enough, because every later write requires the
// version that was read. If the cache has no Node or a different one, fetchNode also reads the Node from the API server
// (invariant I7). It does not do that after the retirement has deleted the Node.
func (p *retirementScope) fetchNode(ctx context.Context) error {
	n := &corev1.Node{}
	err := p.controller.options.Client.Get(ctx, client.ObjectKey{Name: p.rt.Spec.NodeName}, n)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("node %s: %w", p.rt.Spec.NodeName, err)
	}
	there := err == nil
	if !p.hasReached(v1alpha1.NodeDeleted) && (!there || !p.isExpectedUID(n.UID)) {
		return p.fetchNodeLive(ctx)
	}
	if !there {
		return p.validateAndSetNode(nil)
	}
	node, err := toKubeapiNode(n)
	if err != nil {
		return err
	}
	return p.validateAndSetNode(node)
}

// isExpectedUID reports whether the retirement's Node has this UID. If that Node's UID is not known yet, it returns
// true for any UID.
func (p *retirementScope) isExpectedUID(uid types.UID) bool {
	if captured := p.rt.Status.Captured; captured != nil {
		return uid == captured.NodeUID
	}
	return p.rt.Spec.NodeUID == "" || uid == p.rt.Spec.NodeUID
}

// fetchNodeLive reads the Node from the API server and not from the cache.
func (p *retirementScope) fetchNodeLive(ctx context.Context) error {
	node, err := p.controller.options.API.GetNode(ctx, p.rt.Spec.NodeName)
	if err != nil && !kubeapi.IsNotFound(err) {
		return err
	}
	if err != nil {
		node = nil
	}
	p.node, p.isNodeLive = nil, true
	return p.validateAndSetNode(node)
}

// refetchUnreadyNode reads a Node that is not Ready from the API server, unless this reconcile has done so already. A
// cached state is not enough to prove that the instance is gone (invariant I7).
func (p *retirementScope) refetchUnreadyNode(ctx context.Context) error {
	if isReady(p.node) || p.isNodeLive {
		return nil
	}
	return p.fetchNodeLive(ctx)
}

// toKubeapiNode converts a Node to the type that package cordon uses.
func toKubeapiNode(n *corev1.Node) (*kubeapi.Node, error) {
	raw, err := json.Marshal(n)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", n.Name, err)
	}
	out := &kubeapi.Node{}
	if err := json.Unmarshal(raw, out); err != nil {
		return nil, fmt.Errorf("node %s: %w", n.Name, err)
	}
	return out, nil
}

// validateAndSetNode checks a Node that was read, and stores it.
func (p *retirementScope) validateAndSetNode(node *kubeapi.Node) error {
	captured := p.rt.Status.Captured
	if node != nil && captured != nil && node.UID != string(captured.NodeUID) {
		p.sameNamedNode = node
		if !p.hasReached(v1alpha1.Drained) {
			return newEnd(NodeReplaced, "another Node has the same name: its UID is %s, want %s", node.UID, captured.NodeUID)
		}
		return nil // the Node is deleted as it should be; the state of its instance decides
	}
	p.node = node
	if node == nil || p.hasReached(v1alpha1.NodeDeleted) {
		return nil
	}
	if err := checkNoOtherRemovingTool(node); err != nil {
		return err
	}
	if node.DeletionTimestamp != nil && !p.hasReached(v1alpha1.Drained) && !p.isNodeDeleting() {
		return newEnd(BeingRemoved, "another client is deleting the Node")
	}
	return nil
}

// checkNoOtherRemovingTool ends the retirement if another tool is removing the node.
func checkNoOtherRemovingTool(n *kubeapi.Node) error {
	if others := cordon.RemovingTools(n); len(others) > 0 {
		return newEnd(BeingRemoved, "the node is being removed by %s", strings.Join(others, ", "))
	}
	return nil
}

// isReady reports whether the Node has the condition Ready. A missing Node is not ready.
func isReady(n *kubeapi.Node) bool {
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
