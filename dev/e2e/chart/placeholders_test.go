package chart_test

import (
	"os"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// expendable is a priority. The cluster autoscaler ignores pods below it (--expendable-pods-priority-cutoff).
const expendable = -10

// TestPlaceholdersKeepNodesFromTheClusterAutoscalerAndNotFromSlipway checks both autoscalers. The cluster autoscaler
// uses an annotation and the priority. Slipway uses the selector of a NodeGroup, with an example in the documentation.
func TestPlaceholdersKeepNodesFromTheClusterAutoscalerAndNotFromSlipway(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join(root(t), "docs", "examples", "nodegroup.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var group v1alpha1.NodeGroup
	if err := yaml.UnmarshalStrict(raw, &group); err != nil {
		t.Fatal(err)
	}
	selector, err := metav1.LabelSelectorAsSelector(group.Spec.Drain.PlaceholderPods)
	if err != nil {
		t.Fatal(err)
	}
	all := objects(t, manifest(t, slipwayChart, release(slipwayChart, namespace),
		"image: {registry: registry.example.com/slipway}\nplaceholders: [{name: spare, nodeSelector: {pool: ci}, labels: {app.kubernetes.io/component: mine}}]"))
	pod := find[appsv1.Deployment](t, all, "Deployment", "slipway-placeholder-spare").Spec.Template
	if !selector.Matches(labels.Set(pod.Labels)) {
		t.Errorf("%s does not select %v", selector, pod.Labels)
	}
	if safe := pod.Annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"]; safe != "false" {
		t.Errorf("safe-to-evict is %q", safe)
	}
	class := find[schedulingv1.PriorityClass](t, all, "PriorityClass", pod.Spec.PriorityClassName)
	if class.Value >= 0 || class.Value < expendable {
		t.Errorf("the priority is %d: work would not take its room, or the cluster autoscaler would not see it", class.Value)
	}
}
