package awsnth

import (
	"strconv"
	"strings"
	"time"

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
// notice has ended.
func (*Options) LabelsFor(n notice.Notice, first time.Time) map[string]string {
	if !isRestart(n) {
		return nil
	}
	return map[string]string{
		eventIDLabel: toLabelValue(n.ID), actionLabel: uncordonAfterReboot, actionTimeLabel: strconv.FormatInt(first.Unix(), 10),
	}
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
