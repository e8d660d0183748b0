package azure

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
)

// MaxDocumentSize is the most that is read of an answer, in bytes: ten events of 5,000 machines whose names have 80 bytes. Nothing is done about
// what a larger document announces.
const MaxDocumentSize = 4 << 20

// maxProblems limits each list of problems in a snapshot, so that no document can make the agent grow.
const maxProblems = 64

const eventsField = "Events"

// Document is a Scheduled Events document as the service sent it.
type Document []byte

// Snapshot reads what the document says about one resource.
//
// An error is an [*Error] of class [NotJSON] or [WrongShape]: nothing in the document may be believed, and the caller
// keeps its last good state. What is wrong with one event does not spoil the others:
//
//   - An event whose Resources can be read and do not name the resource is another machine's and is left out, however
//     broken the rest of it is.
//   - EventType and Resources decide what is done and to which machine. An event that lacks one of them, or has it in a
//     form that is not understood, is listed in Unreadable.
//   - Every other field is optional: an event of a known type that names the resource is a notice without it. A missing
//     or unreadable EventStatus is Scheduled, EventSource is Platform, NotBefore and DurationInSeconds are unknown, and
//     the ID of an event without EventId is made from its type. Warnings lists what was wrong.
//   - Of several readable events with one EventId the one of the gravest type is taken, and of those the last, with a warning.
//
// A missing or unreadable DocumentIncarnation is a warning too. A NotBefore in the past is kept.
func (d Document) Snapshot(resource string, at time.Time) (notice.Snapshot, error) {
	events, warning, err := d.events()
	if err != nil {
		return notice.Snapshot{}, err
	}
	r := reading{resource: resource, index: map[string]int{}}
	if warning != nil {
		r.warnings.add("", false, warning)
	}
	if err := r.readAll(events); err != nil {
		return notice.Snapshot{}, &Error{Class: WrongShape, Err: err}
	}
	return r.snapshot(at), nil
}

// events finds the list of events. The warning is about the incarnation, which nothing hangs on: whether the document
// has changed is seen from its bytes.
func (d Document) events() (events json.RawMessage, warning, err error) {
	var top struct {
		DocumentIncarnation json.RawMessage
		Events              json.RawMessage
	}
	if err := json.Unmarshal(d, &top); err != nil {
		if kind := (*json.UnmarshalTypeError)(nil); errors.As(err, &kind) {
			return nil, nil, &Error{Class: WrongShape, Err: fmt.Errorf("document %s: want an object", quote(d))}
		}
		return nil, nil, &Error{Class: NotJSON, Err: fmt.Errorf("document %s: %w", quote(d), err)}
	}
	switch {
	case top.Events == nil:
		return nil, nil, &Error{Class: WrongShape, Err: fmt.Errorf("document %s: Events is missing", quote(d))}
	case top.Events[0] != '[':
		return nil, nil, &Error{Class: WrongShape, Err: fmt.Errorf("%s: %s: want a list", eventsField, compact(top.Events))}
	}
	if top.DocumentIncarnation == nil {
		return top.Events, errors.New("DocumentIncarnation is missing"), nil
	}
	var incarnation *int64
	if err := json.Unmarshal(top.DocumentIncarnation, &incarnation); err != nil || incarnation == nil {
		return top.Events, fmt.Errorf("DocumentIncarnation: %s: want an integer", compact(top.DocumentIncarnation)), nil
	}
	return top.Events, nil, nil
}

// event is one entry of Events, each field left as it is until it is known whether it is wanted.
type event struct {
	EventID           json.RawMessage `json:"EventId"`
	EventType         json.RawMessage
	EventStatus       json.RawMessage
	EventSource       json.RawMessage
	Resources         json.RawMessage
	NotBefore         json.RawMessage
	Description       json.RawMessage
	DurationInSeconds json.RawMessage
}

// reading gathers a snapshot, event by event.
type reading struct {
	resource   string
	notices    []notice.Notice
	index      map[string]int // where in notices an EventId is
	unreadable problems
	warnings   problems
}

// readAll steps through the list with one buffer for all entries.
func (r *reading) readAll(events json.RawMessage) error {
	dec := json.NewDecoder(bytes.NewReader(events))
	if _, err := dec.Token(); err != nil {
		return fmt.Errorf("%s: %w", eventsField, err)
	}
	var raw json.RawMessage
	for i := 0; dec.More(); i++ {
		path := fmt.Sprintf("%s[%d]", eventsField, i)
		if err := dec.Decode(&raw); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		r.read(path, raw)
	}
	return nil
}

// read takes in one event; path says where it is in the document.
func (r *reading) read(path string, raw json.RawMessage) {
	var e event
	if raw[0] != '{' {
		r.unreadable.add("", false, fmt.Errorf("%s: %s: want an object", path, compact(raw)))
		return
	}
	if err := json.Unmarshal(raw, &e); err != nil {
		r.unreadable.add("", false, fmt.Errorf("%s: %w", path, err))
		return
	}
	id, idErr := eventID(path+".EventId", e.EventID)
	resources, resourcesErr := resourceList(path+".Resources", e.Resources)
	named := slices.ContainsFunc(resources, func(name string) bool { return SameResource(name, r.resource) })
	switch {
	case resourcesErr != nil && !named:
		r.unreadable.add(id, false, resourcesErr)
		return
	case !named:
		return
	}
	kind, err := oneOf(path+".EventType", e.EventType, notice.Interruptions()...)
	if err != nil {
		r.unreadable.add(id, true, err)
		return
	}
	n := notice.Notice{ID: id, Source: Name, Type: kind, Resources: resources}
	if idErr != nil {
		n.ID, n.Unnamed = r.unusedID(kind), true
	}
	for _, err := range append(e.refine(path, &n), idErr, resourcesErr) {
		if err != nil {
			r.warnings.add(n.ID, true, err)
		}
	}
	r.put(path, n)
}

// unusedID is an ID for an event without one. It is the same in every document in which the event has the same place
// among those of its type.
func (r *reading) unusedID(kind notice.Type) string {
	id := "unnamed-" + strings.ToLower(string(kind))
	for i := 2; ; i++ {
		if _, used := r.index[id]; !used {
			return id
		}
		id = fmt.Sprintf("unnamed-%s-%d", strings.ToLower(string(kind)), i)
	}
}

func (r *reading) put(path string, n notice.Notice) {
	if i, twice := r.index[n.ID]; twice {
		taken := graver(r.notices[i], n)
		r.warnings.add(n.ID, true, fmt.Errorf("%s.EventId: %q: is there twice; the %s is taken", path, n.ID, taken.Type))
		r.notices[i] = taken
		return
	}
	r.index[n.ID] = len(r.notices)
	r.notices = append(r.notices, n)
}

// graver returns the notice of the graver type, and b if the types are the same.
func graver(a, b notice.Notice) notice.Notice {
	types := notice.Interruptions()
	if slices.Index(types, a.Type) > slices.Index(types, b.Type) {
		return a
	}
	return b
}

// snapshot ends the reading. An unreadable event beside a readable one of the same EventId is not unknown: what could
// be read counts, and the other is only warned of.
func (r *reading) snapshot(at time.Time) notice.Snapshot {
	s := notice.Snapshot{At: at, Notices: r.notices}
	for _, p := range r.unreadable.list {
		if _, readable := r.index[p.ID]; readable {
			r.warnings.add(p.ID, p.Named, p.Err)
		} else {
			s.Unreadable = append(s.Unreadable, p)
		}
	}
	s.Unreadable = append(s.Unreadable, r.unreadable.rest()...)
	s.Warnings = append(s.Warnings, r.warnings.list...)
	s.Warnings = append(s.Warnings, r.warnings.rest()...)
	slices.SortFunc(s.Notices, func(a, b notice.Notice) int { return strings.Compare(a.ID, b.ID) })
	return s
}

// refine reads the fields that a notice can do without and returns what was wrong with them. A missing NotBefore is not
// wrong: the reason of the agent's decision names it.
func (e *event) refine(path string, n *notice.Notice) (warnings []error) {
	var err error
	if n.Status, err = oneOf(path+".EventStatus", e.EventStatus, notice.Scheduled, notice.Started); err != nil {
		n.Status = notice.Scheduled
		warnings = append(warnings, fmt.Errorf("%w; taken to be %s", err, n.Status))
	}
	if n.NotBefore, err = notBefore(path+".NotBefore", e.NotBefore); err != nil {
		warnings = append(warnings, err)
	}
	if n.Duration, err = duration(path+".DurationInSeconds", e.DurationInSeconds); err != nil {
		warnings = append(warnings, err)
	}
	if n.Description, err = optionalText(path+".Description", e.Description); err != nil {
		warnings = append(warnings, err)
	}
	// The service has no field for it: the phrase is what Microsoft's own samples show.
	n.LiveMigration = n.Type == notice.Freeze && strings.Contains(strings.ToLower(n.Description), "live migration")
	source, err := oneOf(path+".EventSource", e.EventSource, "Platform", "User")
	if err != nil { // missing before api-version 2019-08-01
		warnings = append(warnings, fmt.Errorf("%w; taken to be Platform", err))
	}
	n.UserInitiated = source == "User"
	return warnings
}

// problems is a list with an end: what goes beyond maxProblems is only counted.
type problems struct {
	list    []notice.Problem
	omitted int
}

func (p *problems) add(id string, named bool, err error) {
	if len(p.list) == maxProblems {
		p.omitted++
		return
	}
	p.list = append(p.list, notice.Problem{ID: id, Named: named, Err: err})
}

// rest stands for what was omitted; having no ID, it keeps every missing notice from being taken to be over.
func (p *problems) rest() []notice.Problem {
	if p.omitted == 0 {
		return nil
	}
	return []notice.Problem{{Err: fmt.Errorf("and %d more problems", p.omitted)}}
}
