package top

import (
	"fmt"
	"time"
)

// Describe returns the activity with durations at the time now: "idle 3:12 of 5:00", "draining 7 of 12; waiting for PDB
// shop/web".
func (d Activity) Describe(now time.Time) string {
	s := d.Text
	if !d.Since.IsZero() {
		s += " " + formatDuration(now.Sub(d.Since))
		if !d.Until.IsZero() {
			s += " of " + formatDuration(d.Until.Sub(d.Since))
		}
	}
	if !d.Due.IsZero() {
		s += ", " + formatCountdown(d.Due, now)
	}
	return s + d.formatDetail()
}

// DescribeWithTimestamps returns the activity with timestamps instead of durations, so that the text does not change with time
// alone.
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

// FormatCountdown returns the time until the notice takes effect.
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
		return "due in " + formatDuration(left)
	}
	return "due " + formatDuration(now.Sub(due)) + " ago"
}

// formatDuration formats a duration as 0:07, 3:12 or 1:02:03, and from two days on as 2d5h.
func formatDuration(d time.Duration) string {
	const day = 24 * time.Hour
	s := int(max(d, 0) / time.Second)
	switch {
	case d >= 2*day:
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
	}
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}

func formatTimestamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
