package agent

import (
	"strings"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/notice"
)

// The reasons of the Kubernetes Events that the agent writes about its node. Alerts may depend on them.
const (
	NoticeReceived = "NoticeReceived"
	NoticeChanged  = "NoticeChanged"
	NodeCordoned   = "Cordoned"
	FoundCordoned  = "FoundCordoned"
	CordonedAgain  = "CordonedAgain"
	DrainBegun     = "Draining"
	DrainBlocked   = "DrainBlocked"
	DrainDone      = "Drained"
	DrainFailed    = "NotDrained"
	NoticeApproved = "Acknowledged"
	NoticeOver     = "NoticeOver"
	NodeUncordoned = "Uncordoned"
	LeftCordoned   = "LeftCordoned"
	OthersAtWork   = "OthersAtWork"
	WaitingForTurn = "WaitingForTurn"
)

// Occasions on which the agent itself writes no Event, as its log and metrics say enough.
const (
	// Guarding: the agent has read its node and guards it from now on.
	Guarding = "Guarding"
	// CordonFailed and UncordonFailed: the node could not be changed at the first try; it is tried again.
	CordonFailed   = "CordonFailed"
	UncordonFailed = "UncordonFailed"
)

// Occasion is something that there is to say about the node.
type Occasion struct {
	// Reason is one of the reasons above.
	Reason string
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
	// Names are what {type} stands for where it is not the type in small letters.
	Names map[notice.Type]string
	// Effect is NoSchedule, PreferNoSchedule or NoExecute; empty is no taint. NoExecute has the pods that do not
	// tolerate it deleted past their disruption budgets, so that it is put on once the node is drained and not before.
	Effect string
}

// DefaultTaint is what the taint is called unless the user says otherwise.
func DefaultTaint() Taint { return Taint{Key: "slipway.dev/notice", Value: "{type}"} }

const noExecute = "NoExecute"

// For is the taint for one notice.
func (t Taint) For(n notice.Notice) cordon.Taint {
	name := t.Names[n.Type]
	if name == "" {
		name = strings.ToLower(string(n.Type))
	}
	fill := strings.NewReplacer("{type}", name, "{id}", n.ID)
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
