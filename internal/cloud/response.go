package cloud

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxRetryDelay is the longest retry delay that is accepted from a cloud.
const maxRetryDelay = time.Hour

// ParseRetryAfter returns the delay in a Retry-After header (RFC 9110, 10.2.3), which is a number of seconds or a date.
// It returns at most one hour. It returns 0 if the header is missing or cannot be parsed.
func ParseRetryAfter(header http.Header, now time.Time) time.Duration {
	if delay := ParseRetryHeader(header, "Retry-After", time.Second); delay > 0 {
		return delay
	}
	if at, err := http.ParseTime(strings.TrimSpace(header.Get("Retry-After"))); err == nil {
		return min(max(at.Sub(now), 0), maxRetryDelay)
	}
	return 0
}

// ParseRetryHeader parses a retry header that only one cloud uses. The header holds a whole number of units.
// ParseRetryHeader returns at most one hour, and 0 if the header is missing or cannot be parsed.
func ParseRetryHeader(header http.Header, name string, unit time.Duration) time.Duration {
	if n, err := strconv.ParseInt(strings.TrimSpace(header.Get(name)), 10, 32); err == nil && n > 0 {
		return min(time.Duration(n)*unit, maxRetryDelay)
	}
	return 0
}

// SanitizeText makes text from another program safe for a terminal or a log. It cuts the text after maxBytes bytes. It
// returns one line of valid UTF-8 without control characters.
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

// ResponseTooLargeError is the error of a read from a response body that exceeds its limit, see [LimitBody].
type ResponseTooLargeError struct{ MaxBytes int }

func (e *ResponseTooLargeError) Error() string {
	return fmt.Sprintf("the answer has more than %d bytes", e.MaxBytes)
}

// IsResponseTooLarge reports whether err contains a [*ResponseTooLargeError].
func IsResponseTooLarge(err error) bool { return hasType[*ResponseTooLargeError](err) }

// LimitBody returns a body with a limit of maxBytes bytes. If body is longer, a read fails with a
// [*ResponseTooLargeError]. A truncated body must not pass as a complete one.
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
