package agent

import (
	"strings"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/notice"
)

// EventReason is the reason of a Kubernetes Event that the agent writes about its node. Alerts may depend on them.
type EventReason string

// The reasons. The comment of each says of which type its Events are, what they are on, and when they are written.
const (
	// NoticeReceived is Warning, on Node: a notice names the machine; the message says what is done about it, and why.
	NoticeReceived EventReason = "NoticeReceived"
	// NoticeChanged is Warning, on Node: what a notice says has changed, such as its time.
	NoticeChanged EventReason = "NoticeChanged"
	// NoticeUnreadable is Warning, on Node: what is announced for the machine cannot be understood in part, such as a type that is
	// not known; what was known before stands, and nothing else is done about it.
	NoticeUnreadable EventReason = "NoticeUnreadable"
	// NodeCordoned is Normal, on Node: a notice has the node take no new pods.
	NodeCordoned EventReason = "Cordoned"
	// FoundCordoned is Normal, on Node: somebody else had cordoned the node before the notice, so that it stays so.
	FoundCordoned EventReason = "AlreadyCordoned"
	// CordonedAgain is Warning, on Node: somebody uncordoned the node while a notice holds it.
	CordonedAgain EventReason = "Recordoned"
	// DrainBegun is Normal, on Node: its pods are moved off.
	DrainBegun EventReason = "Draining"
	// DrainBlocked is Warning, on Node: something keeps pods from leaving; the message says what, pod by pod.
	DrainBlocked EventReason = "DrainBlocked"
	// DrainDone is Normal, on Node: all pods that had to leave have left.
	DrainDone EventReason = "Drained"
	// DrainFailed is Warning, on Node: a drain has ended with pods left.
	DrainFailed EventReason = "DrainFailed"
	// DrainStopped is Warning, on Node: a drain was stopped, as its notice is over or another takes its place, that had deleted
	// pods past what blocked their eviction.
	DrainStopped EventReason = "DrainStopped"
	// NoticeApproved is Normal, on Node: the cloud was told that it may begin early.
	NoticeApproved EventReason = "Acknowledged"
	// NoticeOver is Normal, on Node: the notice is finished or was cancelled, and the machine lives.
	NoticeOver EventReason = "NoticeEnded"
	// NodeUncordoned is Normal, on Node: no notice holds the node any more, and it takes pods again.
	NodeUncordoned EventReason = "Uncordoned"
	// LeftCordoned is Normal, on Node: no notice holds the node any more, and it stays cordoned; the message says why.
	LeftCordoned EventReason = "LeftCordoned"
	// OthersAtWork is Warning, on Node: another tool is taking the node out of service too.
	OthersAtWork EventReason = "OtherToolActive"
	// WaitingForTurn is Normal, on Node: as many nodes are being drained as may be at once.
	WaitingForTurn EventReason = "WaitingForDrainSlot"
)

// Occasions on which the agent itself writes no Event, as its log and metrics say enough.
const (
	// Guarding: the agent has read its node and guards it from now on.
	Guarding EventReason = "Guarding"
	// CordonFailed and UncordonFailed: the node could not be changed at the first try; it is tried again.
	CordonFailed   EventReason = "CordonFailed"
	UncordonFailed EventReason = "UncordonFailed"
)

// Occasion is something that there is to say about the node.
type Occasion struct {
	// Reason is one of the reasons above.
	Reason EventReason
	// Notice is what it is about; zero when it is about several, or none.
	Notice notice.Notice
}

// Words are a Kubernetes Event as it is to be written.
type Words struct {
	Type, Reason, Message string
	// Component names the event's source.
	Component string
}

// Voice puts what the agent has to say into other words, for those whose alerts know another vocabulary. It is asked
// once for each occasion, may be asked from several goroutines at once, and must not block. Without words of its own for an
// occasion it returns false, and the agent says it in its own way.
type Voice func(Occasion) (Words, bool)

// Taint is the taint that a notice puts on the node. {type} in its key or value stands for the notice's type in small
// letters, {id} for its ID.
type Taint struct {
	Key, Value string
	// Effect is NoSchedule, PreferNoSchedule or NoExecute; empty is no taint. NoExecute has the pods that do not
	// tolerate it deleted past their disruption budgets, so that it is put on once the node is drained and not before.
	Effect string
}

// DefaultTaint is what the taint is called unless the user says otherwise.
func DefaultTaint() Taint { return Taint{Key: "slipway.dev/notice", Value: "{type}"} }

const noExecute = "NoExecute"

// For is the taint for one notice.
func (t Taint) For(n notice.Notice) cordon.Taint {
	fill := strings.NewReplacer("{type}", strings.ToLower(string(n.Kind())), "{id}", n.ID)
	return cordon.Taint{Key: fill.Replace(t.Key), Value: taintValue(fill.Replace(t.Value)), Effect: t.Effect}
}

// Check reports a taint that the API server would refuse for some notice.
func (t Taint) Check() error {
	for _, kind := range notice.Types() {
		if err := cordon.CheckTaint(t.For(notice.Notice{Type: kind, ID: "602d9444-d2cd-49c7-8624-8643e7171297"})); err != nil {
			return err
		}
	}
	return nil
}

// longestValue is the API server's limit for the value of a taint, in bytes.
const longestValue = 63

// taintValue makes a value that the API server takes of an ID that may be anything.
func taintValue(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
			return r
		}
		return '-'
	}, s)
	if len(s) > longestValue {
		s = s[:longestValue]
	}
	return strings.Trim(s, "-_.")
}
