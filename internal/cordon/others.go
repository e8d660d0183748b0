package cordon

import (
	"slices"
	"strings"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// RemovingTools returns the other tools that are removing the node, found by their taints. Slipway leaves such a node
// to that tool (invariant I6). A taint with a tool's key that Slipway has set does not count.
func RemovingTools(node *kubeapi.Node) []string {
	records, _ := ListRecords(node)
	var found []string
	for _, t := range node.Spec.Taints {
		taint := Taint{Key: t.Key, Value: t.Value, Effect: t.Effect}
		ours := slices.ContainsFunc(records, func(r Record) bool { return slices.Contains(r.Taints, taint) })
		if tool := RemovingToolOfTaint(t.Key); tool != "" && !ours {
			found = append(found, tool+" (taint "+taint.String()+")")
		}
	}
	return found
}

// RemovingToolOfTaint returns the tool that sets a taint with this key on a node that it is removing. It returns "" for
// any other key.
func RemovingToolOfTaint(taintKey string) string {
	switch {
	case taintKey == "ToBeDeletedByClusterAutoscaler":
		return "cluster-autoscaler"
	case taintKey == "karpenter.sh/disrupted":
		return "Karpenter"
	case strings.Contains(taintKey, "remediator.kubernetes.azure.com/unschedulable"),
		strings.Contains(taintKey, "remediator.aks.microsoft.com/unschedulable"): // older name, https://github.com/Azure/AKS/issues/2976
		return "AKS node auto-drain"
	}
	return ""
}
