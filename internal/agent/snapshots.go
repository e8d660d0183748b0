package agent

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/observe"
)

// read takes in a snapshot of one source's notices, and says what in it is unreadable unless the one before had it too.
func (a *Agent) read(source string, s notice.Snapshot) {
	before, known := a.snapshots[source]
	if !known {
		a.confirm(source, s)
	}
	a.snapshots[source] = s
	said := map[string]bool{}
	for _, p := range slices.Concat(before.Unreadable, before.Warnings) {
		said[problemKey(p)] = true
	}
	for _, p := range s.Unreadable {
		if !said[problemKey(p)] {
			a.log.Error("part of the notices cannot be understood", "notice", p.ID, "err", p.Err)
			a.o.Metrics.Unreadable.Inc()
		}
	}
	for _, p := range s.Warnings {
		if !said[problemKey(p)] {
			a.log.Warn("detail of a notice is missing or cannot be understood", "notice", p.ID, "err", p.Err)
			a.o.Metrics.Unreadable.Inc()
		}
	}
}

// confirm compares what an earlier agent recorded with the first snapshot of its source since the start. A notice that is
// still there after its deadline gets time for the pods that are left. The record alone gives none.
func (a *Agent) confirm(source string, s notice.Snapshot) {
	now := time.Now()
	for _, h := range a.handled {
		due := h.Decision.Deadline
		if h.Notice.Source == source && s.Lists(h.Notice.ID) && h.Decision.Forced && now.After(due) && due.After(a.overtime.passed) {
			a.overtime = overtime{passed: due, until: now.Add(startedWindow)}
		}
	}
}

// isConfirmed reports that something may be done about a notice: this process has read it. Until its source has been read,
// the record that an earlier agent left is enough for a Preempt or Terminate, and for nothing else: the notice may have ended
// while no agent was there. While what was read does not tell whether it has, the record is enough for any. Either way it is so
// only until the recorded deadline. A notice that was first seen later than now says that the clock was set back since: whether
// its deadline has passed is not known.
func (a *Agent) isConfirmed(h *noticeState, now time.Time) bool {
	if h.listed {
		return true
	}
	s, known := a.snapshots[h.Notice.Source]
	mayAct := known && !s.Over(h.Notice.ID) || !known && !h.canWait()
	return mayAct && now.Before(h.Decision.Deadline) && !h.Seen.First.After(now)
}

// absorb takes the snapshots' notices into the notice states, and decides about those that are new or have changed.
func (a *Agent) absorb() {
	for _, source := range a.o.Sources {
		s := a.snapshots[source.Name()]
		a.absorbFrom(s)
		a.sayUnreadable(source.Name(), s.Unreadable)
	}
}

// position is where an entry is in its list, which changes when another one comes or goes.
var position = regexp.MustCompile(`\[\d+\]`)

// problemKey tells problems apart, wherever in the list they are.
func problemKey(p notice.Problem) string {
	return p.ID + "\x00" + position.ReplaceAllString(p.Err.Error(), "")
}

// sayUnreadable says what a source announces for this machine that cannot be understood, once for as long as that is the same.
// An entry that may be another machine's is logged and counted: each node would say it.
func (a *Agent) sayUnreadable(source string, parts []notice.Problem) {
	said, all := map[string]bool{}, []string{}
	for _, p := range parts {
		if !p.Named {
			continue
		}
		key := problemKey(p)
		if !a.garbled[source][key] && !said[key] {
			all = append(all, p.Err.Error())
		}
		said[key] = true
	}
	if len(all) > 0 {
		a.events.emit(unreadable(source, strings.Join(all, "; ")))
	}
	a.garbled[source] = said
}

func (a *Agent) absorbFrom(s notice.Snapshot) {
	for _, n := range s.Notices {
		key := owner(n.Source, n.ID)
		h := a.handled[key]
		if h == nil {
			h = &noticeState{Seen: Seen{First: a.firstSeen(n, s)}}
			a.handled[key] = h
		}
		h.listed = true
		h.Seen.notAfter(s.At)
		if n.NotBefore.IsZero() && h.Notice.Status == notice.Started {
			n.Status = notice.Started // a missing status is read as Scheduled, but what has started does not take that back
		}
		if n.Status == notice.Started && h.Seen.Started.IsZero() {
			h.Seen.Started = s.At
		}
		if n.NotBefore.IsZero() && n.Status == h.Notice.Status {
			n.NotBefore = h.Notice.NotBefore // unreadable now, known before: the last good state stands
		}
		a.decide(h, n)
	}
}

// firstSeen is when a notice that is new in s was first seen. One that takes the place of another, and only its ID differs,
// was seen with that one: what counts from then on does not begin again.
func (a *Agent) firstSeen(n notice.Notice, s notice.Snapshot) time.Time {
	first := s.At
	for _, h := range a.handled {
		same := h.Notice.Source == n.Source && h.Notice.Type == n.Type && !n.NotBefore.IsZero() && h.Notice.NotBefore.Equal(n.NotBefore)
		if same && s.Over(h.Notice.ID) && h.Seen.First.Before(first) {
			first = h.Seen.First
		}
	}
	return first
}

// decide applies the policy to the newest state of a notice and says what has changed.
func (a *Agent) decide(h *noticeState, n notice.Notice) {
	d := a.o.Impact.Decide(n, h.Seen)
	isNew := h.Decision.Reason == ""
	same := !isNew && h.Decision.equal(d) && h.Notice.Status == n.Status
	h.Notice, h.Decision = n, d
	if same {
		return
	}
	h.claim.outdate()
	a.take(h, inputChanged, time.Now())
	a.log.Info("notice", "id", n.ID, "type", n.Type, "status", n.Status, "action", d.Action, "deadline", d.Deadline,
		"reason", d.Reason, "new", isNew, "resources", named(n.Resources), "description", observe.Clip(n.Description, maxMessage))
	if !isNew {
		a.events.emit(changed(n, d))
		return
	}
	a.o.Metrics.Notices.With(string(n.Type), string(d.Action)).Inc()
	if now := time.Now(); d.Action.drains() && !a.o.DryRun {
		a.events.throttle.until(now.Add(quietFor(d.Deadline, now)))
	}
	a.events.emit(noticed(n, d))
	a.traceNotice(h)
}

// isOver reports that a notice is over. Only a snapshot that its own source has read since the start can say so (I7);
// where that source is no longer listened to, its notices count for nothing any more.
func (a *Agent) isOver(h *noticeState) bool {
	if s, known := a.snapshots[h.Notice.Source]; known {
		return s.Over(h.Notice.ID)
	}
	return !slices.ContainsFunc(a.o.Sources, func(s Source) bool { return s.Name() == h.Notice.Source })
}

// markEnded finds out which notices have ended or are ignored, and returns when to look again.
func (a *Agent) markEnded(now time.Time) time.Duration {
	next := whenAsked
	for _, h := range a.handled {
		if !a.isOver(h) {
			h.missing = time.Time{}
			switch ignored := h.listed && h.Decision.Action == Ignore; {
			case ignored && h.claim.state != claimNone && !a.o.DryRun:
				a.take(h, inputEnded, now)
			case h.Phase == Releasing && !ignored:
				a.take(h, inputResumed, now)
			}
			if left := h.Decision.Deadline.Sub(now); !h.listed && left > 0 {
				next = min(next, left) // from when on the record is not enough
			}
			continue
		}
		if h.missing.IsZero() {
			h.missing = now
		}
		if wait := h.lingers(now); wait > 0 {
			next = min(next, wait)
			continue
		}
		a.take(h, inputEnded, now)
	}
	return next
}
