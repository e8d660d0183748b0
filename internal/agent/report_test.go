package agent

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/report"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestAgentRecordsCanBeReportedByOthers(t *testing.T) {
	seen := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	h := noticeState{
		Notice:   notice.Notice{ID: "E1", Source: "azure", Type: notice.Preempt, Status: notice.Started},
		Seen:     SeenTimes{First: seen},
		Decision: Decision{Action: Drain, Deadline: seen.Add(30 * time.Second)},
		Phase:    Draining,
	}
	state, err := json.Marshal(&h)
	must.NoError(t, err)
	name := claimOwner(h.Notice.Source, h.Notice.ID)
	record, err := json.Marshal(cordon.Record{Owner: name, Since: seen, State: state})
	must.NoError(t, err)
	reports, problems := report.ReadReports(map[string]string{cordon.AnnotationKey(name): string(record)})
	if len(reports) != 1 || len(problems) != 0 {
		t.Fatalf("%v, %v", reports, problems)
	}
	check.Is(t, "", report.BlockedProgress(lifecycleConditions(&h)[1].Message))
	h.shownProgress = "7 of 12 gone, 1 waiting (disruption-budget shop/web: 1)"
	if got := report.BlockedProgress(lifecycleConditions(&h)[1].Message); got != h.shownProgress {
		t.Errorf("blocked progress %q", got)
	}
	r := reports[0]
	if r.ID != "E1" || r.Type != notice.Preempt || r.Status != notice.Started || !r.Seen.Equal(seen) ||
		!r.Deadline.Equal(h.Decision.Deadline) || r.Phase != string(Draining) {
		t.Errorf("reported %+v of %+v", r, h)
	}
}
