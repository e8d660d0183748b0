package vmsspodwatcher

import (
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/internal/compat"
	"github.com/slipway-dev/slipway/internal/manager"
)

// Migration is what becomes of the tool's environment.
type Migration struct {
	Config Config
	Place  Place
	// Notes are what a user of the tool should know before moving.
	Notes []string
}

// What stands for what the environment does not say, and the user has to fill in.
const (
	fillInScaleSet     = "FILL-IN-THE-SCALE-SET"
	fillInSubscription = "FILL-IN-THE-SUBSCRIPTION"
)

// Migrate makes the modern configuration of an environment.
func Migrate(environ []string, at Place) (Migration, error) {
	c, err := Parse(environ)
	if err != nil {
		return Migration{}, err
	}
	m := Migration{Config: c, Place: at, Notes: append([]string{}, c.Warnings...)}
	if m.Place.Subscription == "" {
		m.Place.Subscription = c.Subscription
	}
	look := fmt.Sprintf("kubectl get nodes -l %s=%s -o jsonpath='{.items[0].spec.providerID}' says it.", PoolLabel, c.NodePool)
	if m.Place.ScaleSet == "" {
		m.Place.ScaleSet = fillInScaleSet
		m.Notes = append(m.Notes, "spec.cloud.group: put the name of the pool's scale set there, or give --scale-set. "+look)
	}
	if m.Place.Subscription == "" {
		m.Place.Subscription = fillInSubscription
		m.Notes = append(m.Notes, "azure.subscription: put the subscription there, or give --subscription. "+look)
	}
	m.Notes = append(m.Notes, c.notes()...)
	return m, nil
}

// notes are what is done otherwise than the tool did, where somebody may have come to depend on it.
func (c *Config) notes() []string {
	notes := []string{
		"The cooldown is counted from when the last pod ended, is written on the Node, and goes on over a restart. The tool " +
			"began anew, or forgot the node.",
		"A pod with the label that appears during the cooldown or the drain rescues the node, and so does one that is Pending " +
			"and that no other node would take. The tool went on. keepForPending: false gives up the latter.",
		"A node that had such a pod never leaves before the cooldown is over. The periodic check of the tool could be earlier.",
		"The machine is the one of the Node's spec.providerID, and Azure has to know it by the node's name. The tool counted " +
			"it out of the name alone, and would have deleted another one in a pool whose names do not follow the rule.",
		"The group has a minimum, which is 0 here: set minSize to the pool's own, below which AKS would only make new nodes.",
		"The tool removed all idle nodes at once, and so does this; set disruptionBudgets to have them leave a few at a time. " +
			"Deletions that come together are one request.",
		"Disruption budgets of pods are honoured, and a drain that takes longer than an hour gives the node back.",
		"Pods that ask not to be evicted are evicted, as the tool did, so that placeholder pods leave with their node. Better " +
			"give their labels as drain.placeholderPods, and set drain.protection to Respect.",
		"clusterAutoscalerScaleDownDisabled: true takes the place of the placeholder pods: the cluster autoscaler leaves the " +
			"group's nodes alone by an annotation on them.",
		"Deletions in the scale set leave AKS's own count to catch up. An agent pool as the group (azure.groups with cluster " +
			"and agentPool, and its name as spec.cloud.group) has AKS delete the machines; that takes the right " +
			"Microsoft.ContainerService/managedClusters/agentPools/deleteMachines/action.",
		"No machine is made (replacement: Never): the cluster autoscaler, or whoever else grows the pool, does that. Always has one " +
			"ordered in the place of each that Azure takes away, where an agent tells of it.",
		"Azure's wish to be left alone (429, Retry-After) is honoured, and a deletion that fails is tried again until it succeeds.",
		"Needed are the rights of deploy/manager/rbac.yaml and, where the manager installs its own types, of " +
			"deploy/manager/install-crds.yaml.",
	}
	if c.ScheduledCheck {
		notes = append(notes, "Two checks in a row are for nodes that never had such a pod, and for those whose last one ended while "+
			"nobody looked.")
	} else {
		notes = append(notes, "Nodes that never had such a pod stay (keepUnused), as without the periodic check of the tool. That one "+
			"had such a pod is written on the Node, so that its end is not missed while the manager is away.")
	}
	if c.Sync {
		notes = append(notes, "The maximum of "+c.SyncPool+" is changed by one and put back, 30s after deletions, also after "+
			"a crash in between. The tool left it changed, and did so each COOLDOWN, whether anything was deleted or not: each change "+
			"restarts the cluster autoscaler. casSync.every has it done on schedule too.")
	}
	return notes
}

// File is the NodeGroup, with the notes and the configuration of Azure as comments above.
func (m Migration) File() ([]byte, error) {
	group, err := compat.NodeGroupFile(m.Config.NodeGroup(m.Place.ScaleSet, 0))
	if err != nil {
		return nil, err
	}
	clouds, err := m.CloudConfig()
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	b.WriteString("# For kubectl apply, or slipway manager --node-groups FILE, made from the environment of " + Tool + ".\n#\n")
	for _, note := range m.Notes {
		compat.Comment(&b, note)
	}
	b.WriteString("#\n# For slipway manager --cloud-config FILE (slipway migrate " + Tool + " --cloud-config prints it alone):\n#\n")
	for line := range strings.Lines(string(clouds)) {
		b.WriteString("#     " + line)
	}
	b.Write(group)
	return []byte(b.String()), nil
}

// CloudConfig is the file for --cloud-config.
func (m Migration) CloudConfig() ([]byte, error) {
	return yaml.Marshal(m.Config.Clouds(m.Place.Subscription, manager.Clouds{}))
}
