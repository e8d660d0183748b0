package report

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/slipway-dev/slipway/internal/observe"
)

// maxText is the length of the longest text on the page, in bytes. An Event has at most 1,024.
const maxText = 1024

// cleanText returns a text from the cluster as one line without invisible characters. Control characters and characters
// that reverse the direction of text would show another text than the input has.
func cleanText(s string) string {
	s = observe.ClipBytes(s, maxText)
	if strings.IndexFunc(s, isHidden) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			b.WriteByte(' ')
		case isHidden(r):
			fmt.Fprintf(&b, "\\u%04x", r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

func isHidden(r rune) bool { return r != ' ' && !unicode.IsPrint(r) }

// formatTime returns a time of the page. All times are UTC.
func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05.0") + " UTC"
}

// formatDuration returns a duration such as 0.4 s, 12 s, 3 min 5 s or 2 h 10 min.
func formatDuration(d time.Duration) string {
	sign := ""
	if d < 0 {
		sign, d = "−", -d
	}
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%s%.1f s", sign, d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%s%.0f s", sign, d.Seconds())
	case d < time.Hour:
		return sign + joinUnits(int64(d/time.Minute), "min", int64(d%time.Minute/time.Second), "s")
	}
	return sign + joinUnits(int64(d/time.Hour), "h", int64(d%time.Hour/time.Minute), "min")
}

func joinUnits(n int64, unit string, rest int64, small string) string {
	if rest == 0 {
		return fmt.Sprintf("%d %s", n, unit)
	}
	return fmt.Sprintf("%d %s %d %s", n, unit, rest, small)
}

// toDuration returns a number of seconds as a duration. It limits the number, because an input may have any.
func toDuration(seconds float64) time.Duration {
	const most = float64(100 * 365 * 24 * 3600)
	return time.Duration(max(-most, min(seconds, most)) * float64(time.Second))
}
