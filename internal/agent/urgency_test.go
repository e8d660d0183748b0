package agent

import (
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

// TestShorterNoticePeriodIsUrgent covers a lifecycle hook. Its timeout is read after the notice.
func TestShorterNoticePeriodIsUrgent(t *testing.T) {
	before := notice.Snapshot{Notices: []notice.Notice{{ID: "asg", Type: notice.Terminate, NoticePeriod: time.Hour}}}
	now := notice.Snapshot{Notices: []notice.Notice{{ID: "asg", Type: notice.Terminate, NoticePeriod: 30 * time.Second}}}
	if hasSameNotices(before, now) || !hasSameNotices(now, now) {
		t.Error("another notice period is not another deadline")
	}
}

func TestLaterPreemptLetsBlockedPodBeEvicted(t *testing.T) {
	withTestNode(t, time.Second, func(t *testing.T, m *testNode) {
		grace := int64(30)
		m.pod.Spec.TerminationGracePeriodSeconds = &grace
		m.denyEvictions("web")
		m.startAgent(t, 0, nil)
		first := newNotice(notice.Terminate, "1", 90*time.Minute)
		m.source.setNotices(first)
		time.Sleep(30 * time.Minute)
		m.source.setNotices(first, newNotice(notice.Preempt, "2", 30*time.Second))
		time.Sleep(10 * time.Second)
		check.Not(t, !m.evictionTime().IsZero(), "the pod was deleted at %s, with time left for its PDB", m.evictionTime())
		m.denyEvictions("")
		time.Sleep(3 * time.Second) // 1 s before the forced deletion
		check.Not(t, m.evictionTime().IsZero(), "the pod was not evicted when its PDB allowed that")
	})
}
