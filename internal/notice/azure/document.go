package azure

import (
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
	r := eventReader{resource: resource}
	if warning != nil {
		r.AddWarning("", false, warning)
	}
	if err := poll.ForEachElement(eventsField, events, r.readEvent); err != nil {
		return notice.Snapshot{}, newError(poll.WrongShape, err)
	}
	return r.Build(at), nil
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

// eventReader collects the notices and problems of a document, event by event.
type eventReader struct {
	poll.Builder

	resource string
}

// readEvent reads one event. path is the event's position in the document, for messages.
func (r *eventReader) readEvent(path string, raw json.RawMessage) {
	var e event
	if raw[0] != '{' {
		r.AddUnreadable("", false, fmt.Errorf("%s: %s: want an object", path, poll.Compact(raw)))
		return
	}
	if err := json.Unmarshal(raw, &e); err != nil {
		r.AddUnreadable("", false, fmt.Errorf("%s: %w", path, err))
		return
	}
	id, idErr := poll.ParseID(path+".EventId", e.EventID)
	resources, resourcesErr := parseResources(path+".Resources", e.Resources)
	named := slices.ContainsFunc(resources, func(name string) bool { return IsSameResource(name, r.resource) })
	switch {
	case resourcesErr != nil && !named:
		r.AddUnreadable(id, false, resourcesErr)
		return
	case !named:
		return
	}
	kind, err := poll.ParseOneOf(path+".EventType", e.EventType, notice.Interruptions()...)
	if err != nil {
		r.AddUnreadable(id, true, err)
		return
	}
	n := notice.Notice{ID: id, Source: SourceName, Type: kind, Resources: resources}
	if idErr != nil {
		n.ID, n.HasGeneratedID = r.NewUnusedID(kind), true
	}
	for _, err := range append(e.readOptionalFields(path, &n), idErr, resourcesErr) {
		if err != nil {
			r.AddWarning(n.ID, true, err)
		}
	}
	r.AddNotice(path+".EventId", n)
}

// readOptionalFields sets the fields that a notice can lack, and returns a warning for each field that it cannot read.
// A missing NotBefore causes no warning, because the reason of the agent's decision reports it.
func (e *event) readOptionalFields(path string, n *notice.Notice) (warnings []error) {
	var err error
	if n.Status, err = poll.ParseOneOf(path+".EventStatus", e.EventStatus, notice.Scheduled, notice.Started); err != nil {
		n.Status = notice.Scheduled
		warnings = append(warnings, fmt.Errorf("%w; assuming %s", err, n.Status))
	}
	if n.NotBefore, err = parseNotBefore(path+".NotBefore", e.NotBefore); err != nil {
		warnings = append(warnings, err)
	}
	if n.Duration, err = poll.ParseSeconds(path+".DurationInSeconds", e.DurationInSeconds); err != nil {
		warnings = append(warnings, err)
	}
	if n.Description, err = poll.ParseOptionalText(path+".Description", e.Description); err != nil {
		warnings = append(warnings, err)
	}
	// The service has no field for live migrations. The phrase is from Microsoft's samples.
	n.LiveMigration = n.Type == notice.Freeze && strings.Contains(strings.ToLower(n.Description), "live migration")
	source, err := poll.ParseOneOf(path+".EventSource", e.EventSource, "Platform", "User")
	if err != nil { // missing before api-version 2019-08-01
		warnings = append(warnings, fmt.Errorf("%w; assuming Platform", err))
	}
	n.UserInitiated = source == "User"
	return warnings
}
