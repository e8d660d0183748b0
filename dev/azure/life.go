package azure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Refusals of a command, for errors.Is.
var (
	ErrUnknownEvent = errors.New("no such event")
	ErrWrongStatus  = errors.New("not possible in its status")
	ErrClosed       = errors.New("the emulator is closed")
)

// Cause is why an event started.
type Cause string

// The causes of a start.
const (
	ByNotBefore Cause = "not-before" // its time had come
	ByApproval  Cause = "approval"   // a StartRequest approved it
	ByCommand   Cause = "command"    // Emulator.Start
	ByFailure   Cause = "failure"    // it was announced as Started
)

// Ending is how an event left the document.
type Ending string

// The two endings.
const (
	Finished  Ending = "finished"
	Cancelled Ending = "cancelled"
)

// Record is an event and its history.
type Record struct {
	ScaleSet        string      `json:"scaleSet"`
	EventID         string      `json:"eventId"`
	Type            EventType   `json:"type"`
	Resources       []string    `json:"resources"`
	Status          EventStatus `json:"status"`
	Source          EventSource `json:"source"`
	Description     string      `json:"description"`
	DurationSeconds int         `json:"durationSeconds"`
	// VisibleAt is when the event was announced; every document answered from then on lists it.
	VisibleAt time.Time `json:"visibleAt"`
	// NotBefore stays here after the start, when the document shows none; zero for an event announced as Started.
	NotBefore time.Time  `json:"notBefore,omitzero"`
	Approvals []Approval `json:"approvals,omitempty"`
	StartedAt time.Time  `json:"startedAt,omitzero"`
	StartedBy Cause      `json:"startedBy,omitempty"`
	// Power is what was done to the machines, in the order it took effect.
	Power      []PowerChange `json:"power,omitempty"`
	VanishedAt time.Time     `json:"vanishedAt,omitzero"`
	Ending     Ending        `json:"ending,omitempty"`
}

// Approval is one approver of an event.
type Approval struct {
	// By is the machine's name where the request's path told it, or else the client's host and user agent.
	By string `json:"by"`
	// At is when it approved first, Times how often in all.
	At    time.Time `json:"at"`
	Times int       `json:"times"`
}

// Listed reports whether the document still shows the event.
func (r Record) Listed() bool { return r.VanishedAt.IsZero() }

// DiedAt is when the event took the machine down, or zero when it did not (yet).
func (r Record) DiedAt(resource string) time.Time {
	for _, p := range r.Power {
		if !p.On && p.Error == "" && strings.EqualFold(p.Resource, resource) {
			return p.At
		}
	}
	return time.Time{}
}

func (r Record) clone() Record {
	r.Resources = slices.Clone(r.Resources)
	r.Approvals = slices.Clone(r.Approvals)
	r.Power = slices.Clone(r.Power)
	return r
}

// event is a Record with a life of its own, led by the goroutine in live.
type event struct {
	record Record // guarded by Emulator.mu
	set    *ScaleSet
	outage time.Duration
	// wake tells live that the record has changed; it holds one token, as one look at the record catches up with all.
	wake chan struct{}
	// finish is closed to end the impact early.
	finish     chan struct{}
	finishOnce sync.Once
}

// Announce lists a new event and returns its record; the event is visible from record.VisibleAt on. Refusals are
// ErrInvalid, ErrUnknownScaleSet, ErrDuplicateEvent and ErrClosed.
func (e *Emulator) Announce(a Announcement) (Record, error) {
	if err := a.validate(); err != nil {
		return Record{}, fmt.Errorf("announce: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ctx.Err() != nil {
		return Record{}, fmt.Errorf("announce: %w", ErrClosed)
	}
	set, err := e.setOfLocked(a)
	if err != nil {
		return Record{}, fmt.Errorf("announce: %w", err)
	}
	if a.EventID != "" {
		if _, err := e.findLocked(a.EventID); err == nil {
			return Record{}, fmt.Errorf("announce: eventId %q: %w", a.EventID, ErrDuplicateEvent)
		}
	}
	ev := e.newEvent(a, set, time.Now())
	e.events = append(e.events, ev)
	e.listChangedLocked(ev, "event announced")
	e.lives.Go(func() { e.live(ev) })
	return ev.record.clone(), nil
}

// setOfLocked finds the scale set of an announcement.
func (e *Emulator) setOfLocked(a Announcement) (*ScaleSet, error) {
	if a.ScaleSet != "" {
		return e.lookUpLocked(a.ScaleSet)
	}
	// A machine of a uniform scale set is named <scale set>_<instance ID>.
	if i := strings.LastIndex(a.Resources[0], "_"); i > 0 {
		if set := e.sets[strings.ToLower(a.Resources[0][:i])]; set != nil {
			return set, nil
		}
	}
	return e.lookUpLocked("")
}

// newEvent fills in what the announcement left out.
func (e *Emulator) newEvent(a Announcement, set *ScaleSet, now time.Time) *event {
	r := Record{
		ScaleSet: set.name, EventID: a.EventID, Type: a.Type, Resources: slices.Clone(a.Resources),
		Status: Scheduled, Source: Platform, DurationSeconds: UnknownDuration, VisibleAt: now,
	}
	if r.EventID == "" {
		r.EventID = newEventID()
	}
	if a.Source != "" {
		r.Source = a.Source
	}
	if r.Description = description(r.Type, r.Source); a.Description != nil {
		r.Description = *a.Description
	}
	switch {
	case a.DurationSeconds != nil:
		r.DurationSeconds = *a.DurationSeconds
	case a.Type == Freeze:
		r.DurationSeconds = 5
	}
	switch {
	case a.Status == Started:
		r.Status, r.StartedAt, r.StartedBy = Started, now, ByFailure
	case !a.NotBefore.IsZero():
		r.NotBefore = roundUp(a.NotBefore)
	default:
		r.NotBefore = roundUp(now.Add(e.notice(a)))
	}
	return &event{
		record: r, set: set, outage: e.outage(a, r),
		wake: make(chan struct{}, 1), finish: make(chan struct{}),
	}
}

func (e *Emulator) notice(a Announcement) time.Duration {
	if a.Notice > 0 {
		return a.Notice
	}
	if d, ok := e.opts.Notices[a.Type]; ok {
		return d
	}
	return MinimumNotice(a.Type)
}

func (e *Emulator) outage(a Announcement, r Record) time.Duration {
	switch {
	case a.Outage > 0:
		return a.Outage
	case r.DurationSeconds != UnknownDuration:
		return time.Duration(r.DurationSeconds) * time.Second
	}
	return e.opts.Outage
}

// Start starts a Scheduled event now, whatever its NotBefore, as when the platform does not keep its word.
func (e *Emulator) Start(id string) error {
	return e.command("start", id, Scheduled, func(ev *event) { e.startLocked(ev, ByCommand) })
}

// Cancel removes a Scheduled event; its impact does not happen.
func (e *Emulator) Cancel(id string) error {
	return e.command("cancel", id, Scheduled, func(ev *event) {
		e.vanishLocked(ev, Cancelled)
		ev.nudge()
	})
}

// Reschedule moves the NotBefore of a Scheduled event to the full second at or after notBefore.
func (e *Emulator) Reschedule(id string, notBefore time.Time) error {
	return e.command("reschedule", id, Scheduled, func(ev *event) {
		if ev.record.NotBefore.Equal(roundUp(notBefore)) {
			return // the document stays the same, so its incarnation must too
		}
		ev.record.NotBefore = roundUp(notBefore)
		e.listChangedLocked(ev, "event rescheduled")
		ev.nudge()
	})
}

// Finish ends a Started event's impact now, and returns when it has vanished. Machines that are only away come back.
func (e *Emulator) Finish(ctx context.Context, id string) error {
	err := e.command("finish", id, Started, func(ev *event) { ev.finishOnce.Do(func() { close(ev.finish) }) })
	if err != nil {
		return err
	}
	_, err = e.Wait(ctx, func(s State) bool {
		r, _ := s.Event(id)
		return !r.Listed()
	})
	if err != nil {
		return fmt.Errorf("finish event %s: %w", id, err)
	}
	return nil
}

// command runs do on the event if it is listed with the status that the command needs.
func (e *Emulator) command(name, id string, need EventStatus, do func(*event)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ctx.Err() != nil {
		return fmt.Errorf("%s event %s: %w", name, id, ErrClosed)
	}
	ev, err := e.findLocked(id)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if !ev.record.Listed() {
		return fmt.Errorf("%s event %s: %w: it has vanished (%s)", name, id, ErrWrongStatus, ev.record.Ending)
	}
	if ev.record.Status != need {
		return fmt.Errorf("%s event %s: %w: it is %s, not %s", name, id, ErrWrongStatus, ev.record.Status, need)
	}
	do(ev)
	return nil
}

func (e *Emulator) findLocked(id string) (*event, error) {
	for _, ev := range e.events {
		if strings.EqualFold(ev.record.EventID, id) {
			return ev, nil
		}
	}
	return nil, fmt.Errorf("event %q: %w", id, ErrUnknownEvent)
}

// approve approves the events of one scale set: all of them, or none and ErrUnknownEvent when one is not listed.
func (e *Emulator) approve(set *ScaleSet, ids []string, by string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var events []*event
	for _, id := range ids {
		ev, err := e.findLocked(id)
		if err != nil || ev.set != set || !ev.record.Listed() {
			return fmt.Errorf("event %q: %w in the document of scale set %s", id, ErrUnknownEvent, set.name)
		}
		events = append(events, ev)
	}
	now := time.Now()
	for _, ev := range events {
		ev.record.approved(by, now)
		if ev.record.Status == Scheduled && e.opts.ApprovalDelay <= 0 {
			e.startLocked(ev, ByApproval)
			continue
		}
		ev.nudge()
		e.announceChange()
	}
	return nil
}

func (r *Record) approved(by string, at time.Time) {
	for i := range r.Approvals {
		if r.Approvals[i].By == by {
			r.Approvals[i].Times++
			return
		}
	}
	r.Approvals = append(r.Approvals, Approval{By: by, At: at, Times: 1})
}

// live leads an event from its announcement to its end.
func (e *Emulator) live(ev *event) {
	if !e.awaitStart(ev) {
		return
	}
	e.impact(ev)
	e.pause(ev, e.opts.Linger)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ctx.Err() == nil {
		e.vanishLocked(ev, Finished)
	}
}

// awaitStart returns true once the event has Started, starting it itself when it is due, and false when it will not.
func (e *Emulator) awaitStart(ev *event) bool {
	for {
		due, over := e.tryStart(ev)
		if over {
			e.mu.Lock()
			defer e.mu.Unlock()
			return ev.record.Listed()
		}
		timer := time.NewTimer(time.Until(due))
		select {
		case <-timer.C:
		case <-ev.wake:
		case <-e.ctx.Done():
			timer.Stop()
			return false
		}
		timer.Stop()
	}
}

// tryStart starts the event if it is due. It returns when it will be due, or that the wait is over because it has
// Started or vanished.
func (e *Emulator) tryStart(ev *event) (due time.Time, over bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if ev.record.Status == Started || !ev.record.Listed() {
		return time.Time{}, true
	}
	due, cause := ev.record.NotBefore, ByNotBefore
	if len(ev.record.Approvals) > 0 {
		if at := ev.record.Approvals[0].At.Add(e.opts.ApprovalDelay); at.Before(due) {
			due, cause = at, ByApproval
		}
	}
	if time.Now().Before(due) {
		return due, false
	}
	e.startLocked(ev, cause)
	return time.Time{}, true
}

// impact does to the machines what the event's type says, and returns when it is over.
func (e *Emulator) impact(ev *event) {
	t := ev.record.Type // never changes
	if t.cutsPower() {
		e.power(ev, false)
	}
	if !t.returns() {
		if e.arm != nil {
			e.arm.eventEnded(t, ev.record.Resources)
		}
		return
	}
	e.pause(ev, ev.outage)
	if t.cutsPower() {
		e.power(ev, true)
	}
}

// power switches all machines of the event at once and records what came of it.
func (e *Emulator) power(ev *event, on bool) {
	if e.opts.Machines == nil || e.ctx.Err() != nil {
		return
	}
	change := e.opts.Machines.PowerOff
	if on {
		change = e.opts.Machines.PowerOn
	}
	ctx, cancel := context.WithTimeout(e.ctx, powerTimeout)
	defer cancel()
	var all sync.WaitGroup
	for _, resource := range ev.record.Resources { // never change
		all.Go(func() {
			e.recordPower(ev, resource, on, change(ctx, resource))
		})
	}
	all.Wait()
}

func (e *Emulator) recordPower(ev *event, resource string, on bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := PowerChange{Resource: resource, On: on, At: time.Now()}
	if err != nil {
		p.Error = err.Error()
		e.log.Error("a machine could not be switched", "event", ev.record.EventID, "resource", resource, "on", on,
			"err", err)
	}
	ev.record.Power = append(ev.record.Power, p)
	e.announceChange()
}

// pause waits for d, or until the event is told to finish or the emulator closes.
func (e *Emulator) pause(ev *event, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ev.finish:
	case <-e.ctx.Done():
	}
}

func (e *Emulator) startLocked(ev *event, cause Cause) {
	ev.record.Status, ev.record.StartedAt, ev.record.StartedBy = Started, time.Now(), cause
	e.listChangedLocked(ev, "event started")
	ev.nudge()
}

func (e *Emulator) vanishLocked(ev *event, ending Ending) {
	ev.record.VanishedAt, ev.record.Ending = time.Now(), ending
	e.listChangedLocked(ev, "event vanished")
}

// listChangedLocked is the one place where a document's incarnation grows.
func (e *Emulator) listChangedLocked(ev *event, message string) {
	ev.set.incarnation++
	e.announceChange()
	r := &ev.record
	e.log.Info(message, "event", r.EventID, "type", r.Type, "scaleSet", r.ScaleSet, "resources", r.Resources,
		"status", r.Status, "notBefore", r.NotBefore, "startedBy", r.StartedBy, "ending", r.Ending)
}

// nudge makes live look at the record again.
func (ev *event) nudge() {
	select {
	case ev.wake <- struct{}{}:
	default: // a look is already due
	}
}
