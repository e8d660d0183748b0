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

// look reads the Node, and stops when it is another one of the same name, or when another tool is removing it (I6). The cache's
// is enough to go on with: whatever changes or deletes the Node says which version of it is meant. That there is none, or
// another, is confirmed past the cache (I7), unless the Node is deleted already.
func (p *passage) look(ctx context.Context) error {
	n := &corev1.Node{}
	err := p.c.o.Client.Get(ctx, client.ObjectKey{Name: p.rt.Spec.NodeName}, n)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("node %s: %w", p.rt.Spec.NodeName, err)
	}
	there := err == nil
	if !p.reached(v1alpha1.NodeDeleted) && (!there || !p.isMeant(n.UID)) {
		return p.lookNow(ctx)
	}
	if !there {
		return p.judge(nil)
	}
	node, err := toKubeapi(n)
	if err != nil {
		return err
	}
	return p.judge(node)
}

// isMeant reports whether the Node with a UID is the retirement's, as far as that is known.
func (p *passage) isMeant(uid types.UID) bool {
	if captured := p.rt.Status.Captured; captured != nil {
		return uid == captured.NodeUID
	}
	return p.rt.Spec.NodeUID == "" || uid == p.rt.Spec.NodeUID
}

// lookNow is look past the cache.
func (p *passage) lookNow(ctx context.Context) error {
	node, err := p.c.o.API.GetNode(ctx, p.rt.Spec.NodeName)
	if err != nil && !kubeapi.IsNotFound(err) {
		return err
	}
	if err != nil {
		node = nil
	}
	p.node, p.isNodeLive = nil, true
	return p.judge(node)
}

// confirmSilence reads a Node that is not Ready past the cache, unless this walk has: what concludes from its silence that the
// machine is gone needs the Node as it is (I7).
func (p *passage) confirmSilence(ctx context.Context) error {
	if ready(p.node) || p.isNodeLive {
		return nil
	}
	return p.lookNow(ctx)
}

// toKubeapi converts a Node to what package cordon works with.
func toKubeapi(n *corev1.Node) (*kubeapi.Node, error) {
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

// judge takes a Node that was read.
func (p *passage) judge(node *kubeapi.Node) error {
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
