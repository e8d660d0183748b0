package poll

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ParseRequiredText parses a required string.
func ParseRequiredText(path string, raw json.RawMessage) (string, error) {
	if raw == nil {
		return "", fmt.Errorf("%s is missing", path)
	}
	s, err := ParseOptionalText(path, raw)
	if err == nil && s == "" {
		err = fmt.Errorf("%s is empty", path)
	}
	return s, err
}

// ParseOptionalText parses a string that may be absent, null or empty.
func ParseOptionalText(path string, raw json.RawMessage) (string, error) {
	if raw == nil {
		return "", nil
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", fmt.Errorf("%s: %s: want a string", path, Compact(raw))
	}
	return s, nil
}

// ParseOneOf parses a string that must be one of the allowed values. It ignores letter case and surrounding spaces. It
// returns the allowed spelling.
func ParseOneOf[T ~string](path string, raw json.RawMessage, allowed ...T) (T, error) {
	s, err := ParseRequiredText(path, raw)
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
	return "", fmt.Errorf("%s: %s: want one of %s", path, Quote(s), strings.Join(names, ", "))
}

// MaxIDBytes is the maximum length of an ID in bytes. The clouds' IDs have about 40.
const MaxIDBytes = 256

// ParseID parses the ID of a notice, which is required.
func ParseID(path string, raw json.RawMessage) (string, error) {
	id, err := ParseRequiredText(path, raw)
	if len(id) > MaxIDBytes {
		return "", fmt.Errorf("%s: has %d bytes: want at most %d", path, len(id), MaxIDBytes)
	}
	return id, err
}

// UnknownDuration is the value of [notice.Notice.Duration] if the duration is unknown.
const UnknownDuration = -time.Second

// ParseSeconds parses the length of an interruption in whole seconds. It returns UnknownDuration if the field is missing.
func ParseSeconds(path string, raw json.RawMessage) (time.Duration, error) {
	if raw == nil {
		return UnknownDuration, nil
	}
	const most = int64(1<<63-1) / int64(time.Second)
	var seconds *int64
	if err := json.Unmarshal(raw, &seconds); err != nil || seconds == nil || *seconds < -1 || *seconds > most {
		return UnknownDuration, fmt.Errorf("%s: %s: want whole seconds, 0 for no impact, or -1 for unknown",
			path, Compact(raw))
	}
	return time.Duration(*seconds) * time.Second, nil
}

// ParseTime parses a JSON value with a time in RFC 3339, or in seconds since the epoch. Null is missing.
func ParseTime(value any) (time.Time, error) {
	const want = "want a time such as 2026-12-01T19:00:01Z"
	switch v := value.(type) {
	case float64:
		return parseUnixSeconds(v)
	case string:
		v = strings.TrimSpace(v)
		if t, err := time.Parse(time.RFC3339, v); err == nil && t.Unix() >= minUnixSeconds && t.Unix() <= maxUnixSeconds {
			return t.UTC(), nil
		}
		if seconds, err := strconv.ParseFloat(v, 64); err == nil {
			return parseUnixSeconds(seconds)
		}
		return time.Time{}, fmt.Errorf("%s: %s", Quote(v), want)
	case nil:
		return time.Time{}, errors.New("is missing: " + want)
	}
	return time.Time{}, fmt.Errorf("%.80v: %s", value, want)
}

// The first and last valid times in seconds since the epoch: the years 1990 and 9998.
const (
	minUnixSeconds = 631152000
	maxUnixSeconds = 253370764799
)

func parseUnixSeconds(seconds float64) (time.Time, error) {
	if !(seconds >= minUnixSeconds && seconds <= maxUnixSeconds) {
		return time.Time{}, fmt.Errorf("%v: want seconds since the epoch", seconds)
	}
	return time.Unix(int64(seconds), 0).UTC(), nil
}
