package cordon

import (
	"encoding/json"
	"time"
)

// condition is corev1.NodeCondition, as it is written.
type condition struct {
	Type               string    `json:"type"`
	Status             string    `json:"status"`
	Reason             string    `json:"reason"`
	Message            string    `json:"message"`
	LastTransitionTime time.Time `json:"lastTransitionTime"`
	LastHeartbeatTime  time.Time `json:"lastHeartbeatTime"`
}

// bytes is the next request of the plan, and whether it is to the status.
func (p plan) bytes(resourceVersion string) (patch []byte, isStatus bool, err error) {
	if p.nextIsStatus() {
		patch, err = p.statusPatch(resourceVersion)
		return patch, true, err
	}
	patch, err = p.nodePatch(resourceVersion)
	return patch, false, err
}

// nodePatch is a JSON merge patch. The list of taints goes whole, as such a patch knows no other way; that nobody
// changed it meanwhile is what the resourceVersion is for.
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
			spec["unschedulable"] = nil // as kubectl uncordon leaves it: not false but absent
		}
	}
	if p.newTaints {
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

// statusPatch is a strategic merge patch, in which conditions are told apart by type.
func (p plan) statusPatch(resourceVersion string) ([]byte, error) {
	conditions := make([]any, 0, len(p.set)+len(p.drop))
	for _, c := range p.set {
		conditions = append(conditions, c)
	}
	for _, kind := range p.drop {
		conditions = append(conditions, map[string]string{"$patch": "delete", "type": kind})
	}
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": resourceVersion},
		"status":   map[string]any{"conditions": conditions},
	})
}
