package provisioning

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/instances"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
)

// joinStates says how far the instances of a group have joined the cluster.
type joinStates struct {
	stateByID  map[string]launch.JoinState // by provider ID
	nodeByID   map[string]*corev1.Node     // by provider ID
	typeByNode map[string]string           // the instance type, by Node name
}

// findJoinStates finds the Node of each instance of a group.
func findJoinStates(provider cloud.Provider, g *v1alpha1.NodeGroup, list []cloud.Instance, nodes []*corev1.Node) joinStates {
	hosts, byName := make([]cloud.NodeIdentity, len(nodes)), make(map[string]*corev1.Node, len(nodes))
	for i, n := range nodes {
		hosts[i], byName[n.Name] = instances.NodeIdentityOf(n), n
	}
	out := joinStates{stateByID: map[string]launch.JoinState{}, nodeByID: map[string]*corev1.Node{}, typeByNode: map[string]string{}}
	nodeNames := cloud.NewNodeIndex(provider.Normalize, hosts)
	for _, i := range list {
		switch name, err := nodeNames.FindNode(i); {
		case err != nil:
			out.stateByID[i.ProviderID] = launch.NodeUncertain
		case name != "":
			n := byName[name]
			out.stateByID[i.ProviderID], out.nodeByID[i.ProviderID], out.typeByNode[name] = plan.FindJoinState(g, n), n, i.Type
		}
	}
	return out
}
