package nodegroup

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/retirement/disruptionbudget"
)

// Validate returns all errors in the spec of a group. It repeats the checks of the API server, because groups from a
// file do not pass through it. It adds checks that a schema cannot express: of selectors, schedules and time zones.
// Each error begins with the field.
func Validate(g *v1alpha1.NodeGroup) (errs []error) {
	fail := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	checkNonEmptySelector(fail, "spec.nodeSelector", &g.Spec.NodeSelector, "would select every node")
	for _, key := range controlPlaneLabels() {
		if _, asks := g.Spec.NodeSelector.MatchLabels[key]; asks {
			fail("spec.nodeSelector.matchLabels: %s: control-plane nodes belong to no group", key)
		}
	}
	if g.Spec.Cloud.Provider == "" || g.Spec.Cloud.Group == "" {
		fail("spec.cloud: provider %q, group %q: want both", g.Spec.Cloud.Provider, g.Spec.Cloud.Group)
	}
	errs = append(errs, g.Spec.OldNameContradictions()...)
	switch most := g.Spec.MaxSize; {
	case g.Spec.MinSize < 0:
		fail("spec.minSize: %d: want 0 or more", g.Spec.MinSize)
	case most != nil && *most < g.Spec.MinSize:
		fail("spec.minSize: %d: want 0 to spec.maxSize, which is %d", g.Spec.MinSize, *most)
	}
	checkBudgets(fail, g.Spec.DisruptionBudgets)
	if p := g.Spec.Drain.PlaceholderPods; p != nil {
		checkNonEmptySelector(fail, "spec.drain.placeholderPods", p, "would make every pod a placeholder")
	}
	if p := g.Spec.Drain.Protection; p != "" && p != v1alpha1.RespectProtection && p != v1alpha1.EvictProtected {
		fail("spec.drain.protection: %q: want %s or %s", p, v1alpha1.RespectProtection, v1alpha1.EvictProtected)
	}
	checkAtLeast(fail, "spec.drain.timeout", g.Spec.Drain.Timeout, time.Second)
	checkAtLeast(fail, "spec.cooldowns.afterScaleUp", g.Spec.Cooldowns.AfterScaleUp, 0)
	checkAtLeast(fail, "spec.cooldowns.afterFailure", g.Spec.Cooldowns.AfterFailure, 0)
	if g.Spec.ScaleDown != nil && g.Spec.ScaleDown.IdleByLabel != nil {
		checkIdleRule(fail, g.Spec.ScaleDown.IdleByLabel)
	}
	if g.Spec.ScaleDown != nil && g.Spec.ScaleDown.Underutilized != nil {
		checkUnderutilized(fail, g.Spec.ScaleDown.Underutilized)
	}
	if g.Spec.ScaleUp != nil {
		checkScaleUp(fail, g)
	}
	return errs
}

func checkBudgets(fail func(string, ...any), budgets []v1alpha1.DisruptionBudget) {
	if err := disruptionbudget.ValidateBudgets(budgets, time.Now()); err != nil {
		fail("spec.%w", err)
	}
	for i, b := range budgets {
		field := fmt.Sprintf("spec.disruptionBudgets[%d]", i)
		if b.Duration != nil && b.Schedule == "" {
			fail("%s.duration: %s: needs schedule, which is missing", field, b.Duration.Duration)
		}
		checkAtLeast(fail, field+".duration", b.Duration, time.Minute)
		if b.TimeZone != "" && b.Schedule == "" {
			fail("%s.timeZone: %q: needs schedule, which is missing", field, b.TimeZone)
		}
		if twice, is := findDuplicate(b.Reasons); is {
			fail("%s.reasons: %q is listed twice", field, twice)
		}
	}
}

// findDuplicate returns an element that the list contains twice, or false if there is none.
func findDuplicate[T cmp.Ordered](list []T) (duplicate T, found bool) {
	seen := map[T]bool{}
	for _, one := range list {
		if seen[one] {
			return one, true
		}
		seen[one] = true
	}
	return duplicate, false
}

func checkIdleRule(fail func(string, ...any), r *v1alpha1.IdleByLabel) {
	const field = "spec.scaleDown.idleByLabel"
	checkNonEmptySelector(fail, field+".podSelector", &r.PodSelector, "would let every DaemonSet pod keep its node")
	checkAtLeast(fail, field+".cooldown", &r.Cooldown, 0)
	checkAtLeast(fail, field+".checkEvery", r.CheckEvery, time.Second)
	switch {
	case r.Checks < 0 || r.Checks > 100:
		fail("%s.checks: %d: want 0 to 100", field, r.Checks)
	case r.Checks > 0 && r.CheckEvery == nil:
		fail("%s.checks: %d: needs checkEvery, the time between two of them", field, r.Checks)
	}
	if slices.Contains(r.Namespaces, "") {
		fail("%s.namespaces: has an empty name: want names, or no list for all namespaces", field)
	}
	if twice, is := findDuplicate(r.Namespaces); is {
		fail("%s.namespaces: %q is listed twice", field, twice)
	}
}

func checkNonEmptySelector(fail func(string, ...any), field string, s *metav1.LabelSelector, whenEmpty string) {
	switch selector, err := metav1.LabelSelectorAsSelector(s); {
	case err != nil:
		fail("%s: %w", field, err)
	case selector.Empty():
		fail("%s: is empty and %s: give matchLabels or matchExpressions", field, whenEmpty)
	}
}

func checkAtLeast(fail func(string, ...any), field string, d *metav1.Duration, least time.Duration) {
	if d != nil && d.Duration < least {
		fail("%s: %s: want %s or more", field, d.Duration, least)
	}
}

// controlPlaneLabels returns the labels of control plane nodes, of current and former versions of kubeadm.
func controlPlaneLabels() []string {
	return []string{"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"}
}
