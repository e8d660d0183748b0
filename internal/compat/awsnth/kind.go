package awsnth

import (
	"strings"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/aws/queue"
)

// Kind is the tool's kind of a notice. The tool's metrics, Events, webhook and taints depend on it.
type Kind string

// The kinds, in the tool's spelling.
const (
	SpotITN                 Kind = "SPOT_ITN"
	ScheduledEvent          Kind = "SCHEDULED_EVENT"
	RebalanceRecommendation Kind = "REBALANCE_RECOMMENDATION"
	StateChange             Kind = "STATE_CHANGE"
	ASGLifecycle            Kind = "ASG_LIFECYCLE"
	// OtherKind is a notice that the tool did not have, such as a node condition.
	OtherKind Kind = ""
)

// asgNoticePrefix begins the ID of a notice that the metadata service gives for an Auto Scaling group.
const asgNoticePrefix = "asg-"

// KindOf returns the kind of a notice, by the prefix of its ID and by its type.
func KindOf(n notice.Notice) Kind {
	switch n.Type {
	case notice.Rebalance:
		return RebalanceRecommendation
	case notice.Preempt:
		return SpotITN
	case notice.Terminate:
		switch {
		case strings.HasPrefix(n.ID, asgNoticePrefix):
			return ASGLifecycle
		case strings.HasPrefix(n.ID, string(queue.StateChange)):
			return StateChange
		}
		return ScheduledEvent
	case notice.Reboot, notice.Redeploy, notice.Freeze:
		return ScheduledEvent
	}
	return OtherKind
}

// isActive reports whether the tool handles notices of a kind with these options. In queue mode it handles all.
func (o *Options) isActive(k Kind) bool {
	switch {
	case o.EnableSQSTerminationDraining:
		return true
	case k == SpotITN:
		return o.EnableSpotInterruptionDraining
	case k == ScheduledEvent:
		return o.EnableScheduledEventDraining
	case k == ASGLifecycle:
		return o.EnableASGLifecycleDraining
	case k == RebalanceRecommendation:
		return o.EnableRebalanceMonitoring || o.EnableRebalanceDraining
	}
	return false
}

// actionForKind returns the action for notices of a kind.
func (o *Options) actionForKind(k Kind) agent.Action {
	onlyCordon := k == RebalanceRecommendation && !o.EnableSQSTerminationDraining && !o.EnableRebalanceDraining
	switch {
	case !o.isActive(k):
		return agent.Ignore
	case o.CordonOnly || onlyCordon:
		return agent.Cordon
	}
	return agent.Drain
}

// ActionFor returns the action for a notice. It returns false for a notice that the tool did not have; the configuration
// of the agent then decides. The configuration alone cannot tell a scheduled retirement from the termination by an Auto
// Scaling group.
func (o *Options) ActionFor(n notice.Notice) (action agent.Action, found bool) {
	k := KindOf(n)
	if k == OtherKind {
		return "", false
	}
	return o.actionForKind(k), true
}

// outOfServiceTaint makes Kubernetes detach the volumes of a drained node.
var outOfServiceTaint = cordon.Taint{Key: "node.kubernetes.io/out-of-service", Value: "nodeshutdown", Effect: "NoExecute"}

// taintNames are the last parts of the keys of the tool's taints. The tool set no taint for a state change.
var taintNames = map[Kind]string{
	SpotITN: "spot-itn", ScheduledEvent: "scheduled-maintenance", ASGLifecycle: "asg-lifecycle-termination",
	RebalanceRecommendation: "rebalance-recommendation",
}

// TaintsFor returns the taints for a notice. The agent sets those with the effect NoExecute once the node is drained.
func (o *Options) TaintsFor(n notice.Notice) []cordon.Taint {
	k := KindOf(n)
	var all []cordon.Taint
	if name := taintNames[k]; name != "" && o.TaintNode {
		all = append(all, cordon.Taint{Key: Tool + "/" + name, Value: toInterruptionEvent(n).EventID, Effect: o.TaintEffect})
	}
	if o.EnableOutOfServiceTaint && o.actionForKind(k) == agent.Drain {
		all = append(all, outOfServiceTaint)
	}
	return all
}
