package aksnth

import (
	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/notice/azure"
)

// Voice says what the tool said: that it listens, and that a scheduled event names this node. The type Info is the
// tool's; Kubernetes takes any.
func Voice(o agent.Occasion) (agent.Words, bool) {
	switch {
	case o.Reason == agent.Guarding:
		return agent.Words{Type: "Info", Reason: "ReadEvents", Message: "Start to listen events from Azure API", Component: Tool}, true
	case o.Reason == agent.NoticeReceived && o.Notice.Source == azure.Name:
		return agent.Words{
			Type: "Warning", Reason: string(o.Notice.Type), Message: "Azure API sended schedule event for this node",
			Component: Tool,
		}, true
	}
	return agent.Words{}, false
}
