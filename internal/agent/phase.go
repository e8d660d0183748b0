package agent

import "slices"

// Phase is the agent's progress with one notice. docs/agent.md has the table of transitions.
type Phase string

// The phases. Six of them are recorded on the Node under these names, and are part of the interface between versions.
// The others are recorded as one of the six; see toRecordedPhase.
const (
	// Noticed: nothing is done, or nothing yet.
	Noticed Phase = ""
	// Waiting: a condition notice waits for a drain slot, and has set nothing on the Node.
	Waiting Phase = "waiting"
	// Yielded: another tool removes the Node, and the notice can wait.
	Yielded Phase = "yielded"
	// Cordoned: the Node is unschedulable, and no pods are evicted.
	Cordoned Phase = "cordoned"
	// Draining: the pods are being evicted.
	Draining Phase = "draining"
	// Redraining: a pod that arrived on the drained Node is being evicted. It needs no drain slot.
	Redraining Phase = "redraining"
	// Drained: the pods have left, and the Node is kept empty.
	Drained Phase = "drained"
	// NotDrained: the drain gave up.
	NotDrained Phase = "not-drained"
	// Acknowledged: the platform may begin, and the Node is kept empty.
	Acknowledged Phase = "acknowledged"
	// Unguarded: a pod that arrived on the drained Node could not be evicted, and that is not retried.
	Unguarded Phase = "unguarded"
	// Releasing: the notice has ended or is ignored, and its claim is being removed.
	Releasing Phase = "releasing"
)

// toRecordedPhase returns the phase that the record shows; before is the phase it showed last.
func (p Phase) toRecordedPhase(before Phase) Phase {
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

// isDraining reports that pods are being evicted in this phase.
func (p Phase) isDraining() bool { return p == Draining || p == Redraining }

// isDrained reports that the pods have left.
func (p Phase) isDrained() bool { return slices.Contains([]Phase{Drained, Acknowledged, Unguarded}, p) }

// isUndecided reports that the Node may still be unchanged.
func (p Phase) isUndecided() bool { return p == Noticed || p == Waiting || p == Yielded }
