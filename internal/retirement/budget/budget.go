// Package budget says whether one more node of a group may be taken out of service now (invariant I5). It is pure: it
// is told of the nodes and the time, and asks nobody.
package budget

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// Code is which bound forbids a disruption.
type Code string

// The bounds.
const (
	Allowed    Code = ""
	Disruption Code = "DisruptionBudget"
	Minimum    Code = "MinSize"
	// Invalid: a budget that cannot be read forbids everything that it bounds, rather than nothing.
	Invalid Code = "InvalidBudget"
)

// Question asks whether one node may leave.
type Question struct {
	Group *v1alpha1.NodeGroupSpec
	// CloudMinimum is the cloud's own minimum, which counts where it is more than the group's.
	CloudMinimum int32
	// Nodes are all of the group's, Target among them or not.
	Nodes []Node
	// Target is the name of the node that is to leave. It is counted as unavailable whatever it is now.
	Target string
	// Outside reports a target that is none of the group's nodes: a machine without a Node, or a node that has got other labels.
	// It takes nothing away from the minimum. One that is merely not among Nodes may have gone since it was looked at.
	Outside bool
	Reason  v1alpha1.Reason
	Now     time.Time
}

// Verdict is the answer, in words that can be printed.
type Verdict struct {
	Code Code
	// Limit is how many nodes may be unavailable at once, and Unavailable how many others than the target are.
	Limit, Unavailable int
	// Others says which nodes those are, and why. Message does without them, so that it does not change with each.
	Others  []string
	Message string
}

// Allowed reports that the node may leave.
func (v Verdict) Allowed() bool { return v.Code == Allowed }

// Evaluate answers the question. Of the budgets that apply the smallest counts; without any, one node may leave at a
// time.
func Evaluate(q Question) Verdict {
	if v := minimum(q); !v.Allowed() {
		return v
	}
	limit, by, err := Limit(q.Group.DisruptionBudgets, len(q.Nodes), q.Reason, q.Now)
	if err != nil {
		return Verdict{Code: Invalid, Message: err.Error()}
	}
	var others []string
	for _, n := range q.Nodes {
		if n.Name != q.Target && n.Unavailable != "" {
			others = append(others, n.Name+" ("+n.Unavailable+")")
		}
	}
	v := Verdict{Limit: limit, Unavailable: len(others), Others: others}
	if v.Unavailable < v.Limit {
		return v
	}
	v.Code = Disruption
	v.Message = fmt.Sprintf("%s allows %d unavailable at once, and %d others are", by, v.Limit, v.Unavailable)
	return v
}

// minimum keeps the group at its minimum.
func minimum(q Question) Verdict {
	stay := 0
	for _, n := range q.Nodes {
		if n.Name != q.Target && !n.Leaving {
			stay++
		}
	}
	least, whose := q.Group.Minimum, "the group's minimum"
	if q.CloudMinimum > least {
		least, whose = q.CloudMinimum, "the cloud's own minimum"
	}
	if q.Outside || stay >= int(least) {
		return Verdict{}
	}
	return Verdict{Code: Minimum, Message: fmt.Sprintf("%d nodes would stay, and %s is %d", stay, whose, least)}
}

// Room is how many more nodes could leave now for a reason, for people to read: each one is asked for by itself.
func Room(group *v1alpha1.NodeGroupSpec, nodes []Node, reason v1alpha1.Reason, now time.Time) int {
	limit, _, err := Limit(group.DisruptionBudgets, len(nodes), reason, now)
	if err != nil {
		return 0
	}
	unavailable, stay := 0, 0
	for _, n := range nodes {
		if n.Unavailable != "" {
			unavailable++
		}
		if !n.Leaving {
			stay++
		}
	}
	return max(0, min(limit-unavailable, stay-int(group.Minimum)))
}

// Limit is how many of a group's total nodes may be unavailable at once, and which budget says so. The error names
// a budget that cannot be read.
func Limit(budgets []v1alpha1.DisruptionBudget, total int, reason v1alpha1.Reason, now time.Time) (
	limit int, by string, err error,
) {
	limit, by = total, "no disruption budget now"
	if len(budgets) == 0 {
		return 1, "a group without disruption budgets", nil
	}
	for i, b := range budgets {
		if len(b.Reasons) > 0 && !slices.Contains(b.Reasons, reason) {
			continue
		}
		open, err := Open(b, now)
		if err != nil {
			return 0, "", fmt.Errorf("disruptionBudgets[%d]%w", i, err)
		}
		if !open {
			continue
		}
		n, err := intstr.GetScaledValueFromIntOrPercent(&b.Nodes, total, true)
		if err != nil || n < 0 {
			return 0, "", fmt.Errorf("disruptionBudgets[%d].nodes: %q: want a count from 0 on, or a percentage such as 10%%", i,
				b.Nodes.String())
		}
		if n < limit {
			limit, by = n, fmt.Sprintf("disruptionBudgets[%d] (%s)", i, b.Nodes.String())
		}
	}
	return limit, by, nil
}

// Open reports whether a budget applies at the time: always without a schedule, and for its duration after each moment
// that the schedule names otherwise. The error begins with the field, as in ".schedule: …".
func Open(b v1alpha1.DisruptionBudget, now time.Time) (bool, error) {
	if b.Schedule == "" {
		return true, nil
	}
	if b.Duration == nil || b.Duration.Duration <= 0 {
		return false, fmt.Errorf(".duration: want for how long the window stays open, such as 8h")
	}
	zone, err := time.LoadLocation(b.TimeZone)
	if err != nil {
		return false, fmt.Errorf(".timeZone: %q: %w: want a name of the IANA database, such as Europe/Stockholm", b.TimeZone, err)
	}
	if strings.Contains(b.Schedule, "TZ=") {
		return false, fmt.Errorf(".schedule: %q: want the time zone in timeZone", b.Schedule)
	}
	schedule, err := cron.ParseStandard(b.Schedule)
	if err != nil {
		return false, fmt.Errorf(".schedule: %q: %w", b.Schedule, err)
	}
	// The latest opening that could still be open is the first one after the window's length ago.
	opening := schedule.Next(now.Add(-b.Duration.Duration).In(zone))
	return !opening.IsZero() && !opening.After(now), nil
}

// Check finds what is wrong with a group's budgets, at any time.
func Check(budgets []v1alpha1.DisruptionBudget, now time.Time) error {
	for i, b := range budgets {
		if _, err := Open(b, now); err != nil {
			return fmt.Errorf("disruptionBudgets[%d]%w", i, err)
		}
		if n, err := intstr.GetScaledValueFromIntOrPercent(&b.Nodes, 100, true); err != nil || n < 0 {
			return fmt.Errorf("disruptionBudgets[%d].nodes: %q: want a count from 0 on, or a percentage such as 10%%", i,
				b.Nodes.String())
		}
	}
	return nil
}
