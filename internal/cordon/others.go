package cordon

import (
	"slices"
	"strings"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// Others names the tools that are at work on taking the node away, by the taints they leave on it; a node with any is
// to be left alone (invariant I6). A taint that we set ourselves does not count.
func Others(node *kubeapi.Node) []string {
	records, _ := List(node)
	var found []string
	for _, t := range node.Spec.Taints {
		taint := Taint{Key: t.Key, Value: t.Value, Effect: t.Effect}
		ours := slices.ContainsFunc(records, func(r Record) bool { return slices.Contains(r.Taints, taint) })
		if tool := RemovingTool(t.Key); tool != "" && !ours {
			found = append(found, tool+" (taint "+taint.String()+")")
		}
	}
	return found
}

// RemovingTool names the tool that puts a taint of this key on a node which it takes away; empty when none does.
func RemovingTool(taintKey string) string {
	switch {
	case taintKey == "ToBeDeletedByClusterAutoscaler":
		return "cluster-autoscaler"
	case taintKey == "karpenter.sh/disrupted":
		return "Karpenter"
	case strings.Contains(taintKey, "remediator.kubernetes.azure.com/unschedulable"),
		strings.Contains(taintKey, "remediator.aks.microsoft.com/unschedulable"): // its older name, https://github.com/Azure/AKS/issues/2976
		return "AKS node auto-drain"
	}
	return ""
}
