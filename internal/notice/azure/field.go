package azure

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

const wantNotBefore = `want an RFC 1123 time such as "Mon, 19 Sep 2016 18:29:47 GMT" or empty`

// notBeforeLayouts name the zones, because time.Parse gives any other zone abbreviation an offset of zero, which
// would be hours wrong. A day of "2" matches one digit and two.
var notBeforeLayouts = []string{
	"Mon, 2 Jan 2006 15:04:05 GMT",
	"Mon, 2 Jan 2006 15:04:05 UTC",
	"Mon, 2 Jan 2006 15:04:05 -0700",
	time.RFC3339,
}

// parseRequiredText parses a required string.
func parseRequiredText(path string, raw json.RawMessage) (string, error) {
	if raw == nil {
		return "", fmt.Errorf("%s is missing", path)
	}
	s, err := parseOptionalText(path, raw)
	if err == nil && s == "" {
		err = fmt.Errorf("%s is empty", path)
	}
	return s, err
}

// parseOptionalText parses a string that may be absent, null or empty.
func parseOptionalText(path string, raw json.RawMessage) (string, error) {
	if raw == nil {
		return "", nil
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", fmt.Errorf("%s: %s: want a string", path, compactForError(raw))
	}
	return s, nil
}

// parseOneOf parses a string that must be one of the allowed ones, ignoring case and surrounding spaces. It returns
// the allowed spelling.
func parseOneOf[T ~string](path string, raw json.RawMessage, allowed ...T) (T, error) {
	s, err := parseRequiredText(path, raw)
	if err != nil {
		return "", err
	}
	names := make([]string, len(allowed))
	for i, a := range allowed {
		if strings.EqualFold(strings.TrimSpace(s), string(a)) {
			return a, nil
		}
		names[i] = string(a)
	}
	return "", fmt.Errorf("%s: %s: want one of %s", path, quoteForError(s), strings.Join(names, ", "))
}

// maxIDBytes is the longest EventId that is accepted. Azure's are UUIDs.
const maxIDBytes = 256

func parseEventID(path string, raw json.RawMessage) (string, error) {
	id, err := parseRequiredText(path, raw)
	if len(id) > maxIDBytes {
		return "", fmt.Errorf("%s: has %d bytes: want at most %d", path, len(id), maxIDBytes)
	}
	return id, err
}

// parseResources parses the instances of an event. An empty list is an error, because the event may be for this
// instance. With an error it returns the names that could be read. An entry that is not a name stands for an unknown
// instance.
func parseResources(path string, raw json.RawMessage) ([]string, error) {
	if raw == nil {
		return nil, fmt.Errorf("%s is missing", path)
	}
	if one := ""; json.Unmarshal(raw, &one) == nil && one != "" {
		return []string{one}, fmt.Errorf("%s: %s: want a list of machine names", path, compactForError(raw))
	}
	var entries []json.RawMessage
	if err := json.Unmarshal(raw, &entries); err != nil || len(entries) == 0 {
		return nil, fmt.Errorf("%s: %s: want a list of machine names", path, compactForError(raw))
	}
	var wrong error
	names := make([]string, len(entries))
	for i, entry := range entries {
		if entry[0] != '"' || json.Unmarshal(entry, &names[i]) != nil {
			names[i] = compactForError(entry)
			wrong = fmt.Errorf("%s[%d]: %s: want a machine name", path, i, names[i])
		}
	}
	return names, wrong
}

// maxYear is the latest valid year. The next year is the last that .NET supports, and means no time.
const maxYear = 9998

// parseNotBefore parses the earliest start; zero if it is blank, which it is once the event has started.
func parseNotBefore(path string, raw json.RawMessage) (time.Time, error) {
	s, err := parseOptionalText(path, raw)
	if err != nil {
		return time.Time{}, fmt.Errorf("%s: %s: %s", path, compactForError(raw), wantNotBefore)
	}
	if s = strings.TrimSpace(s); s == "" {
		return time.Time{}, nil
	}
	for _, layout := range notBeforeLayouts {
		if t, err := time.Parse(layout, s); err == nil && t.UTC().Year() > 0 && t.UTC().Year() <= maxYear {
			return t.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("%s: %s: %s", path, quoteForError(s), wantNotBefore)
}

// unknownDuration is the service's value for an unknown duration (DurationInSeconds -1).
const unknownDuration = -time.Second

// parseDuration parses the length of the interruption; unknown if absent (api-versions before 2020-07-01).
func parseDuration(path string, raw json.RawMessage) (time.Duration, error) {
	if raw == nil {
		return unknownDuration, nil
	}
	const most = int64(1<<63-1) / int64(time.Second)
	var seconds *int64
	if err := json.Unmarshal(raw, &seconds); err != nil || seconds == nil || *seconds < -1 || *seconds > most {
		return unknownDuration, fmt.Errorf("%s: %s: want whole seconds, 0 for no impact, or -1 for unknown",
			path, compactForError(raw))
	}
	return time.Duration(*seconds) * time.Second, nil
}

// maxQuoteBytes limits how much of a foreign value is repeated in an error.
const maxQuoteBytes = 120

// compactForError formats a foreign JSON value for an error, on one line and clipped.
func compactForError(raw json.RawMessage) string {
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return quoteForError(raw)
	}
	if b.Len() > maxQuoteBytes {
		return strings.ToValidUTF8(string(b.Bytes()[:maxQuoteBytes]), "") + "…"
	}
	return b.String()
}

// quoteForError formats a foreign text for an error: on one line, printable, and clipped.
func quoteForError[T ~string | ~[]byte](value T) string {
	if len(value) > maxQuoteBytes {
		return strconv.Quote(strings.ToValidUTF8(string(value[:maxQuoteBytes]), "")) + "…"
	}
	return strconv.Quote(string(value))
}
