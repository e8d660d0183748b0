package vmsspodwatcher

import (
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/internal/cloud/azure"
	"github.com/slipway-dev/slipway/internal/compat"
	"github.com/slipway-dev/slipway/internal/manager"
)

// Migration holds the configuration that the tool's environment was converted to.
type Migration struct {
	Config     Config
	ScaleSetID ScaleSetID
	// Notes are what a user of the tool should know before the migration.
	Notes []string
}

// The placeholders for values that the environment does not contain. The user must replace them.
const (
	fillInScaleSet     = "FILL-IN-THE-SCALE-SET"
	fillInSubscription = "FILL-IN-THE-SUBSCRIPTION"
)

// Migrate converts the tool's environment to Slipway's configuration. at is the scale set of the pool.
func Migrate(environ []string, at ScaleSetID) (Migration, error) {
	c, err := Parse(environ)
	if err != nil {
		return Migration{}, err
	}
	m := Migration{Config: c, ScaleSetID: at, Notes: append([]string{}, c.Warnings...)}
	if m.ScaleSetID.Subscription == "" {
		m.ScaleSetID.Subscription = c.Subscription
	}
	hint := fmt.Sprintf("kubectl get nodes -l %s=%s -o jsonpath='{.items[0].spec.providerID}' shows it.", PoolLabel, c.NodePool)
	if m.ScaleSetID.ScaleSet == "" {
		m.ScaleSetID.ScaleSet = fillInScaleSet
		m.Notes = append(m.Notes, "spec.cloud.group: enter the name of the pool's scale set, or use --scale-set. "+hint)
	}
	if m.ScaleSetID.Subscription == "" {
		m.ScaleSetID.Subscription = fillInSubscription
		m.Notes = append(m.Notes, "azure.subscription: enter the subscription ID, or use --subscription. "+hint)
	}
	m.Notes = append(m.Notes, c.migrationNotes()...)
	return m, nil
}

// migrationNotes returns the differences between the tool and Slipway that may matter to users.
func (c *Config) migrationNotes() []string {
	notes := []string{
		"The cooldown starts when the last pod ends. It is stored on the Node and continues after a restart. The tool " +
			"restarted the cooldown or lost the node.",
		"A new pod with the label keeps the node, even during the cooldown or the drain. So does a Pending pod that fits on no " +
			"other node; keepForPending: false disables that. The tool removed the node anyway.",
		"A node that had such a pod is never removed before its cooldown has ended. The tool's periodic check could remove it earlier.",
		"The Node's spec.providerID identifies the machine, and its name in Azure must match the node's name. The tool " +
			"computed the machine from the node name and could delete the wrong one in a pool with other names.",
		"The group has a minimum, which is 0 here. Set minSize to the pool's own minimum: below it AKS would create new nodes.",
		"Like the tool, this group removes all idle nodes at once. Set disruptionBudgets to remove a few at a time. " +
			"Simultaneous deletions are sent as one request.",
		"PodDisruptionBudgets are respected. If a drain takes longer than an hour, the node is restored.",
		"Like the tool, this group evicts pods with an annotation against eviction, so that placeholder pods do not block a node. " +
			"It is better to set their labels as drain.placeholderPods and drain.protection to Respect.",
		"clusterAutoscalerScaleDownDisabled: true replaces placeholder pods. It annotates the group's nodes so that the cluster " +
			"autoscaler does not remove them.",
		"After deletions in the scale set, AKS updates its count with a delay. If the group is an agent pool (azure.groups with " +
			"cluster and agentPool, and its name as spec.cloud.group), AKS deletes the machines. That requires the permission " +
			"Microsoft.ContainerService/managedClusters/agentPools/deleteMachines/action.",
		"No machines are launched (replacement: Never): the cluster autoscaler or another tool scales the pool up. With Always, a " +
			"replacement is launched for each machine that Azure evicts, if an agent reports the notice.",
		"Azure's rate limits (429, Retry-After) are respected, and a failed deletion is retried until it succeeds.",
		"The permissions of deploy/manager/rbac.yaml are required and, if the manager installs its CRDs, of " +
			"deploy/manager/install-crds.yaml.",
		"slipway manager does not carry out the NodeRetirements of slipway " + Tool + ". Stop slipway " + Tool + " when none with the label " +
			GroupLabel + "=" + c.NodePool + " is in progress, or remove the label from them afterwards.",
	}
	if c.ScheduledCheck {
		notes = append(notes, "Nodes that never had such a pod, or lost their last one while the manager did not run, are removed after two "+
			"consecutive checks.")
	} else {
		notes = append(notes, "Nodes that never had such a pod stay (keepUnused), like without the tool's periodic check. The Node records "+
			"that it had such a pod, so the end of the pod is not missed while the manager does not run.")
	}
	if c.Sync {
		notes = append(notes, "30s after deletions, the maximum of "+c.SyncPool+" is changed by one and then restored, also after "+
			"a crash in between. Each change restarts the cluster autoscaler. The tool did not restore the maximum, and changed it "+
			"every COOLDOWN even without deletions. casSync.every also does it on a schedule.")
	}
	return notes
}

// ToFile returns the NodeGroup as YAML. The notes and the Azure configuration are comments at its beginning.
func (m Migration) ToFile() ([]byte, error) {
	group, err := compat.FormatNodeGroup(m.Config.ToNodeGroup(m.ScaleSetID.ScaleSet, 0))
	if err != nil {
		return nil, err
	}
	clouds, err := m.ToCloudConfig()
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	b.WriteString("# For kubectl apply, or slipway manager --node-groups FILE, converted from the environment of " + Tool + ".\n#\n")
	for _, note := range m.Notes {
		compat.WriteComment(&b, note)
	}
	b.WriteString("#\n# For slipway manager --cloud-config FILE (slipway migrate " + Tool + " --cloud-config prints only this file):\n#\n")
	for line := range strings.Lines(string(clouds)) {
		b.WriteString("#     " + line)
	}
	b.Write(group)
	return []byte(b.String()), nil
}

// ToCloudConfig returns the content of a file for --cloud-config.
func (m Migration) ToCloudConfig() ([]byte, error) {
	at := manager.AzureCloud{Config: azure.Config{Subscription: m.ScaleSetID.Subscription}}
	clouds, _ := m.Config.MergeIntoClouds("", manager.Clouds{Azure: &at})
	return yaml.Marshal(clouds)
}
