package agent

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
)

// Action is what the agent does for a notice.
type Action string

// The actions, the least disruptive first.
const (
	// Ignore writes a log line and a metric, and does nothing else.
	Ignore Action = "ignore"
	// Acknowledge approves the notice at once, and changes neither the node nor its pods.
	Acknowledge Action = "acknowledge"
	// Cordon makes the node unschedulable and evicts no pods.
	Cordon Action = "cordon"
	// DrainMarked cordons, then evicts the pods that ask for it by a label, see [EvictOnLabel].
	DrainMarked Action = "drain-marked"
	// Drain cordons, then evicts the pods.
	Drain Action = "drain"
)

// Actions returns all actions, the least disruptive first.
func Actions() []Action { return []Action{Ignore, Acknowledge, Cordon, DrainMarked, Drain} }

func (a Action) includesCordon() bool { return a == Cordon || a.includesDrain() }

func (a Action) includesDrain() bool { return a == DrainMarked || a == Drain }

// NoticePolicy is the policy that selects an action for each notice.
type NoticePolicy struct {
	// ActionByType holds the action for each type; a missing type is ignored. The fields below refine it.
	ActionByType map[notice.Type]Action
	// UserInitiatedByType replaces ActionByType, for the types in it, if a user of the cloud requested the interruption and not the
	// platform.
	UserInitiatedByType map[notice.Type]Action
	// LiveMigrationAction replaces both for a Freeze that is a live migration.
	LiveMigrationAction Action
	// UnknownFreezeAction is the most disruptive action for a Freeze of unknown duration.
	UnknownFreezeAction Action
	// FreezeTolerance is the longest Freeze that is ignored. Pods that ask for eviction on a Freeze are evicted even
	// for a shorter one, unless its duration is 0.
	FreezeTolerance time.Duration
	// AcknowledgeFreezeUnder makes an ignored Freeze shorter than this be approved at once; 0 is never.
	AcknowledgeFreezeUnder time.Duration
	// ActionByCondition holds the action for each node condition, by notice ID; a missing condition is ignored.
	ActionByCondition map[string]Action
	// ActionFor overrides all of these for the notices for which it returns true; nil overrides nothing.
	ActionFor func(notice.Notice) (Action, bool)
}

// DefaultNoticePolicy returns the default policy. It drains for every notice that ends the node's processes, and
// ignores short Freezes.
func DefaultNoticePolicy() NoticePolicy {
	return NoticePolicy{
		ActionByType: map[notice.Type]Action{
			notice.Preempt: Drain, notice.Terminate: Drain, notice.Redeploy: Drain, notice.Reboot: Drain,
			notice.Freeze: Drain, notice.Rebalance: Cordon,
		},
		LiveMigrationAction: Ignore,
		UnknownFreezeAction: Cordon,
		FreezeTolerance:     10 * time.Second,
	}
}

// startedDrainTime is the time for a drain if the notice already has the status Started. The interruption is then due,
// but a platform takes some seconds to stop an instance. Pods that stop quickly can use these seconds.
const startedDrainTime = 10 * time.Second

// minimumNotice is the notice period that Azure promises for each type. It applies to a notice without a time
// (https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events#event-properties).
var minimumNotice = map[notice.Type]time.Duration{
	notice.Freeze: 15 * time.Minute, notice.Reboot: 15 * time.Minute, notice.Redeploy: 10 * time.Minute,
	notice.Preempt: 30 * time.Second, notice.Terminate: 5 * time.Minute,
}

// Decision is the action for one notice, and the reason for it.
type Decision struct {
	Action Action `json:"action"`
	// Forced is true when the interruption ends the instance's processes. A Freeze only pauses them, and a condition
	// interrupts nothing.
	Forced bool `json:"forced,omitempty"`
	// Deadline is when the interruption is due; zero for a condition and a Rebalance.
	Deadline time.Time `json:"deadline,omitzero"`
	Reason   string    `json:"reason"`
}

// equal reports whether two decisions are the same. Two deadlines are the same if they are the same instant, in any
// time zone.
func (d Decision) equal(o Decision) bool {
	return d.Action == o.Action && d.Forced == o.Forced && d.Reason == o.Reason && d.Deadline.Equal(o.Deadline)
}

// SeenTimes holds the time when a notice was first read, and the time when it was first read with the status Started or with
// HasBegun. If a notice has no deadline, its deadline is computed from these times.
type SeenTimes struct {
	First   time.Time `json:"first"`
	Started time.Time `json:"started,omitzero"`
}

// clampTo replaces each time that is later than now by now. A time is later than now if the clock was set back after
// the notice was read.
func (s *SeenTimes) clampTo(now time.Time) {
	for _, at := range []*time.Time{&s.First, &s.Started} {
		if at.Round(0).After(now.Round(0)) { // compare wall clocks, because only they can be set back
			*at = now
		}
	}
}

// Decide applies the policy to one notice. Its result depends only on its arguments, so a restarted agent makes the
// same decision.
func (i NoticePolicy) Decide(n notice.Notice, s SeenTimes) Decision {
	switch n.Type {
	case notice.Condition:
		return i.decideCondition(n)
	case notice.Rebalance:
		action, why := i.selectAction(n)
		return Decision{Action: action, Reason: why + ", without a deadline"}
	}
	d := Decision{Forced: n.Type != notice.Freeze}
	d.Deadline, d.Reason = computeDeadline(n, s)
	var why string
	d.Action, why = i.selectAction(n)
	d.Reason = why + "; " + d.Reason
	return d
}

// decideCondition decides for a condition of the node, which has no deadline.
func (i NoticePolicy) decideCondition(n notice.Notice) Decision {
	action, ok := i.ActionByCondition[n.ID]
	if !ok {
		return Decision{Action: Ignore, Reason: "no action is configured for condition " + n.ID}
	}
	return Decision{Action: action, Reason: fmt.Sprintf("condition %s asks for %s, without a deadline", n.ID, action)}
}

func (i NoticePolicy) selectAction(n notice.Notice) (action Action, reason string) {
	if i.ActionFor != nil {
		if on, ok := i.ActionFor(n); ok {
			return on, fmt.Sprintf("%s asks for %s", n.Type, on)
		}
	}
	on, ok := i.ActionByType[n.Type]
	who := ""
	if byUser, set := i.UserInitiatedByType[n.Type]; set && n.UserInitiated {
		on, ok, who = byUser, true, "user-initiated "
	}
	switch {
	case n.Type == notice.Freeze:
		return i.selectFreezeAction(n, on, ok, who)
	case !ok:
		return Ignore, fmt.Sprintf("no action is configured for %s", n.Type)
	}
	return on, fmt.Sprintf("%s%s asks for %s", who, n.Type, on)
}

// selectFreezeAction selects the action for a Freeze by its duration.
func (i NoticePolicy) selectFreezeAction(n notice.Notice, on Action, isConfigured bool, who string) (action Action, reason string) {
	known := n.Duration >= 0
	var why string
	switch {
	case n.LiveMigration:
		on, why = i.LiveMigrationAction, fmt.Sprintf("live migration asks for %s", i.LiveMigrationAction)
	case !isConfigured:
		on, why = Ignore, "no action is configured for Freeze"
	case on == DrainMarked && n.Duration != 0:
		why = fmt.Sprintf("%sFreeze asks for %s", who, on)
	case known && n.Duration <= i.FreezeTolerance && on != Acknowledge:
		on, why = Ignore, fmt.Sprintf("Freeze of %s is within the tolerance of %s", n.Duration, i.FreezeTolerance)
	case !known:
		on = lessDisruptive(on, i.UnknownFreezeAction)
		why = fmt.Sprintf("%sFreeze of unknown duration asks for %s", who, on)
	default:
		why = fmt.Sprintf("%sFreeze of %s asks for %s", who, n.Duration, on)
	}
	if on == Ignore && known && n.Duration < i.AcknowledgeFreezeUnder {
		return Acknowledge, fmt.Sprintf("%s, and is approved at once because it is under %s", why, i.AcknowledgeFreezeUnder)
	}
	return on, why
}

func lessDisruptive(a, b Action) Action {
	if slices.Index(Actions(), a) < slices.Index(Actions(), b) {
		return a
	}
	return b
}

// computeDeadline returns when the interruption is due, and a text that says how this time was determined.
func computeDeadline(n notice.Notice, s SeenTimes) (deadline time.Time, reason string) {
	if n.Status == notice.Started {
		return s.Started.Add(startedDrainTime), fmt.Sprintf("%s has started", n.Type)
	}
	period := cmp.Or(n.NoticePeriod, minimumNotice[n.Type])
	deadline, reason = computeAnnouncedDeadline(n, s, period)
	if begun := s.Started.Add(period); n.HasBegun && begun.Before(deadline) {
		return begun, fmt.Sprintf("%s has begun, so the minimum notice of %s applies from then: %s", n.Type, n.Type, period)
	}
	return deadline, reason
}

// computeAnnouncedDeadline returns when an interruption is due that begins at its announced time.
func computeAnnouncedDeadline(n notice.Notice, s SeenTimes, period time.Duration) (deadline time.Time, reason string) {
	if n.NotBefore.IsZero() {
		return s.First.Add(period), fmt.Sprintf("no NotBefore, so the minimum notice of %s applies: %s", n.Type, period)
	}
	due, when := n.NotBefore.Add(n.ClockAhead), "NotBefore "+n.NotBefore.UTC().Format(time.RFC3339)
	if n.ClockAhead != 0 {
		when += fmt.Sprintf(", plus %s because this instance's clock is ahead", n.ClockAhead.Round(time.Second))
	}
	if !due.After(s.First) {
		return s.First.Add(period), fmt.Sprintf("%s had passed when first seen, so the minimum notice of %s applies: %s", when, n.Type, period)
	}
	return due, when
}
