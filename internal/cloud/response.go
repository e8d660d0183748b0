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

// RetryAfter parses the Retry-After header (RFC 9110, 10.2.3), which is a number of seconds or a date. It returns at
// most one hour, and 0 if the header is missing or cannot be parsed.
func RetryAfter(header http.Header, now time.Time) time.Duration {
	if delay := PauseIn(header, "Retry-After", time.Second); delay > 0 {
		return delay
	}
	if at, err := http.ParseTime(strings.TrimSpace(header.Get("Retry-After"))); err == nil {
		return min(max(at.Sub(now), 0), maxRetryDelay)
	}
	return 0
}

// PauseIn parses a retry header that only one cloud has, which is a whole number of units. It has the limits of
// [RetryAfter].
func PauseIn(header http.Header, name string, unit time.Duration) time.Duration {
	if n, err := strconv.ParseInt(strings.TrimSpace(header.Get(name)), 10, 32); err == nil && n > 0 {
		return min(time.Duration(n)*unit, maxRetryDelay)
	}
	return 0
}

// Printable cuts text from another program to a length in bytes. The result is one line of valid UTF-8 without control
// characters, so a terminal or a log can show it.
func Printable(text string, maxBytes int) string {
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

// TooLargeError is the error of a read from a body of [Bounded] that is too long.
type TooLargeError struct{ Most int }

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the answer has more than %d bytes", e.Most)
}

// IsTooLarge reports whether err means that a body was longer than the limit of [Bounded].
func IsTooLarge(err error) bool { return hasType[*TooLargeError](err) }

// Bounded returns a body of at most a number of bytes. Reading from a longer body fails with a [*TooLargeError],
// because a truncated body must not pass as a complete one.
func Bounded(body io.ReadCloser, maxBytes int) io.ReadCloser {
	return &limitedBody{ReadCloser: body, maxBytes: maxBytes, remaining: maxBytes}
}

type limitedBody struct {
	io.ReadCloser
	maxBytes, remaining int
}

func (b *limitedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.remaining -= n; b.remaining < 0 {
		return 0, &TooLargeError{Most: b.maxBytes}
	}
	return n, err
}
