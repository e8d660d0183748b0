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
	"github.com/slipway-dev/slipway/internal/notice/poll"
)

// MaxDocumentSize is the maximum size of a document in bytes. It is enough for ten events with 5,000 names of 80 bytes.
// A larger document is an error.
const MaxDocumentSize = 4 << 20

// maxProblems limits each list of problems in a snapshot. So no document can exhaust the agent's memory.
const maxProblems = 64

const eventsField = "Events"

// Document is a Scheduled Events document as the service sent it.
type Document []byte

// ToSnapshot returns the notices for one resource in the document.
//
// If the whole document cannot be used, it returns an [*poll.Error] of class [poll.NotJSON] or [poll.WrongShape]. The caller then
// keeps its last snapshot. A problem in one event does not affect the other events:
//
//   - An event with readable Resources that do not name the resource is for another instance. It is omitted, even if
//     its other fields are unreadable.
//   - EventType and Resources decide the action and the instance. If one of them is missing or unreadable, the event is
//     listed in Unreadable.
//   - Every other field is optional. Without it, an event of a known type that names the resource still becomes a
//     notice. A missing or unreadable EventStatus counts as Scheduled, and EventSource as Platform. NotBefore and
//     DurationInSeconds are then unknown. For an event without EventId an ID is generated from its type. Warnings lists
//     the problems.
//   - If several readable events have the same EventId, the most severe type counts. If their types are equal, the last
//     event counts. Warnings lists the problem.
//
// A missing or unreadable DocumentIncarnation is a warning too. A NotBefore in the past is not changed.
func (d Document) ToSnapshot(resource string, at time.Time) (notice.Snapshot, error) {
	events, warning, err := d.extractEvents()
	if err != nil {
		return notice.Snapshot{}, err
	}
	r := snapshotBuilder{resource: resource, index: map[string]int{}}
	if warning != nil {
		r.warnings.add("", false, warning)
	}
	if err := r.readEvents(events); err != nil {
		return notice.Snapshot{}, newError(poll.WrongShape, err)
	}
	return r.build(at), nil
}

// extractEvents returns the JSON list of events in the document. The warning is about the DocumentIncarnation, which
// nothing else reads. The agent compares the bytes of documents to detect a change.
func (d Document) extractEvents() (events json.RawMessage, warning, err error) {
	var top struct {
		DocumentIncarnation json.RawMessage
		Events              json.RawMessage
	}
	if err := json.Unmarshal(d, &top); err != nil {
		if kind := (*json.UnmarshalTypeError)(nil); errors.As(err, &kind) {
			return nil, nil, newError(poll.WrongShape, fmt.Errorf("document %s: want an object", poll.Quote(d)))
		}
		return nil, nil, newError(poll.NotJSON, fmt.Errorf("document %s: %w", poll.Quote(d), err))
	}
	switch {
	case top.Events == nil:
		return nil, nil, newError(poll.WrongShape, fmt.Errorf("document %s: Events is missing", poll.Quote(d)))
	case top.Events[0] != '[':
		return nil, nil, newError(poll.WrongShape, fmt.Errorf("%s: %s: want a list", eventsField, poll.Compact(top.Events)))
	}
	if top.DocumentIncarnation == nil {
		return top.Events, errors.New("DocumentIncarnation is missing"), nil
	}
	var incarnation *int64
	if err := json.Unmarshal(top.DocumentIncarnation, &incarnation); err != nil || incarnation == nil {
		return top.Events, fmt.Errorf("DocumentIncarnation: %s: want an integer", poll.Compact(top.DocumentIncarnation)), nil
	}
	return top.Events, nil, nil
}

// event is one entry of the document's Events. A field is parsed only if it is needed.
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

// snapshotBuilder collects the notices and problems of a document, event by event.
type snapshotBuilder struct {
	resource   string
	notices    []notice.Notice
	index      map[string]int // index in notices, by EventId
	unreadable problems
	warnings   problems
}

// readEvents reads all events of the document. It uses one buffer for all entries to save memory.
func (r *snapshotBuilder) readEvents(events json.RawMessage) error {
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
		r.readEvent(path, raw)
	}
	return nil
}

// readEvent reads one event. path is the event's position in the document, for messages.
func (r *snapshotBuilder) readEvent(path string, raw json.RawMessage) {
	var e event
	if raw[0] != '{' {
		r.unreadable.add("", false, fmt.Errorf("%s: %s: want an object", path, poll.Compact(raw)))
		return
	}
	if err := json.Unmarshal(raw, &e); err != nil {
		r.unreadable.add("", false, fmt.Errorf("%s: %w", path, err))
		return
	}
	id, idErr := parseEventID(path+".EventId", e.EventID)
	resources, resourcesErr := parseResources(path+".Resources", e.Resources)
	named := slices.ContainsFunc(resources, func(name string) bool { return IsSameResource(name, r.resource) })
	switch {
	case resourcesErr != nil && !named:
		r.unreadable.add(id, false, resourcesErr)
		return
	case !named:
		return
	}
	kind, err := parseOneOf(path+".EventType", e.EventType, notice.Interruptions()...)
	if err != nil {
		r.unreadable.add(id, true, err)
		return
	}
	n := notice.Notice{ID: id, Source: SourceName, Type: kind, Resources: resources}
	if idErr != nil {
		n.ID, n.HasGeneratedID = r.newUnusedID(kind), true
	}
	for _, err := range append(e.readOptionalFields(path, &n), idErr, resourcesErr) {
		if err != nil {
			r.warnings.add(n.ID, true, err)
		}
	}
	r.addNotice(path, n)
}

// newUnusedID returns an ID for an event without EventId. The ID contains the event's type and its position among the
// events of this type. So the ID stays the same while this position stays the same.
func (r *snapshotBuilder) newUnusedID(kind notice.Type) string {
	id := "unnamed-" + strings.ToLower(string(kind))
	for i := 2; ; i++ {
		if _, used := r.index[id]; !used {
			return id
		}
		id = fmt.Sprintf("unnamed-%s-%d", strings.ToLower(string(kind)), i)
	}
}

func (r *snapshotBuilder) addNotice(path string, n notice.Notice) {
	if i, twice := r.index[n.ID]; twice {
		taken := moreSevere(r.notices[i], n)
		r.warnings.add(n.ID, true, fmt.Errorf("%s.EventId: %q: is there twice; the %s counts", path, n.ID, taken.Type))
		r.notices[i] = taken
		return
	}
	r.index[n.ID] = len(r.notices)
	r.notices = append(r.notices, n)
}

// moreSevere returns the notice with the more severe type. It returns b if the types are equal.
func moreSevere(a, b notice.Notice) notice.Notice {
	types := notice.Interruptions()
	if slices.Index(types, a.Type) > slices.Index(types, b.Type) {
		return a
	}
	return b
}

// build returns the snapshot. If a readable and an unreadable event have the same EventId, the snapshot has the
// readable one. The unreadable one becomes a warning.
func (r *snapshotBuilder) build(at time.Time) notice.Snapshot {
	s := notice.Snapshot{At: at, Notices: r.notices}
	for _, p := range r.unreadable.list {
		if _, readable := r.index[p.ID]; readable {
			r.warnings.add(p.ID, p.NamesInstance, p.Err)
		} else {
			s.Unreadable = append(s.Unreadable, p)
		}
	}
	s.Unreadable = append(s.Unreadable, r.unreadable.summarizeOmitted()...)
	s.Warnings = append(s.Warnings, r.warnings.list...)
	s.Warnings = append(s.Warnings, r.warnings.summarizeOmitted()...)
	slices.SortFunc(s.Notices, func(a, b notice.Notice) int { return strings.Compare(a.ID, b.ID) })
	return s
}

// readOptionalFields sets the fields that a notice can lack, and returns a warning for each field that it cannot read.
// A missing NotBefore causes no warning, because the reason of the agent's decision reports it.
func (e *event) readOptionalFields(path string, n *notice.Notice) (warnings []error) {
	var err error
	if n.Status, err = parseOneOf(path+".EventStatus", e.EventStatus, notice.Scheduled, notice.Started); err != nil {
		n.Status = notice.Scheduled
		warnings = append(warnings, fmt.Errorf("%w; assuming %s", err, n.Status))
	}
	if n.NotBefore, err = parseNotBefore(path+".NotBefore", e.NotBefore); err != nil {
		warnings = append(warnings, err)
	}
	if n.Duration, err = parseDuration(path+".DurationInSeconds", e.DurationInSeconds); err != nil {
		warnings = append(warnings, err)
	}
	if n.Description, err = parseOptionalText(path+".Description", e.Description); err != nil {
		warnings = append(warnings, err)
	}
	// The service has no field for live migrations. The phrase is from Microsoft's samples.
	n.LiveMigration = n.Type == notice.Freeze && strings.Contains(strings.ToLower(n.Description), "live migration")
	source, err := parseOneOf(path+".EventSource", e.EventSource, "Platform", "User")
	if err != nil { // missing before api-version 2019-08-01
		warnings = append(warnings, fmt.Errorf("%w; assuming Platform", err))
	}
	n.UserInitiated = source == "User"
	return warnings
}

// problems is a list of at most maxProblems problems. Further problems are only counted.
type problems struct {
	list    []notice.Problem
	omitted int
}

func (p *problems) add(id string, namesInstance bool, err error) {
	if len(p.list) == maxProblems {
		p.omitted++
		return
	}
	p.list = append(p.list, notice.Problem{ID: id, NamesInstance: namesInstance, Err: err})
}

// summarizeOmitted returns one problem that reports how many problems were omitted. This problem has no ID, so any
// notice may be one of them. No missing notice then counts as ended.
func (p *problems) summarizeOmitted() []notice.Problem {
	if p.omitted == 0 {
		return nil
	}
	return []notice.Problem{{Err: fmt.Errorf("and %d more problems", p.omitted)}}
}
