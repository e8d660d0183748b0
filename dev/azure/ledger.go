package azure

import (
	"fmt"
	"strings"
	"time"
)

// Outcome is what happened to a pod because of an event.
type Outcome string

// The outcomes of pods, from good to bad.
const (
	// OutcomeFinished: all containers exited on their own with code 0.
	OutcomeFinished Outcome = "finished"
	// OutcomeSpentGrace: killed after at least the grace period of its spec.
	OutcomeSpentGrace Outcome = "spent-grace"
	// OutcomeStayed: a DaemonSet or mirror pod, which stays on its node.
	OutcomeStayed Outcome = "stayed"
	// OutcomeRunning: not deleted, and its machine runs.
	OutcomeRunning Outcome = "running"
	// OutcomeStopping: deleted but not ended, and its machine runs.
	OutcomeStopping Outcome = "stopping"
	// OutcomeFailed: exited on its own with a non-zero code.
	OutcomeFailed Outcome = "failed"
	// OutcomeCutShort: killed after less than the grace period of its spec.
	OutcomeCutShort Outcome = "cut-short"
	// OutcomeKilledAtOnce: its object vanished, and its containers were not seen to exit, as after a deletion with grace
	// 0.
	OutcomeKilledAtOnce Outcome = "killed-at-once"
	// OutcomeLost: not ended when its machine went down.
	OutcomeLost Outcome = "lost"
	// OutcomeUnknown: it vanished while the watch was interrupted.
	OutcomeUnknown Outcome = "unknown"
)

// Outcomes lists all outcomes in the order of a Summary.
func Outcomes() []Outcome {
	return []Outcome{
		OutcomeFinished, OutcomeSpentGrace, OutcomeCutShort, OutcomeKilledAtOnce, OutcomeLost, OutcomeFailed,
		OutcomeStopping, OutcomeRunning, OutcomeUnknown, OutcomeStayed,
	}
}

// ClassifyOutcome returns the outcome of a pod. The time died is when the pod's machine went down; zero means that
// the machine runs. ClassifyOutcome is a pure function.
func ClassifyOutcome(p Pod, died time.Time) Outcome {
	switch {
	case p.StayReason != "":
		return OutcomeStayed
	case !died.IsZero() && p.BoundAt.Before(died) && !hadEndedBy(p, died):
		return OutcomeLost
	case p.EndedAt.IsZero() && p.DeletionSeenAt.IsZero():
		return OutcomeRunning
	case p.EndedAt.IsZero():
		return OutcomeStopping
	case p.Unobserved:
		return OutcomeUnknown
	}
	return classifyEnd(p)
}

// hadEndedBy reports whether the pod had ended at the time at. A watch may report the end late, so the finish times
// of the containers decide too. These times are reliable, because no container can terminate on a machine that is
// down.
func hadEndedBy(p Pod, at time.Time) bool {
	if p.EndedAt.IsZero() {
		return false
	}
	return !p.EndedAt.After(at) || (!p.FinishedAt.IsZero() && !p.FinishedAt.After(at))
}

// classifyEnd returns the outcome of a pod that ended while its machine was running.
func classifyEnd(p Pod) Outcome {
	deleted := !p.DeletionSeenAt.IsZero()
	switch {
	case p.ExitCode != nil && *p.ExitCode == 0:
		return OutcomeFinished
	case p.WantedSeconds > 0 && (p.Vanished || deleted && p.GrantedSeconds == 0):
		return OutcomeKilledAtOnce
	case !deleted && !p.Vanished, p.ExitCode != nil && *p.ExitCode != killedExitCode:
		return OutcomeFailed // exited on its own, or killed for another reason than a deletion, such as out of memory
	case p.GrantedSeconds < p.WantedSeconds:
		return OutcomeCutShort
	}
	return OutcomeSpentGrace
}

// LedgerBuilder returns the ledger of an emulator's events. PodWatch implements it.
type LedgerBuilder interface {
	Ledger(State) Ledger
}

// Ledger records, for each event, the outcome of each pod on the event's machines.
type Ledger struct {
	At time.Time `json:"at"`
	// Events are in the order of announcement.
	Events []EventLedger `json:"events"`
}

// EventLedger records the outcomes of the pods on the machines of one event.
type EventLedger struct {
	ScaleSet   string      `json:"scaleSet"`
	EventID    string      `json:"eventId"`
	Type       EventType   `json:"type"`
	Status     EventStatus `json:"status"`
	Ending     EventEnding `json:"ending,omitempty"`
	VisibleAt  time.Time   `json:"visibleAt"`
	NotBefore  time.Time   `json:"notBefore,omitzero"`
	StartedAt  time.Time   `json:"startedAt,omitzero"`
	VanishedAt time.Time   `json:"vanishedAt,omitzero"`
	Machines   []Machine   `json:"machines"`
	Pods       []Entry     `json:"pods"`
}

// Machine is one machine of an event in the ledger.
type Machine struct {
	Resource string `json:"resource"`
	// Node is empty if no node of the machine is known.
	Node   string    `json:"node,omitempty"`
	DiedAt time.Time `json:"diedAt,omitzero"`
}

// Entry is one pod of an event in the ledger.
type Entry struct {
	Pod
	Resource string  `json:"resource"`
	Outcome  Outcome `json:"outcome"`
	// Late is true if the pod came to the machine after the event became visible.
	Late bool `json:"late,omitempty"`
	// LeftSeconds is the time from the pod's end to the last announced NotBefore, until when the machine was sure to run.
	// Without a NotBefore it is the time to the machine's death. An early death of the machine does not count. Otherwise
	// a pod that is cut short by an early approval would seem to have had no time. Nil means unknown.
	LeftSeconds *float64 `json:"leftSeconds,omitempty"`
}

// NewLedger makes the ledger from the events of a state, the observed pods, and the node of each machine. It is a pure
// function.
//
// An event concerns each pod that was on a named machine's node, and had not ended, at some time while the event was
// listed.
func NewLedger(state State, pods []Pod, nodeOf func(resource string) (string, bool)) Ledger {
	ledger := Ledger{At: state.At, Events: []EventLedger{}}
	byNode := map[string][]Pod{}
	for _, p := range pods {
		byNode[p.Node] = append(byNode[p.Node], p)
	}
	for _, r := range state.Events {
		ledger.Events = append(ledger.Events, newEventLedger(r, byNode, nodeOf))
	}
	return ledger
}

func newEventLedger(r EventRecord, byNode map[string][]Pod, nodeOf func(string) (string, bool)) EventLedger {
	l := EventLedger{
		ScaleSet: r.ScaleSet, EventID: r.EventID, Type: r.Type, Status: r.Status, Ending: r.Ending,
		VisibleAt: r.VisibleAt, NotBefore: r.NotBefore, StartedAt: r.StartedAt, VanishedAt: r.VanishedAt,
		Machines: []Machine{}, Pods: []Entry{},
	}
	for _, resource := range r.Resources {
		m := Machine{Resource: resource, DiedAt: r.DiedAt(resource)}
		node, known := nodeOf(resource)
		if known {
			m.Node = node
		}
		l.Machines = append(l.Machines, m)
		if !known {
			continue
		}
		for _, p := range byNode[node] {
			if eventConcernsPod(r, p) {
				l.Pods = append(l.Pods, newEntry(r, m, p))
			}
		}
	}
	return l
}

func eventConcernsPod(r EventRecord, p Pod) bool {
	endedBefore := !p.EndedAt.IsZero() && p.EndedAt.Before(r.VisibleAt)
	cameAfter := !r.VanishedAt.IsZero() && p.BoundAt.After(r.VanishedAt)
	return !endedBefore && !cameAfter
}

// trimToEvent removes from a pod's record what happened after the event vanished, because the event did not cause
// it. If the pod's deletion began before the event vanished, the record stays complete.
func trimToEvent(r EventRecord, p Pod) Pod {
	over := func(t time.Time) bool { return t.IsZero() || t.After(r.VanishedAt) }
	if r.VanishedAt.IsZero() || !over(p.DeletionSeenAt) || !over(p.EndedAt) || !over(p.FinishedAt) {
		return p
	}
	return Pod{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, Node: p.Node, StayReason: p.StayReason, StopSeconds: p.StopSeconds,
		WantedSeconds: p.WantedSeconds, BoundAt: p.BoundAt,
	}
}

func newEntry(r EventRecord, m Machine, p Pod) Entry {
	p = trimToEvent(r, p)
	entry := Entry{Pod: p, Resource: m.Resource, Outcome: ClassifyOutcome(p, m.DiedAt), Late: p.BoundAt.After(r.VisibleAt)}
	deadline := r.NotBefore
	if deadline.IsZero() {
		deadline = m.DiedAt
	}
	if !deadline.IsZero() && !p.EndedAt.IsZero() {
		entry.LeftSeconds = new(deadline.Sub(p.EndedAt).Seconds())
	}
	return entry
}

// Event returns the ledger of the event with the given ID. It ignores letter case.
func (l Ledger) Event(id string) (event EventLedger, found bool) {
	for _, event := range l.Events {
		if strings.EqualFold(event.EventID, id) {
			return event, true
		}
	}
	return EventLedger{}, false
}

// CountOutcome returns the number of the event's pods with this outcome.
func (l EventLedger) CountOutcome(outcome Outcome) int {
	n := 0
	for _, entry := range l.Pods {
		if entry.Outcome == outcome {
			n++
		}
	}
	return n
}

// PodsKilledWithTimeLeft lists the pods that were cut short or killed at once too early. A kill is too early if the
// pod's machine still had more time left than the tolerance.
func (l EventLedger) PodsKilledWithTimeLeft(tolerance time.Duration) []Entry {
	var cut []Entry
	for _, entry := range l.Pods {
		short := entry.Outcome == OutcomeCutShort || entry.Outcome == OutcomeKilledAtOnce
		if short && entry.LeftSeconds != nil && *entry.LeftSeconds > tolerance.Seconds() {
			cut = append(cut, entry)
		}
	}
	return cut
}

// Summary returns one line that counts the outcomes of the event's pods.
func (l EventLedger) Summary(tolerance time.Duration) string {
	var resources []string
	for _, m := range l.Machines {
		resources = append(resources, m.Resource)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s of %s: %d pods", l.Type, l.EventID, strings.Join(resources, ", "), len(l.Pods))
	for _, outcome := range Outcomes() {
		n := l.CountOutcome(outcome)
		// These three outcomes matter most, so they are shown even if zero.
		if n > 0 || outcome == OutcomeFinished || outcome == OutcomeCutShort || outcome == OutcomeLost {
			fmt.Fprintf(&b, ", %d %s", n, outcome)
		}
	}
	fmt.Fprintf(&b, "; %d cut with more than %v left", len(l.PodsKilledWithTimeLeft(tolerance)), tolerance)
	return b.String()
}

// Summary returns one line for each event. Each line ends with a line feed.
func (l Ledger) Summary(tolerance time.Duration) string {
	var b strings.Builder
	for _, event := range l.Events {
		b.WriteString(event.Summary(tolerance) + "\n")
	}
	return b.String()
}
