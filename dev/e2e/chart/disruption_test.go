package chart_test

import (
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestNoBudgetKeepsPodsThatAreNotReady checks the PDBs for pods that are not ready. A manager is not ready if its
// clouds are not found. Two such managers would block every drain of their nodes.
func TestNoBudgetKeepsPodsThatAreNotReady(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		all     []*unstructured.Unstructured
		budgets []string
	}{
		"chart": {
			objects(t, manifest(t, slipwayChart, release(slipwayChart, namespace), "image: {registry: registry.example.com/slipway}\n"+frontOf+"}")),
			[]string{"slipway-manager", "slipway-cloudpool"},
		},
		"deploy/manager": {kustomized(t, "manager"), []string{"slipway-manager"}},
	} {
		if has := kinds(c.all)["PodDisruptionBudget"]; has != len(c.budgets) {
			t.Errorf("%s: %d budgets, want %q", name, has, c.budgets)
		}
		for _, budget := range c.budgets {
			policy := find[policyv1.PodDisruptionBudget](t, c.all, "PodDisruptionBudget", budget).Spec.UnhealthyPodEvictionPolicy
			if policy == nil || *policy != policyv1.AlwaysAllow {
				t.Errorf("%s: %s: pods that are not ready are evicted by %v, want %s", name, budget, policy, policyv1.AlwaysAllow)
			}
		}
	}
}
