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

// Options configure an Emulator. The zero value is a faithful service with the documented notices, no machines behind
// it, and a prompt first call.
type Options struct {
	// Machines is what events act upon. When nil, events come and go without any effect.
	Machines Machines
	// Bookkeeper keeps the ledger. When nil, there is none.
	Bookkeeper Bookkeeper
	// Notices overrides MinimumNotice for the types it has.
	Notices map[EventType]time.Duration
	// Outage is how long a machine is away in a Freeze, Reboot or Redeploy of unknown duration. Default 30 s.
	Outage time.Duration
	// Linger is how long an event stays listed as Started after its impact is over. The real service takes minutes for
	// its health checks; the default is none.
	Linger time.Duration
	// ApprovalDelay is the time from an event's first approval to its start, as when Azure waits for other tenants of
	// the same host. The event still starts at NotBefore at the latest. Default none.
	ApprovalDelay time.Duration
	// FirstCall is how long a scale set's first call, or its first after 24 hours, takes to be answered. The real
	// service may need two minutes; the default is none.
	FirstCall time.Duration
	// Log is discarded when nil.
	Log *slog.Logger
}

const (
	defaultOutage = 30 * time.Second
	// powerTimeout bounds one call to Machines, so that a hanging one cannot keep an event listed for ever.
	powerTimeout = time.Minute
)

// Emulator is an emulated Azure. Its methods may be called from several goroutines at once. Close ends it.
type Emulator struct {
	opts Options
	log  *slog.Logger

	ctx   context.Context // ends at Close, for the lives of events
	stop  context.CancelFunc
	lives sync.WaitGroup

	mu      sync.Mutex
	sets    map[string]*ScaleSet // by name in lower case
	events  []*event             // in the order of their announcement, vanished ones too
	faults  []*armedFault
	arm     *ARM          // nil for an emulator of the metadata service alone
	changed chan struct{} // closed and replaced at every change of an event
}

// ScaleSet is one placement group: machines that are all given the same document.
type ScaleSet struct {
	name     string
	emulator *Emulator

	// Guarded by Emulator.mu.
	incarnation int
	requests    int
	lastRequest time.Time
	enabledAt   time.Time
}

// New gives an emulator without scale sets.
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

// Close ends the lives of all events where they stand, without switching any machine, and waits for them.
func (e *Emulator) Close() {
	e.mu.Lock() // so that no announcement is half-way: its event either joins the lives or is refused
	e.stop()
	e.mu.Unlock()
	e.lives.Wait()
}

// ScaleSet gives the scale set of that name in any letter case, and makes it when there is none.
func (e *Emulator) ScaleSet(name string) *ScaleSet {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := strings.ToLower(name)
	if e.sets[key] == nil {
		// The documentation's first example, of a list without events, has incarnation 1.
		e.sets[key] = &ScaleSet{name: name, emulator: e, incarnation: 1}
	}
	return e.sets[key]
}

// Name is the name the scale set was made with.
func (s *ScaleSet) Name() string { return s.name }

// lookUp gives the scale set of that name, or the only one there is for an empty name.
func (e *Emulator) lookUp(name string) (*ScaleSet, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lookUpLocked(name)
}

func (e *Emulator) lookUpLocked(name string) (*ScaleSet, error) {
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

// Handler serves everything: the metadata service of all scale sets, the control API under /emulator/, and what there is
// of Azure Resource Manager.
func (e *Emulator) Handler() http.Handler {
	mux := http.NewServeMux()
	e.routeMetadata(mux)
	e.routeControl(mux)
	e.routeSimulateEviction(mux)
	if e.arm != nil {
		e.arm.routeControl(mux)
	}
	return mux
}

// State is everything an emulator knows at one moment.
type State struct {
	At        time.Time       `json:"at"`
	ScaleSets []ScaleSetState `json:"scaleSets"`
	// Events has every event ever announced, in that order.
	Events []Record `json:"events"`
}

// ScaleSetState is one scale set at one moment.
type ScaleSetState struct {
	Name        string    `json:"name"`
	Incarnation int       `json:"documentIncarnation"`
	Requests    int       `json:"requests"`
	LastRequest time.Time `json:"lastRequest,omitzero"`
}

// Event gives the record of the event with that ID, in any letter case.
func (s State) Event(id string) (Record, bool) {
	for _, r := range s.Events {
		if strings.EqualFold(r.EventID, id) {
			return r, true
		}
	}
	return Record{}, false
}

// State gives a snapshot, which shares nothing with the emulator.
func (e *Emulator) State() State {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stateLocked()
}

func (e *Emulator) stateLocked() State {
	s := State{At: time.Now(), ScaleSets: []ScaleSetState{}, Events: []Record{}}
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

// Wait returns the first state for which done is true: the present one, or one after a change of an event. When ctx
// ends first it returns the last state and the context's error; when the emulator is closed, ErrClosed.
func (e *Emulator) Wait(ctx context.Context, done func(State) bool) (State, error) {
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

// announceChange wakes all who Wait.
func (e *Emulator) announceChange() {
	close(e.changed)
	e.changed = make(chan struct{})
}
