package chart_test

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
)

// TestTheAgentsPolicyIsOfThoseOnThePodNetwork: each DaemonSet is subject to it or on its nodes' network.
func TestTheAgentsPolicyIsOfThoseOnThePodNetwork(t *testing.T) {
	t.Parallel()
	for values, want := range map[string][]string{
		"{}":                         {"slipway-agent"},
		"{hostNetwork: true}":        nil,
		"{windows: {enabled: true}}": {"slipway-agent"},
		"{linux: {enabled: false}, windows: {enabled: true}}":                     nil,
		"{hostNetwork: true, windows: {enabled: true}}":                           nil,
		"{hostNetwork: true, windows: {enabled: true, hostProcess: false}}":       {"slipway-agent-windows"},
		"{windows: {enabled: true, hostProcess: false}}":                          {"slipway-agent", "slipway-agent-windows"},
		"{linux: {enabled: false}, windows: {enabled: true, hostProcess: false}}": {"slipway-agent-windows"},
	} {
		all := objects(t, manifest(t, slipwayChart, release(slipwayChart, namespace),
			"image: {registry: registry.example.com/slipway}\nnetworkPolicy: {enabled: true}\nagent: "+values))
		var kept []string
		for _, o := range all {
			if o.GetKind() == "DaemonSet" && keptByPolicy(t, all, o.GetName()) {
				kept = append(kept, o.GetName())
			}
		}
		slices.Sort(kept)
		if !slices.Equal(kept, want) {
			t.Errorf("agent: %s: the policy is of the pods of %q, want %q", values, kept, want)
		}
	}
}

// keptByPolicy says whether the agents' policy, if there is one, selects the pods of a DaemonSet.
func keptByPolicy(t *testing.T, all []*unstructured.Unstructured, set string) bool {
	t.Helper()
	if !slices.Contains(names(all), "NetworkPolicy/slipway-agent") {
		return false
	}
	policy := find[networkingv1.NetworkPolicy](t, all, "NetworkPolicy", "slipway-agent")
	selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
	if err != nil {
		t.Fatal(err)
	}
	return selector.Matches(labels.Set(find[appsv1.DaemonSet](t, all, "DaemonSet", set).Spec.Template.Labels))
}

// TestAnAgentsMetricsSayWhichNodeItGuards, in what the Prometheus operator is told: the instance is an address.
func TestAnAgentsMetricsSayWhichNodeItGuards(t *testing.T) {
	t.Parallel()
	all := objects(t, manifest(t, slipwayChart, release(slipwayChart, namespace), "image: {registry: registry.example.com/slipway}\nmetrics: {scrape: monitors}"))
	for _, o := range all {
		if o.GetKind() != "PodMonitor" {
			continue
		}
		endpoints, _, err := unstructured.NestedSlice(o.Object, "spec", "podMetricsEndpoints")
		if err != nil || len(endpoints) != 1 {
			t.Fatalf("%d endpoints: %v", len(endpoints), err)
		}
		endpoint, _ := endpoints[0].(map[string]any)
		relabelings, _, err := unstructured.NestedSlice(endpoint, "relabelings")
		if err != nil || len(relabelings) != 1 {
			t.Fatalf("%d relabelings: %v", len(relabelings), err)
		}
		r, _ := relabelings[0].(map[string]any)
		from, _, _ := unstructured.NestedStringSlice(r, "sourceLabels") // it is of strings, or is not what is wanted
		if !slices.Equal(from, []string{"__meta_kubernetes_pod_node_name"}) || r["targetLabel"] != "node" {
			t.Errorf("relabeled by %v", r)
		}
		return
	}
	t.Fatal("there is no PodMonitor")
}
