package aksnth

import (
	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/notice/azure"
)

// FormatEvent returns the Kubernetes Event that the tool wrote for a trigger, and false if it wrote none. The tool
// reported its start and a scheduled event for its node. It used the event type Info, which Kubernetes accepts.
func FormatEvent(o agent.EventTrigger) (formatted []agent.FormattedEvent, ok bool) {
	switch {
	case o.Reason == agent.Guarding:
		return []agent.FormattedEvent{{
			Type: "Info", Reason: "ReadEvents", Message: "Start to listen events from Azure API", Component: Tool,
		}}, true
	case o.Reason == agent.NoticeReceived && o.Notice.Source == azure.SourceName:
		return []agent.FormattedEvent{{
			Type: "Warning", Reason: string(o.Notice.Type), Message: "Azure API sended schedule event for this node",
			Component: Tool,
		}}, true
	}
	return nil, false
}
