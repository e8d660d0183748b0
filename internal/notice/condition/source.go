// Package condition reads notices off the conditions of the agent's own Node.
//
// Two kinds of condition are told apart. Those by which AKS's node-problem-detector repeats what Scheduled Events
// announce ([Hints]) are hints: they are raised by scripts that time out too (https://github.com/Azure/AKS/issues/4757),
// so that they have the metadata service asked at once and are no notice. Only when that has not answered for a while do
// they become one, until it answers again: then it knows better. All others are notices by rules ([Rule]), once they have
// held for a while, and until they have been gone for a while.
//
// The package asks nothing of anybody: the Node is handed to it by who follows it.
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

// Name is the name of this source in its notices.
const Name = "condition"

// DefaultUnconfirmedAfter is for how long the metadata service may be away before hints count without it. It bears a
// restart of the service, and an answer that takes its time.
const DefaultUnconfirmedAfter = 3 * time.Minute

// readable is for how long after it was last read the metadata service counts as one that can be read.
const readable = 10 * time.Second

// lookAgain is how often the metadata service's return is looked for while hints stand unconfirmed.
const lookAgain = time.Second

// Metadata is the source that hints are confirmed with. *azure.Source is one.
type Metadata interface {
	// Ask has it read at once. It does not block.
	Ask()
	// LastRead is when it was last read and understood; zero is never.
	LastRead() time.Time
}

// Options configure a [Source].
type Options struct {
	Rules []Rule
	// Metadata is needed.
	Metadata Metadata
	// UnconfirmedAfter is for how long the metadata service must not have answered before hints count; 0 is
	// DefaultUnconfirmedAfter.
	UnconfirmedAfter time.Duration
	// NeedsMetadata has no rule's notice begin while the metadata service cannot be read.
	NeedsMetadata bool
}

// Source makes notices of a node's conditions. See and Resume may be called from any goroutine.
type Source struct {
	o    Options
	news chan struct{}

	mu       sync.Mutex
	node     *kubeapi.Node // the newest
	lastRead time.Time
	resumed  map[string]bool // IDs of the notices that an earlier process made
}

// New checks the options; its errors name the option, its value and what is allowed.
func New(o Options) (*Source, error) {
	if o.Metadata == nil {
		return nil, errors.New("metadata is missing; want the source that hints are confirmed with")
	}
	if o.UnconfirmedAfter < 0 {
		return nil, fmt.Errorf("unconfirmed after: %s: want more than 0", o.UnconfirmedAfter)
	}
	if o.UnconfirmedAfter == 0 {
		o.UnconfirmedAfter = DefaultUnconfirmedAfter
	}
	if err := ValidateAll(o.Rules); err != nil {
		return nil, err
	}
	return &Source{o: o, news: make(chan struct{}, 1), resumed: map[string]bool{}}, nil
}

// Name is the name of the source in its notices.
func (s *Source) Name() string { return Name }

// LastRead is when the node was last seen; the zero time before the first.
func (s *Source) LastRead() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lastRead
}

// Resume tells of the notices that an earlier process made and that were not over: each stands until its condition has
// been gone for long enough. It must be called before the first See.
func (s *Source) Resume(notices []notice.Notice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range notices {
		s.resumed[n.ID] = true
	}
}

// See takes in a newer state of the Node. It does not block.
func (s *Source) See(node *kubeapi.Node) {
	s.mu.Lock()
	s.node, s.lastRead = node, time.Now()
	s.mu.Unlock()
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// Run makes notices until ctx ends. It hands a snapshot to emit when the node has first been seen, and then whenever
// what it would say has changed. emit is called from Run's goroutine.
func (s *Source) Run(ctx context.Context, emit func(notice.Snapshot)) {
	w := watch{source: s, began: time.Now(), tracks: map[string]*track{}, hints: map[string]string{}}
	timer := time.NewTimer(0)
	timer.Stop()
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.news:
		case <-timer.C:
		}
		snapshot, next := w.look(time.Now())
		if w.isNews(snapshot) {
			emit(snapshot)
		}
		timer.Stop()
		if next > 0 {
			timer.Reset(next)
		}
	}
}

// watch is the state of one Run.
type watch struct {
	source *Source
	began  time.Time
	tracks map[string]*track // by the rule's ID
	hints  map[string]string // what each hint that holds says, by type
	said   []notice.Notice
	spoken bool
}

// track follows one rule.
type track struct {
	active bool
	// turned is since when the condition has been other than active says; zero while it agrees.
	turned time.Time
}

// look works out what the node's conditions say, and when they may say something else though nothing happens to them;
// 0 is never.
func (w *watch) look(now time.Time) (notice.Snapshot, time.Duration) {
	s := w.source
	s.mu.Lock()
	node := s.node
	s.mu.Unlock()
	snapshot := notice.Snapshot{At: now}
	next := later(0)
	for _, r := range s.o.Rules {
		on := find(node, r.Type)
		active, wait := w.follow(r, on, now)
		next = next.or(wait)
		if active {
			snapshot.Notices = append(snapshot.Notices, noticeOf(r.ID(), r.Type, on))
		}
	}
	unconfirmed, wait := w.hinted(node, now)
	snapshot.Notices = append(snapshot.Notices, unconfirmed...)
	next = next.or(wait)
	slices.SortFunc(snapshot.Notices, func(a, b notice.Notice) int { return strings.Compare(a.ID, b.ID) })
	return snapshot, time.Duration(next)
}

// isNews reports that the snapshot has other notices than the last one, and keeps it. How a detector words its message
// is no news.
func (w *watch) isNews(s notice.Snapshot) bool {
	same := slices.EqualFunc(w.said, s.Notices, func(a, b notice.Notice) bool { return a.ID == b.ID })
	news := !w.spoken || !same
	w.said, w.spoken = s.Notices, true
	return news
}

// follow says whether a rule's notice stands, and when that may change by itself.
func (w *watch) follow(r Rule, on *kubeapi.Condition, now time.Time) (active bool, wait time.Duration) {
	t := w.tracks[r.ID()]
	if t == nil {
		w.source.mu.Lock()
		t = &track{active: w.source.resumed[r.ID()]}
		w.source.mu.Unlock()
		w.tracks[r.ID()] = t
	}
	if on != nil && on.Status == "Unknown" && r.status() != "Unknown" {
		t.turned = time.Time{} // unknown is neither come nor gone (I7), and breaks what was on its way
		return t.active, 0
	}
	matches := on != nil && on.Status == r.status()
	if matches == t.active {
		t.turned = time.Time{}
		return t.active, 0
	}
	if t.turned.IsZero() {
		t.turned = turnedAt(on, now)
	}
	patience := r.holdDown()
	if t.active {
		patience = r.release()
	}
	if left := patience - now.Sub(t.turned); left > 0 {
		return t.active, left
	}
	if s := w.source; matches && s.o.NeedsMetadata && now.Sub(s.o.Metadata.LastRead()) > readable {
		return false, lookAgain
	}
	t.active, t.turned = matches, time.Time{}
	return t.active, 0
}

// turnedAt is when a condition came to be as it is: it may have been so before this process began. A clock that is
// ahead of ours is not believed.
func turnedAt(on *kubeapi.Condition, now time.Time) time.Time {
	if on == nil || on.LastTransitionTime.IsZero() || on.LastTransitionTime.After(now) {
		return now
	}
	return on.LastTransitionTime
}

// hinted asks the metadata service about hints that are new, and makes notices of those that it has been away for.
func (w *watch) hinted(node *kubeapi.Node, now time.Time) (unconfirmed []notice.Notice, wait time.Duration) {
	s := w.source
	ask, any := false, false
	lastRead := s.o.Metadata.LastRead()
	if lastRead.Before(w.began) {
		lastRead = w.began
	}
	away := now.Sub(lastRead) >= s.o.UnconfirmedAfter
	for _, kind := range Hints() {
		on := find(node, kind)
		if on == nil || on.Status != "True" {
			delete(w.hints, kind)
			continue
		}
		any = true
		if says := on.Message + on.LastTransitionTime.String(); w.hints[kind] != says {
			w.hints[kind], ask = says, true
		}
		if away {
			unconfirmed = append(unconfirmed, noticeOf(kind, kind, on))
		}
	}
	if ask {
		s.o.Metadata.Ask()
	}
	switch {
	case !any:
		return nil, 0
	case away:
		return unconfirmed, lookAgain
	}
	return nil, max(s.o.UnconfirmedAfter-now.Sub(lastRead), lookAgain)
}

// longestText bounds what is kept of a condition's message, which goes into the record on the node.
const longestText = 256

// noticeOf makes a notice of a condition.
func noticeOf(id, kind string, on *kubeapi.Condition) notice.Notice {
	n := notice.Notice{ID: id, Source: Name, Type: notice.Condition, Status: notice.Scheduled, Duration: -1, Description: kind}
	if on == nil {
		return n
	}
	text := on.Message
	if len(text) > longestText {
		text = strings.ToValidUTF8(text[:longestText], "") + "…"
	}
	n.Description = strings.TrimSpace(fmt.Sprintf("%s is %s: %s %s", kind, on.Status, on.Reason, text))
	return n
}

func find(node *kubeapi.Node, kind string) *kubeapi.Condition {
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == kind {
			return c
		}
	}
	return nil
}

// later is a pause of which 0 is for ever.
type later time.Duration

// or is the shorter pause.
func (l later) or(d time.Duration) later {
	if l == 0 || d > 0 && d < time.Duration(l) {
		return later(d)
	}
	return l
}
