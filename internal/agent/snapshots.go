package agent

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/observe"
)

// storeSnapshotAndLogProblems stores a snapshot of one source, and logs its unreadable parts unless the previous snapshot had
// them.
func (a *Agent) storeSnapshotAndLogProblems(source string, s notice.Snapshot) {
	before, known := a.snapshots[source]
	if !known {
		a.extendPassedDeadlines(source, s)
	}
	a.snapshots[source] = s
	reported := map[string]bool{}
	for _, p := range slices.Concat(before.Unreadable, before.Warnings) {
		reported[problemKey(p)] = true
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

// extendPassedDeadlines compares an earlier agent's record with the first snapshot of its source since the start. If
// a notice is still listed after its deadline, the remaining pods get more time. The record alone gives none.
func (a *Agent) extendPassedDeadlines(source string, s notice.Snapshot) {
	now := time.Now()
	for _, h := range a.notices {
		due := h.Decision.Deadline
		if h.Notice.Source == source && s.HasNotice(h.Notice.ID) && h.Decision.Forced && now.After(due) && due.After(a.extension.deadline) {
			a.extension = deadlineExtension{deadline: due, until: now.Add(startedDrainTime)}
		}
	}
}

// mayActOnNotice reports that the agent may act on a notice.
//
// It may if this process has read the notice. Otherwise it has only the record of an earlier agent, and that is
// enough until the recorded deadline. Before its source was read, the record is enough only for a Preempt or
// Terminate: another notice may have ended while no agent ran. If a snapshot does not say whether the notice ended,
// the record is enough for any type.
//
// If the notice was first seen later than now, the clock was set back. Then it is unknown whether its deadline has
// passed, and the agent does not act.
func (a *Agent) mayActOnNotice(h *noticeState, now time.Time) bool {
	if h.listed {
		return true
	}
	s, known := a.snapshots[h.Notice.Source]
	mayAct := known && !s.HasEnded(h.Notice.ID) || !known && !h.canWait()
	return mayAct && now.Before(h.Decision.Deadline) && !h.Seen.First.After(now)
}

// mergeSnapshots merges the snapshots into the notice states, and decides for notices that are new or changed.
func (a *Agent) mergeSnapshots() {
	for _, source := range a.options.Sources {
		s := a.snapshots[source.Name()]
		a.mergeSnapshot(s)
		a.reportUnreadable(source.Name(), s.Unreadable)
	}
}

// listIndex matches the index of an entry in its list. The index changes when another entry comes or goes.
var listIndex = regexp.MustCompile(`\[\d+\]`)

// problemKey identifies a problem independent of its index in the list.
func problemKey(p notice.Problem) string {
	return p.ID + "\x00" + listIndex.ReplaceAllString(p.Err.Error(), "")
}

// reportUnreadable emits one Event for the unreadable parts of this instance's notices, once while they stay the
// same. An entry that may be for another instance is only logged and counted, because each node would report it.
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
		key := claimOwner(n.Source, n.ID)
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
		if n.Status == notice.Started && h.Seen.Started.IsZero() {
			h.Seen.Started = s.At
		}
		if n.NotBefore.IsZero() && n.Status == h.Notice.Status {
			n.NotBefore = h.Notice.NotBefore // unreadable now, known before: keep the last good value
		}
		a.updateDecision(h, n)
	}
}

// findFirstSeen returns when a new notice in s was first seen. If it replaces another notice and only its ID differs,
// that is when the other was first seen. So the time limits do not start again.
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

// updateDecision applies the policy to the newest state of a notice, and reports changes.
func (a *Agent) updateDecision(h *noticeState, n notice.Notice) {
	d := a.options.Policy.Decide(n, h.Seen)
	isNew := h.Decision.Reason == ""
	same := !isNew && h.Decision.equal(d) && h.Notice.Status == n.Status
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

// hasEnded reports that a notice has ended. Only a snapshot of its own source since the start can show that (I7). A
// notice of a source that is no longer configured has ended too.
func (a *Agent) hasEnded(h *noticeState) bool {
	if s, known := a.snapshots[h.Notice.Source]; known {
		return s.HasEnded(h.Notice.ID)
	}
	return !slices.ContainsFunc(a.options.Sources, func(s Source) bool { return s.Name() == h.Notice.Source })
}

// markEndedNotices finds the notices that have ended or are ignored, and returns when to check again.
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
