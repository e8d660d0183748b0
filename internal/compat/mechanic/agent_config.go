package mechanic

import (
	"fmt"
	"time"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/notice/condition"
)

// Label is the label that the agent sets to "true" on a node while it cordons the node.
const Label = "mechanic.cordoned"

// productionEnv is the only runtime environment in which the agent writes no debug logs.
const productionEnv = "prod"

// metricsAddress is the address on which the agent serves metrics. The tool had no metrics.
const metricsAddress = ":9818"

// ToAgentConfig returns the agent configuration for the tool's configuration.
func (c *Config) ToAgentConfig() config.Agent {
	a := config.NewDefaultAgent()
	a.NodeName = c.NodeName
	for on, drain := range map[*string]bool{
		&a.OnReboot: c.Reboot, &a.OnRedeploy: c.Redeploy, &a.OnPreempt: c.Preempt, &a.OnTerminate: c.Terminate,
		&a.OnFreeze: c.Freeze, &a.OnUnknownFreeze: c.Freeze,
		&a.OnLiveMigration: c.LiveMigration,
	} {
		*on = string(drainOrIgnore(drain))
	}
	a.FreezeTolerance = 0
	a.Conditions = c.conditionRules()
	a.OnUnconfirmed = string(agent.Ignore) // the tool ignored announcements of the detector while the metadata service was unavailable
	a.Labels = map[string]string{Label: "true"}
	a.Listen = metricsAddress
	if c.RuntimeEnv != productionEnv {
		a.LogLevel = "debug"
	}
	return a
}

func drainOrIgnore(drain bool) agent.Action {
	if drain {
		return agent.Drain
	}
	return agent.Ignore
}

// conditionRules returns the rules for the node conditions that cause a drain. The tool checked conditions once per
// polling interval. Here a condition must be true for one polling interval.
func (c *Config) conditionRules() []condition.Rule {
	var rules []condition.Rule
	hold := condition.Duration(time.Duration(c.PollingInterval) * time.Second)
	for _, o := range []struct {
		kind string
		on   bool
	}{
		{"KubeletProblem", c.KubeletProblem},
		{"KernelDeadlock", c.KernelDeadlock},
		{"FrequentKubeletRestart", c.FrequentKubeletRestarts},
		{"FrequentContainerdRestart", c.FrequentContainerdRestarts},
		{"FileSystemCorruptionProblem", c.FSCorrupt},
	} {
		if o.on {
			rules = append(rules, condition.Rule{Type: o.kind, Action: string(agent.Drain), HoldDown: &hold})
		}
	}
	return rules
}

// NewEventFormatter returns a function that formats the Kubernetes Events of the tool for a node.
func NewEventFormatter(node string) agent.EventFormatter {
	words := map[agent.EventReason]struct{ kind, reason, message string }{
		agent.NodeCordoned:   {"Normal", "CordonNode", "Node %s cordoned by mechanic"},
		agent.CordonedAgain:  {"Normal", "CordonNode", "Node %s cordoned by mechanic"},
		agent.FoundCordoned:  {"Normal", "CordonNode", "Node %s is already cordoned, no need to attempt a cordon."},
		agent.CordonFailed:   {"Warning", "CordonNode", "Failed to cordon node %s"},
		agent.DrainDone:      {"Normal", "DrainNode", "Node %s drained by mechanic"},
		agent.DrainFailed:    {"Warning", "DrainNode", "Failed to drain node %s"},
		agent.NodeUncordoned: {"Normal", "UncordonNode", "Node %s uncordoned by mechanic"},
		agent.UncordonFailed: {"Warning", "UncordonNode", "Failed to uncordon node %s"},
	}
	return func(o agent.EventTrigger) ([]agent.FormattedEvent, bool) {
		w, known := words[o.Reason]
		if !known {
			return nil, false
		}
		return []agent.FormattedEvent{{Type: w.kind, Reason: w.reason, Message: fmt.Sprintf(w.message, node), Component: Tool}}, true
	}
}
