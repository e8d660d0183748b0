package azure

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/notice/poll"
)

const wantNotBefore = `want an RFC 1123 time such as "Mon, 19 Sep 2016 18:29:47 GMT" or empty`

// notBeforeLayouts are the accepted formats of NotBefore. Each format names its time zone. For any other zone
// abbreviation, time.Parse would assume an offset of zero, which can be hours wrong. A day of "2" matches one digit and
// two.
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
		return "", fmt.Errorf("%s: %s: want a string", path, poll.Compact(raw))
	}
	return s, nil
}

// parseOneOf parses a string that must be one of the allowed values. It ignores letter case and surrounding spaces. It
// returns the allowed spelling.
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
	return "", fmt.Errorf("%s: %s: want one of %s", path, poll.Quote(s), strings.Join(names, ", "))
}

// maxIDBytes is the maximum length of an EventId in bytes. Azure's IDs are UUIDs.
const maxIDBytes = 256

func parseEventID(path string, raw json.RawMessage) (string, error) {
	id, err := parseRequiredText(path, raw)
	if len(id) > maxIDBytes {
		return "", fmt.Errorf("%s: has %d bytes: want at most %d", path, len(id), maxIDBytes)
	}
	return id, err
}

// parseResources parses the names of an event's instances. An empty list is an error, because the event may be for this
// instance. With an error it returns the names that it could read. An entry that is not a name means an unknown
// instance.
func parseResources(path string, raw json.RawMessage) ([]string, error) {
	if raw == nil {
		return nil, fmt.Errorf("%s is missing", path)
	}
	if one := ""; json.Unmarshal(raw, &one) == nil && one != "" {
		return []string{one}, fmt.Errorf("%s: %s: want a list of machine names", path, poll.Compact(raw))
	}
	var entries []json.RawMessage
	if err := json.Unmarshal(raw, &entries); err != nil || len(entries) == 0 {
		return nil, fmt.Errorf("%s: %s: want a list of machine names", path, poll.Compact(raw))
	}
	var wrong error
	names := make([]string, len(entries))
	for i, entry := range entries {
		if entry[0] != '"' || json.Unmarshal(entry, &names[i]) != nil {
			names[i] = poll.Compact(entry)
			wrong = fmt.Errorf("%s[%d]: %s: want a machine name", path, i, names[i])
		}
	}
	return names, wrong
}

// maxYear is the latest valid year. Year 9999 is the last that .NET supports, and means that there is no time.
const maxYear = 9998

// parseNotBefore parses the earliest start of an event. It returns the zero time for a blank value. The value is blank
// once the event has started.
func parseNotBefore(path string, raw json.RawMessage) (time.Time, error) {
	s, err := parseOptionalText(path, raw)
	if err != nil {
		return time.Time{}, fmt.Errorf("%s: %s: %s", path, poll.Compact(raw), wantNotBefore)
	}
	if s = strings.TrimSpace(s); s == "" {
		return time.Time{}, nil
	}
	for _, layout := range notBeforeLayouts {
		if t, err := time.Parse(layout, s); err == nil && t.UTC().Year() > 0 && t.UTC().Year() <= maxYear {
			return t.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("%s: %s: %s", path, poll.Quote(s), wantNotBefore)
}

// unknownDuration is the service's value for an unknown duration (DurationInSeconds -1).
const unknownDuration = -time.Second

// parseDuration parses the length of the interruption. It returns unknownDuration if the field is missing, as in
// api-versions before 2020-07-01.
func parseDuration(path string, raw json.RawMessage) (time.Duration, error) {
	if raw == nil {
		return unknownDuration, nil
	}
	const most = int64(1<<63-1) / int64(time.Second)
	var seconds *int64
	if err := json.Unmarshal(raw, &seconds); err != nil || seconds == nil || *seconds < -1 || *seconds > most {
		return unknownDuration, fmt.Errorf("%s: %s: want whole seconds, 0 for no impact, or -1 for unknown",
			path, poll.Compact(raw))
	}
	return time.Duration(*seconds) * time.Second, nil
}
