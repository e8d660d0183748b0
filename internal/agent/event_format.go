package agent

import (
	"strings"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
)

// EventReason is the reason of a Kubernetes Event that the agent writes about its node. Alerts may depend on it.
type EventReason string

// The reasons. Each comment says the type of the Events, their object, and when they are written.
const (
	// NoticeReceived is Warning, on Node: a notice names the instance; the message gives the action and its reason.
	NoticeReceived EventReason = "NoticeReceived"
	// NoticeChanged is Warning, on Node: a notice has changed, for example its time.
	NoticeChanged EventReason = "NoticeChanged"
	// NoticeUnreadable is Warning, on Node: a part of a notice for the instance is unreadable, for example an unknown
	// type. The last readable state stays valid, and no other action follows.
	NoticeUnreadable EventReason = "NoticeUnreadable"
	// NodeCordoned is Normal, on Node: the node was cordoned for a notice.
	NodeCordoned EventReason = "Cordoned"
	// FoundCordoned is Normal, on Node: the node was already cordoned before the notice, so it stays cordoned
	// afterwards.
	FoundCordoned EventReason = "AlreadyCordoned"
	// CordonedAgain is Warning, on Node: the node was uncordoned during a notice, and was cordoned again.
	CordonedAgain EventReason = "Recordoned"
	// DrainBegun is Normal, on Node: the eviction of its pods has begun.
	DrainBegun EventReason = "Draining"
	// DrainBlocked is Warning, on Node: pods cannot be evicted; the message gives the reason for each pod.
	DrainBlocked EventReason = "DrainBlocked"
	// DrainDone is Normal, on Node: all pods that had to leave have left.
	DrainDone EventReason = "Drained"
	// DrainFailed is Warning, on Node: a drain has ended with pods left.
	DrainFailed EventReason = "DrainFailed"
	// DrainStopped is Warning, on Node: a drain was stopped after a forced deletion of pods, because its notice ended
	// or another notice replaced it.
	DrainStopped EventReason = "DrainStopped"
	// NoticeApproved is Normal, on Node: the cloud was told that it may begin early.
	NoticeApproved EventReason = "Acknowledged"
	// NoticeOver is Normal, on Node: the notice has ended or was cancelled, and the instance still runs.
	NoticeOver EventReason = "NoticeEnded"
	// NodeUncordoned is Normal, on Node: no notice needs the cordon any more, and the node is schedulable again.
	NodeUncordoned EventReason = "Uncordoned"
	// LeftCordoned is Normal, on Node: no notice needs the cordon any more, but the node stays cordoned; the message
	// gives the reason.
	LeftCordoned EventReason = "LeftCordoned"
	// OthersAtWork is Warning, on Node: another tool is taking the node out of service too.
	OthersAtWork EventReason = "OtherToolActive"
	// WaitingForTurn is Normal, on Node: the drain waits, because the limit of concurrent drains is reached.
	WaitingForTurn EventReason = "WaitingForDrainSlot"
)

// Reasons for which the agent itself writes no Event. Its log and metrics report them.
const (
	// Guarding: the agent has read its node and guards it from now on.
	Guarding EventReason = "Guarding"
	// CordonFailed and UncordonFailed: the first change of the node failed, and is retried.
	CordonFailed   EventReason = "CordonFailed"
	UncordonFailed EventReason = "UncordonFailed"
)

// EventTrigger is the input of an [EventFormatter]: what happened, and its notice.
type EventTrigger struct {
	// Reason is one of the reasons above.
	Reason EventReason
	// Message is the agent's own text; empty if the agent itself writes no Event.
	Message string
	// Notice is the notice it is about; zero if it is about several or none.
	Notice notice.Notice
	// Node is the Node as it was read when the agent started; nil before.
	Node *kubeapi.Node
}

// FormattedEvent is the result of an [EventFormatter].
type FormattedEvent struct {
	Type, Reason, Message string
	// Component is the Event's source component.
	Component string
	// Annotations are those of the Event object.
	Annotations map[string]string
}

// EventFormatter formats an event for users whose alerts expect another vocabulary. It may return several Events. If it
// returns false, the agent uses its own format. It is called once for each event, possibly from several goroutines at
// once, and must not block.
type EventFormatter func(EventTrigger) ([]FormattedEvent, bool)

// Taint is the taint that a notice sets on the node. In its key and value, {type} is replaced by the notice's type in
// lower case, and {id} by its ID.
type Taint struct {
	Key, Value string
	// Effect is NoSchedule, PreferNoSchedule or NoExecute; empty is no taint. NoExecute makes Kubernetes delete pods
	// despite PodDisruptionBudgets, so it is set only once the node is drained.
	Effect string
}

// DefaultTaint returns the taint without its effect, which the user has to set.
func DefaultTaint() Taint { return Taint{Key: "slipway.dev/notice", Value: "{type}"} }

const noExecute = "NoExecute"

// ForNotice returns the taint for one notice.
func (t Taint) ForNotice(n notice.Notice) cordon.Taint {
	fill := strings.NewReplacer("{type}", strings.ToLower(string(n.EffectiveType())), "{id}", n.ID)
	return cordon.Taint{Key: fill.Replace(t.Key), Value: toTaintValue(fill.Replace(t.Value)), Effect: t.Effect}
}

// Validate returns an error if the API server would refuse the taint for a notice of any type.
func (t Taint) Validate() error {
	for _, kind := range notice.Types() {
		if err := cordon.ValidateTaint(t.ForNotice(notice.Notice{Type: kind, ID: "602d9444-d2cd-49c7-8624-8643e7171297"})); err != nil {
			return err
		}
	}
	return nil
}

// maxTaintValueBytes is the API server's limit for the value of a taint, in bytes.
const maxTaintValueBytes = 63

// toTaintValue turns any notice ID into a valid taint value.
func toTaintValue(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
			return r
		}
		return '-'
	}, s)
	if len(s) > maxTaintValueBytes {
		s = s[:maxTaintValueBytes]
	}
	return strings.Trim(s, "-_.")
}
