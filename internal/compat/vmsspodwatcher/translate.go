package vmsspodwatcher

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud/azure"
	"github.com/slipway-dev/slipway/internal/cloud/azure/providerid"
	"github.com/slipway-dev/slipway/internal/manager"
)

// PoolLabel is the label by which the tool knew the nodes of a pool.
const PoolLabel = "agentpool"

// GroupLabel is the label by which the stand-in finds its own group and retirements: there may be one for each pool.
const GroupLabel = "slipway.dev/agentpool"

// Place is where the machines of the pool are, which the tool's variables do not say: the nodes' provider IDs do.
type Place struct{ Subscription, ScaleSet string }

// PlaceOf finds it out from the provider IDs of nodes: that of most of them, as a pool has two scale sets while one takes
// the place of the other. The place is empty when there is none that can be read.
func PlaceOf(providerIDs []string) Place {
	count := map[Place]int{}
	var most Place
	for _, raw := range providerIDs {
		id, err := providerid.Parse(raw)
		if err != nil || id.ScaleSet == "" {
			continue
		}
		at := Place{id.Subscription, id.ScaleSet}
		if count[at]++; count[at] > count[most] {
			most = at
		}
	}
	return most
}

// NodeGroup does what the tool was told, without its faults.
func (c *Config) NodeGroup(scaleSet string, minimum int32) v1alpha1.NodeGroup {
	rule := &v1alpha1.IdleByLabel{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{c.LabelKey: c.LabelValue}},
		Cooldown:    metav1.Duration{Duration: c.Cooldown},
		KeepUnused:  !c.ScheduledCheck,
	}
	if c.Namespace != "" {
		rule.Namespaces = []string{c.Namespace}
	}
	if c.ScheduledCheck {
		rule.CheckEvery = &metav1.Duration{Duration: max(c.Cooldown, shortestChecks)}
		rule.Checks = 2
	}
	return v1alpha1.NodeGroup{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeGroup"},
		ObjectMeta: metav1.ObjectMeta{Name: c.NodePool, Labels: map[string]string{GroupLabel: c.NodePool}},
		Spec: v1alpha1.NodeGroupSpec{
			NodeSelector: metav1.LabelSelector{MatchLabels: map[string]string{PoolLabel: c.NodePool}},
			Cloud:        v1alpha1.CloudGroup{Provider: azure.Name, Group: scaleSet},
			Minimum:      minimum,
			ScaleDown:    &v1alpha1.ScaleDown{IdleByLabel: rule},
			// The pool is grown by the cluster autoscaler, or by hand: the tool made no machine.
			Replacement: v1alpha1.ReplaceNever,
			// The tool took every idle node at once, and evicted every pod.
			DisruptionBudgets: []v1alpha1.DisruptionBudget{{Nodes: intstr.FromString("100%")}},
			Drain: v1alpha1.DrainPolicy{
				DeleteLocalStorage: true, EvictUnmanaged: true, Protection: v1alpha1.EvictProtected,
			},
		},
	}
}

// Clouds is the configuration of Azure. What base says already stays: where Azure is, and who asks.
func (c *Config) Clouds(subscription string, base manager.Clouds) manager.Clouds {
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
		// For deletions alone: each change restarts the cluster autoscaler.
		a.CASSync = &azure.CASSyncConfig{ResourceGroup: c.ClusterGroup, Cluster: c.Cluster, AgentPool: c.SyncPool}
	}
	base.Azure = &a
	return base
}
