package agent

import (
	"fmt"
	"slices"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
)

// Action is what is done about a notice.
type Action string

// The actions, from the mildest.
const (
	// Ignore: nothing but a log line and a metric.
	Ignore Action = "ignore"
	// Acknowledge: let it begin at once, and touch neither the node nor its pods.
	Acknowledge Action = "acknowledge"
	// Cordon: no new pods, those that are there stay.
	Cordon Action = "cordon"
	// DrainMarked: cordon, then move off the pods that ask for it by a label, see [EvictOn].
	DrainMarked Action = "drain-marked"
	// Drain: cordon, then move the pods off.
	Drain Action = "drain"
)

// Actions lists all of them.
func Actions() []Action { return []Action{Ignore, Acknowledge, Cordon, DrainMarked, Drain} }

// cordons reports that the node takes no new pods meanwhile.
func (a Action) cordons() bool { return a == Cordon || a.drains() }

// drains reports that pods have to go.
func (a Action) drains() bool { return a == DrainMarked || a == Drain }

// Impact says what is done about which notice.
type Impact struct {
	// On holds the action for each type; a type that is missing is ignored. It is refined by the fields below.
	On map[notice.Type]Action
	// UserInitiated takes the place of On, for the types that it holds, when a user of the cloud asked for the
	// interruption and not the platform.
	UserInitiated map[notice.Type]Action
	// LiveMigration takes the place of both for a Freeze that is a live migration.
	LiveMigration Action
	// UnknownFreeze is what is done at most about a Freeze whose duration is not known.
	UnknownFreeze Action
	// FreezeTolerance is the longest pause that is left alone, whatever else is said of a Freeze; pods that ask to be
	// evicted for a Freeze are, for any that has an impact.
	FreezeTolerance time.Duration
	// AcknowledgeFreezeUnder is the pause below which a Freeze that is left alone may begin at once; 0 is never.
	AcknowledgeFreezeUnder time.Duration
	// Conditions holds the action for each condition, by the ID of its notice; one that is missing is ignored.
	Conditions map[string]Action
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
	// Forced is true when the machine's processes end whatever we do; a Freeze only pauses them, and a condition does
	// nothing by itself.
	Forced bool `json:"forced,omitempty"`
	// Deadline is when the interruption is due; zero for a condition.
	Deadline time.Time `json:"deadline,omitzero"`
	Reason   string    `json:"reason"`
}

// equal compares the moments that are meant, whatever time zone they were read in.
func (d Decision) equal(o Decision) bool {
	return d.Action == o.Action && d.Forced == o.Forced && d.Reason == o.Reason && d.Deadline.Equal(o.Deadline)
}

// Seen is when the parts of a notice were first read, which is what a deadline that the notice does not name counts from.
type Seen struct {
	First   time.Time `json:"first"`
	Started time.Time `json:"started,omitzero"`
}

// notAfter moves what was seen later than now to now: this machine's clock was ahead then, and has been set back since.
func (s *Seen) notAfter(now time.Time) {
	for _, at := range []*time.Time{&s.First, &s.Started} {
		if at.Round(0).After(now.Round(0)) { // by the clock on the wall, which is what is set
			*at = now
		}
	}
}

// Decide applies the impact policy to one notice. It is pure: the same input gives the same answer after a restart.
func (i Impact) Decide(n notice.Notice, s Seen) Decision {
	if n.Type == notice.Condition {
		return i.ofCondition(n)
	}
	d := Decision{Forced: n.Type != notice.Freeze}
	d.Deadline, d.Reason = deadline(n, s)
	var why string
	d.Action, why = i.action(n)
	d.Reason = why + "; " + d.Reason
	return d
}

// ofCondition decides about a state of the node itself, for which nothing is due.
func (i Impact) ofCondition(n notice.Notice) Decision {
	action, ok := i.Conditions[n.ID]
	if !ok {
		return Decision{Action: Ignore, Reason: "no action is configured for condition " + n.ID}
	}
	return Decision{Action: action, Reason: fmt.Sprintf("condition %s asks for %s; nothing is due", n.ID, action)}
}

func (i Impact) action(n notice.Notice) (Action, string) {
	on, ok := i.On[n.Type]
	who := ""
	if byUser, set := i.UserInitiated[n.Type]; set && n.UserInitiated {
		on, ok, who = byUser, true, "user-initiated "
	}
	switch {
	case n.Type == notice.Freeze:
		return i.ofFreeze(n, on, ok, who)
	case !ok:
		return Ignore, fmt.Sprintf("no action is configured for %s", n.Type)
	}
	return on, fmt.Sprintf("%s%s asks for %s", who, n.Type, on)
}

// ofFreeze decides about a pause: what it is to do if it is long enough to matter, and whether it is.
func (i Impact) ofFreeze(n notice.Notice, on Action, ok bool, who string) (Action, string) {
	known := n.Duration >= 0
	var why string
	switch {
	case n.LiveMigration:
		on, why = i.LiveMigration, fmt.Sprintf("live migration asks for %s", i.LiveMigration)
	case !ok:
		on, why = Ignore, "no action is configured for Freeze"
	case on == DrainMarked && n.Duration != 0:
		why = fmt.Sprintf("%sFreeze asks for %s", who, on)
	case known && n.Duration <= i.FreezeTolerance && on != Acknowledge:
		on, why = Ignore, fmt.Sprintf("Freeze of %s is within the tolerance of %s", n.Duration, i.FreezeTolerance)
	case !known:
		on = milder(on, i.UnknownFreeze)
		why = fmt.Sprintf("%sFreeze of unknown duration asks for %s", who, on)
	default:
		why = fmt.Sprintf("%sFreeze of %s asks for %s", who, n.Duration, on)
	}
	if on == Ignore && known && n.Duration < i.AcknowledgeFreezeUnder {
		return Acknowledge, fmt.Sprintf("%s, and may begin at once as it is under %s", why, i.AcknowledgeFreezeUnder)
	}
	return on, why
}

// milder is the one of two actions that does less.
func milder(a, b Action) Action {
	if slices.Index(Actions(), a) < slices.Index(Actions(), b) {
		return a
	}
	return b
}

// deadline is when the interruption is due, and how that is known.
func deadline(n notice.Notice, s Seen) (time.Time, string) {
	if n.Status == notice.Started {
		return s.Started.Add(startedWindow), fmt.Sprintf("%s has started", n.Type)
	}
	if n.NotBefore.IsZero() {
		return s.First.Add(minimumNotice[n.Type]), fmt.Sprintf("no NotBefore, so the minimum notice of %s, %s, counts",
			n.Type, minimumNotice[n.Type])
	}
	due, when := n.NotBefore.Add(n.ClockAhead), "NotBefore "+n.NotBefore.UTC().Format(time.RFC3339)
	if n.ClockAhead != 0 {
		when += fmt.Sprintf(", as this machine's clock is %s ahead", n.ClockAhead.Round(time.Second))
	}
	if !due.After(s.First) {
		return s.First.Add(minimumNotice[n.Type]), fmt.Sprintf("%s was past when it was first seen, so the minimum notice of %s, %s, counts",
			when, n.Type, minimumNotice[n.Type])
	}
	return due, when
}
