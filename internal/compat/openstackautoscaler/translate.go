package openstackautoscaler

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/openstack"
)

const (
	// Group is the name of the one group that there was, and begins the names of its servers.
	Group = "kube-worker"
	// GroupLabel is the label by which the stand-in finds its own group and retirements, and by which managers pass them over.
	GroupLabel = "slipway.dev/openstack-autoscaler"
	// namePrefix begins the names of servers that the tool has made, which four letters or digits end.
	namePrefix = Group + "-"
	// DefaultCluster is the name that kubeadm gives every cluster, and by which servers were marked when none was given.
	DefaultCluster = "kubernetes"
	// defaultCoolDown is the CoolDownTime of the tool's example.
	defaultCoolDown = 10 * time.Minute
	// evictedBelow is the kubelet's default of evictionHard's memory.available, which kubeadm leaves as it is.
	evictedBelow = "100Mi"

	// After the cooldown a node stayed whose pods requested more than 5 % of its CPU, or that had more than five pods, whatever
	// they requested of its memory. Here those of DaemonSets are not counted.
	cpuAtMost, podsAtMost = 5, 5

	controlPlaneLabel = "node-role.kubernetes.io/control-plane"
	masterLabel       = "node-role.kubernetes.io/master"
)

// ControlPlaneLabels are those that nodes of the control plane have: of kubeadm, and the one before it.
func ControlPlaneLabels() []string { return []string{controlPlaneLabel, masterLabel} }

// CoolDown is how long a node has to be idle.
func (c *Config) CoolDown() time.Duration {
	if c.CoolDownTime == nil {
		return defaultCoolDown
	}
	return time.Duration(*c.CoolDownTime) * time.Second
}

// Cloud is the configuration of the OpenStack that the tool spoke to, for the cluster of that name, which no other cluster
// of the project has.
func (c *Config) Cloud(cluster string) openstack.Config {
	var former []string
	if cluster != DefaultCluster {
		former = []string{DefaultCluster}
	}
	return openstack.Config{
		Auth: &openstack.Auth{
			URL: c.AuthOptions.IdentityEndpoint, Username: c.AuthOptions.Username, Password: c.AuthOptions.Password,
			ProjectID: c.AuthOptions.TenantID, UserDomainName: c.AuthOptions.DomainName,
		},
		ClusterName: cluster, FormerClusterNames: former, Groups: []openstack.GroupConfig{c.group()},
	}
}

func (c *Config) group() openstack.GroupConfig {
	return openstack.GroupConfig{
		Name: Group, Flavors: c.flavors(), Image: openstack.Image{Name: c.WorkerImageName}, Networks: []string{c.Network.NetworkUUID},
		SecurityGroups: []string{c.Network.SecurityGroupName}, NamePrefix: Group, AdoptNamePrefix: namePrefix,
		Nodes: cloud.Shape{Reserved: c.OpenStackFlavours.reserved()},
	}
}

// reserved is what nodes keep from pods: what the file says, or else what the kubelets of kubeadm do. Those reserve nothing for the
// system, and keep what they evict below (evictionHard, memory.available).
func (f *Flavours) reserved() corev1.ResourceList {
	if f.Reserved == nil {
		return corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(evictedBelow)}
	}
	list, _ := quantities("", f.Reserved) // validated
	if list == nil {
		list = corev1.ResourceList{}
	}
	return list
}

// templates are the kinds of machines, where the file declares what is allocatable of one; nil is all that the cloud has.
func (c *Config) templates() []v1alpha1.MachineTemplate {
	declared := map[string]corev1.ResourceList{}
	for _, f := range c.OpenStackFlavours.Flavours {
		if list, _ := quantities("", f.Allocatable); list != nil { // validated
			declared[f.Name] = list
		}
	}
	if len(declared) == 0 {
		return nil
	}
	var all []v1alpha1.MachineTemplate
	for _, name := range c.flavors() {
		all = append(all, v1alpha1.MachineTemplate{Name: name, Allocatable: declared[name]})
	}
	return all
}

// flavors are those of the list in its order, and then the default one: what is wanted of a machine is always known, so
// that there is no pod without requests that would need a default.
func (c *Config) flavors() []string {
	var names []string
	listed := false
	for _, f := range c.OpenStackFlavours.Flavours {
		names = append(names, f.Name)
		listed = listed || f.Name == c.OpenStackFlavours.DefaultFlavour
	}
	if name := c.OpenStackFlavours.DefaultFlavour; name != "" && !listed {
		names = append(names, name)
	}
	return names
}

// Crowded says that the control plane, of so many nodes, leaves no room for another node; "" when it does.
func (c *Config) Crowded(controlPlane int) string {
	if controlPlane < *c.MaxNodeCount {
		return ""
	}
	return fmt.Sprintf("MaxNodeCount: %d: the control plane alone has %d nodes, which count: no machine is ordered: want %d or more",
		*c.MaxNodeCount, controlPlane, controlPlane+1)
}

// NodeGroup is the group of all nodes but those of the control plane, of which there are so many. The bounds of the tool
// count them, and those of a NodeGroup do not.
func (c *Config) NodeGroup(controlPlane int) v1alpha1.NodeGroup {
	maximum := int32(max(0, *c.MaxNodeCount-controlPlane))
	return v1alpha1.NodeGroup{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeGroup"},
		ObjectMeta: metav1.ObjectMeta{Name: Group, Labels: map[string]string{GroupLabel: Group}},
		Spec: v1alpha1.NodeGroupSpec{
			NodeSelector: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: controlPlaneLabel, Operator: metav1.LabelSelectorOpDoesNotExist},
				{Key: masterLabel, Operator: metav1.LabelSelectorOpDoesNotExist},
			}},
			Cloud:   v1alpha1.CloudGroup{Provider: openstack.Name, Group: Group},
			Minimum: int32(max(0, *c.MinNodeCount-controlPlane)),
			Maximum: &maximum,
			// The first flavour of the list that is large enough was taken, for pods that wait and never for the minimum.
			ScaleUp:     &v1alpha1.ScaleUp{Policy: v1alpha1.ByPriority, KeepMinimum: new(false), Templates: c.templates()},
			Replacement: v1alpha1.ReplaceNever,
			ScaleDown: &v1alpha1.ScaleDown{Underused: &v1alpha1.UnderusedNodes{
				AllOf:    &v1alpha1.UnderusedBounds{CPUAtMost: new(int32(cpuAtMost)), PodsAtMost: new(int32(podsAtMost))},
				Cooldown: &metav1.Duration{Duration: c.CoolDown()},
			}},
		},
	}
}
