package disruptionbudget_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the time zones, on any machine

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/retirement/disruptionbudget"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func nodes(total, unavailable, leaving int) []disruptionbudget.Node {
	all := make([]disruptionbudget.Node, total)
	for i := range all {
		all[i].Name = fmt.Sprint("n", i)
		if i > 0 && i <= unavailable {
			all[i].UnavailableReason = "is cordoned"
		}
		if i > 0 && i <= leaving {
			all[i].BeingRemoved, all[i].UnavailableReason = true, "is being retired"
		}
	}
	return all
}

func at(t *testing.T, s string) time.Time {
	t.Helper()
	return must.Get(time.Parse(time.RFC3339, s))(t)
}

func of(nodes string) v1alpha1.DisruptionBudget {
	return v1alpha1.DisruptionBudget{Nodes: intstr.Parse(nodes)}
}

func TestI5BudgetCountsWhatOthersMakeUnavailable(t *testing.T) {
	window := of("0")
	window.Schedule, window.Duration, window.TimeZone = "0 9 * * mon-fri", &metav1.Duration{Duration: 8 * time.Hour}, "Europe/Stockholm"
	idle := of("0")
	idle.Reasons = []v1alpha1.Reason{v1alpha1.Idle}
	broken := of("1")
	broken.Schedule, broken.Duration = "every day", &metav1.Duration{Duration: time.Hour}
	for name, tt := range map[string]struct {
		budgets []v1alpha1.DisruptionBudget
		minimum int32
		nodes   []disruptionbudget.Node
		now     string
		code    disruptionbudget.Code
	}{
		"no budget, all available":            {nil, 0, nodes(3, 0, 0), "2026-06-01T12:00:00Z", disruptionbudget.NoLimitReached},
		"no budget, one unavailable":          {nil, 0, nodes(3, 1, 0), "2026-06-01T12:00:00Z", disruptionbudget.DisruptionBudgetReached},
		"two, one unavailable":                {[]v1alpha1.DisruptionBudget{of("2")}, 0, nodes(3, 1, 0), "2026-06-01T12:00:00Z", disruptionbudget.NoLimitReached},
		"a third of 4 is 2 rounded up":        {[]v1alpha1.DisruptionBudget{of("33%")}, 0, nodes(4, 1, 0), "2026-06-01T12:00:00Z", disruptionbudget.NoLimitReached},
		"a third of 4, two unavailable":       {[]v1alpha1.DisruptionBudget{of("33%")}, 0, nodes(4, 2, 0), "2026-06-01T12:00:00Z", disruptionbudget.DisruptionBudgetReached},
		"0% forbids all":                      {[]v1alpha1.DisruptionBudget{of("0%")}, 0, nodes(9, 0, 0), "2026-06-01T12:00:00Z", disruptionbudget.DisruptionBudgetReached},
		"the smallest counts":                 {[]v1alpha1.DisruptionBudget{of("5"), of("1"), of("50%")}, 0, nodes(9, 1, 0), "2026-06-01T12:00:00Z", disruptionbudget.DisruptionBudgetReached},
		"for another reason":                  {[]v1alpha1.DisruptionBudget{idle}, 0, nodes(3, 0, 0), "2026-06-01T12:00:00Z", disruptionbudget.NoLimitReached},
		"at the minimum":                      {nil, 3, nodes(3, 0, 0), "2026-06-01T12:00:00Z", disruptionbudget.MinSizeReached},
		"one above the minimum":               {nil, 2, nodes(3, 0, 0), "2026-06-01T12:00:00Z", disruptionbudget.NoLimitReached},
		"one above, but one is being removed": {[]v1alpha1.DisruptionBudget{of("9")}, 2, nodes(3, 0, 1), "2026-06-01T12:00:00Z", disruptionbudget.MinSizeReached},
		"cordoned counts for minimum":         {[]v1alpha1.DisruptionBudget{of("9")}, 2, nodes(3, 1, 0), "2026-06-01T12:00:00Z", disruptionbudget.NoLimitReached},
		"window, in summer, inside":           {[]v1alpha1.DisruptionBudget{window}, 0, nodes(3, 0, 0), "2026-06-01T07:00:00Z", disruptionbudget.DisruptionBudgetReached},
		"window, in summer, before":           {[]v1alpha1.DisruptionBudget{window}, 0, nodes(3, 0, 0), "2026-06-01T06:59:59Z", disruptionbudget.NoLimitReached},
		"window, in winter, before":           {[]v1alpha1.DisruptionBudget{window}, 0, nodes(3, 0, 0), "2026-01-05T07:30:00Z", disruptionbudget.NoLimitReached},
		"window, its last second":             {[]v1alpha1.DisruptionBudget{window}, 0, nodes(3, 0, 0), "2026-06-01T14:59:59Z", disruptionbudget.DisruptionBudgetReached},
		"window, just over":                   {[]v1alpha1.DisruptionBudget{window}, 0, nodes(3, 0, 0), "2026-06-01T15:00:00Z", disruptionbudget.NoLimitReached},
		"window, on a Sunday":                 {[]v1alpha1.DisruptionBudget{window}, 0, nodes(3, 0, 0), "2026-06-07T10:00:00Z", disruptionbudget.NoLimitReached},
		"invalid schedule":                    {[]v1alpha1.DisruptionBudget{broken}, 0, nodes(3, 0, 0), "2026-06-07T10:00:00Z", disruptionbudget.InvalidBudget},
	} {
		t.Run(name, func(t *testing.T) {
			v := disruptionbudget.CheckDisruption(disruptionbudget.Query{
				Group: &v1alpha1.NodeGroupSpec{MinSize: tt.minimum, DisruptionBudgets: tt.budgets},
				Nodes: tt.nodes, Target: "n0", Reason: v1alpha1.Requested, Now: at(t, tt.now),
			})
			check.Not(t, v.Code != tt.code, "%q: %s; want %q", v.Code, v.Message, tt.code)
			check.Not(t, !v.IsAllowed() && v.Message == "", "forbidden without a word")
		})
	}
}

func TestBlockedDecisionNamesUnavailableNodesThatStay(t *testing.T) {
	for name, tt := range map[string]struct {
		cordoned, leaving int
		want              string
	}{
		"cordoned":           {1, 0, "1 others are unavailable, such as n1 (is cordoned)"},
		"more than 3":        {4, 0, "4 others are unavailable, such as n1 (is cordoned), n2 (is cordoned), n3 (is cordoned)"},
		"one is retired":     {2, 1, "2 others are unavailable, such as n2 (is cordoned)"},
		"all are retired":    {2, 2, "2 others are unavailable"},
		"target is no other": {0, 0, ""},
	} {
		all := nodes(6, tt.cordoned, tt.leaving)
		all[0].UnavailableReason = "is cordoned" // the target
		slices.Reverse(all)                      // a cache lists in any order
		v := disruptionbudget.CheckDisruption(disruptionbudget.Query{
			Group: &v1alpha1.NodeGroupSpec{}, Nodes: all, Target: "n0", Reason: v1alpha1.Requested, Now: at(t, "2026-06-01T12:00:00Z"),
		})
		if !strings.HasSuffix(v.Message, tt.want) || (v.Message == "") != (tt.want == "") {
			t.Errorf("%s: %q, want %q at its end", name, v.Message, tt.want)
		}
	}
}

func TestI5TargetOutsideGroupDoesNotCountForMinSize(t *testing.T) {
	q := disruptionbudget.Query{Group: &v1alpha1.NodeGroupSpec{MinSize: 3}, Nodes: nodes(2, 0, 0), Target: "gone", Now: at(t, "2026-06-01T12:00:00Z")}
	if v := disruptionbudget.CheckDisruption(q); v.Code != disruptionbudget.MinSizeReached {
		t.Errorf("one that has just gone: %q, want %q", v.Code, disruptionbudget.MinSizeReached)
	}
	q.TargetNotInGroup = true
	if v := disruptionbudget.CheckDisruption(q); !v.IsAllowed() {
		t.Errorf("one outside: %s", v.Message)
	}
}

func TestI10InvalidBudgetFieldIsNamed(t *testing.T) {
	hour := &metav1.Duration{Duration: time.Hour}
	for want, b := range map[string]v1alpha1.DisruptionBudget{
		`disruptionBudgets[1].timeZone: "Mars/Olympus"`: {Nodes: intstr.FromInt32(1), Schedule: "@daily", Duration: hour, TimeZone: "Mars/Olympus"},
		`disruptionBudgets[1].schedule: "61 * * * *"`:   {Nodes: intstr.FromInt32(1), Schedule: "61 * * * *", Duration: hour},
		`disruptionBudgets[1].schedule: "TZ=UTC`:        {Nodes: intstr.FromInt32(1), Schedule: "TZ=UTC 1 * * * *", Duration: hour},
		`disruptionBudgets[1].duration`:                 {Nodes: intstr.FromInt32(1), Schedule: "@daily"},
		`disruptionBudgets[1].nodes: "many"`:            {Nodes: intstr.FromString("many")},
		`disruptionBudgets[1].nodes: "-1"`:              {Nodes: intstr.FromInt32(-1)},
	} {
		err := disruptionbudget.ValidateBudgets([]v1alpha1.DisruptionBudget{of("1"), b}, time.Now())
		check.ErrorContains(t, err, want)
	}
}

func TestI6NodeRemovedByOtherToolIsUnavailable(t *testing.T) {
	for _, key := range []string{"ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "remediator.kubernetes.azure.com/unschedulable"} {
		n := ready("n")
		n.Spec.Taints = []corev1.Taint{{Key: key, Effect: corev1.TaintEffectNoSchedule}}
		if got := disruptionbudget.NewNode(n, false); !got.BeingRemoved || got.UnavailableReason == "" {
			t.Errorf("taint %s: %+v", key, got)
		}
	}
	if got := disruptionbudget.NewNode(ready("n"), false); got.BeingRemoved || got.UnavailableReason != "" {
		t.Errorf("a good node: %+v", got)
	}
}

func ready(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
}

// TestI5AnyAdmissionOrderRespectsLimits admits nodes in any order, with other changes in between.
func TestI5AnyAdmissionOrderRespectsLimits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.IntRange(1, 12).Draw(t, "nodes")
		group := &v1alpha1.NodeGroupSpec{MinSize: int32(rapid.IntRange(0, total).Draw(t, "minimum"))}
		for range rapid.IntRange(0, 3).Draw(t, "budgets") {
			group.DisruptionBudgets = append(group.DisruptionBudgets, of(rapid.SampledFrom(
				[]string{"0", "1", "3", "10%", "50%", "100%"}).Draw(t, "budget")))
		}
		all := nodes(total, rapid.IntRange(0, total-1).Draw(t, "away"), 0)
		before := 0
		for _, n := range all {
			if n.UnavailableReason != "" {
				before++
			}
		}
		now := time.Now()
		limit, _, err := disruptionbudget.MaxUnavailable(group.DisruptionBudgets, total, v1alpha1.Idle, now)
		must.NoError(t, err)
		for _, i := range rapid.Permutation(indices(total)).Draw(t, "order") {
			v := disruptionbudget.CheckDisruption(disruptionbudget.Query{Group: group, Nodes: all, Target: all[i].Name, Reason: v1alpha1.Idle, Now: now})
			if v.IsAllowed() {
				all[i].BeingRemoved, all[i].UnavailableReason = true, "is being retired"
			}
		}
		unavailable, stay := 0, 0
		for _, n := range all {
			if n.UnavailableReason != "" {
				unavailable++
			}
			if !n.BeingRemoved {
				stay++
			}
		}
		must.Not(t, unavailable > max(limit, before), "%d of %d unavailable, %d before, limit %d", unavailable, total, before, limit)
		must.Not(t, stay < int(group.MinSize), "%d remain, minSize %d", stay, group.MinSize)
	})
}

func indices(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

func FuzzOpen(f *testing.F) {
	f.Add("0 9 * * mon-fri", int64(8*time.Hour), "Europe/Stockholm", int64(0))
	f.Add("@daily", int64(time.Hour), "", int64(1<<40))
	f.Add("* * 31 2 *", int64(time.Hour), "UTC", int64(1<<33))
	f.Fuzz(func(t *testing.T, schedule string, duration int64, zone string, now int64) {
		b := v1alpha1.DisruptionBudget{Schedule: schedule, Duration: &metav1.Duration{Duration: time.Duration(duration)}, TimeZone: zone}
		open, err := disruptionbudget.IsBudgetActive(b, time.Unix(now%(1<<34), 0))
		check.Not(t, open && err != nil, "open, with the error %v", err)
	})
}
