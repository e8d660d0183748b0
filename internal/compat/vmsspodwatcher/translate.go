package vmsspodwatcher

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud/azure"
	"github.com/slipway-dev/slipway/internal/cloud/azure/providerid"
	"github.com/slipway-dev/slipway/internal/manager"
)

// PoolLabel is the label of a pool's nodes that the tool used.
const PoolLabel = "agentpool"

// GroupLabel marks the group and retirements of a compatibility mode process. The value is the pool, because each pool has
// its own process.
const GroupLabel = "slipway.dev/agentpool"

// ScaleSetID is the scale set of the pool's machines. The tool's variables do not contain it; the nodes' provider IDs do.
type ScaleSetID struct{ Subscription, ScaleSet string }

// FindMostCommonScaleSet returns the scale set of most of the provider IDs. A pool has two scale sets while one replaces the other. It
// returns the zero value if no ID is readable.
func FindMostCommonScaleSet(providerIDs []string) ScaleSetID {
	count := map[ScaleSetID]int{}
	var most ScaleSetID
	for _, raw := range providerIDs {
		id, err := providerid.Parse(raw)
		if err != nil || id.ScaleSet == "" {
			continue
		}
		at := ScaleSetID{id.Subscription, id.ScaleSet}
		if count[at]++; count[at] > count[most] {
			most = at
		}
	}
	return most
}

// ToNodeGroup returns the group that corresponds to the tool's settings, without the tool's faults.
func (c *Config) ToNodeGroup(scaleSet string, minimum int32) v1alpha1.NodeGroup {
	rule := &v1alpha1.IdleByLabel{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{c.LabelKey: c.LabelValue}},
		Cooldown:    metav1.Duration{Duration: c.Cooldown},
		KeepUnused:  !c.ScheduledCheck,
	}
	if c.Namespace != "" {
		rule.Namespaces = []string{c.Namespace}
	}
	if c.ScheduledCheck {
		rule.CheckEvery = &metav1.Duration{Duration: max(c.Cooldown, minCheckInterval)}
		rule.Checks = 2
	}
	return v1alpha1.NodeGroup{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeGroup"},
		ObjectMeta: metav1.ObjectMeta{Name: c.NodePool, Labels: map[string]string{GroupLabel: c.NodePool}},
		Spec: v1alpha1.NodeGroupSpec{
			NodeSelector: metav1.LabelSelector{MatchLabels: map[string]string{PoolLabel: c.NodePool}},
			Cloud:        v1alpha1.CloudGroup{Provider: azure.Name, Group: scaleSet},
			MinSize:      minimum,
			ScaleDown:    &v1alpha1.ScaleDown{IdleByLabel: rule},
			// The cluster autoscaler or a user scales the pool up. The tool launched no machines.
			Replacement: v1alpha1.ReplaceNever,
			// The tool removed all idle nodes at once and evicted all pods.
			DisruptionBudgets: []v1alpha1.DisruptionBudget{{Nodes: intstr.FromString("100%")}},
			Drain: v1alpha1.DrainPolicy{
				DeleteLocalStorage: true, EvictUnmanaged: true, Protection: v1alpha1.EvictProtected,
			},
		},
	}
}

// MergeIntoClouds returns the cloud configuration. Values in base, such as the Azure cloud and credentials, are kept.
func (c *Config) MergeIntoClouds(subscription string, base manager.Clouds) manager.Clouds {
	a := manager.AzureCloud{}
	if base.Azure != nil {
		a = *base.Azure
	}
	if a.Subscription == "" {
		a.Subscription = subscription
	}
	if a.ResourceGroup == "" {
		a.ResourceGroup = c.ResourceGroup
	}
	if c.Sync && a.CASSync == nil {
		// Only after deletions, because each change restarts the cluster autoscaler.
		a.CASSync = &azure.CASSyncConfig{ResourceGroup: c.ClusterGroup, Cluster: c.Cluster, AgentPool: c.SyncPool}
	}
	base.Azure = &a
	return base
}
