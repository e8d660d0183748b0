package doctor

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/slipway-dev/slipway/internal/drain"
)

func budgetObject(b *policyv1.PodDisruptionBudget) Object {
	return Object{"PodDisruptionBudget", b.Namespace, b.Name}
}

// selectorOf is what a budget selects. One that cannot be read selects nothing, and so says the eviction API.
func selectorOf(b *policyv1.PodDisruptionBudget) labels.Selector {
	s, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil {
		return labels.Nothing()
	}
	return s
}

// selected are the pods of each budget that are not over.
func (f *Facts) selected() map[*policyv1.PodDisruptionBudget][]*corev1.Pod {
	byNamespace := map[string][]*corev1.Pod{}
	for _, p := range f.Pods {
		if !finished(p) {
			byNamespace[p.Namespace] = append(byNamespace[p.Namespace], p)
		}
	}
	all := map[*policyv1.PodDisruptionBudget][]*corev1.Pod{}
	for _, b := range f.Budgets {
		s := selectorOf(b)
		for _, p := range byNamespace[b.Namespace] {
			if s.Matches(labels.Set(p.Labels)) {
				all[b] = append(all[b], p)
			}
		}
	}
	return all
}

func ownersOf(pods []*corev1.Pod) []Object {
	var owners []Object
	for _, p := range pods {
		if o := ownerOf(p); !slices.Contains(owners, o) {
			owners = append(owners, o)
		}
	}
	slices.SortFunc(owners, compareObjects)
	return owners
}

// settled reports that the disruption controller has looked at the budget as it is now.
func settled(b *policyv1.PodDisruptionBudget) bool {
	return b.Status.ObservedGeneration >= b.Generation
}

// budgetNeverAllows finds the budgets that no patience helps with: with every pod healthy they still allow no eviction.
func budgetNeverAllows(f *Facts) []Finding {
	var found []Finding
	selected := f.selected()
	for _, b := range f.Budgets {
		pods := selected[b]
		if len(pods) == 0 {
			continue
		}
		because, remedy := neverAllows(b)
		if because == "" {
			continue
		}
		found = append(found, Finding{
			Severity: Problem, Object: budgetObject(b), Owners: ownersOf(pods), Remedy: remedy,
			Message: because + ": no pod of it can ever be evicted, and a node with one can only leave by force or not at all",
		})
	}
	return found
}

func neverAllows(b *policyv1.PodDisruptionBudget) (because, remedy string) {
	s := &b.Status
	switch most, least := b.Spec.MaxUnavailable, b.Spec.MinAvailable; {
	case most != nil && isNone(most):
		return "maxUnavailable is " + most.String(), "set maxUnavailable to 1, or delete the budget"
	case least != nil && least.Type == intstr.String && least.StrVal == "100%":
		return "minAvailable is 100%", "set maxUnavailable: 1 in its place"
	case !settled(b):
		return "", ""
	case syncFailed(b) != "":
		return "the disruption controller cannot work it out (" + syncFailed(b) + ")",
			"give minAvailable as a number: percentages and maxUnavailable need a controller that says how many pods there are to be"
	case drain.NeverAllows(s.DesiredHealthy, s.ExpectedPods):
		return fmt.Sprintf("%d pods must be healthy, and there are to be %d", s.DesiredHealthy, s.ExpectedPods),
			"run more replicas, or set maxUnavailable: 1 in place of minAvailable, which grows with the replicas"
	}
	return "", ""
}

func isNone(n *intstr.IntOrString) bool {
	if n.Type == intstr.Int {
		return n.IntVal == 0
	}
	return n.StrVal == "0%"
}

// syncFailed is why the disruption controller could not work a budget out; empty where it could.
func syncFailed(b *policyv1.PodDisruptionBudget) string {
	c := meta.FindStatusCondition(b.Status.Conditions, policyv1.DisruptionAllowedCondition)
	if c == nil || c.Reason != policyv1.SyncFailedReason {
		return ""
	}
	return c.Message
}

// budgetBlocksNow finds those that would let a pod go if more were healthy.
func budgetBlocksNow(f *Facts) []Finding {
	var found []Finding
	for _, b := range f.Budgets {
		s := &b.Status
		never, _ := neverAllows(b)
		if never != "" || !settled(b) || s.ExpectedPods == 0 || s.DisruptionsAllowed > 0 || len(s.DisruptedPods) > 0 {
			continue
		}
		found = append(found, Finding{
			Severity: Warning, Object: budgetObject(b),
			Message: fmt.Sprintf("%d of %d pods are healthy and %d must be: it allows no eviction now", s.CurrentHealthy,
				s.ExpectedPods, s.DesiredHealthy),
			Remedy: unhealthyRemedy(b),
		})
	}
	return found
}

func unhealthyRemedy(b *policyv1.PodDisruptionBudget) string {
	const find = "find out why the others are not healthy (kubectl get pods with the budget's selector)"
	if p := b.Spec.UnhealthyPodEvictionPolicy; p != nil && *p == policyv1.AlwaysAllow {
		return find
	}
	return find + "; unhealthyPodEvictionPolicy: AlwaysAllow lets at least the broken ones go"
}

// budgetOverlap finds pods that several budgets select: the eviction API refuses these with an error, whatever the numbers.
func budgetOverlap(f *Facts) []Finding {
	over := map[*corev1.Pod][]string{}
	for b, pods := range f.selected() {
		for _, p := range pods {
			over[p] = append(over[p], b.Name)
		}
	}
	seen := map[Object]map[string]bool{}
	var found []Finding
	for p, names := range over {
		if len(names) < 2 {
			continue
		}
		slices.Sort(names)
		owner, list := ownerOf(p), strings.Join(names, ", ")
		if seen[owner] == nil {
			seen[owner] = map[string]bool{}
		}
		if seen[owner][list] {
			continue
		}
		seen[owner][list] = true
		found = append(found, Finding{
			Severity: Problem, Object: owner,
			Message: fmt.Sprintf("its pods are selected by %d disruption budgets (%s), and the API server evicts no such pod", len(names), list),
			Remedy:  "make the budgets' selectors disjoint, or delete all but one",
		})
	}
	return found
}

// budgetMatchesNothing finds those that protect nobody, most likely by a slip of the pen.
func budgetMatchesNothing(f *Facts) []Finding {
	var found []Finding
	selected := f.selected()
	for _, b := range f.Budgets {
		if len(selected[b]) > 0 {
			continue
		}
		found = append(found, Finding{
			Severity: Warning, Object: budgetObject(b),
			Message: "its selector (" + metav1.FormatLabelSelector(b.Spec.Selector) + ") matches no pod: it protects nothing",
			Remedy:  "compare its selector with the labels of the pods that it is for; delete it if they are gone for good",
		})
	}
	return found
}
