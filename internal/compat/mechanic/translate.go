package mechanic

import (
	"fmt"
	"time"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/notice/condition"
)

// Label is on a node while it is held, with the value true.
const Label = "mechanic.cordoned"

// prod is the environment in which the tool did not log all that it did.
const prod = "prod"

// metrics is where metrics are served, which the tool had none of.
const metrics = ":9818"

// Config is the agent that does what the configuration asks for.
func (c *Config) Config() config.Agent {
	a := config.DefaultAgent()
	a.NodeName = c.NodeName
	for on, drain := range map[*string]bool{
		&a.OnReboot: c.Reboot, &a.OnRedeploy: c.Redeploy, &a.OnPreempt: c.Preempt, &a.OnTerminate: c.Terminate,
		&a.OnFreeze: c.Freeze, &a.OnUnknownFreeze: c.Freeze,
		&a.OnLiveMigration: c.LiveMigration,
	} {
		*on = string(action(drain))
	}
	a.FreezeTolerance = 0
	a.Conditions = c.rules()
	a.OnUnconfirmed = string(agent.Ignore) // what the detector announces meant nothing while the metadata service was away
	a.Labels = map[string]string{Label: "true"}
	a.Listen = metrics
	if c.RuntimeEnv != prod {
		a.LogLevel = "debug"
	}
	return a
}

func action(drain bool) agent.Action {
	if drain {
		return agent.Drain
	}
	return agent.Ignore
}

// rules are for the conditions that are drained for. The tool looked at them once in each polling interval; here it is
// for so long that they must hold.
func (c *Config) rules() []condition.Rule {
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

// Voice says what the tool said of a node.
func Voice(node string) agent.Voice {
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
	return func(o agent.Occasion) (agent.Words, bool) {
		w, known := words[o.Reason]
		if !known {
			return agent.Words{}, false
		}
		return agent.Words{Type: w.kind, Reason: w.reason, Message: fmt.Sprintf(w.message, node), Component: Tool}, true
	}
}
