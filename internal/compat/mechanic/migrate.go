package mechanic

import "github.com/slipway-dev/slipway/internal/compat"

// Migrate makes the modern configuration of the tool's file.
func Migrate(raw []byte) (compat.Migration, error) {
	c, err := Parse(raw, []string{nodeName + "=any"})
	if err != nil {
		return compat.Migration{}, err
	}
	m := compat.Migration{Tool: Tool, Config: c.Config(), Notes: append(c.Warnings, c.notes()...)}
	m.Config.NodeName = ""
	return m, nil
}

// notes are what is done otherwise than the tool did, where somebody may have come to depend on it.
func (c *Config) notes() []string {
	notes := []string{
		"Every event type now does what its switch says. mechanic in its default mode drained for live migrations only, " +
			"so that Preempt, Terminate and Redeploy are drained for the first time, and Reboot where it is switched on.",
		"A node is given back when its event or condition is over, in both modes, and stays cordoned where somebody else " +
			"had cordoned it.",
		"Azure is told that it may begin once every machine of an event is drained: the machine goes earlier than its " +
			"NotBefore. acknowledge: false waits.",
		"A drain ends in time: pods that a disruption budget still keeps when their time to stop must begin are deleted " +
			"past it, except for a Freeze or a condition. mechanic tried without end.",
		"Only events that name exactly this machine count, by the node's spec.providerID. mechanic took an event for " +
			"pool_10 for one of pool_1, and knew no machine of Karpenter, of a VirtualMachines pool or of a flexible scale set.",
		"The node conditions of AKS's node-problem-detector that announce events drain nothing by themselves. Scheduled Events " +
			"is asked each second, in both modes; while it cannot be read nothing is done for them.",
		"Kubernetes Events have Slipway's reasons and component (Cordoned, Drained, Uncordoned of slipway-agent in place of " +
			"CordonNode, DrainNode, UncordonNode of mechanic): change alerts on them. slipway mechanic keeps the old ones.",
		"The configuration is read at the start: roll the DaemonSet after a change. slipway mechanic reads it while it runs.",
		"Needed are the rights of deploy/agent/rbac.yaml, and neither privileged nor hostPID. A node that mechanic itself " +
			"has cordoned (label " + Label + ") is not Slipway's to give back: uncordon it and remove the label before.",
	}
	if c.BypassNodeProblemDetector {
		notes = append(notes, "bypassNodeProblemDetector: there is one mode, which looks at both.")
	}
	if c.Freeze {
		notes = append(notes, "A drain for a Freeze leaves pods that would lose work: those without a controller, with an "+
			"emptyDir, or protected by an annotation. mechanic evicted them. A Freeze with DurationInSeconds 0 interrupts nothing, "+
			"and is left alone.")
	}
	if c.Reboot {
		notes = append(notes, "A drain for a Reboot leaves pods that no controller would replace: the kubelet starts them again. "+
			"mechanic evicted them.")
	}
	if len(c.rules()) > 0 {
		notes = append(notes, "Conditions must hold for pollingInterval before the node is drained and be gone for 5m before it "+
			"is given back; mechanic in bypass mode gave the node back and drained it again in turns.",
			"A drain for a condition leaves pods without a controller and pods that an annotation protects, which mechanic evicted. "+
				"After 30m pods that could not leave stay on the cordoned node: conditionDrainTimeout is another time, and 0 as "+
				"long as the condition holds.")
	}
	if c.EnableTracing {
		notes = append(notes, "enableTracing: is left out; mechanic's traces went nowhere.")
	}
	return notes
}
