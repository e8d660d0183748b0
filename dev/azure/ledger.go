package azure

import (
	"fmt"
	"strings"
	"time"
)

// Outcome is how a pod fared in an event.
type Outcome string

// The outcomes, the good ones first.
const (
	// OutcomeFinished: all containers terminated by themselves with exit code 0.
	OutcomeFinished Outcome = "finished"
	// OutcomeSpentGrace: killed, but after all the grace that its spec wanted.
	OutcomeSpentGrace Outcome = "spent-grace"
	// OutcomeStayed: a DaemonSet or mirror pod, which belongs to its node whatever becomes of it.
	OutcomeStayed Outcome = "stayed"
	// OutcomeRunning: it has not been asked to go, and its machine lives.
	OutcomeRunning Outcome = "running"
	// OutcomeStopping: it has been asked to go and has not ended, and its machine lives.
	OutcomeStopping Outcome = "stopping"
	// OutcomeFailed: terminated by itself, with an exit code other than 0.
	OutcomeFailed Outcome = "failed"
	// OutcomeCutShort: killed after less grace than its spec wanted.
	OutcomeCutShort Outcome = "cut-short"
	// OutcomeKilledAtOnce: its object vanished without its containers having been seen to terminate, which is what a
	// deletion with grace 0 does.
	OutcomeKilledAtOnce Outcome = "killed-at-once"
	// OutcomeLost: it had not ended when its machine died.
	OutcomeLost Outcome = "lost"
	// OutcomeUnknown: it is gone, and the watch was interrupted when that happened.
	OutcomeUnknown Outcome = "unknown"
)

// Outcomes lists all outcomes, in the order in which a summary counts them.
func Outcomes() []Outcome {
	return []Outcome{
		OutcomeFinished, OutcomeSpentGrace, OutcomeCutShort, OutcomeKilledAtOnce, OutcomeLost, OutcomeFailed,
		OutcomeStopping, OutcomeRunning, OutcomeUnknown, OutcomeStayed,
	}
}

// Classify says how a pod fared on a machine that died at the given time, or lives when it is zero. It is a pure
// function of its arguments.
func Classify(p Pod, died time.Time) Outcome {
	switch {
	case p.Stays != "":
		return OutcomeStayed
	case !died.IsZero() && p.BoundAt.Before(died) && !endedBy(p, died):
		return OutcomeLost
	case p.EndedAt.IsZero() && p.AskedSeenAt.IsZero():
		return OutcomeRunning
	case p.EndedAt.IsZero():
		return OutcomeStopping
	case p.Unobserved:
		return OutcomeUnknown
	}
	return classifyEnd(p)
}

// endedBy reports whether the pod had ended at that time. What the watch reports a little later still counts when the
// containers' own times say so: a dead machine terminates nothing.
func endedBy(p Pod, at time.Time) bool {
	if p.EndedAt.IsZero() {
		return false
	}
	return !p.EndedAt.After(at) || (!p.FinishedAt.IsZero() && !p.FinishedAt.After(at))
}

// classifyEnd judges a pod that ended while its machine lived.
func classifyEnd(p Pod) Outcome {
	asked := !p.AskedSeenAt.IsZero()
	switch {
	case p.ExitCode != nil && *p.ExitCode == 0:
		return OutcomeFinished
	case p.WantedSeconds > 0 && (p.Vanished || asked && p.GrantedSeconds == 0):
		return OutcomeKilledAtOnce
	case !asked && !p.Vanished, p.ExitCode != nil && *p.ExitCode != killed:
		return OutcomeFailed // by itself, or killed for another reason than a deletion, such as a lack of memory
	case p.GrantedSeconds < p.WantedSeconds:
		return OutcomeCutShort
	}
	return OutcomeSpentGrace
}

// Bookkeeper keeps the ledger of an emulator's events. PodWatch is one.
type Bookkeeper interface {
	Ledger(State) Ledger
}

// Ledger is what became of the pods on the machines that events named.
type Ledger struct {
	At time.Time `json:"at"`
	// Events are in the order of their announcement.
	Events []EventLedger `json:"events"`
}

// EventLedger is the ledger of one event.
type EventLedger struct {
	ScaleSet   string      `json:"scaleSet"`
	EventID    string      `json:"eventId"`
	Type       EventType   `json:"type"`
	Status     EventStatus `json:"status"`
	Ending     Ending      `json:"ending,omitempty"`
	VisibleAt  time.Time   `json:"visibleAt"`
	NotBefore  time.Time   `json:"notBefore,omitzero"`
	StartedAt  time.Time   `json:"startedAt,omitzero"`
	VanishedAt time.Time   `json:"vanishedAt,omitzero"`
	Machines   []Machine   `json:"machines"`
	Pods       []Entry     `json:"pods"`
}

// Machine is one machine of an event.
type Machine struct {
	Resource string `json:"resource"`
	// Node is empty when no node is known to be the machine.
	Node   string    `json:"node,omitempty"`
	DiedAt time.Time `json:"diedAt,omitzero"`
}

// Entry is one pod in an event.
type Entry struct {
	Pod
	Resource string  `json:"resource"`
	Outcome  Outcome `json:"outcome"`
	// Late is true for a pod that came to the machine after the event was visible.
	Late bool `json:"late,omitempty"`
	// LeftSeconds is the time between the pod's end and its machine's: the NotBefore last announced, before which the
	// machine was sure to live, or its death where none was announced. It is not the death of a machine given up early,
	// or cutting pods short and approving at once would look like having had no time. Nil while one of both is unknown.
	LeftSeconds *float64 `json:"leftSeconds,omitempty"`
}

// Settle makes the ledger from the events of a state, the pods seen, and the node that each machine is. It is a pure
// function of its arguments.
//
// An event concerns each pod that was on a named machine's node, not ended, at some time while the event was listed.
func Settle(state State, pods []Pod, nodeOf func(resource string) (string, bool)) Ledger {
	ledger := Ledger{At: state.At, Events: []EventLedger{}}
	byNode := map[string][]Pod{}
	for _, p := range pods {
		byNode[p.Node] = append(byNode[p.Node], p)
	}
	for _, r := range state.Events {
		ledger.Events = append(ledger.Events, settleEvent(r, byNode, nodeOf))
	}
	return ledger
}

func settleEvent(r Record, byNode map[string][]Pod, nodeOf func(string) (string, bool)) EventLedger {
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
			if concerns(r, p) {
				l.Pods = append(l.Pods, settlePod(r, m, p))
			}
		}
	}
	return l
}

func concerns(r Record, p Pod) bool {
	endedBefore := !p.EndedAt.IsZero() && p.EndedAt.Before(r.VisibleAt)
	cameAfter := !r.VanishedAt.IsZero() && p.BoundAt.After(r.VanishedAt)
	return !endedBefore && !cameAfter
}

// withinEvent hides what happened to a pod only after the event had vanished: that is no doing of the event. A pod
// that was asked to go before counts to its end.
func withinEvent(r Record, p Pod) Pod {
	over := func(t time.Time) bool { return t.IsZero() || t.After(r.VanishedAt) }
	if r.VanishedAt.IsZero() || !over(p.AskedSeenAt) || !over(p.EndedAt) || !over(p.FinishedAt) {
		return p
	}
	return Pod{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, Node: p.Node, Stays: p.Stays, StopSeconds: p.StopSeconds,
		WantedSeconds: p.WantedSeconds, BoundAt: p.BoundAt,
	}
}

func settlePod(r Record, m Machine, p Pod) Entry {
	p = withinEvent(r, p)
	entry := Entry{Pod: p, Resource: m.Resource, Outcome: Classify(p, m.DiedAt), Late: p.BoundAt.After(r.VisibleAt)}
	deadline := r.NotBefore
	if deadline.IsZero() {
		deadline = m.DiedAt
	}
	if !deadline.IsZero() && !p.EndedAt.IsZero() {
		entry.LeftSeconds = new(deadline.Sub(p.EndedAt).Seconds())
	}
	return entry
}

// Event gives the ledger of the event with that ID, in any letter case.
func (l Ledger) Event(id string) (EventLedger, bool) {
	for _, event := range l.Events {
		if strings.EqualFold(event.EventID, id) {
			return event, true
		}
	}
	return EventLedger{}, false
}

// Count counts the pods with that outcome.
func (l EventLedger) Count(outcome Outcome) int {
	n := 0
	for _, entry := range l.Pods {
		if entry.Outcome == outcome {
			n++
		}
	}
	return n
}

// CutWithTimeLeft lists the pods that were cut short or killed at once although more time than the tolerance was left
// to their machine.
func (l EventLedger) CutWithTimeLeft(tolerance time.Duration) []Entry {
	var cut []Entry
	for _, entry := range l.Pods {
		short := entry.Outcome == OutcomeCutShort || entry.Outcome == OutcomeKilledAtOnce
		if short && entry.LeftSeconds != nil && *entry.LeftSeconds > tolerance.Seconds() {
			cut = append(cut, entry)
		}
	}
	return cut
}

// Summary is the event's ledger in one line.
func (l EventLedger) Summary(tolerance time.Duration) string {
	var resources []string
	for _, m := range l.Machines {
		resources = append(resources, m.Resource)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s of %s: %d pods", l.Type, l.EventID, strings.Join(resources, ", "), len(l.Pods))
	for _, outcome := range Outcomes() {
		n := l.Count(outcome)
		// These three are the point of the ledger, so that their absence is said too.
		if n > 0 || outcome == OutcomeFinished || outcome == OutcomeCutShort || outcome == OutcomeLost {
			fmt.Fprintf(&b, ", %d %s", n, outcome)
		}
	}
	fmt.Fprintf(&b, "; %d cut with more than %v left", len(l.CutWithTimeLeft(tolerance)), tolerance)
	return b.String()
}

// Summary is one line per event, each ended by a line feed.
func (l Ledger) Summary(tolerance time.Duration) string {
	var b strings.Builder
	for _, event := range l.Events {
		b.WriteString(event.Summary(tolerance) + "\n")
	}
	return b.String()
}
