package main

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/notice/report"
)

// newTimeLimits returns the time limits of a drain with --deadline, counted from now. 0 means that there is none.
func newTimeLimits(deadline time.Duration) drain.TimeLimits {
	if deadline == 0 {
		return drain.TimeLimits{}
	}
	return drain.TimeLimits{Deadline: time.Now().Add(deadline), Margin: min(deadline/10, 2*time.Second)}
}

// stopTime is when the instance of a node stops. The zero value means that no such time is known.
type stopTime struct {
	// limits are the time limits of a drain before that time.
	limits drain.TimeLimits
	// deadline is the value of --deadline. Without it, notice is the notice with the earliest stop.
	deadline time.Duration
	notice   *report.Report
}

// findStopTime returns the time that --deadline sets, or else the earliest time when a notice stops the node's instance. It omits
// notices that the instance survives.
func findStopTime(n *corev1.Node, deadline time.Duration) stopTime {
	if deadline > 0 {
		return stopTime{limits: newTimeLimits(deadline), deadline: deadline}
	}
	var s stopTime
	reports, _ := report.ReadReports(n.Annotations)
	for i, r := range reports {
		if r.Forced && !r.Deadline.IsZero() && (s.notice == nil || r.Deadline.Before(s.notice.Deadline)) {
			s.notice = &reports[i]
			s.limits = drain.TimeLimits{Deadline: r.Deadline, Margin: agent.DefaultDeadlineMargin}
		}
	}
	return s
}

// describe returns which drain would make the decisions about successors.
func (s stopTime) describe() string {
	switch {
	case s.notice != nil:
		return fmt.Sprintf("The instance stops at %s (%s %s of %s). A drain with this deadline would decide this.",
			s.notice.Deadline.UTC().Format(time.RFC3339), s.notice.Type, s.notice.ID, s.notice.Source)
	case s.deadline > 0:
		return fmt.Sprintf("slipway drain --surge --deadline %s would decide this.", s.deadline)
	}
	return "slipway drain --surge would decide this without a deadline."
}
