package awsnth

import (
	"net/http"
	"slices"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notify"
)

// webhookData is what the templates of the tool's webhook use.
type webhookData struct {
	NodeMetadata
	InterruptionEvent

	// InstanceID and InstanceType are in both parts.
	InstanceID, InstanceType string
}

// NewWebhookData returns a function for the data of webhook templates. identity describes the instance of this process;
// it stays empty in queue mode.
func NewWebhookData(identity *Identity) func(notify.Message) any {
	return func(m notify.Message) any {
		n := notice.Notice{
			ID: m.Event.EventId, Source: m.Source, Type: notice.Type(m.Event.EventType), Resources: m.Event.Resources, Description: m.Event.Description,
		}
		n.NotBefore, _ = http.ParseTime(m.Event.NotBefore) // zero if the notice has no time
		e := toInterruptionEvent(n)
		if e.StartTime.IsZero() {
			e.StartTime, e.EndTime = m.Time, m.Time
		}
		e.NodeName, e.NodeLabels, e.Pods = m.NodeName, m.NodeLabels, slices.Clone(m.NodePods)
		e.NodeProcessed, e.InProgress = m.Moment == notify.Drained, m.Moment == notify.Detected || m.Moment == notify.Blocked
		metadata := identity.Get()
		if m.Source == notice.AWSQueue {
			metadata.InstanceID = e.InstanceID
		}
		metadata = metadata.complete(e.InstanceID, m.NodeLabels)
		if metadata.AvailabilityZone != "" && metadata.InstanceID != "" {
			e.ProviderID = "aws:///" + metadata.AvailabilityZone + "/" + metadata.InstanceID
		}
		e.StartTime, e.EndTime = e.StartTime.UTC().Truncate(time.Second), e.EndTime.UTC().Truncate(time.Second)
		return webhookData{NodeMetadata: metadata, InterruptionEvent: e, InstanceID: metadata.InstanceID, InstanceType: metadata.InstanceType}
	}
}
