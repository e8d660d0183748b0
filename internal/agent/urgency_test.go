package agent

import (
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
)

// TestShorterNoticePeriodIsUrgent covers a lifecycle hook whose timeout is read after the notice.
func TestShorterNoticePeriodIsUrgent(t *testing.T) {
	before := notice.Snapshot{Notices: []notice.Notice{{ID: "asg", Type: notice.Terminate, NoticePeriod: time.Hour}}}
	now := notice.Snapshot{Notices: []notice.Notice{{ID: "asg", Type: notice.Terminate, NoticePeriod: 30 * time.Second}}}
	if hasSameNotices(before, now) || !hasSameNotices(now, now) {
		t.Error("another notice period is not another deadline")
	}
}
