// Package disruptionbudget decides whether one more node of a group may become unavailable now (invariant I5). Its
// functions are pure and send no requests.
package disruptionbudget

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// Code names the limit that forbids a disruption.
type Code string

const (
	NoLimitReached          Code = ""
	DisruptionBudgetReached Code = "DisruptionBudget"
	MinSizeReached          Code = "MinSize"
	// InvalidBudget: an invalid disruption budget forbids all disruptions.
	InvalidBudget Code = "InvalidBudget"
)

// Query describes one node to be retired, and its group.
type Query struct {
	Group *v1alpha1.NodeGroupSpec
	// CloudMinSize is the cloud's own minimum size. The larger one of it and the group's counts.
	CloudMinSize int32
	// Nodes are all nodes of the group, with or without Target.
	Nodes []Node
	// Target is the name of the node to be retired. It counts as unavailable in any case.
	Target string
	// TargetNotInGroup is true if the target is not a node of the group: an instance without a Node, or a node with changed
	// labels. It does not count towards the minimum size. A target that is only missing in Nodes may have been deleted
	// since.
	TargetNotInGroup bool
	Reason           v1alpha1.Reason
	Now              time.Time
}

// Decision says whether the node may be retired now, with a message for people.
type Decision struct {
	Code Code
	// Limit is how many nodes may be unavailable at once. Unavailable is how many are, without the target.
	Limit, Unavailable int
	Message            string
}

// IsAllowed reports whether the node may be retired now.
func (v Decision) IsAllowed() bool { return v.Code == NoLimitReached }

// maxNamedNodes is the largest number of unavailable nodes in one message.
const maxNamedNodes = 3

// CheckDisruption decides whether the node may be retired now. Of the disruption budgets that apply, the budget with
// the fewest permitted unavailable nodes decides. If none applies, one node may be unavailable at a time.
func CheckDisruption(q Query) Decision {
	if v := checkMinSize(q); !v.IsAllowed() {
		return v
	}
	limit, by, err := MaxUnavailable(q.Group.DisruptionBudgets, len(q.Nodes), q.Reason, q.Now)
	if err != nil {
		return Decision{Code: InvalidBudget, Message: err.Error()}
	}
	v := Decision{Limit: limit}
	var staying []string // the unavailable nodes that nothing removes: they block until a person acts
	for _, n := range q.Nodes {
		if n.Name == q.Target || n.UnavailableReason == "" {
			continue
		}
		v.Unavailable++
		if !n.BeingRemoved {
			staying = append(staying, n.Name+" ("+n.UnavailableReason+")")
		}
	}
	if v.Unavailable < v.Limit {
		return v
	}
	v.Code = DisruptionBudgetReached
	v.Message = fmt.Sprintf("%s allows %d unavailable nodes, and %d others are unavailable", by, v.Limit, v.Unavailable)
	// The nodes that are being removed change with each retirement. With their names, each change would write the status of all
	// retirements that wait.
	if len(staying) > 0 {
		slices.Sort(staying)
		v.Message += ", such as " + strings.Join(staying[:min(len(staying), maxNamedNodes)], ", ")
	}
	return v
}

// checkMinSize forbids a retirement that would bring the group below its minimum size.
func checkMinSize(q Query) Decision {
	stay := 0
	for _, n := range q.Nodes {
		if n.Name != q.Target && !n.BeingRemoved {
			stay++
		}
	}
	minSize, source := q.Group.MinSize, "the group's minSize"
	if q.CloudMinSize > minSize {
		minSize, source = q.CloudMinSize, "the cloud's minimum size"
	}
	if q.TargetNotInGroup || stay >= int(minSize) {
		return Decision{}
	}
	return Decision{Code: MinSizeReached, Message: fmt.Sprintf("%d nodes would remain, and %s is %d", stay, source, minSize)}
}

// CountRemainingDisruptions returns how many more nodes could be retired now for a reason. It is for display; each retirement is decided
// separately.
func CountRemainingDisruptions(group *v1alpha1.NodeGroupSpec, nodes []Node, reason v1alpha1.Reason, now time.Time) int {
	limit, _, err := MaxUnavailable(group.DisruptionBudgets, len(nodes), reason, now)
	if err != nil {
		return 0
	}
	unavailable, stay := 0, 0
	for _, n := range nodes {
		if n.UnavailableReason != "" {
			unavailable++
		}
		if !n.BeingRemoved {
			stay++
		}
	}
	return max(0, min(limit-unavailable, stay-int(group.MinSize)))
}

// MaxUnavailable returns how many of total nodes of a group may be unavailable at once, and which disruption budget
// decides that. It returns an error for an invalid budget, with the field.
func MaxUnavailable(budgets []v1alpha1.DisruptionBudget, total int, reason v1alpha1.Reason, now time.Time) (
	limit int, decidedBy string, err error,
) {
	limit, decidedBy = total, "a group without an active disruption budget"
	if len(budgets) == 0 {
		return 1, "a group without disruption budgets", nil
	}
	for i, b := range budgets {
		if len(b.Reasons) > 0 && !slices.Contains(b.Reasons, reason) {
			continue
		}
		open, err := IsBudgetActive(b, now)
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
			limit, decidedBy = n, fmt.Sprintf("disruptionBudgets[%d] (%s)", i, b.Nodes.String())
		}
	}
	return limit, decidedBy, nil
}

// IsBudgetActive reports whether a disruption budget applies at a time. A budget without a schedule always applies. A
// budget with a schedule applies for its duration after each scheduled time. The text of an error begins with the field,
// as in ".schedule: …".
func IsBudgetActive(b v1alpha1.DisruptionBudget, now time.Time) (active bool, err error) {
	if b.Schedule == "" {
		return true, nil
	}
	if b.Duration == nil || b.Duration.Duration <= 0 {
		return false, fmt.Errorf(".duration: is missing or not positive: want the length of the window, such as 8h")
	}
	zone, err := time.LoadLocation(b.TimeZone)
	if err != nil {
		return false, fmt.Errorf(".timeZone: %q: %w: want a name of the IANA database, such as Europe/Stockholm", b.TimeZone, err)
	}
	if strings.Contains(b.Schedule, "TZ=") {
		return false, fmt.Errorf(".schedule: %q: contains a time zone: want it in timeZone", b.Schedule)
	}
	schedule, err := cron.ParseStandard(b.Schedule)
	if err != nil {
		return false, fmt.Errorf(".schedule: %q: %w", b.Schedule, err)
	}
	// The latest window that can still be open starts first after (now − duration).
	opening := schedule.Next(now.Add(-b.Duration.Duration).In(zone))
	return !opening.IsZero() && !opening.After(now), nil
}

// ValidateBudgets returns an error for the first invalid disruption budget, at any time.
func ValidateBudgets(budgets []v1alpha1.DisruptionBudget, now time.Time) error {
	for i, b := range budgets {
		if _, err := IsBudgetActive(b, now); err != nil {
			return fmt.Errorf("disruptionBudgets[%d]%w", i, err)
		}
		if n, err := intstr.GetScaledValueFromIntOrPercent(&b.Nodes, 100, true); err != nil || n < 0 {
			return fmt.Errorf("disruptionBudgets[%d].nodes: %q: want a count from 0 on, or a percentage such as 10%%", i,
				b.Nodes.String())
		}
	}
	return nil
}
