package awsnth

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
)

// source is the source of the instance's notices, without scheduled events whose restart has happened. The metadata
// service may list such an event for a while, or may not answer.
type source struct {
	agent.Source

	booted time.Time // zero if unknown
	// over is the value of the label with the ID of an event whose restart has happened; empty if there is none.
	over string
}

// WrapSource returns the source without scheduled events whose restart has happened. node is the Node as it was read at
// the start; nil if it was not read.
func (o *Options) WrapSource(inner agent.Source, node *kubeapi.Node, log *slog.Logger) agent.Source {
	s := &source{Source: inner}
	if !o.EnableScheduledEventDraining {
		return inner
	}
	var err error
	if s.booted, err = o.ReadBootTime(time.Now()); err != nil {
		log.Warn("cannot find out whether the machine was restarted: a node is uncordoned when its event is not listed any more", "err", err)
		return s
	}
	if node == nil || node.Labels[actionLabel] != uncordonAfterReboot {
		return s
	}
	began, err := strconv.ParseInt(node.Labels[actionTimeLabel], 10, 64)
	if err != nil {
		log.Warn("cannot find out whether the machine was restarted for its event", "node", node.Name, "label", actionTimeLabel,
			"value", node.Labels[actionTimeLabel], "want", "seconds since the epoch")
		return s
	}
	if s.booted.After(time.Unix(began, 0)) {
		s.over = node.Labels[eventIDLabel]
		log.Info("the machine was restarted for its event; the event is over", "id", s.over, "booted", s.booted)
	}
	return s
}

// ResumeNotices implements agent.Resumer.
func (s *source) ResumeNotices(notices []notice.Notice) {
	if r, ok := s.Source.(agent.Resumer); ok {
		r.ResumeNotices(notices)
	}
}

// Run implements agent.Source. It reports the restart before the first read, because the metadata service may not answer.
func (s *source) Run(ctx context.Context, emit func(notice.Snapshot)) {
	if s.over != "" {
		emit(notice.Snapshot{At: time.Now(), Incomplete: true, Ended: []string{s.over}})
	}
	s.Source.Run(ctx, func(snapshot notice.Snapshot) { emit(s.filter(snapshot)) })
}

// filter returns a snapshot without the events that are over.
func (s *source) filter(in notice.Snapshot) notice.Snapshot {
	out := in
	if s.over != "" {
		out.Ended = append(slices.Clone(out.Ended), s.over)
	}
	out.Planned = slices.DeleteFunc(slices.Clone(in.Planned), s.isOver)
	out.Notices = nil
	for _, n := range in.Notices {
		if s.isOver(n) {
			out.Ended = append(slices.Clip(out.Ended), n.ID)
			continue
		}
		out.Notices = append(out.Notices, n)
	}
	return out
}

// isOver reports whether the restart of a scheduled event has happened. A reboot has happened if the machine was booted
// after the time of the event.
func (s *source) isOver(n notice.Notice) bool {
	if !isRestart(n) {
		return false
	}
	rebooted := n.Type == notice.Reboot && !n.NotBefore.IsZero() && s.booted.After(n.NotBefore)
	return rebooted || s.over != "" && toLabelValue(n.ID) == s.over
}
