package retirement

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// These annotations of a Node have the start of the cooldown of a rule. Once the cooldown has passed, the rule requests
// the retirement of the node. Packages nodegroup and provisioning write them.
const (
	IdleSinceAnnotation          = "nodegroup.slipway.dev/idle-since"
	UnderutilizedSinceAnnotation = "nodegroup.slipway.dev/underutilized-since"
)

// restartCooldowns makes the cooldowns of the rules start again for a node with a cancelled retirement. Otherwise the
// rule would request the retirement again at once, although a person has cancelled it. A pod that moves between nodes
// could also start and cancel retirements in turns.
func (p *retirementScope) restartCooldowns(ctx context.Context) error {
	if p.node == nil {
		return nil
	}
	removed := map[string]any{}
	for _, key := range []string{IdleSinceAnnotation, UnderutilizedSinceAnnotation} {
		if _, ok := p.node.Annotations[key]; ok {
			removed[key] = nil
		}
	}
	if len(removed) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": removed, "uid": p.node.UID}})
	if err != nil {
		return err
	}
	if _, err = p.controller.options.API.PatchNode(ctx, p.node.Name, patch); err != nil && !kubeapi.IsNotFound(err) {
		return fmt.Errorf("annotations of node %s: %w", p.node.Name, err)
	}
	return nil
}
