package placement

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/nodedeclaredfeatures"
)

var reasonFeatures = Reason{
	"NodeDeclaredFeatures", "node lacks a feature that the pod needs",
	"node(s) didn't match Pod's required features",
}

// requiredFeatures infers from the specification which node features the pod cannot run without.
func requiredFeatures(spec *corev1.PodSpec) (nodedeclaredfeatures.FeatureSet, bool) {
	features, err := nodedeclaredfeatures.DefaultFramework.InferForPodScheduling(
		&nodedeclaredfeatures.PodInfo{Spec: spec}, schedulerVersion)
	return features, err == nil && !features.IsEmpty()
}

// featuresDeclared is the plugin NodeDeclaredFeatures: the node declares every feature that the pod needs.
func (c *class) featuresDeclared(n *node) bool {
	if !c.needsFeatures {
		return true
	}
	ok, err := c.features.IsSubset(n.features)
	return ok && err == nil
}
