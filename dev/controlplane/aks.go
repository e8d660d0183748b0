package controlplane

import (
	"fmt"
	"strconv"
	"strings"
)

// The Azure subscription and resource group of AKSPool's machines.
const (
	Subscription  = "00000000-0000-0000-0000-000000000001"
	ResourceGroup = "mc_demo"
)

const aksClusterID = "12345678"

// AKSPool is a pool of machines as AKS creates them. Its machines are in one virtual machine scale set in uniform
// mode.
type AKSPool struct {
	// Name is the value of the label kubernetes.azure.com/agentpool.
	Name string
	// Spot machines can be evicted by Azure at any time. AKS taints their nodes; this package does not. Add the taint to
	// the NodeSpec if a test needs it.
	Spot bool
	// InstanceType is the size of the machines. Empty means Standard_D16ds_v5.
	InstanceType string
}

// ScaleSetName returns the name of the pool's scale set: aks-spot-12345678-vmss.
func (p AKSPool) ScaleSetName() string { return "aks-" + p.Name + "-" + aksClusterID + "-vmss" }

// ParseScaleSetName returns the pool of a scale set. It reports false if the name is not the scale set name of an
// AKSPool.
func ParseScaleSetName(scaleSet string) (AKSPool, bool) {
	name, hasPrefix := strings.CutPrefix(scaleSet, "aks-")
	name, hasSuffix := strings.CutSuffix(name, "-"+aksClusterID+"-vmss")
	return AKSPool{Name: name}, hasPrefix && hasSuffix && name != ""
}

// ResourceName returns the Azure name of an instance, as in Scheduled Events: aks-spot-12345678-vmss_0.
func (p AKSPool) ResourceName(instance int) string {
	return p.ScaleSetName() + "_" + strconv.Itoa(instance)
}

// NodeName returns the name of an instance's node: aks-spot-12345678-vmss000000. It is the computer name, which ends
// in the instance number as six digits of base 36.
func (p AKSPool) NodeName(instance int) string {
	suffix := strconv.FormatInt(int64(instance), 36)
	return p.ScaleSetName() + strings.Repeat("0", max(0, 6-len(suffix))) + suffix
}

// ProviderID returns spec.providerID of an instance's node.
func (p AKSPool) ProviderID(instance int) string {
	return fmt.Sprintf("azure:///subscriptions/%s/resourceGroups/%s/providers/Microsoft.Compute/"+
		"virtualMachineScaleSets/%s/virtualMachines/%d", Subscription, ResourceGroup, p.ScaleSetName(), instance)
}

// Node returns the node of an instance, with the labels that AKS and Azure's cloud provider set. The instances are
// in three zones in turn.
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

// Nodes returns the nodes of the first n instances.
func (p AKSPool) Nodes(n int) []NodeSpec {
	nodes := make([]NodeSpec, 0, n)
	for instance := range n {
		nodes = append(nodes, p.Node(instance))
	}
	return nodes
}
