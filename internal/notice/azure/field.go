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

// notBeforeLayouts spell the zone out: time.Parse takes any other zone's abbreviation for an offset of zero, which
// would be hours wrong. A day of "2" matches one digit and two.
var notBeforeLayouts = []string{
	"Mon, 2 Jan 2006 15:04:05 GMT",
	"Mon, 2 Jan 2006 15:04:05 UTC",
	"Mon, 2 Jan 2006 15:04:05 -0700",
	time.RFC3339,
}

// text reads a string that must be there.
func text(path string, raw json.RawMessage) (string, error) {
	if raw == nil {
		return "", fmt.Errorf("%s is missing", path)
	}
	s, err := optionalText(path, raw)
	if err == nil && s == "" {
		err = fmt.Errorf("%s is empty", path)
	}
	return s, err
}

// optionalText reads a string that may be absent, null or empty.
func optionalText(path string, raw json.RawMessage) (string, error) {
	if raw == nil {
		return "", nil
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", fmt.Errorf("%s: %s: want a string", path, compact(raw))
	}
	return s, nil
}

// oneOf reads a string that must be one of those allowed, letter case and spaces around it aside, and returns it as it is spelt there.
func oneOf[T ~string](path string, raw json.RawMessage, allowed ...T) (T, error) {
	s, err := text(path, raw)
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
	return "", fmt.Errorf("%s: %s: want one of %s", path, quote(s), strings.Join(names, ", "))
}

// longestID is the longest EventId that is taken, in bytes. Azure's are UUIDs.
const longestID = 256

// eventID reads the ID of an event.
func eventID(path string, raw json.RawMessage) (string, error) {
	id, err := text(path, raw)
	if len(id) > longestID {
		return "", fmt.Errorf("%s: has %d bytes: want at most %d", path, len(id), longestID)
	}
	return id, err
}

// resourceList reads the machines of an event. An event of no machine at all is not understood rather than taken to
// be another machine's. The names that come with an error are those that could be read, and an entry that is no name
// stands for a machine that is not known.
func resourceList(path string, raw json.RawMessage) ([]string, error) {
	if raw == nil {
		return nil, fmt.Errorf("%s is missing", path)
	}
	if one := ""; json.Unmarshal(raw, &one) == nil && one != "" {
		return []string{one}, fmt.Errorf("%s: %s: want a list of machine names", path, compact(raw))
	}
	var entries []json.RawMessage
	if err := json.Unmarshal(raw, &entries); err != nil || len(entries) == 0 {
		return nil, fmt.Errorf("%s: %s: want a list of machine names", path, compact(raw))
	}
	var wrong error
	names := make([]string, len(entries))
	for i, entry := range entries {
		if entry[0] != '"' || json.Unmarshal(entry, &names[i]) != nil {
			names[i] = compact(entry)
			wrong = fmt.Errorf("%s[%d]: %s: want a machine name", path, i, names[i])
		}
	}
	return names, wrong
}

// lastYear is the last of which a time is believed. The one after it is as far as .NET counts, and stands for no time.
const lastYear = 9998

// notBefore reads the earliest start; zero when blank, as it is once the event has started.
func notBefore(path string, raw json.RawMessage) (time.Time, error) {
	s, err := optionalText(path, raw)
	if err != nil {
		return time.Time{}, fmt.Errorf("%s: %s: %s", path, compact(raw), wantNotBefore)
	}
	if s = strings.TrimSpace(s); s == "" {
		return time.Time{}, nil
	}
	for _, layout := range notBeforeLayouts {
		if t, err := time.Parse(layout, s); err == nil && t.UTC().Year() > 0 && t.UTC().Year() <= lastYear {
			return t.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("%s: %s: %s", path, quote(s), wantNotBefore)
}

// unknownDuration is how the service says that it does not know (DurationInSeconds -1).
const unknownDuration = -time.Second

// duration reads how long the interruption lasts; unknown when absent (api-versions before 2020-07-01).
func duration(path string, raw json.RawMessage) (time.Duration, error) {
	if raw == nil {
		return unknownDuration, nil
	}
	const most = int64(1<<63-1) / int64(time.Second)
	var seconds *int64
	if err := json.Unmarshal(raw, &seconds); err != nil || seconds == nil || *seconds < -1 || *seconds > most {
		return unknownDuration, fmt.Errorf("%s: %s: want whole seconds, 0 for no impact, or -1 for unknown",
			path, compact(raw))
	}
	return time.Duration(*seconds) * time.Second, nil
}

// maxQuote is how much of a foreign value is repeated in an error, in bytes.
const maxQuote = 120

// compact renders a foreign JSON value for an error, without its line breaks and not at length.
func compact(raw json.RawMessage) string {
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return quote(raw)
	}
	if b.Len() > maxQuote {
		return strings.ToValidUTF8(string(b.Bytes()[:maxQuote]), "") + "…"
	}
	return b.String()
}

// quote renders a foreign text for an error: on one line, printable, and not at length.
func quote[T ~string | ~[]byte](value T) string {
	if len(value) > maxQuote {
		return strconv.Quote(strings.ToValidUTF8(string(value[:maxQuote]), "")) + "…"
	}
	return strconv.Quote(string(value))
}
