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

// Errors of a command, for errors.Is.
var (
	ErrUnknownEvent = errors.New("no such event")
	ErrWrongStatus  = errors.New("not possible in its status")
	ErrClosed       = errors.New("the emulator is closed")
)

// StartCause is the reason for the start of an event.
type StartCause string

const (
	ByNotBefore StartCause = "not-before" // its time had come
	ByApproval  StartCause = "approval"   // a StartRequest approved it
	ByCommand   StartCause = "command"    // Emulator.Start
	ByFailure   StartCause = "failure"    // it was announced as Started
)

// EventEnding is how an event vanished from the document.
type EventEnding string

const (
	Finished  EventEnding = "finished"
	Cancelled EventEnding = "cancelled"
)

// EventRecord is an event with its history.
type EventRecord struct {
	ScaleSet        string      `json:"scaleSet"`
	EventID         string      `json:"eventId"`
	Type            EventType   `json:"type"`
	Resources       []string    `json:"resources"`
	Status          EventStatus `json:"status"`
	Source          EventSource `json:"source"`
	Description     string      `json:"description"`
	DurationSeconds int         `json:"durationSeconds"`
	// VisibleAt is the time of the announcement. Every later document lists the event.
	VisibleAt time.Time `json:"visibleAt"`
	// NotBefore stays set after the start, when the document omits it. It is zero for an event announced as Started.
	NotBefore time.Time  `json:"notBefore,omitzero"`
	Approvals []Approval `json:"approvals,omitempty"`
	StartedAt time.Time  `json:"startedAt,omitzero"`
	StartedBy StartCause `json:"startedBy,omitempty"`
	// Power lists the power changes of the machines in the order of effect.
	Power      []PowerChange `json:"power,omitempty"`
	VanishedAt time.Time     `json:"vanishedAt,omitzero"`
	Ending     EventEnding   `json:"ending,omitempty"`
}

// Approval is one approver of an event.
type Approval struct {
	// By is the machine in the request's path, or else the client's host and user agent.
	By string `json:"by"`
	// At is the time of the first approval, Times the number of approvals.
	At    time.Time `json:"at"`
	Times int       `json:"times"`
}

// IsListed reports whether the document still lists the event.
func (r EventRecord) IsListed() bool { return r.VanishedAt.IsZero() }

// DiedAt returns when the event took the machine down, or zero if it did not.
func (r EventRecord) DiedAt(resource string) time.Time {
	for _, p := range r.Power {
		if !p.On && p.Error == "" && strings.EqualFold(p.Resource, resource) {
			return p.At
		}
	}
	return time.Time{}
}

func (r EventRecord) clone() EventRecord {
	r.Resources = slices.Clone(r.Resources)
	r.Approvals = slices.Clone(r.Approvals)
	r.Power = slices.Clone(r.Power)
	return r
}

// event is a Record with the state of its goroutine, runEvent.
type event struct {
	record EventRecord // guarded by Emulator.mu
	set    *ScaleSet
	outage time.Duration
	// wake tells runEvent that the record has changed. It holds one token, because one check of the record covers all
	// changes.
	wake chan struct{}
	// finish is closed to end the impact early.
	finish     chan struct{}
	finishOnce sync.Once
}

// Announce lists a new event and returns its record. The event is visible from record.VisibleAt. Errors are ErrInvalid,
// ErrUnknownScaleSet, ErrDuplicateEvent and ErrClosed.
func (e *Emulator) Announce(a Announcement) (EventRecord, error) {
	if err := a.validate(); err != nil {
		return EventRecord{}, fmt.Errorf("announce: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ctx.Err() != nil {
		return EventRecord{}, fmt.Errorf("announce: %w", ErrClosed)
	}
	set, err := e.scaleSetOfLocked(a)
	if err != nil {
		return EventRecord{}, fmt.Errorf("announce: %w", err)
	}
	if a.EventID != "" {
		if _, err := e.findEventLocked(a.EventID); err == nil {
			return EventRecord{}, fmt.Errorf("announce: eventId %q: %w", a.EventID, ErrDuplicateEvent)
		}
	}
	ev := e.newEvent(a, set, time.Now())
	e.events = append(e.events, ev)
	e.incrementIncarnationLocked(ev, "event announced")
	e.eventRoutines.Go(func() { e.runEvent(ev) })
	return ev.record.clone(), nil
}

// scaleSetOfLocked returns the scale set of an announcement.
func (e *Emulator) scaleSetOfLocked(a Announcement) (*ScaleSet, error) {
	if a.ScaleSet != "" {
		return e.findScaleSetLocked(a.ScaleSet)
	}
	// A machine of a uniform scale set is named <scale set>_<instance ID>.
	if i := strings.LastIndex(a.Resources[0], "_"); i > 0 {
		if set := e.sets[strings.ToLower(a.Resources[0][:i])]; set != nil {
			return set, nil
		}
	}
	return e.findScaleSetLocked("")
}

// newEvent sets the defaults of an announcement.
func (e *Emulator) newEvent(a Announcement, set *ScaleSet, now time.Time) *event {
	r := EventRecord{
		ScaleSet: set.name, EventID: a.EventID, Type: a.Type, Resources: slices.Clone(a.Resources),
		Status: Scheduled, Source: Platform, DurationSeconds: UnknownDuration, VisibleAt: now,
	}
	if r.EventID == "" {
		r.EventID = newEventID()
	}
	if a.Source != "" {
		r.Source = a.Source
	}
	if r.Description = defaultDescription(r.Type, r.Source); a.Description != nil {
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
		r.NotBefore = roundUpToSecond(a.NotBefore)
	default:
		r.NotBefore = roundUpToSecond(now.Add(e.noticeDuration(a)))
	}
	return &event{
		record: r, set: set, outage: e.outageDuration(a, r),
		wake: make(chan struct{}, 1), finish: make(chan struct{}),
	}
}

func (e *Emulator) noticeDuration(a Announcement) time.Duration {
	if a.Notice > 0 {
		return a.Notice
	}
	if d, ok := e.opts.Notices[a.Type]; ok {
		return d
	}
	return MinimumNotice(a.Type)
}

func (e *Emulator) outageDuration(a Announcement, r EventRecord) time.Duration {
	switch {
	case a.Outage > 0:
		return a.Outage
	case r.DurationSeconds != UnknownDuration:
		return time.Duration(r.DurationSeconds) * time.Second
	}
	return e.opts.Outage
}

// StartEvent starts a Scheduled event now, possibly before its NotBefore, as when the platform breaks its promise.
func (e *Emulator) StartEvent(id string) error {
	return e.changeListedEvent("start", id, Scheduled, func(ev *event) { e.startLocked(ev, ByCommand) })
}

// CancelEvent removes a Scheduled event without impact.
func (e *Emulator) CancelEvent(id string) error {
	return e.changeListedEvent("cancel", id, Scheduled, func(ev *event) {
		e.vanishLocked(ev, Cancelled)
		ev.wakeUp()
	})
}

// RescheduleEvent moves the NotBefore of a Scheduled event to notBefore, rounded up to a full second.
func (e *Emulator) RescheduleEvent(id string, notBefore time.Time) error {
	return e.changeListedEvent("reschedule", id, Scheduled, func(ev *event) {
		if ev.record.NotBefore.Equal(roundUpToSecond(notBefore)) {
			return // the document is unchanged, so its incarnation must be too
		}
		ev.record.NotBefore = roundUpToSecond(notBefore)
		e.incrementIncarnationLocked(ev, "event rescheduled")
		ev.wakeUp()
	})
}

// FinishEvent ends a Started event's impact now, and returns when the event has vanished. Machines that survive the event are
// switched on.
func (e *Emulator) FinishEvent(ctx context.Context, id string) error {
	err := e.changeListedEvent("finish", id, Started, func(ev *event) { ev.finishOnce.Do(func() { close(ev.finish) }) })
	if err != nil {
		return err
	}
	_, err = e.AwaitState(ctx, func(s State) bool {
		r, _ := s.Event(id)
		return !r.IsListed()
	})
	if err != nil {
		return fmt.Errorf("finish event %s: %w", id, err)
	}
	return nil
}

// changeListedEvent calls do with the event if it is listed with the needed status.
func (e *Emulator) changeListedEvent(operation, id string, wantStatus EventStatus, do func(*event)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ctx.Err() != nil {
		return fmt.Errorf("%s event %s: %w", operation, id, ErrClosed)
	}
	ev, err := e.findEventLocked(id)
	if err != nil {
		return fmt.Errorf("%s: %w", operation, err)
	}
	if !ev.record.IsListed() {
		return fmt.Errorf("%s event %s: %w: it has vanished (%s)", operation, id, ErrWrongStatus, ev.record.Ending)
	}
	if ev.record.Status != wantStatus {
		return fmt.Errorf("%s event %s: %w: it is %s, not %s", operation, id, ErrWrongStatus, ev.record.Status, wantStatus)
	}
	do(ev)
	return nil
}

func (e *Emulator) findEventLocked(id string) (*event, error) {
	for _, ev := range e.events {
		if strings.EqualFold(ev.record.EventID, id) {
			return ev, nil
		}
	}
	return nil, fmt.Errorf("event %q: %w", id, ErrUnknownEvent)
}

// approveEvents approves events of one scale set. If one is not listed, it approves none and returns ErrUnknownEvent.
func (e *Emulator) approveEvents(set *ScaleSet, ids []string, approver string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var events []*event
	for _, id := range ids {
		ev, err := e.findEventLocked(id)
		if err != nil || ev.set != set || !ev.record.IsListed() {
			return fmt.Errorf("event %q: %w in the document of scale set %s", id, ErrUnknownEvent, set.name)
		}
		events = append(events, ev)
	}
	now := time.Now()
	for _, ev := range events {
		ev.record.addApproval(approver, now)
		if ev.record.Status == Scheduled && e.opts.ApprovalDelay <= 0 {
			e.startLocked(ev, ByApproval)
			continue
		}
		ev.wakeUp()
		e.notifyWaiters()
	}
	return nil
}

func (r *EventRecord) addApproval(approver string, at time.Time) {
	for i := range r.Approvals {
		if r.Approvals[i].By == approver {
			r.Approvals[i].Times++
			return
		}
	}
	r.Approvals = append(r.Approvals, Approval{By: approver, At: at, Times: 1})
}

// runEvent runs an event from its announcement to its end.
func (e *Emulator) runEvent(ev *event) {
	if !e.awaitStart(ev) {
		return
	}
	e.runImpact(ev)
	e.sleepUnlessFinished(ev, e.opts.StartedAfterImpact)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ctx.Err() == nil {
		e.vanishLocked(ev, Finished)
	}
}

// awaitStart waits until the event has Started, and starts it when it is due. It returns false if the event vanished.
func (e *Emulator) awaitStart(ev *event) (started bool) {
	for {
		due, finished := e.startIfDue(ev)
		if finished {
			e.mu.Lock()
			defer e.mu.Unlock()
			return ev.record.IsListed()
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

// startIfDue starts the event if it is due. It returns when it is due, or over if it has Started or vanished.
func (e *Emulator) startIfDue(ev *event) (due time.Time, finished bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if ev.record.Status == Started || !ev.record.IsListed() {
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

// runImpact applies the event to its machines, and returns when the impact has ended.
func (e *Emulator) runImpact(ev *event) {
	t := ev.record.Type // never changes
	if t.cutsPower() {
		e.switchMachines(ev, false)
	}
	if !t.machineSurvives() {
		if e.arm != nil {
			e.arm.endMachinesAfterEvent(t, ev.record.Resources)
		}
		return
	}
	e.sleepUnlessFinished(ev, ev.outage)
	if t.cutsPower() {
		e.switchMachines(ev, true)
	}
}

// switchMachines switches all machines of the event concurrently and records the results.
func (e *Emulator) switchMachines(ev *event, on bool) {
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
		e.log.Error("cannot switch a machine", "event", ev.record.EventID, "resource", resource, "on", on,
			"err", err)
	}
	ev.record.Power = append(ev.record.Power, p)
	e.notifyWaiters()
}

// sleepUnlessFinished waits for d, or until the event is finished or the emulator closes.
func (e *Emulator) sleepUnlessFinished(ev *event, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ev.finish:
	case <-e.ctx.Done():
	}
}

func (e *Emulator) startLocked(ev *event, cause StartCause) {
	ev.record.Status, ev.record.StartedAt, ev.record.StartedBy = Started, time.Now(), cause
	e.incrementIncarnationLocked(ev, "event started")
	ev.wakeUp()
}

func (e *Emulator) vanishLocked(ev *event, ending EventEnding) {
	ev.record.VanishedAt, ev.record.Ending = time.Now(), ending
	e.incrementIncarnationLocked(ev, "event vanished")
}

// incrementIncarnationLocked increments the document's incarnation. No other function does.
func (e *Emulator) incrementIncarnationLocked(ev *event, message string) {
	ev.set.incarnation++
	e.notifyWaiters()
	r := &ev.record
	e.log.Info(message, "event", r.EventID, "type", r.Type, "scaleSet", r.ScaleSet, "resources", r.Resources,
		"status", r.Status, "notBefore", r.NotBefore, "startedBy", r.StartedBy, "ending", r.Ending)
}

// wakeUp makes runEvent check the record.
func (ev *event) wakeUp() {
	select {
	case ev.wake <- struct{}{}:
	default: // a check is already due
	}
}
