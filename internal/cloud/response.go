package cloud

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxRetryDelay caps the retry delay that a cloud asks for.
const maxRetryDelay = time.Hour

// ParseRetryAfter parses the Retry-After header (RFC 9110, 10.2.3), which is a number of seconds or a date. It returns at
// most one hour, and 0 if the header is missing or cannot be parsed.
func ParseRetryAfter(header http.Header, now time.Time) time.Duration {
	if delay := ParseRetryHeader(header, "Retry-After", time.Second); delay > 0 {
		return delay
	}
	if at, err := http.ParseTime(strings.TrimSpace(header.Get("Retry-After"))); err == nil {
		return min(max(at.Sub(now), 0), maxRetryDelay)
	}
	return 0
}

// ParseRetryHeader parses a retry header that only one cloud has, which is a whole number of units. It has the limits of
// [ParseRetryAfter].
func ParseRetryHeader(header http.Header, name string, unit time.Duration) time.Duration {
	if n, err := strconv.ParseInt(strings.TrimSpace(header.Get(name)), 10, 32); err == nil && n > 0 {
		return min(time.Duration(n)*unit, maxRetryDelay)
	}
	return 0
}

// SanitizeText cuts text from another program to a length in bytes. The result is one line of valid UTF-8 without control
// characters, so a terminal or a log can show it.
func SanitizeText(text string, maxBytes int) string {
	if len(text) > maxBytes {
		text = text[:maxBytes] + "…"
	}
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, ""))
	return strings.Join(strings.Fields(text), " ")
}

// ResponseTooLargeError is the error of a read from a body of [Bounded] that is too long.
type ResponseTooLargeError struct{ MaxBytes int }

func (e *ResponseTooLargeError) Error() string {
	return fmt.Sprintf("the answer has more than %d bytes", e.MaxBytes)
}

// IsResponseTooLarge reports whether err means that a body was longer than the limit of [Bounded].
func IsResponseTooLarge(err error) bool { return hasType[*ResponseTooLargeError](err) }

// LimitBody returns a body of at most a number of bytes. Reading from a longer body fails with a [*ResponseTooLargeError],
// because a truncated body must not pass as a complete one.
func LimitBody(body io.ReadCloser, maxBytes int) io.ReadCloser {
	return &limitedBody{ReadCloser: body, maxBytes: maxBytes, remaining: maxBytes}
}

type limitedBody struct {
	io.ReadCloser
	maxBytes, remaining int
}

func (b *limitedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.remaining -= n; b.remaining < 0 {
		return 0, &ResponseTooLargeError{MaxBytes: b.maxBytes}
	}
	return n, err
}
