package autoscaler

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/nodegroup/scaling"
	"github.com/slipway-dev/slipway/internal/retirement"
	"github.com/slipway-dev/slipway/internal/retirement/budget"
)

// joined tells how far machines have come with joining, by provider ID, and the type of each Node's machine.
func joined(provider cloud.Provider, instances []cloud.Instance, nodes []*corev1.Node) (joins map[string]scaling.Join, types map[string]string) {
	hosts, ready := make([]cloud.Host, len(nodes)), make(map[string]bool, len(nodes))
	for i, n := range nodes {
		hosts[i], ready[n.Name] = retirement.HostOf(n), budget.Ready(n)
	}
	joins, types = map[string]scaling.Join{}, map[string]string{}
	on := cloud.NewHosts(provider.Normalize, hosts)
	for _, i := range instances {
		switch node, err := on.Of(i); {
		case err != nil:
			joins[i.ProviderID] = scaling.Unsure
		case ready[node]:
			joins[i.ProviderID], types[node] = scaling.NodeReady, i.Type
		case node != "":
			joins[i.ProviderID], types[node] = scaling.HasNode, i.Type
		}
	}
	return joins, types
}
