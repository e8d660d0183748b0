package filter

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-helpers/nodedeclaredfeatures"

	"github.com/slipway-dev/slipway/internal/placement"
)

// schedulerVersion is the Kubernetes release that this package reproduces.
var schedulerVersion = version.MustParse("1.37.0")

var reasonFeatures = placement.Reason{
	Predicate: "NodeDeclaredFeatures", Message: "node lacks a feature that the pod needs",
	Scheduler: "node(s) didn't match Pod's required features",
}

// inferRequiredFeatures returns the node features that the pod needs, and whether there are any.
func inferRequiredFeatures(spec *corev1.PodSpec) (nodedeclaredfeatures.FeatureSet, bool) {
	features, err := nodedeclaredfeatures.DefaultFramework.InferForPodScheduling(
		&nodedeclaredfeatures.PodInfo{Spec: spec}, schedulerVersion)
	return features, err == nil && !features.IsEmpty()
}

// nodeHasNeededFeatures implements the plugin NodeDeclaredFeatures: the node must declare every feature that the pod
// needs.
func (c *PodClass) nodeHasNeededFeatures(n *Node) bool {
	if !c.needsFeatures {
		return true
	}
	ok, err := c.features.IsSubset(n.features)
	return ok && err == nil
}
