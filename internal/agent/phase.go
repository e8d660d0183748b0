package agent

import "slices"

// Phase is how far the agent is with one notice. docs/agent.md has the transitions as a table.
type Phase string

// The phases. Six of them are recorded on the Node under these names, so that they are part of the interface between
// versions. The others are recorded as one of the six; see recorded.
const (
	// Noticed: nothing is done, or not yet.
	Noticed Phase = ""
	// Waiting: a notice of a condition waits for a drain slot, and has put nothing on the Node.
	Waiting Phase = "waiting"
	// Yielded: another tool removes the Node, and the notice can wait.
	Yielded Phase = "yielded"
	// Cordoned: the Node is to take no pods, and none are moved off.
	Cordoned Phase = "cordoned"
	// Draining: the pods are moved off.
	Draining Phase = "draining"
	// Redraining: a pod that came to the drained Node is moved off. It needs no drain slot.
	Redraining Phase = "redraining"
	// Drained: the pods have left, and the Node is kept empty.
	Drained Phase = "drained"
	// NotDrained: the drain gave up.
	NotDrained Phase = "not-drained"
	// Acknowledged: the platform may begin, and the Node is kept empty.
	Acknowledged Phase = "acknowledged"
	// Unguarded: a pod that came to the drained Node could not be moved off, and that is not tried again.
	Unguarded Phase = "unguarded"
	// Releasing: the notice has ended or is ignored, and its claim is being removed.
	Releasing Phase = "releasing"
)

// recorded returns the phase that the record shows; before is what it showed last.
func (p Phase) recorded(before Phase) Phase {
	switch p {
	case Waiting, Unguarded, Releasing:
		return before
	case Yielded:
		if before == Noticed {
			return Noticed
		}
		return Cordoned
	case Redraining:
		return Draining
	}
	return p
}

// isDraining reports that pods have to leave in this phase.
func (p Phase) isDraining() bool { return p == Draining || p == Redraining }

// isDrained reports that the pods have left.
func (p Phase) isDrained() bool { return slices.Contains([]Phase{Drained, Acknowledged, Unguarded}, p) }

// isUndecided reports that the Node may still be as it was found.
func (p Phase) isUndecided() bool { return p == Noticed || p == Waiting || p == Yielded }
