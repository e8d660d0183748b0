package agent

import (
	"fmt"
	"slices"
	"time"

	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/notice"
)

// Action is what is done about a notice.
type Action string

// The actions, from the mildest.
const (
	// Ignore: nothing but a log line and a metric.
	Ignore Action = "ignore"
	// Cordon: no new pods, those that are there stay.
	Cordon Action = "cordon"
	// Drain: cordon, then move the pods off.
	Drain Action = "drain"
)

// Actions lists all of them.
func Actions() []Action { return []Action{Ignore, Cordon, Drain} }

// Impact says what is done about which notice.
type Impact struct {
	// On holds the action for each type; a type that is missing is ignored. Freeze is refined by the fields below.
	On map[notice.Type]Action
	// LiveMigration takes the place of On[Freeze] for a live migration.
	LiveMigration Action
	// UnknownFreeze is what is done at most about a Freeze whose duration is not known.
	UnknownFreeze Action
	// FreezeTolerance is the longest pause that is left alone.
	FreezeTolerance time.Duration
}

// DefaultImpact drains for everything that ends the node's processes, and lets a pause be a pause.
func DefaultImpact() Impact {
	return Impact{
		On: map[notice.Type]Action{
			notice.Preempt: Drain, notice.Terminate: Drain, notice.Redeploy: Drain, notice.Reboot: Drain,
			notice.Freeze: Drain,
		},
		LiveMigration:   Ignore,
		UnknownFreeze:   Cordon,
		FreezeTolerance: 10 * time.Second,
	}
}

// startedWindow is the time a drain is given once the interruption has Started: it is due now, yet the seconds that a
// platform takes to bring a machine down are often enough for pods that stop quickly.
const startedWindow = 10 * time.Second

// minimumNotice is what Azure promises for each type, for a notice that does not say when
// (https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events#event-properties).
var minimumNotice = map[notice.Type]time.Duration{
	notice.Freeze: 15 * time.Minute, notice.Reboot: 15 * time.Minute, notice.Redeploy: 10 * time.Minute,
	notice.Preempt: 30 * time.Second, notice.Terminate: 5 * time.Minute,
}

// Decision is what one notice asks for, and why.
type Decision struct {
	Action Action `json:"action"`
	// Forced is true when the machine's processes end whatever we do; a Freeze only pauses them.
	Forced   bool      `json:"forced,omitempty"`
	Deadline time.Time `json:"deadline,omitzero"`
	Reason   string    `json:"reason"`
}

// equal compares the moments that are meant, whatever time zone they were read in.
func (d Decision) equal(o Decision) bool {
	return d.Action == o.Action && d.Forced == o.Forced && d.Reason == o.Reason && d.Deadline.Equal(o.Deadline)
}

// seen is when the parts of a notice were first read, which is what a deadline that the notice does not name counts from.
type seen struct {
	First   time.Time `json:"first"`
	Started time.Time `json:"started,omitzero"`
}

// Decide applies the impact policy to one notice. It is pure: the same input gives the same answer after a restart.
func (i Impact) Decide(n notice.Notice, s seen) Decision {
	d := Decision{Forced: n.Type != notice.Freeze}
	d.Deadline, d.Reason = deadline(n, s)
	var why string
	d.Action, why = i.action(n)
	d.Reason = why + "; " + d.Reason
	return d
}

func (i Impact) action(n notice.Notice) (Action, string) {
	on, ok := i.On[n.Type]
	if !ok {
		return Ignore, fmt.Sprintf("no action is configured for %s", n.Type)
	}
	if n.Type != notice.Freeze {
		return on, fmt.Sprintf("%s asks for %s", n.Type, on)
	}
	switch {
	case n.LiveMigration:
		return i.LiveMigration, fmt.Sprintf("live migration asks for %s", i.LiveMigration)
	case n.Duration >= 0 && n.Duration <= i.FreezeTolerance:
		return Ignore, fmt.Sprintf("Freeze of %s is within the tolerance of %s", n.Duration, i.FreezeTolerance)
	case n.Duration < 0:
		on = milder(on, i.UnknownFreeze)
		return on, fmt.Sprintf("Freeze of unknown duration asks for %s", on)
	}
	return on, fmt.Sprintf("Freeze of %s asks for %s", n.Duration, on)
}

// milder is the one of two actions that does less.
func milder(a, b Action) Action {
	if slices.Index(Actions(), a) < slices.Index(Actions(), b) {
		return a
	}
	return b
}

// deadline is when the interruption is due, and how that is known.
func deadline(n notice.Notice, s seen) (time.Time, string) {
	if n.Status == notice.Started {
		return s.Started.Add(startedWindow), fmt.Sprintf("%s has started", n.Type)
	}
	if n.NotBefore.IsZero() {
		return s.First.Add(minimumNotice[n.Type]), fmt.Sprintf("no NotBefore, so the minimum notice of %s, %s, counts",
			n.Type, minimumNotice[n.Type])
	}
	if !n.NotBefore.After(s.First) {
		return s.First.Add(startedWindow), fmt.Sprintf("NotBefore %s was past when it was first seen, so it is due now",
			n.NotBefore.UTC().Format(time.RFC3339))
	}
	return n.NotBefore, "NotBefore " + n.NotBefore.UTC().Format(time.RFC3339)
}

// drainPolicy says what the pods get, by what survives the interruption.
func drainPolicy(t notice.Type) drain.Policy {
	p := drain.NoticePolicy()
	switch t {
	case notice.Reboot:
		// The kubelet starts the pods that it finds after a reboot again; one that nobody would replace is better off
		// restarted in place than deleted for good.
		p[drain.Unmanaged] = drain.Leave
	case notice.Freeze:
		// Everything survives a pause, so that only what can move without loss does.
		p[drain.Unmanaged], p[drain.Protected], p[drain.LocalStorage] = drain.Leave, drain.Leave, drain.Leave
	}
	return p
}
