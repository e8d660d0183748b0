package top

import (
	"fmt"
	"time"
)

// Phrase is what goes on, as of now: "idle 3:12 of 5:00", "draining 7 of 12; waiting for PDB shop/web".
func (d Doing) Phrase(now time.Time) string {
	s := d.Text
	if !d.Since.IsZero() {
		s += " " + clock(now.Sub(d.Since))
		if !d.Until.IsZero() {
			s += " of " + clock(d.Until.Sub(d.Since))
		}
	}
	if !d.Due.IsZero() {
		s += ", " + countdown(d.Due, now)
	}
	return s + d.detail()
}

// Lasting is the same without anything that changes by time passing alone.
func (d Doing) Lasting() string {
	s := d.Text
	if !d.Since.IsZero() {
		s += " since " + stamp(d.Since)
		if !d.Until.IsZero() {
			s += " until " + stamp(d.Until)
		}
	}
	if !d.Due.IsZero() {
		s += ", due at " + stamp(d.Due)
	}
	return s + d.detail()
}

func (d Doing) detail() string {
	if d.Detail == "" {
		return ""
	}
	return "; " + d.Detail
}

// Countdown is how long there is until a notice comes true.
func (n Notice) Countdown(now time.Time) string {
	switch {
	case n.Started:
		return "under way"
	case n.Due.IsZero():
		return "no time given"
	}
	return countdown(n.Due, now)
}

func countdown(due, now time.Time) string {
	if left := due.Sub(now); left > 0 {
		return "due in " + clock(left)
	}
	return "due " + clock(now.Sub(due)) + " ago"
}

// clock is a duration as a clock counts it: 0:07, 3:12, 1:02:03; from two days on 2d5h.
func clock(d time.Duration) string {
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

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
