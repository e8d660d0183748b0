package cloud

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxPause bounds what is believed of a cloud's wish to be left alone.
const maxPause = time.Hour

// RetryAfter reads how long a server wants to be left alone, from the header of that name (RFC 9110, 10.2.3): in seconds, or
// as a time that now is compared with. It is at most an hour, and 0 when there is no wish, or none that can be read.
func RetryAfter(header http.Header, now time.Time) time.Duration {
	if pause := PauseIn(header, "Retry-After", time.Second); pause > 0 {
		return pause
	}
	if at, err := http.ParseTime(strings.TrimSpace(header.Get("Retry-After"))); err == nil {
		return min(max(at.Sub(now), 0), maxPause)
	}
	return 0
}

// PauseIn is RetryAfter of a header that a cloud has of its own, a whole number of units.
func PauseIn(header http.Header, name string, unit time.Duration) time.Duration {
	if n, err := strconv.ParseInt(strings.TrimSpace(header.Get(name)), 10, 32); err == nil && n > 0 {
		return min(time.Duration(n)*unit, maxPause)
	}
	return 0
}

// Printable cuts the text of somebody else to a length in bytes, and leaves nothing in it that a terminal or a log would
// stumble over: it is valid UTF-8, of one line, without control characters.
func Printable(text string, most int) string {
	if len(text) > most {
		text = text[:most] + "…"
	}
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, ""))
	return strings.Join(strings.Fields(text), " ")
}

// TooLargeError is what reading a body ends with that [Bounded] has cut off.
type TooLargeError struct{ Most int }

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the answer has more than %d bytes", e.Most)
}

// IsTooLarge reports whether an answer had more bytes than are read.
func IsTooLarge(err error) bool { return as[*TooLargeError](err) }

// Bounded is a body of which no more than so many bytes are read. Of a longer one, reading fails with a [*TooLargeError]:
// what is cut off somewhere must not be taken for the whole.
func Bounded(body io.ReadCloser, most int) io.ReadCloser {
	return &bounded{ReadCloser: body, most: most, left: most}
}

type bounded struct {
	io.ReadCloser
	most, left int
}

func (b *bounded) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	if b.left -= n; b.left < 0 {
		return 0, &TooLargeError{Most: b.most}
	}
	return n, err
}
