package azure

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Options configures an Emulator. With the zero value, events have Azure's documented notice times and affect no
// machines, and the first call has no delay.
type Options struct {
	// Machines switches the machines of events. If it is nil, events have no effect.
	Machines Machines
	// LedgerBuilder keeps the ledger. If it is nil, there is no ledger.
	LedgerBuilder LedgerBuilder
	// Notices overrides MinimumNotice per type.
	Notices map[EventType]time.Duration
	// Outage is the downtime of a machine in a Freeze, Reboot or Redeploy of unknown duration. The default is 30 s.
	Outage time.Duration
	// StartedAfterImpact is the time that an event stays listed as Started after its impact. The real service needs minutes for its
	// health checks; the default is 0.
	StartedAfterImpact time.Duration
	// ApprovalDelay is the time from an event's first approval to its start, because Azure waits for other tenants of the
	// host. The event starts at NotBefore at the latest. The default is 0.
	ApprovalDelay time.Duration
	// FirstCallDelay is the duration of a scale set's first call, also after 24 hours without calls. The real service may need
	// two minutes; the default is 0.
	FirstCallDelay time.Duration
	// Log may be nil.
	Log *slog.Logger
}

const (
	defaultOutage = 30 * time.Second
	// powerTimeout limits one call to Machines, so that a hanging call does not keep an event listed.
	powerTimeout = time.Minute
)

// Emulator emulates Azure's Scheduled Events for any number of scale sets. Its methods may be called concurrently.
// Call Close to end it.
type Emulator struct {
	opts Options
	log  *slog.Logger

	ctx           context.Context // ends at Close, for the goroutines of events
	stop          context.CancelFunc
	eventRoutines sync.WaitGroup

	mu      sync.Mutex
	sets    map[string]*ScaleSet // by name in lower case
	events  []*event             // in the order of announcement, vanished events too
	faults  []*armedFault
	arm     *ARM          // nil if there is only the metadata service
	changed chan struct{} // closed and replaced at every change of an event
}

// ScaleSet is one placement group. All its machines get the same document of events.
type ScaleSet struct {
	name     string
	emulator *Emulator

	// guarded by Emulator.mu
	incarnation int
	requests    int
	lastRequest time.Time
	enabledAt   time.Time
}

// New returns an emulator without scale sets and events.
func New(opts Options) *Emulator {
	if opts.Outage == 0 {
		opts.Outage = defaultOutage
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	ctx, stop := context.WithCancel(context.Background())
	return &Emulator{
		opts: opts, log: opts.Log, ctx: ctx, stop: stop,
		sets: map[string]*ScaleSet{}, changed: make(chan struct{}),
	}
}

// Close stops the goroutines of all events and waits for them. It does not switch any machine on or off.
func (e *Emulator) Close() {
	e.mu.Lock() // so that the event of a concurrent announcement is either waited for or refused
	e.stop()
	e.mu.Unlock()
	e.eventRoutines.Wait()
}

// EnsureScaleSet returns the scale set with the given name, and ignores letter case. It creates the scale set if it
// does not exist.
func (e *Emulator) EnsureScaleSet(name string) *ScaleSet {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := strings.ToLower(name)
	if e.sets[key] == nil {
		// The documentation's first example, of a list without events, has incarnation 1.
		e.sets[key] = &ScaleSet{name: name, emulator: e, incarnation: 1}
	}
	return e.sets[key]
}

// Name returns the name that the scale set was created with.
func (s *ScaleSet) Name() string { return s.name }

// findScaleSet returns the scale set with the given name. With an empty name it returns the only scale set.
func (e *Emulator) findScaleSet(name string) (*ScaleSet, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.findScaleSetLocked(name)
}

func (e *Emulator) findScaleSetLocked(name string) (*ScaleSet, error) {
	if name == "" && len(e.sets) == 1 {
		for _, set := range e.sets {
			return set, nil
		}
	}
	if set := e.sets[strings.ToLower(name)]; set != nil {
		return set, nil
	}
	return nil, fmt.Errorf("scale set %q: %w: want one of %q", name, ErrUnknownScaleSet, e.setNamesLocked())
}

func (e *Emulator) setNamesLocked() []string {
	names := make([]string, 0, len(e.sets))
	for _, set := range e.sets {
		names = append(names, set.name)
	}
	slices.Sort(names)
	return names
}

// Handler serves the metadata service of all scale sets, the control API under /emulator/, and the ARM requests that
// need no TLS.
func (e *Emulator) Handler() http.Handler {
	mux := http.NewServeMux()
	e.registerMetadataRoutes(mux)
	e.registerControlRoutes(mux)
	e.registerSimulateEvictionRoutes(mux)
	if e.arm != nil {
		e.arm.registerControlRoutes(mux)
	}
	return mux
}

// State is a snapshot of the scale sets and events of an emulator.
type State struct {
	At        time.Time       `json:"at"`
	ScaleSets []ScaleSetState `json:"scaleSets"`
	// Events has every announced event in order.
	Events []EventRecord `json:"events"`
}

// ScaleSetState is a snapshot of a scale set.
type ScaleSetState struct {
	Name        string    `json:"name"`
	Incarnation int       `json:"documentIncarnation"`
	Requests    int       `json:"requests"`
	LastRequest time.Time `json:"lastRequest,omitzero"`
}

// Event returns the event with the given ID. It ignores letter case.
func (s State) Event(id string) (event EventRecord, found bool) {
	for _, r := range s.Events {
		if strings.EqualFold(r.EventID, id) {
			return r, true
		}
	}
	return EventRecord{}, false
}

// State returns a deep copy of the current state.
func (e *Emulator) State() State {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stateLocked()
}

func (e *Emulator) stateLocked() State {
	s := State{At: time.Now(), ScaleSets: []ScaleSetState{}, Events: []EventRecord{}}
	for _, name := range e.setNamesLocked() {
		set := e.sets[strings.ToLower(name)]
		s.ScaleSets = append(s.ScaleSets, ScaleSetState{
			Name: set.name, Incarnation: set.incarnation, Requests: set.requests, LastRequest: set.lastRequest,
		})
	}
	for _, ev := range e.events {
		s.Events = append(s.Events, ev.record.clone())
	}
	return s
}

// AwaitState waits until done returns true for a state, and returns this state. It calls done at once, and after
// each change of an event. If ctx ends first, it returns the last state and the error of ctx. If the emulator is
// closed, it returns ErrClosed.
func (e *Emulator) AwaitState(ctx context.Context, done func(State) bool) (State, error) {
	for {
		e.mu.Lock()
		state, changed := e.stateLocked(), e.changed
		e.mu.Unlock()
		if done(state) {
			return state, nil
		}
		select {
		case <-changed:
		case <-e.ctx.Done():
			return state, fmt.Errorf("waiting for a state of the emulator: %w", ErrClosed)
		case <-ctx.Done():
			return state, fmt.Errorf("waiting for a state of the emulator: %w", context.Cause(ctx))
		}
	}
}

// notifyWaiters wakes all callers of AwaitState.
func (e *Emulator) notifyWaiters() {
	close(e.changed)
	e.changed = make(chan struct{})
}
