package external

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

// APIVersion is the version of the format.
const APIVersion = "slipway.dev/notice/v1"

// maxNotices limits the memory for one document.
const maxNotices = 64

// document is a document in the format [APIVersion].
type document struct {
	APIVersion json.RawMessage `json:"apiVersion"`
	Notices    json.RawMessage `json:"notices"`
}

// entry is one notice in a document. A field is parsed alone, so that a wrong one does not affect the others.
type entry struct {
	ID            json.RawMessage `json:"id"`
	Type          json.RawMessage `json:"type"`
	Status        json.RawMessage `json:"status"`
	NotBefore     json.RawMessage `json:"notBefore"`
	NoticeSeconds json.RawMessage `json:"noticeSeconds"`
	ImpactSeconds json.RawMessage `json:"impactSeconds"`
	LiveMigration json.RawMessage `json:"liveMigration"`
	UserInitiated json.RawMessage `json:"userInitiated"`
	Acknowledge   json.RawMessage `json:"acknowledge"`
	Description   json.RawMessage `json:"description"`
}

// reader collects the notices of a document, entry by entry.
type reader struct {
	poll.Builder

	source, resource string
	count            int
}

// parseDocument returns the notices of a document. If the whole document cannot be used, it returns an [*poll.Error], and the
// caller keeps its last snapshot. A problem in one entry does not affect the other entries. Only the type is required: an
// entry without a readable type is listed in Unreadable. An entry without an ID gets a generated one. Any other missing or
// wrong field has its default, and a wrong one causes a warning.
func parseDocument(source, resource string, raw []byte, at time.Time) (notice.Snapshot, error) {
	fail := func(class poll.Class, err error) (notice.Snapshot, error) {
		return notice.Snapshot{}, &poll.Error{Class: class, Service: source, Err: err}
	}
	var top document
	if err := json.Unmarshal(raw, &top); err != nil {
		if kind := (*json.UnmarshalTypeError)(nil); errors.As(err, &kind) {
			return fail(poll.WrongShape, fmt.Errorf("document %s: want an object", poll.Quote(raw)))
		}
		return fail(poll.NotJSON, fmt.Errorf("document %s: %w", poll.Quote(raw), err))
	}
	switch {
	case top.Notices == nil:
		return fail(poll.WrongShape, fmt.Errorf("document %s: notices is missing: want a list, which may be empty", poll.Quote(raw)))
	case top.Notices[0] != '[':
		return fail(poll.WrongShape, fmt.Errorf("notices: %s: want a list", poll.Compact(top.Notices)))
	}
	r := reader{source: source, resource: resource}
	if _, err := poll.ParseOneOf("apiVersion", top.APIVersion, APIVersion); err != nil {
		r.AddWarning("", false, err)
	}
	if err := poll.ForEachElement("notices", top.Notices, r.readEntry); err != nil {
		return fail(poll.WrongShape, err)
	}
	return r.Build(at), nil
}

// readEntry reads one entry. path is its position in the document, for messages.
func (r *reader) readEntry(path string, raw json.RawMessage) {
	var e entry
	if r.count++; r.count > maxNotices {
		r.AddUnreadable("", false, fmt.Errorf("%s: want at most %d notices", path, maxNotices))
		return
	}
	if raw[0] != '{' {
		r.AddUnreadable("", false, fmt.Errorf("%s: %s: want an object", path, poll.Compact(raw)))
		return
	}
	if err := json.Unmarshal(raw, &e); err != nil {
		r.AddUnreadable("", false, fmt.Errorf("%s: %w", path, err))
		return
	}
	id, idErr := poll.ParseID(path+".id", e.ID)
	kind, err := poll.ParseOneOf(path+".type", e.Type, notice.Interruptions()...)
	if err != nil {
		r.AddUnreadable(id, true, err)
		return
	}
	n := notice.Notice{ID: id, Source: r.source, Type: kind, Resources: []string{r.resource}}
	if idErr != nil {
		n.ID, n.HasGeneratedID = r.NewUnusedID(kind), true
	}
	for _, err := range append(e.readOptionalFields(path, &n), idErr) {
		if err != nil {
			r.AddWarning(n.ID, true, err)
		}
	}
	r.AddNotice(path+".id", n)
}

// readOptionalFields sets the fields that a notice can lack. It returns a warning for each field that it cannot read.
func (e *entry) readOptionalFields(path string, n *notice.Notice) (warnings []error) {
	check := func(err error) {
		if err != nil {
			warnings = append(warnings, err)
		}
	}
	var err error
	n.Status = notice.Scheduled
	if !isBlank(e.Status) {
		if n.Status, err = poll.ParseOneOf(path+".status", e.Status, notice.Scheduled, notice.Started); err != nil {
			n.Status = notice.Scheduled
			check(fmt.Errorf("%w; assuming %s", err, n.Status))
		}
	}
	if !isBlank(e.NotBefore) {
		var value any
		_ = json.Unmarshal(e.NotBefore, &value) // it is valid JSON
		if n.NotBefore, err = poll.ParseTime(value); err != nil {
			check(fmt.Errorf("%s.notBefore: %w", path, err))
		}
	}
	n.NoticePeriod, err = poll.ParseSeconds(path+".noticeSeconds", e.NoticeSeconds)
	check(err)
	n.NoticePeriod = max(n.NoticePeriod, 0)
	n.Duration, err = poll.ParseSeconds(path+".impactSeconds", e.ImpactSeconds)
	check(err)
	n.LiveMigration, err = parseBool(path+".liveMigration", e.LiveMigration)
	check(err)
	n.UserInitiated, err = parseBool(path+".userInitiated", e.UserInitiated)
	check(err)
	acknowledge, err := parseBool(path+".acknowledge", e.Acknowledge)
	check(err)
	n.NotApprovable = !acknowledge
	n.Description, err = poll.ParseOptionalText(path+".description", e.Description)
	check(err)
	return warnings
}

func isBlank(raw json.RawMessage) bool {
	return raw == nil || slices.Contains([]string{"null", `""`}, string(bytes.TrimSpace(raw)))
}

// parseBool parses a boolean, also as a string. Missing is false.
func parseBool(path string, raw json.RawMessage) (bool, error) {
	switch value := strings.ToLower(strings.Trim(string(raw), `"`)); {
	case isBlank(raw), value == "false":
		return false, nil
	case value == "true":
		return true, nil
	}
	return false, fmt.Errorf("%s: %s: want true or false", path, poll.Compact(raw))
}
