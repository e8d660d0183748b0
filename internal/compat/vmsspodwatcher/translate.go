package vmsspodwatcher

import (
	"cmp"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud/azure"
	"github.com/slipway-dev/slipway/internal/cloud/azure/providerid"
	"github.com/slipway-dev/slipway/internal/manager"
)

// PoolLabel is the node label that names the agent pool, which the tool used to select nodes.
const PoolLabel = "agentpool"

// GroupLabel is the label of the NodeGroup and the NodeRetirements of one compatibility mode process. Its value is the
// pool, because each pool has its own process.
const GroupLabel = "slipway.dev/agentpool"

// ScaleSetID names the scale set of a pool's machines. The tool's variables do not contain the scale set, so it is read
// from the nodes' provider IDs.
type ScaleSetID struct{ Subscription, ScaleSet string }

// FindMostCommonScaleSet returns the scale set that occurs most often in the provider IDs. A pool has two scale sets
// while one replaces the other. The result is the zero value if no ID is readable.
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

// ToNodeGroup returns the NodeGroup for the tool's settings. It does not reproduce the tool's faults.
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

// MergeIntoClouds returns base with the Azure configuration of the tool added. It sets only the fields that base lacks.
// It returns a warning for each variable that base overrides. subscription applies if base and the tool have none.
func (c *Config) MergeIntoClouds(subscription string, base manager.Clouds) (merged manager.Clouds, warnings []string) {
	a, sync := manager.AzureCloud{}, azure.CASSyncConfig{}
	if base.Azure != nil {
		a = *base.Azure
	}
	if a.CASSync != nil {
		sync = *a.CASSync
	}
	// Without every, only after deletions, because each change restarts the cluster autoscaler.
	if c.Sync {
		a.CASSync = &sync
	}
	for _, s := range []struct {
		field, variable string
		to              *string
		value           string
		applies         bool
	}{
		{"azure.subscription", envSubscription, &a.Subscription, c.Subscription, true},
		{"azure.resourceGroup", envGroup, &a.ResourceGroup, c.ResourceGroup, true},
		{"azure.casSync.resourceGroup", envClusterRG, &sync.ResourceGroup, c.ClusterGroup, c.Sync},
		{"azure.casSync.cluster", envCluster, &sync.Cluster, c.Cluster, c.Sync},
		{"azure.casSync.agentPool", envSyncPool, &sync.AgentPool, c.SyncPool, c.Sync},
	} {
		switch {
		case !s.applies:
		case *s.to == "":
			*s.to = s.value
		case s.value != "" && !strings.EqualFold(*s.to, s.value): // Azure ignores letter case
			warnings = append(warnings, fmt.Sprintf("$%s: %s is ignored, because %s in --cloud-config overrides it with %s", s.variable, s.value, s.field, *s.to))
		}
	}
	a.Subscription = cmp.Or(a.Subscription, subscription)
	base.Azure = &a
	return base, warnings
}
