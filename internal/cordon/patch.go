package cordon

import (
	"encoding/json"
	"time"
)

// conditionPatch is one condition of the node in a patch of its status.
type conditionPatch struct {
	Type               string    `json:"type"`
	Status             string    `json:"status"`
	Reason             string    `json:"reason"`
	Message            string    `json:"message"`
	LastTransitionTime time.Time `json:"lastTransitionTime"`
	LastHeartbeatTime  time.Time `json:"lastHeartbeatTime"`
}

// nextPatch returns the next patch to send. The result isStatus is true if the patch is for the status subresource.
func (p plan) nextPatch(resourceVersion string) (patch []byte, isStatus bool, err error) {
	if p.isStatusNext() {
		patch, err = p.statusPatch(resourceVersion)
		return patch, true, err
	}
	patch, err = p.nodePatch(resourceVersion)
	return patch, false, err
}

// nodePatch returns a JSON merge patch of metadata and spec. Such a patch can only replace the whole list of taints. It
// contains the resourceVersion, so it fails if the list has changed since the read.
func (p plan) nodePatch(resourceVersion string) ([]byte, error) {
	metadata := map[string]any{"resourceVersion": resourceVersion}
	if len(p.annotations) > 0 {
		metadata["annotations"] = p.annotations
	}
	if len(p.labels) > 0 {
		metadata["labels"] = p.labels
	}
	spec := map[string]any{}
	if p.unschedulable != nil {
		spec["unschedulable"] = true
		if !*p.unschedulable {
			spec["unschedulable"] = nil // absent and not false, like kubectl uncordon
		}
	}
	if p.taintsChanged {
		spec["taints"] = p.taints
		if len(p.taints) == 0 {
			spec["taints"] = nil
		}
	}
	patch := map[string]any{"metadata": metadata}
	if len(spec) > 0 {
		patch["spec"] = spec
	}
	return json.Marshal(patch)
}

// statusPatch returns a strategic merge patch, which merges conditions by type.
func (p plan) statusPatch(resourceVersion string) ([]byte, error) {
	conditions := make([]any, 0, len(p.setConditions)+len(p.removedConditions))
	for _, c := range p.setConditions {
		conditions = append(conditions, c)
	}
	for _, kind := range p.removedConditions {
		conditions = append(conditions, map[string]string{"$patch": "delete", "type": kind})
	}
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": resourceVersion},
		"status":   map[string]any{"conditions": conditions},
	})
}
