package top

import (
	"time"

	"github.com/slipway-dev/slipway/internal/screen"
)

// Describe returns the activity as text, with durations up to now. Examples are "idle 3:12 of 5:00" and "draining 7 of
// 12; waiting for PDB shop/web".
func (d Activity) Describe(now time.Time) string {
	s := d.Text
	if !d.Since.IsZero() {
		s += " " + screen.FormatDuration(now.Sub(d.Since))
		if !d.Until.IsZero() {
			s += " of " + screen.FormatDuration(d.Until.Sub(d.Since))
		}
	}
	if !d.Due.IsZero() {
		s += ", " + formatCountdown(d.Due, now)
	}
	return s + d.formatDetail()
}

// DescribeWithTimestamps returns the activity as text, with timestamps instead of durations. So the text does not
// change with time alone.
func (d Activity) DescribeWithTimestamps() string {
	s := d.Text
	if !d.Since.IsZero() {
		s += " since " + formatTimestamp(d.Since)
		if !d.Until.IsZero() {
			s += " until " + formatTimestamp(d.Until)
		}
	}
	if !d.Due.IsZero() {
		s += ", due at " + formatTimestamp(d.Due)
	}
	return s + d.formatDetail()
}

func (d Activity) formatDetail() string {
	if d.Detail == "" {
		return ""
	}
	return "; " + d.Detail
}

// FormatCountdown returns the time until the notice takes effect, as text.
func (n Notice) FormatCountdown(now time.Time) string {
	switch {
	case n.Started:
		return "started"
	case n.Due.IsZero():
		return "no time given"
	}
	return formatCountdown(n.Due, now)
}

func formatCountdown(due, now time.Time) string {
	if left := due.Sub(now); left > 0 {
		return "due in " + screen.FormatDuration(left)
	}
	return "due " + screen.FormatDuration(now.Sub(due)) + " ago"
}

func formatTimestamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
