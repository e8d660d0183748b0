package provisioning

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/instances"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
)

// joining tells how far the instances of a group have come with joining.
type joining struct {
	joins map[string]launch.Join  // by provider ID
	nodes map[string]*corev1.Node // by provider ID
	types map[string]string       // the instance's type, by Node name
}

// joined finds the Node of each instance of a group.
func joined(provider cloud.Provider, g *v1alpha1.NodeGroup, all []cloud.Instance, nodes []*corev1.Node) joining {
	hosts, byName := make([]cloud.Host, len(nodes)), make(map[string]*corev1.Node, len(nodes))
	for i, n := range nodes {
		hosts[i], byName[n.Name] = instances.HostOf(n), n
	}
	out := joining{joins: map[string]launch.Join{}, nodes: map[string]*corev1.Node{}, types: map[string]string{}}
	on := cloud.NewHosts(provider.Normalize, hosts)
	for _, i := range all {
		switch name, err := on.Of(i); {
		case err != nil:
			out.joins[i.ProviderID] = launch.Unsure
		case name != "":
			n := byName[name]
			out.joins[i.ProviderID], out.nodes[i.ProviderID], out.types[name] = plan.JoinOf(g, n), n, i.Type
		}
	}
	return out
}
