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
	// Group is the name of the tool's only group and the prefix of its server names.
	Group = "kube-worker"
	// GroupLabel marks the group and retirements of the compatibility mode. Other managers ignore objects with it.
	GroupLabel = "slipway.dev/openstack-autoscaler"
	// namePrefix is the prefix of the tool's server names. Four letters or digits follow.
	namePrefix = Group + "-"
	// DefaultCluster is the name that kubeadm gives every cluster. Servers had this mark if no cluster name was set.
	DefaultCluster = "kubernetes"
	// defaultCoolDown is the CoolDownTime of the tool's example.
	defaultCoolDown = 10 * time.Minute
	// kubeletReservedMemory is the kubelet's default of evictionHard memory.available, which kubeadm does not change.
	kubeletReservedMemory = "100Mi"

	// After the cooldown the tool kept a node with more than 5 % of its CPU requested or with more than five pods. It ignored
	// memory. Here DaemonSet pods do not count.
	cpuAtMost, podsAtMost = 5, 5

	controlPlaneLabel = "node-role.kubernetes.io/control-plane"
	masterLabel       = "node-role.kubernetes.io/master"
)

// ControlPlaneLabels returns the labels of control plane nodes: kubeadm's current and its former label.
func ControlPlaneLabels() []string { return []string{controlPlaneLabel, masterLabel} }

// CoolDown returns the time that a node must be idle.
func (c *Config) CoolDown() time.Duration {
	if c.CoolDownTime == nil {
		return defaultCoolDown
	}
	return time.Duration(*c.CoolDownTime) * time.Second
}

// ToCloudConfig returns the OpenStack configuration. cluster must be unique in the project.
func (c *Config) ToCloudConfig(cluster string) openstack.Config {
	var former []string
	if cluster != DefaultCluster {
		former = []string{DefaultCluster}
	}
	return openstack.Config{
		Auth: &openstack.Auth{
			URL: c.AuthOptions.IdentityEndpoint, Username: c.AuthOptions.Username, Password: c.AuthOptions.Password,
			ProjectID: c.AuthOptions.TenantID, UserDomainName: c.AuthOptions.DomainName,
		},
		ClusterName: cluster, FormerClusterNames: former, Groups: []openstack.GroupConfig{c.toGroupConfig()},
	}
}

func (c *Config) toGroupConfig() openstack.GroupConfig {
	return openstack.GroupConfig{
		Name: Group, Flavors: c.flavorNames(), Image: openstack.Image{Name: c.WorkerImageName}, Networks: []string{c.Network.NetworkUUID},
		SecurityGroups: []string{c.Network.SecurityGroupName}, NamePrefix: Group, AdoptNamePrefix: namePrefix,
		Nodes: cloud.NodeShape{Reserved: c.OpenStackFlavours.reservedResources()},
	}
}

// reservedResources returns the resources that nodes reserve: the file's, or else the defaults of kubeadm's kubelets. Those
// reserve nothing for the system, but evict pods below evictionHard memory.available.
func (f *Flavours) reservedResources() corev1.ResourceList {
	if f.Reserved == nil {
		return corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(kubeletReservedMemory)}
	}
	list, _ := parseQuantities("", f.Reserved) // validated
	if list == nil {
		list = corev1.ResourceList{}
	}
	return list
}

// toTemplates returns the machine templates if the file declares allocatable resources. Otherwise it returns nil, which
// selects all flavors of the cloud.
func (c *Config) toTemplates() []v1alpha1.InstanceTemplate {
	declared := map[string]corev1.ResourceList{}
	for _, f := range c.OpenStackFlavours.Flavours {
		if list, _ := parseQuantities("", f.Allocatable); list != nil { // validated
			declared[f.Name] = list
		}
	}
	if len(declared) == 0 {
		return nil
	}
	var all []v1alpha1.InstanceTemplate
	for _, name := range c.flavorNames() {
		all = append(all, v1alpha1.InstanceTemplate{Name: name, Allocatable: declared[name]})
	}
	return all
}

// flavorNames returns the flavors of the list in order, and then the default one. The tool used the default for pods without
// requests. Slipway always knows what a pod needs.
func (c *Config) flavorNames() []string {
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

// FullControlPlaneWarning returns a warning if the control plane alone reaches MaxNodeCount, so that no other node fits. Otherwise it
// returns "".
func (c *Config) FullControlPlaneWarning(controlPlane int) string {
	if controlPlane < *c.MaxNodeCount {
		return ""
	}
	return fmt.Sprintf("MaxNodeCount: %d: the control plane alone has %d nodes, so no machine is launched: want %d or more",
		*c.MaxNodeCount, controlPlane, controlPlane+1)
}

// ToNodeGroup returns the group of all nodes except the control plane's. The tool's limits include the controlPlane nodes; a
// ToNodeGroup's limits do not.
func (c *Config) ToNodeGroup(controlPlaneNodes int) v1alpha1.NodeGroup {
	maximum := int32(max(0, *c.MaxNodeCount-controlPlaneNodes))
	return v1alpha1.NodeGroup{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeGroup"},
		ObjectMeta: metav1.ObjectMeta{Name: Group, Labels: map[string]string{GroupLabel: Group}},
		Spec: v1alpha1.NodeGroupSpec{
			NodeSelector: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: controlPlaneLabel, Operator: metav1.LabelSelectorOpDoesNotExist},
				{Key: masterLabel, Operator: metav1.LabelSelectorOpDoesNotExist},
			}},
			Cloud:   v1alpha1.CloudGroup{Provider: openstack.Name, Group: Group},
			MinSize: int32(max(0, *c.MinNodeCount-controlPlaneNodes)),
			MaxSize: &maximum,
			// The tool used the first sufficient flavour, and launched servers only for unschedulable pods, not for the minimum.
			ScaleUp:     &v1alpha1.ScaleUp{Policy: v1alpha1.FirstTemplate, EnforceMinSize: new(false), Templates: c.toTemplates()},
			Replacement: v1alpha1.ReplaceNever,
			ScaleDown: &v1alpha1.ScaleDown{Underutilized: &v1alpha1.UnderutilizedRule{
				AllOf:    &v1alpha1.UnderutilizedLimits{CPUAtMost: new(int32(cpuAtMost)), PodsAtMost: new(int32(podsAtMost))},
				Cooldown: &metav1.Duration{Duration: c.CoolDown()},
			}},
		},
	}
}
