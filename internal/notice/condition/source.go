// Package condition reads notices from the conditions of the agent's own Node.
//
// There are two kinds of conditions. A hint ([HintTypes]) is a condition of AKS's node-problem-detector that repeats
// Scheduled Events. The detector's scripts also set it after a timeout (https://github.com/Azure/AKS/issues/4757). So a
// hint only triggers a read of the metadata service. If the metadata service has not answered for a while, the hint
// becomes a notice. This notice ends when the service answers again.
//
// Every other condition becomes a notice if a [Rule] matches it. The notice begins when the condition has been true for
// a while. It ends when the condition has been false for a while.
//
// The package sends no requests. Its caller watches the Node and passes each state.
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

// SourceName is the value of [notice.Notice.Source] in the notices of this package.
const SourceName = "condition"

// DefaultUnconfirmedDelay is how long the metadata service must be unavailable before a hint becomes a notice. The
// delay allows for a restart of the service and for a slow response.
const DefaultUnconfirmedDelay = 3 * time.Minute

// metadataFreshness is how long the metadata service counts as available after its last successful read.
const metadataFreshness = 10 * time.Second

// metadataPollInterval is how often the time of the last read is checked while the Node has hints.
const metadataPollInterval = time.Second

// MetadataSource reads the metadata service, which confirms hints. *azure.Source implements it.
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

// Source converts the conditions of a Node to notices. ObserveNode and ResumeNotices are safe for concurrent use.
type Source struct {
	options Options
	changed chan struct{}

	mu       sync.Mutex
	node     *kubeapi.Node // latest state
	lastRead time.Time
	resumed  map[string]bool // IDs of the notices of an earlier process
}

// NewSource validates the options and returns a source. An error names the option, its value and what is allowed.
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

// Name returns the value of [notice.Notice.Source] in this source's notices.
func (s *Source) Name() string { return SourceName }

// LastRead returns when the source last received the Node. It returns the zero time before the first call of
// ObserveNode.
func (s *Source) LastRead() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lastRead
}

// ResumeNotices continues the notices of an earlier process that had not ended. The notice of a rule stays active until its
// condition has been false for long enough. The notice of a hint stays active until the hint is not true, or the metadata
// service has answered this process. Call ResumeNotices before the first ObserveNode.
func (s *Source) ResumeNotices(notices []notice.Notice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range notices {
		s.resumed[n.ID] = true
	}
}

func (s *Source) isResumed(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.resumed[id]
}

// ObserveNode passes the newest state of the Node to the source. It does not block.
func (s *Source) ObserveNode(node *kubeapi.Node) {
	s.mu.Lock()
	s.node, s.lastRead = node, time.Now()
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Run calls emit with snapshots until ctx ends. The first snapshot follows the first ObserveNode, and each further one
// follows a change of the notices.
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

// evaluator holds the state of one call of [Source.Run].
type evaluator struct {
	source      *Source
	started     time.Time
	rules       map[string]*ruleState // by rule ID
	hints       map[string]string     // message and time of each true hint, by type
	lastNotices []notice.Notice
	hasEmitted  bool
}

// ruleState holds whether a rule's notice is active, and since when the condition disagrees.
type ruleState struct {
	active bool
	// changedSince is since when the condition differs from active; zero while it agrees.
	changedSince time.Time
}

// evaluate returns the snapshot for the node's conditions. It also returns the delay after which the snapshot may
// change without a change of the node. A delay of 0 means never.
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

// storeAndReportChange stores the snapshot. It reports whether the snapshot has other notices than the last one, or is
// the first. A different message in a condition does not count as a change.
func (w *evaluator) storeAndReportChange(s notice.Snapshot) (changed bool) {
	same := slices.EqualFunc(w.lastNotices, s.Notices, func(a, b notice.Notice) bool { return a.ID == b.ID })
	news := !w.hasEmitted || !same
	w.lastNotices, w.hasEmitted = s.Notices, true
	return news
}

// evaluateRule reports whether a rule's notice is active. mayChangeAfter is the delay after which that may change without a
// change of the node.
func (w *evaluator) evaluateRule(r Rule, on *kubeapi.Condition, now time.Time) (active bool, mayChangeAfter time.Duration) {
	t := w.rules[r.ID()]
	if t == nil {
		t = &ruleState{active: w.source.isResumed(r.ID())}
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

// findChangeTime returns when a condition got its present status, which may be before this process started. It returns
// now for a time in the future, because then another clock is ahead.
func findChangeTime(on *kubeapi.Condition, now time.Time) time.Time {
	if on == nil || on.LastTransitionTime.IsZero() || on.LastTransitionTime.After(now) {
		return now
	}
	return on.LastTransitionTime
}

// evaluateHints triggers a read of the metadata service for new hints. If the metadata service has been unavailable for
// long enough, it returns notices for the hints. An earlier process has already waited for the hints that it acted on, so
// a restart does not end their notices (I7).
func (w *evaluator) evaluateHints(node *kubeapi.Node, now time.Time) (unconfirmed []notice.Notice, wait time.Duration) {
	s := w.source
	ask, any := false, false
	lastRead := s.options.Metadata.LastRead()
	isUnread := lastRead.Before(w.started)
	if isUnread {
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
		if away || isUnread && s.isResumed(kind) {
			unconfirmed = append(unconfirmed, newNotice(kind, kind, on))
		}
	}
	if ask {
		s.options.Metadata.RequestPoll()
	}
	switch {
	case !any:
		return nil, 0
	case len(unconfirmed) > 0:
		return unconfirmed, metadataPollInterval
	}
	return nil, max(s.options.UnconfirmedDelay-now.Sub(lastRead), metadataPollInterval)
}

// maxMessageBytes limits a condition's message in the notice, in bytes.
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

// pause is a duration, where 0 means unlimited.
type pause time.Duration

// shorter returns the shorter of two pauses.
func (l pause) shorter(d time.Duration) pause {
	if l == 0 || d > 0 && d < time.Duration(l) {
		return pause(d)
	}
	return l
}
