package controlplane

import (
	"fmt"
	"strconv"
	"strings"
)

// The cloud that AKSNode's machines are in.
const (
	Subscription  = "00000000-0000-0000-0000-000000000001"
	ResourceGroup = "mc_demo"
)

// aksClusterID is the number that AKS puts in the names of a cluster's scale sets.
const aksClusterID = "12345678"

// AKSPool is a pool of machines as AKS makes them: one virtual machine scale set, in uniform mode.
type AKSPool struct {
	// Name of the pool, as in kubernetes.azure.com/agentpool.
	Name string
	// Spot machines can be taken away at any time. The taint that AKS gives their nodes is not set: add it to the
	// NodeSpec where it matters.
	Spot bool
	// InstanceType is the size of the machines; empty is Standard_D16ds_v5.
	InstanceType string
}

// ScaleSet is the name of the pool's scale set, such as aks-spot-12345678-vmss.
func (p AKSPool) ScaleSet() string { return "aks-" + p.Name + "-" + aksClusterID + "-vmss" }

// AKSPoolOf gives the pool of a scale set's name, and whether it is one that a pool here has.
func AKSPoolOf(scaleSet string) (AKSPool, bool) {
	name, ours := strings.CutPrefix(scaleSet, "aks-")
	name, ends := strings.CutSuffix(name, "-"+aksClusterID+"-vmss")
	return AKSPool{Name: name}, ours && ends && name != ""
}

// Resource is the name of an instance in Azure's own terms, which Scheduled Events use, such as
// aks-spot-12345678-vmss_0.
func (p AKSPool) Resource(instance int) string { return p.ScaleSet() + "_" + strconv.Itoa(instance) }

// NodeName is the name of an instance's node: the computer name, whose last six characters are the instance in base 36,
// such as aks-spot-12345678-vmss000000.
func (p AKSPool) NodeName(instance int) string {
	suffix := strconv.FormatInt(int64(instance), 36)
	return p.ScaleSet() + strings.Repeat("0", max(0, 6-len(suffix))) + suffix
}

// ProviderID is what the cloud provider writes in the spec of an instance's node.
func (p AKSPool) ProviderID(instance int) string {
	return fmt.Sprintf("azure:///subscriptions/%s/resourceGroups/%s/providers/Microsoft.Compute/"+
		"virtualMachineScaleSets/%s/virtualMachines/%d", Subscription, ResourceGroup, p.ScaleSet(), instance)
}

// Node is the node of an instance, with the labels that AKS and the cloud provider give it. Instances are spread over
// three zones.
func (p AKSPool) Node(instance int) NodeSpec {
	priority := "regular"
	if p.Spot {
		priority = "spot"
	}
	return NodeSpec{
		Name:       p.NodeName(instance),
		Pool:       p.Name,
		ProviderID: p.ProviderID(instance),
		Labels: map[string]string{
			"kubernetes.azure.com/scalesetpriority": priority,
			"kubernetes.azure.com/cluster":          ResourceGroup,
			"node.kubernetes.io/instance-type":      orDefault(p.InstanceType, "Standard_D16ds_v5"),
			"topology.kubernetes.io/region":         "westeurope",
			"topology.kubernetes.io/zone":           fmt.Sprintf("westeurope-%d", instance%3+1),
		},
	}
}

// Nodes are the nodes of the first n instances.
func (p AKSPool) Nodes(n int) []NodeSpec {
	nodes := make([]NodeSpec, 0, n)
	for instance := range n {
		nodes = append(nodes, p.Node(instance))
	}
	return nodes
}
