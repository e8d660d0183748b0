package aws

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/notice/poll"
)

// newID returns an ID for a notice that has none in the service's response. The same path and time give the same ID, also
// after a restart.
func newID(prefix, path, at string) string {
	sum := sha256.Sum256([]byte(path + "\n" + at))
	return prefix + "-" + hex.EncodeToString(sum[:8])
}

// timeLayouts are the accepted formats of times. Spot notices have the first one, and scheduled events the second. A day of
// "2" matches one digit and two. Each format names its time zone.
var timeLayouts = []string{
	time.RFC3339, "2 Jan 2006 15:04:05 GMT", "2 Jan 2006 15:04:05 UTC", "Mon, 2 Jan 2006 15:04:05 GMT", "2006-01-02T15:04:05.999999999-0700",
}

// parseTime parses an optional time. It returns the zero time for a missing or empty value.
func parseTime(path string, raw json.RawMessage) (time.Time, error) {
	text, err := parseText(path, raw)
	if err != nil || text == "" {
		return time.Time{}, err
	}
	for _, layout := range timeLayouts {
		if t, err := time.Parse(layout, text); err == nil && t.UTC().Year() > 1 && t.UTC().Year() < 9999 {
			return t.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("%s: %s: want a time such as \"2017-09-18T08:22:00Z\"", path, poll.Quote(text))
}

// parseText parses an optional string without surrounding spaces. A missing value and null are the empty string.
func parseText(path string, raw json.RawMessage) (string, error) {
	if raw == nil {
		return "", nil
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", fmt.Errorf("%s: %s: want a string", path, poll.Compact(raw))
	}
	return strings.TrimSpace(s), nil
}

// parseObject parses a response that is a JSON object. Every error is an [*poll.Error].
func parseObject(path string, body []byte, into any) error {
	trimmed := strings.TrimSpace(string(body))
	if json.Valid(body) && !strings.HasPrefix(trimmed, "{") {
		return newError(poll.WrongShape, "%s: %s: want an object", path, poll.Quote(body))
	}
	if err := json.Unmarshal(body, into); err != nil {
		return newError(poll.NotJSON, "%s: %s: %w", path, poll.Quote(body), err)
	}
	return nil
}

func newError(class poll.Class, format string, args ...any) error {
	return &poll.Error{Class: class, Service: serviceName, Err: fmt.Errorf(format, args...)}
}
