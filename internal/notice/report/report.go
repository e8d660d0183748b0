// Package report reads the agent's records of notices from its Node. The agent and the reader may have different
// versions. So unknown fields are ignored, and records that are not for a notice are skipped.
package report

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
)

// Report is the agent's record of one notice.
type Report struct {
	notice.Notice
	// Deadline is when the interruption is due; zero if it has no deadline.
	Deadline time.Time
	// Seen is when the agent first read the notice.
	Seen time.Time
	// Phase is the agent's progress: empty, cordoned, draining, drained, not-drained or acknowledged.
	Phase string
}

// ClaimOwner returns the owner of the agent's cordon claim for a notice.
func ClaimOwner(source, id string) string { return source + "-" + id }

// recordState is the part of the agent's record that is read here.
type recordState struct {
	Notice   notice.Notice `json:"notice"`
	Decision struct {
		Deadline time.Time `json:"deadline"`
	} `json:"decision"`
	Seen struct {
		First time.Time `json:"first"`
	} `json:"seen"`
	Phase string `json:"phase"`
}

// ReadReports reads the reports from a Node's annotations, oldest first. The problems are records of ours that cannot be
// parsed. Each may be for any notice, so with a problem no missing notice is over (I7).
func ReadReports(annotations map[string]string) (reports []Report, problems []error) {
	records, problems := cordon.ListRecords(&kubeapi.Node{ObjectMeta: kubeapi.ObjectMeta{Annotations: annotations}})
	for _, r := range records {
		if len(r.State) == 0 {
			continue // the claim of another owner, such as a retirement
		}
		var s recordState
		if err := json.Unmarshal(r.State, &s); err != nil {
			problems = append(problems, fmt.Errorf("record of %q: state: %w", r.Owner, err))
			continue
		}
		if s.Notice.ID == "" || s.Notice.Type == "" || !strings.EqualFold(r.Owner, ClaimOwner(s.Notice.Source, s.Notice.ID)) {
			continue
		}
		reports = append(reports, Report{Notice: s.Notice, Deadline: s.Decision.Deadline, Seen: s.Seen.First, Phase: s.Phase})
	}
	return reports, problems
}

// BlockedProgress returns the progress of a blocked drain from the message of the condition DrainInProgress, such as "7 of 12
// gone, 1 waiting (disruption-budget shop/web: 1)". It is empty if the drain is not blocked.
func BlockedProgress(message string) string {
	_, progress, _ := strings.Cut(message, "): ")
	return progress
}

// MayBeActive reports whether a notice is still on the Node, or may be (I7).
func MayBeActive(annotations map[string]string, source, id string) bool {
	reports, problems := ReadReports(annotations)
	return len(problems) > 0 || containsNotice(reports, source, id)
}

// HasRecord reports whether a notice's own record is still on the Node, readable or not. It ignores other unreadable
// records, which may stay forever. So false does not prove that the notice has ended (I7).
func HasRecord(annotations map[string]string, source, id string) bool {
	reports, _ := ReadReports(annotations)
	_, there := annotations[cordon.AnnotationKey(ClaimOwner(source, id))]
	return there || containsNotice(reports, source, id)
}

func containsNotice(reports []Report, source, id string) bool {
	return slices.ContainsFunc(reports, func(r Report) bool { return r.Source == source && r.ID == id })
}
