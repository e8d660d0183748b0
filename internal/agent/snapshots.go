package agent

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/observe"
)

// storeSnapshotAndLogProblems stores a source's snapshot. It logs each unreadable part that the previous snapshot did
// not have.
func (a *Agent) storeSnapshotAndLogProblems(source string, s notice.Snapshot) {
	before, known := a.snapshots[source]
	if !known || before.Incomplete {
		a.extendPassedDeadlines(source, s)
	}
	a.snapshots[source] = s
	reported := map[string]bool{}
	for _, p := range slices.Concat(before.Unreadable, before.Warnings) {
		reported[problemKey(p)] = true
	}
	for _, n := range s.Planned {
		if !slices.ContainsFunc(before.Planned, func(b notice.Notice) bool { return b.ID == n.ID && b.NotBefore.Equal(n.NotBefore) }) {
			a.log.Info("planned interruption, not due yet", "id", n.ID, "type", n.Type, "notBefore", n.NotBefore,
				"description", observe.ClipBytes(n.Description, maxEventMessageBytes))
		}
	}
	for _, p := range s.Unreadable {
		if !reported[problemKey(p)] {
			a.log.Error("cannot read a part of the notices", "notice", p.ID, "err", p.Err)
			a.options.Metrics.Unreadable.Inc()
		}
	}
	for _, p := range s.Warnings {
		if !reported[problemKey(p)] {
			a.log.Warn("a detail of a notice is missing or unreadable", "notice", p.ID, "err", p.Err)
			a.options.Metrics.Unreadable.Inc()
		}
	}
}

// extendPassedDeadlines gives the remaining pods more time if a recorded notice is still listed after its deadline. It
// is called with the snapshots of a source after a restart, up to the first complete one. A record of an earlier agent alone gives no more time,
// because the notice may have ended.
func (a *Agent) extendPassedDeadlines(source string, s notice.Snapshot) {
	now := time.Now()
	for _, h := range a.notices {
		due := h.Decision.Deadline
		if h.Notice.Source == source && s.HasNotice(h.Notice.ID) && h.Decision.Forced && now.After(due) && due.After(a.extension.deadline) {
			a.extension = deadlineExtension{deadline: due, until: now.Add(startedDrainTime)}
		}
	}
}

// mayActOnNotice reports whether the agent may act on a notice. It may if this process has read the notice.
//
// Otherwise the agent has only a record of an earlier agent, which is valid until the recorded deadline. Before this
// process has read the source, the record is enough only for a Preempt or Terminate. Any other notice may have ended
// while no agent ran. After the source was read, the record is enough unless the snapshot shows that the notice has
// ended.
//
// If the notice was first read later than now, the clock was set back. It is then unknown whether the deadline has
// passed, and the agent does not act.
func (a *Agent) mayActOnNotice(h *noticeState, now time.Time) bool {
	if h.listed {
		return true
	}
	s, known := a.snapshots[h.Notice.Source]
	known = known && !s.Incomplete
	mayAct := known && !s.HasEnded(h.Notice.ID) || !known && h.isFinal()
	return mayAct && now.Before(h.Decision.Deadline) && !h.Seen.First.After(now)
}

// mergeSnapshots updates the notice states from the latest snapshot of each source. It decides again for each notice
// that is new or has changed.
func (a *Agent) mergeSnapshots() {
	for _, source := range a.options.Sources {
		s := a.snapshots[source.Name()]
		a.mergeSnapshot(s)
		a.reportUnreadable(source.Name(), s.Unreadable)
	}
}

// listIndex matches the index in an entry's name, such as [2]. The index of an entry changes when another entry is
// added or removed.
var listIndex = regexp.MustCompile(`\[\d+\]`)

// problemKey returns a key for a problem that does not change if the index of its entry changes.
func problemKey(p notice.Problem) string {
	return p.ID + "\x00" + listIndex.ReplaceAllString(p.Err.Error(), "")
}

// reportUnreadable emits one Event for the unreadable parts of this instance's notices. It emits another Event only
// after these parts have changed. An entry that may be about another instance is logged and counted without an Event,
// because every node would emit the same Event.
func (a *Agent) reportUnreadable(source string, parts []notice.Problem) {
	reported, all := map[string]bool{}, []string{}
	for _, p := range parts {
		if !p.NamesInstance {
			continue
		}
		key := problemKey(p)
		if !a.reportedUnreadable[source][key] && !reported[key] {
			all = append(all, p.Err.Error())
		}
		reported[key] = true
	}
	if len(all) > 0 {
		a.events.queueEvent(newNoticeUnreadableEvent(source, strings.Join(all, "; ")))
	}
	a.reportedUnreadable[source] = reported
}

func (a *Agent) mergeSnapshot(s notice.Snapshot) {
	for _, n := range s.Notices {
		key := notice.ClaimOwner(n.Source, n.ID)
		h := a.notices[key]
		if h == nil {
			h = &noticeState{Seen: SeenTimes{First: a.findFirstSeen(n, s)}}
			a.notices[key] = h
		}
		h.listed = true
		h.Seen.clampTo(s.At)
		if n.NotBefore.IsZero() && h.Notice.Status == notice.Started {
			n.Status = notice.Started // a missing status is read as Scheduled, but a started notice stays started
		}
		// Another source may tell the source that the interruption has begun, and may be unread after a restart.
		n.HasBegun = n.HasBegun || n.NotBefore.IsZero() && h.Notice.HasBegun
		if (n.Status == notice.Started || n.HasBegun) && h.Seen.Started.IsZero() {
			h.Seen.Started = s.At
		}
		if n.NotBefore.IsZero() && n.Status == h.Notice.Status {
			n.NotBefore = h.Notice.NotBefore // unreadable now, known before: keep the last good value
		}
		a.updateDecision(h, n)
	}
}

// findFirstSeen returns the time when a new notice in snapshot s was first seen. If the notice replaces an ended notice
// of the same type and time, the result is when that one was first seen. So a changed ID does not restart the time
// limits.
func (a *Agent) findFirstSeen(n notice.Notice, s notice.Snapshot) time.Time {
	first := s.At
	for _, h := range a.notices {
		same := h.Notice.Source == n.Source && h.Notice.Type == n.Type && !n.NotBefore.IsZero() && h.Notice.NotBefore.Equal(n.NotBefore)
		if same && s.HasEnded(h.Notice.ID) && h.Seen.First.Before(first) {
			first = h.Seen.First
		}
	}
	return first
}

// updateDecision applies the policy to a notice that is new or was read again, and reports a change.
func (a *Agent) updateDecision(h *noticeState, n notice.Notice) {
	d := a.options.Policy.Decide(n, h.Seen)
	isNew := h.Decision.Reason == ""
	same := !isNew && h.Decision.equal(d) && h.Notice.Status == n.Status
	if !h.Notice.WindowEnd.Equal(n.WindowEnd) {
		h.claim.markOutdated() // after a restart the source gets the window from the record
	}
	h.Notice, h.Decision = n, d
	if same {
		return
	}
	h.claim.markOutdated()
	a.handleInput(h, inputChanged, time.Now())
	a.log.Info("notice", "id", n.ID, "type", n.Type, "status", n.Status, "action", d.Action, "deadline", d.Deadline,
		"reason", d.Reason, "new", isNew, "resources", joinFirstNames(n.Resources), "description", observe.ClipBytes(n.Description, maxEventMessageBytes))
	if !isNew {
		a.events.queueEvent(newNoticeChangedEvent(n, d))
		return
	}
	a.options.Metrics.Notices.With(string(n.Type), string(d.Action)).Inc()
	if now := time.Now(); d.Action.includesDrain() && !a.options.DryRun {
		a.events.throttle.setEnd(now.Add(throttleTime(d.Deadline, now)))
	}
	a.events.queueEvent(newNoticeReceivedEvent(n, d))
	a.startNoticeTrace(h)
}

// hasEnded reports whether a notice has ended. Only a snapshot that this process has read from the notice's source can
// show that (invariant I7: unknown is not gone). A notice of a source that was removed from the configuration has ended
// too.
func (a *Agent) hasEnded(h *noticeState) bool {
	if s, known := a.snapshots[h.Notice.Source]; known {
		return s.HasEnded(h.Notice.ID)
	}
	return !slices.ContainsFunc(a.options.Sources, func(s Source) bool { return s.Name() == h.Notice.Source })
}

// markEndedNotices moves the notices that have ended or are ignored to the phase Releasing. It returns when to check
// again.
func (a *Agent) markEndedNotices(now time.Time) (recheckAfter time.Duration) {
	next := idleInterval
	for _, h := range a.notices {
		if !a.hasEnded(h) {
			h.missingSince = time.Time{}
			switch ignored := h.listed && h.Decision.Action == Ignore; {
			case ignored && h.claim.state != claimNone && !a.options.DryRun:
				a.handleInput(h, inputEnded, now)
			case h.Phase == Releasing && !ignored:
				a.handleInput(h, inputResumed, now)
			}
			if left := h.Decision.Deadline.Sub(now); !h.listed && left > 0 {
				next = min(next, left) // after that the record alone is not enough
			}
			continue
		}
		if h.missingSince.IsZero() {
			h.missingSince = now
		}
		if wait := h.timeUntilEnded(now); wait > 0 {
			next = min(next, wait)
			continue
		}
		a.handleInput(h, inputEnded, now)
	}
	return next
}
