// Package report reads the agent's records of notices from a Node. The agent that wrote a record and the reader may
// have different versions. So unknown fields are ignored, and records that are not about a notice are skipped.
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

// Report is the agent's record of one notice on its Node.
type Report struct {
	notice.Notice
	// Deadline is when the interruption is due; zero if it has no deadline.
	Deadline time.Time
	// Forced is true if the interruption ends the processes of the instance. A Freeze only pauses them.
	Forced bool
	// Seen is when the agent first read the notice.
	Seen time.Time
	// Phase is the agent's progress: empty, cordoned, draining, drained, not-drained or acknowledged.
	Phase string
	// DrainWaitsFor is what delays the start of the drain, such as "a drain slot"; empty if nothing does.
	DrainWaitsFor string
}

// recordState holds the fields of the agent's record that this package reads.
type recordState struct {
	Notice   notice.Notice `json:"notice"`
	Decision struct {
		Deadline time.Time `json:"deadline"`
		Forced   bool      `json:"forced"`
	} `json:"decision"`
	Seen struct {
		First time.Time `json:"first"`
	} `json:"seen"`
	Phase         string `json:"phase"`
	DrainWaitsFor string `json:"drainWaitsFor"`
}

// ReadReports returns the records of notices in a Node's annotations, oldest first. problems has an error for each
// record that cannot be parsed. Such a record may be about any notice. So while there is a problem, a missing notice
// does not count as ended (I7: unknown is not gone).
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
		if s.Notice.ID == "" || s.Notice.Type == "" || r.Owner != notice.ClaimOwner(s.Notice.Source, s.Notice.ID) {
			continue
		}
		reports = append(reports, Report{
			Notice: s.Notice, Deadline: s.Decision.Deadline, Forced: s.Decision.Forced, Seen: s.Seen.First, Phase: s.Phase, DrainWaitsFor: s.DrainWaitsFor,
		})
	}
	return reports, problems
}

// BlockedProgress returns the progress of a blocked drain from the message of the condition DrainInProgress. An example
// is "7 of 12 gone, 1 waiting (disruption-budget shop/web: 1)". It returns "" if the drain is not blocked.
func BlockedProgress(message string) string {
	_, progress, _ := strings.Cut(message, "): ")
	return progress
}

// MayBeActive reports whether the Node has a record of the notice, or an unreadable record that may be about the notice
// (I7: unknown is not gone).
func MayBeActive(annotations map[string]string, source, id string) bool {
	reports, problems := ReadReports(annotations)
	return len(problems) > 0 || containsNotice(reports, source, id)
}

// HasRecord reports whether the Node has the notice's own record, readable or not. It ignores other unreadable records,
// which may stay forever. So a false result does not prove that the notice has ended (I7: unknown is not gone).
func HasRecord(annotations map[string]string, source, id string) bool {
	reports, _ := ReadReports(annotations)
	_, there := annotations[cordon.AnnotationKey(notice.ClaimOwner(source, id))]
	return there || containsNotice(reports, source, id)
}

func containsNotice(reports []Report, source, id string) bool {
	return slices.ContainsFunc(reports, func(r Report) bool { return r.Source == source && r.ID == id })
}
