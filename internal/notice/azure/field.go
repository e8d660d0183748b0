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
	s, err := poll.ParseOptionalText(path, raw)
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
