package chart_test

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
)

// TestAffinityToNodesKeepsReplicasApartAllTheSame checks that a custom node affinity keeps the replicas' anti-affinity.
// If no node may have two replicas, an upgrade waits for no additional room.
func TestAffinityToNodesKeepsReplicasApartAllTheSame(t *testing.T) {
	t.Parallel()
	const (
		nodes  = "nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}"
		others = "podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: zone}, {topologyKey: rack}]}"
	)
	for _, part := range []string{"manager", "cloudpool"} {
		for _, c := range []struct {
			values              string
			required, preferred int
			nodes               bool
		}{
			{"antiAffinity: preferred", 0, 1, false},
			{"antiAffinity: preferred, affinity: {" + nodes + "}", 0, 1, true},
			{"antiAffinity: required, affinity: {" + nodes + "}", 1, 0, true},
			{"antiAffinity: none, affinity: {" + nodes + "}", 0, 0, true},
			{"antiAffinity: required, affinity: {" + nodes + ", " + others + "}", 2, 0, true},
			{"antiAffinity: required, affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: []}}", 0, 0, false},
		} {
			text := "image: {registry: registry.example.com/slipway}\n" + frontOf + "}\n"
			if part == "cloudpool" {
				text = "image: {registry: registry.example.com/slipway}\n" + frontOf + c.values + "}\n"
			} else {
				text += "manager: {" + c.values + "}\n"
			}
			all := objects(t, manifest(t, slipwayChart, release(slipwayChart, namespace), text))
			spec := find[appsv1.Deployment](t, all, "Deployment", "slipway-"+part).Spec
			if surges := spec.Strategy.RollingUpdate == nil; surges == (c.required > 0) {
				t.Errorf("%s: {%s}: %d required, and the strategy %v", part, c.values, c.required, spec.Strategy)
			}
			affinity := spec.Template.Spec.Affinity
			required, preferred := 0, 0
			if apart := affinity.PodAntiAffinity; apart != nil {
				required = len(apart.RequiredDuringSchedulingIgnoredDuringExecution)
				preferred = len(apart.PreferredDuringSchedulingIgnoredDuringExecution)
			}
			if required != c.required || preferred != c.preferred || (affinity.NodeAffinity != nil) != c.nodes {
				t.Errorf("%s: {%s}: %d required and %d preferred, node affinity: %t; want %d, %d, %t", part, c.values, required, preferred,
					affinity.NodeAffinity != nil, c.required, c.preferred, c.nodes)
			}
		}
	}
}

// TestAnUpgradeWaitsForNoNodeThatIsNotThere checks that an upgrade removes a replica before it adds the next. The other
// replicas stay.
func TestAnUpgradeWaitsForNoNodeThatIsNotThere(t *testing.T) {
	t.Parallel()
	all := objects(t, manifest(t, slipwayChart, release(slipwayChart, namespace),
		"image: {registry: registry.example.com/slipway}\nmanager: {antiAffinity: required}\n"+frontOf+"antiAffinity: required}"))
	for _, part := range []string{"manager", "cloudpool"} {
		strategy := find[appsv1.Deployment](t, all, "Deployment", "slipway-"+part).Spec.Strategy
		if r := strategy.RollingUpdate; r == nil || r.MaxSurge.IntValue() != 0 || r.MaxUnavailable.IntValue() != 1 {
			t.Errorf("%s: the strategy is %v, want one pod less during an upgrade and none more", part, strategy)
		}
	}
}
