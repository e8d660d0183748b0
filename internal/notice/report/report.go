// Package report reads what the agent on a node has written on its Node about the notices that it deals with. The agent
// and whoever reads this may be of different versions: fields that are not known are passed over, and a record that is
// no notice's is not one.
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

// Report is one notice as the agent has written it down.
type Report struct {
	notice.Notice
	// Deadline is when the interruption is due; zero when nothing is.
	Deadline time.Time
	// Seen is when the agent first read of it.
	Seen time.Time
	// Phase is how far the agent is: empty, cordoned, draining, drained, not-drained or acknowledged.
	Phase string
}

// Owner is the name under which the agent holds its node on account of a notice.
func Owner(source, id string) string { return source + "-" + id }

// state is what the agent keeps in its record, as far as it is read here.
type state struct {
	Notice   notice.Notice `json:"notice"`
	Decision struct {
		Deadline time.Time `json:"deadline"`
	} `json:"decision"`
	Seen struct {
		First time.Time `json:"first"`
	} `json:"seen"`
	Phase string `json:"phase"`
}

// Of reads the reports among a Node's annotations, oldest first. Problems are records of ours that cannot be read: any
// notice may be behind one, so that while there is one no missing notice may be taken to be over (I7).
func Of(annotations map[string]string) (reports []Report, problems []error) {
	records, problems := cordon.List(&kubeapi.Node{ObjectMeta: kubeapi.ObjectMeta{Annotations: annotations}})
	for _, r := range records {
		if len(r.State) == 0 {
			continue // somebody else's hold, such as a retirement's
		}
		var s state
		if err := json.Unmarshal(r.State, &s); err != nil {
			problems = append(problems, fmt.Errorf("record of %q: state: %w", r.Owner, err))
			continue
		}
		if s.Notice.ID == "" || s.Notice.Type == "" || !strings.EqualFold(r.Owner, Owner(s.Notice.Source, s.Notice.ID)) {
			continue
		}
		reports = append(reports, Report{Notice: s.Notice, Deadline: s.Decision.Deadline, Seen: s.Seen.First, Phase: s.Phase})
	}
	return reports, problems
}

// Blocked is what the message of a Node's condition DrainInProgress says of a drain that something blocks, such as
// "7 of 12 gone, 1 waiting (disruption-budget shop/web: 1)" after the notice; empty while nothing does.
func Blocked(message string) string {
	_, progress, _ := strings.Cut(message, "): ")
	return progress
}

// Stands reports whether a notice is on the Node still, or may be (I7).
func Stands(annotations map[string]string, source, id string) bool {
	reports, problems := Of(annotations)
	return len(problems) > 0 || among(reports, source, id)
}

// Remains reports whether a notice's own record is on the Node still, be it one that cannot be read. Nobody may act on the notice's
// being over by that (I7): others that cannot be read are passed over, since they may stay for good.
func Remains(annotations map[string]string, source, id string) bool {
	reports, _ := Of(annotations)
	_, there := annotations[cordon.AnnotationKey(Owner(source, id))]
	return there || among(reports, source, id)
}

func among(reports []Report, source, id string) bool {
	return slices.ContainsFunc(reports, func(r Report) bool { return r.Source == source && r.ID == id })
}
