package awsnth

import (
	"strconv"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/notice"
)

// The labels of the tool.
const (
	actionLabel     = Tool + "/action"
	actionTimeLabel = Tool + "/action-time" // in seconds since the epoch
	eventIDLabel    = Tool + "/event-id"
	// uncordonAfterReboot is the only value of actionLabel.
	uncordonAfterReboot = "UncordonAfterReboot"
)

// maxLabelBytes limits the value of a label, in bytes.
const maxLabelBytes = 63

// LabelsFor returns the labels of the tool for a notice that was first read at a time. The agent removes them when the
// notice has ended. A node that is only cordoned keeps its pods, so load balancers have to reach it.
func (o *Options) LabelsFor(n notice.Notice, first time.Time) map[string]string {
	all := map[string]string{}
	if o.excludesFromLoadBalancers() && o.actionForKind(KindOf(n)) == agent.Drain {
		all[excludeFromLoadBalancersLabel] = excludeFromLoadBalancersValue
	}
	if isRestart(n) {
		all[eventIDLabel], all[actionLabel] = toLabelValue(n.ID), uncordonAfterReboot
		all[actionTimeLabel] = strconv.FormatInt(first.Unix(), 10)
	}
	return all
}

// toLabelValue turns an event ID into a valid value of a label.
func toLabelValue(s string) string {
	s = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r) {
			return r
		}
		return '-'
	}, s)
	return strings.Trim(s[:min(len(s), maxLabelBytes)], "-_.")
}
