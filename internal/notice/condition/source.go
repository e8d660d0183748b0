// Package condition reads notices from the conditions of the agent's own Node.
//
// There are two kinds of conditions. Hints ([Hints]) are conditions of AKS's node-problem-detector that repeat
// Scheduled Events. Its scripts raise them on timeouts too (https://github.com/Azure/AKS/issues/4757). So a hint only
// triggers a read of the metadata service. If that service has not answered for a while, the hint becomes a notice,
// until the service answers again.
//
// All other conditions become notices by rules ([Rule]). The notice begins once the condition has been true for a
// while, and ends once it has been false for a while.
//
// The package sends no requests. Its caller watches the Node and passes its states.
package condition

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
)

// SourceName is the Source field of its notices.
const SourceName = "condition"

// DefaultUnconfirmedDelay is how long the metadata service may be unavailable before hints count without it. It
// allows for a restart of the service and a slow response.
const DefaultUnconfirmedDelay = 3 * time.Minute

// metadataFreshness is how long after its last read the metadata service counts as available.
const metadataFreshness = 10 * time.Second

// metadataPollInterval is how often the last read is checked while there are hints.
const metadataPollInterval = time.Second

// MetadataSource is the source that confirms hints. *azure.Source implements it.
type MetadataSource interface {
	// RequestPoll triggers an immediate read. It does not block.
	RequestPoll()
	// LastRead returns when it was last read successfully; zero is never.
	LastRead() time.Time
}

// Options configures a [Source].
type Options struct {
	Rules []Rule
	// Metadata is required.
	Metadata MetadataSource
	// UnconfirmedDelay is how long the metadata service must be unavailable before hints count; 0 is
	// DefaultUnconfirmedDelay.
	UnconfirmedDelay time.Duration
	// RequireMetadata delays the start of every rule's notice while the metadata service is unavailable.
	RequireMetadata bool
}

// Source converts a node's conditions to notices. See and Resume may be called from any goroutine.
type Source struct {
	options Options
	changed chan struct{}

	mu       sync.Mutex
	node     *kubeapi.Node // latest state
	lastRead time.Time
	resumed  map[string]bool // IDs of the notices of an earlier process
}

// NewSource checks the options. Its errors name the option, its value and what is allowed.
func NewSource(o Options) (*Source, error) {
	if o.Metadata == nil {
		return nil, errors.New("metadata: is missing, want the source that confirms hints")
	}
	if o.UnconfirmedDelay < 0 {
		return nil, fmt.Errorf("unconfirmed after: %s: want more than 0", o.UnconfirmedDelay)
	}
	if o.UnconfirmedDelay == 0 {
		o.UnconfirmedDelay = DefaultUnconfirmedDelay
	}
	if err := ValidateRules(o.Rules); err != nil {
		return nil, err
	}
	return &Source{options: o, changed: make(chan struct{}, 1), resumed: map[string]bool{}}, nil
}

// Name returns the Source field of the notices.
func (s *Source) Name() string { return SourceName }

// LastRead returns when the node was last seen; zero is never.
func (s *Source) LastRead() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lastRead
}

// ResumeNotices passes the notices of an earlier process that had not ended. Each stays until its condition has been false
// for long enough. Call it before the first See.
func (s *Source) ResumeNotices(notices []notice.Notice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range notices {
		s.resumed[n.ID] = true
	}
}

// ObserveNode passes a newer state of the Node. It does not block.
func (s *Source) ObserveNode(node *kubeapi.Node) {
	s.mu.Lock()
	s.node, s.lastRead = node, time.Now()
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Run emits snapshots until ctx ends: one when the node was first seen, and one after each change of the notices. It
// calls emit from its own goroutine.
func (s *Source) Run(ctx context.Context, emit func(notice.Snapshot)) {
	w := evaluator{source: s, started: time.Now(), rules: map[string]*ruleState{}, hints: map[string]string{}}
	timer := time.NewTimer(0)
	timer.Stop()
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
		case <-timer.C:
		}
		snapshot, next := w.evaluate(time.Now())
		if w.storeAndReportChange(snapshot) {
			emit(snapshot)
		}
		timer.Stop()
		if next > 0 {
			timer.Reset(next)
		}
	}
}

// evaluator is the state of one Run.
type evaluator struct {
	source      *Source
	started     time.Time
	rules       map[string]*ruleState // by rule ID
	hints       map[string]string     // message and time of each true hint, by type
	lastNotices []notice.Notice
	hasEmitted  bool
}

// ruleState tracks one rule.
type ruleState struct {
	active bool
	// changedSince is since when the condition differs from active; zero while it agrees.
	changedSince time.Time
}

// evaluate returns the snapshot for the node's conditions. It also returns when the snapshot may change without a
// change of the node; 0 is never.
func (w *evaluator) evaluate(now time.Time) (snapshot notice.Snapshot, recheckAfter time.Duration) {
	s := w.source
	s.mu.Lock()
	node := s.node
	s.mu.Unlock()
	snapshot = notice.Snapshot{At: now}
	next := pause(0)
	for _, r := range s.options.Rules {
		on := findCondition(node, r.Type)
		active, wait := w.evaluateRule(r, on, now)
		next = next.shorter(wait)
		if active {
			snapshot.Notices = append(snapshot.Notices, newNotice(r.ID(), r.Type, on))
		}
	}
	unconfirmed, wait := w.evaluateHints(node, now)
	snapshot.Notices = append(snapshot.Notices, unconfirmed...)
	next = next.shorter(wait)
	slices.SortFunc(snapshot.Notices, func(a, b notice.Notice) int { return strings.Compare(a.ID, b.ID) })
	return snapshot, time.Duration(next)
}

// storeAndReportChange stores the snapshot, and reports whether its notices differ from the last ones. A different message
// of a detector does not count.
func (w *evaluator) storeAndReportChange(s notice.Snapshot) (changed bool) {
	same := slices.EqualFunc(w.lastNotices, s.Notices, func(a, b notice.Notice) bool { return a.ID == b.ID })
	news := !w.hasEmitted || !same
	w.lastNotices, w.hasEmitted = s.Notices, true
	return news
}

// evaluateRule returns whether a rule's notice is active, and when that may change without a change of the node.
func (w *evaluator) evaluateRule(r Rule, on *kubeapi.Condition, now time.Time) (active bool, wait time.Duration) {
	t := w.rules[r.ID()]
	if t == nil {
		w.source.mu.Lock()
		t = &ruleState{active: w.source.resumed[r.ID()]}
		w.source.mu.Unlock()
		w.rules[r.ID()] = t
	}
	if on != nil && on.Status == "Unknown" && r.wantedStatus() != "Unknown" {
		t.changedSince = time.Time{} // Unknown neither starts nor ends a notice (I7), but restarts the waiting time
		return t.active, 0
	}
	matches := on != nil && on.Status == r.wantedStatus()
	if matches == t.active {
		t.changedSince = time.Time{}
		return t.active, 0
	}
	if t.changedSince.IsZero() {
		t.changedSince = findChangeTime(on, now)
	}
	patience := r.holdDownOrDefault()
	if t.active {
		patience = r.releaseOrDefault()
	}
	if left := patience - now.Sub(t.changedSince); left > 0 {
		return t.active, left
	}
	if s := w.source; matches && s.options.RequireMetadata && now.Sub(s.options.Metadata.LastRead()) > metadataFreshness {
		return false, metadataPollInterval
	}
	t.active, t.changedSince = matches, time.Time{}
	return t.active, 0
}

// findChangeTime returns when a condition got its present status, which may be before this process started. A time in
// the future counts as now, because another clock is ahead.
func findChangeTime(on *kubeapi.Condition, now time.Time) time.Time {
	if on == nil || on.LastTransitionTime.IsZero() || on.LastTransitionTime.After(now) {
		return now
	}
	return on.LastTransitionTime
}

// evaluateHints triggers a read of the metadata service for new hints. It returns notices for hints if that service
// has been unavailable for long enough.
func (w *evaluator) evaluateHints(node *kubeapi.Node, now time.Time) (unconfirmed []notice.Notice, wait time.Duration) {
	s := w.source
	ask, any := false, false
	lastRead := s.options.Metadata.LastRead()
	if lastRead.Before(w.started) {
		lastRead = w.started
	}
	away := now.Sub(lastRead) >= s.options.UnconfirmedDelay
	for _, kind := range HintTypes() {
		on := findCondition(node, kind)
		if on == nil || on.Status != "True" {
			delete(w.hints, kind)
			continue
		}
		any = true
		if says := on.Message + on.LastTransitionTime.String(); w.hints[kind] != says {
			w.hints[kind], ask = says, true
		}
		if away {
			unconfirmed = append(unconfirmed, newNotice(kind, kind, on))
		}
	}
	if ask {
		s.options.Metadata.RequestPoll()
	}
	switch {
	case !any:
		return nil, 0
	case away:
		return unconfirmed, metadataPollInterval
	}
	return nil, max(s.options.UnconfirmedDelay-now.Sub(lastRead), metadataPollInterval)
}

// maxMessageBytes limits a condition's message in the record on the node.
const maxMessageBytes = 256

func newNotice(id, kind string, on *kubeapi.Condition) notice.Notice {
	n := notice.Notice{ID: id, Source: SourceName, Type: notice.Condition, Status: notice.Scheduled, Duration: -1, Description: kind}
	if on == nil {
		return n
	}
	text := on.Message
	if len(text) > maxMessageBytes {
		text = strings.ToValidUTF8(text[:maxMessageBytes], "") + "…"
	}
	n.Description = strings.TrimSpace(fmt.Sprintf("%s is %s: %s %s", kind, on.Status, on.Reason, text))
	return n
}

func findCondition(node *kubeapi.Node, kind string) *kubeapi.Condition {
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == kind {
			return c
		}
	}
	return nil
}

// pause is a duration; 0 is unlimited.
type pause time.Duration

// shorter returns the shorter of two pauses.
func (l pause) shorter(d time.Duration) pause {
	if l == 0 || d > 0 && d < time.Duration(l) {
		return pause(d)
	}
	return l
}
