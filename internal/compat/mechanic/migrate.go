package mechanic

import "github.com/slipway-dev/slipway/internal/compat"

// Migrate converts the tool's file to Slipway's configuration.
func Migrate(raw []byte) (compat.Migration, error) {
	c, err := Parse(raw, []string{nodeNameVariable + "=any"})
	if err != nil {
		return compat.Migration{}, err
	}
	m := compat.Migration{Tool: Tool, Config: c.ToAgentConfig(), Notes: append(c.Warnings, c.migrationNotes()...)}
	m.Config.NodeName = ""
	return m, nil
}

// migrationNotes returns the differences between the tool and Slipway that may matter to users.
func (c *Config) migrationNotes() []string {
	notes := []string{
		"The switch of every event type now works. In its default mode, mechanic drained for live migrations only. Preempt, " +
			"Terminate and Redeploy now cause a drain, and Reboot if it is switched on.",
		"A node is restored when its event or condition has ended, in both modes. It stays cordoned if another client had " +
			"cordoned it.",
		"An event is acknowledged once all its machines are drained, so Azure starts it before its NotBefore. " +
			"acknowledge: false disables that.",
		"A drain ends in time: near the deadline, pods that are blocked by a PodDisruptionBudget are deleted without eviction, " +
			"except for a Freeze or a condition. mechanic retried forever.",
		"Only events for exactly this machine count, identified by the node's spec.providerID. mechanic mistook an event for " +
			"pool_10 for one of pool_1. It did not support machines of Karpenter, VirtualMachines pools or flexible scale sets.",
		"The node conditions of AKS's node-problem-detector that announce events cause no drain on their own. Scheduled Events " +
			"is polled every second, in both modes. While it is unreadable, these conditions have no effect.",
		"Kubernetes Events have Slipway's reasons and component (Cordoned, Drained, Uncordoned of slipway-agent instead of " +
			"CordonNode, DrainNode, UncordonNode of mechanic): change your alerts. slipway mechanic keeps the old ones.",
		"The configuration is read at the start: restart the DaemonSet after a change. slipway mechanic reloads it.",
		"The permissions of deploy/agent/rbac.yaml are required; privileged and hostPID are not. Slipway does not restore a node " +
			"that mechanic has cordoned (label " + Label + "): uncordon it and remove the label before the migration.",
	}
	if c.BypassNodeProblemDetector {
		notes = append(notes, "bypassNodeProblemDetector: there is only one mode, which uses both sources.")
	}
	if c.Freeze {
		notes = append(notes, "A drain for a Freeze does not evict pods that would lose work: pods without a controller, with an "+
			"emptyDir, or protected by an annotation. mechanic evicted them. A Freeze with DurationInSeconds 0 interrupts nothing "+
			"and is ignored, unless it is a live migration.")
	}
	if c.Reboot {
		notes = append(notes, "A drain for a Reboot does not evict pods without a controller: the kubelet restarts them. "+
			"mechanic evicted them.")
	}
	if len(c.conditionRules()) > 0 {
		notes = append(notes, "A condition must be true for pollingInterval before the node is drained, and false for 5m before it "+
			"is restored. mechanic in bypass mode restored and drained the node alternately.",
			"A drain for a condition does not evict pods without a controller and pods protected by an annotation. mechanic "+
				"evicted them. After 30m the remaining pods stay on the cordoned node. conditionDrainTimeout changes that time; 0 "+
				"means as long as the condition is true.")
	}
	if c.EnableTracing {
		notes = append(notes, "enableTracing: is not converted; mechanic's traces were not exported.")
	}
	return notes
}
