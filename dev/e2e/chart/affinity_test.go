package chart_test

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
)

// TestAffinityToNodesKeepsReplicasApartAllTheSame: what says where pods run says nothing of each other.
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
		} {
			text := "image: {registry: registry.example.com/slipway}\n" + frontOf + "}\n"
			if part == "cloudpool" {
				text = "image: {registry: registry.example.com/slipway}\n" + frontOf + c.values + "}\n"
			} else {
				text += "manager: {" + c.values + "}\n"
			}
			all := objects(t, manifest(t, slipwayChart, release(slipwayChart, namespace), text))
			affinity := find[appsv1.Deployment](t, all, "Deployment", "slipway-"+part).Spec.Template.Spec.Affinity
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
