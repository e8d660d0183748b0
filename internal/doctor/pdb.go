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

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

func newPDBObject(b *policyv1.PodDisruptionBudget) Object {
	return Object{"PodDisruptionBudget", b.Namespace, b.Name}
}

// parseSelector returns the selector of a PodDisruptionBudget. As in the eviction API, an invalid selector matches no
// pod.
func parseSelector(b *policyv1.PodDisruptionBudget) labels.Selector {
	s, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil {
		return labels.Nothing()
	}
	return s
}

// podsByPDB returns the pods of each PodDisruptionBudget that have not finished.
func (f *Facts) podsByPDB() map[*policyv1.PodDisruptionBudget][]*corev1.Pod {
	byNamespace := map[string][]*corev1.Pod{}
	for _, p := range f.Pods {
		if !isFinished(p) {
			byNamespace[p.Namespace] = append(byNamespace[p.Namespace], p)
		}
	}
	all := map[*policyv1.PodDisruptionBudget][]*corev1.Pod{}
	for _, b := range f.PDBs {
		s := parseSelector(b)
		for _, p := range byNamespace[b.Namespace] {
			if s.Matches(labels.Set(p.Labels)) {
				all[b] = append(all[b], p)
			}
		}
	}
	return all
}

func listWorkloads(pods []*corev1.Pod) []Object {
	var owners []Object
	for _, p := range pods {
		if o := workloadOfPod(p); !slices.Contains(owners, o) {
			owners = append(owners, o)
		}
	}
	slices.SortFunc(owners, compareObjects)
	return owners
}

// isStatusCurrent reports whether the disruption controller has updated the status for the current generation of the
// PodDisruptionBudget.
func isStatusCurrent(b *policyv1.PodDisruptionBudget) bool {
	return b.Status.ObservedGeneration >= b.Generation
}

// checkPDBNeverAllows finds PodDisruptionBudgets that allow no eviction even if all their pods are healthy.
func checkPDBNeverAllows(f *Facts) []Finding {
	var found []Finding
	selected := f.podsByPDB()
	for _, b := range f.PDBs {
		pods := selected[b]
		if len(pods) == 0 {
			continue
		}
		reason, remedy := neverAllowsReason(b)
		if reason == "" {
			continue
		}
		found = append(found, Finding{
			Severity: Problem, Object: newPDBObject(b), Owners: listWorkloads(pods), Remedy: remedy,
			Message: reason + ": its pods can never be evicted, and a node with one can be removed only by force",
		})
	}
	return found
}

func neverAllowsReason(b *policyv1.PodDisruptionBudget) (reason, remedy string) {
	s := &b.Status
	switch most, least := b.Spec.MaxUnavailable, b.Spec.MinAvailable; {
	case most != nil && isZeroOrZeroPercent(most):
		return "maxUnavailable is " + most.String(), "set maxUnavailable to 1, or delete the budget"
	case least != nil && least.Type == intstr.String && least.StrVal == "100%":
		return "minAvailable is 100%", "set maxUnavailable: 1 instead"
	case !isStatusCurrent(b):
		return "", ""
	case findSyncError(b) != "":
		return "the disruption controller cannot compute it (" + findSyncError(b) + ")",
			"set minAvailable to a number: percentages and maxUnavailable need a controller with a scale"
	case kubeapi.CanNeverAllowEviction(s.DesiredHealthy, s.ExpectedPods):
		return fmt.Sprintf("%d pods must be healthy, and %d are expected", s.DesiredHealthy, s.ExpectedPods),
			"run more replicas, or replace minAvailable by maxUnavailable: 1"
	}
	return "", ""
}

func isZeroOrZeroPercent(n *intstr.IntOrString) bool {
	if n.Type == intstr.Int {
		return n.IntVal == 0
	}
	return n.StrVal == "0%"
}

// findSyncError returns the disruption controller's error for a PodDisruptionBudget. It returns "" if there is none.
func findSyncError(b *policyv1.PodDisruptionBudget) string {
	c := meta.FindStatusCondition(b.Status.Conditions, policyv1.DisruptionAllowedCondition)
	if c == nil || c.Reason != policyv1.SyncFailedReason {
		return ""
	}
	return c.Message
}

// checkPDBBlocksNow finds PodDisruptionBudgets that allow no eviction now, because too few of their pods are healthy.
func checkPDBBlocksNow(f *Facts) []Finding {
	var found []Finding
	for _, b := range f.PDBs {
		s := &b.Status
		never, _ := neverAllowsReason(b)
		if never != "" || !isStatusCurrent(b) || s.ExpectedPods == 0 || s.DisruptionsAllowed > 0 || len(s.DisruptedPods) > 0 {
			continue
		}
		found = append(found, Finding{
			Severity: Warning, Object: newPDBObject(b),
			Message: fmt.Sprintf("%d of %d pods are healthy and %d must be: it allows no eviction now", s.CurrentHealthy,
				s.ExpectedPods, s.DesiredHealthy),
			Remedy: newUnhealthyRemedy(b),
		})
	}
	return found
}

func newUnhealthyRemedy(b *policyv1.PodDisruptionBudget) string {
	const find = "find out why the other pods are not healthy (kubectl get pods with the budget's selector)"
	if p := b.Spec.UnhealthyPodEvictionPolicy; p != nil && *p == policyv1.AlwaysAllow {
		return find
	}
	return find + "; unhealthyPodEvictionPolicy: AlwaysAllow allows the eviction of unhealthy pods"
}

// checkPDBOverlap finds pods that several PodDisruptionBudgets select. The eviction API answers their eviction with an
// error.
func checkPDBOverlap(f *Facts) []Finding {
	over := map[*corev1.Pod][]string{}
	for b, pods := range f.podsByPDB() {
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
		owner, list := workloadOfPod(p), strings.Join(names, ", ")
		if seen[owner] == nil {
			seen[owner] = map[string]bool{}
		}
		if seen[owner][list] {
			continue
		}
		seen[owner][list] = true
		found = append(found, Finding{
			Severity: Problem, Object: owner,
			Message: fmt.Sprintf("its pods are selected by %d disruption budgets (%s): the API server refuses to evict them", len(names), list),
			Remedy:  "make the budgets' selectors disjoint, or delete all but one",
		})
	}
	return found
}

// checkPDBMatchesNothing finds PodDisruptionBudgets that select no pod, probably because of a typing error.
func checkPDBMatchesNothing(f *Facts) []Finding {
	var found []Finding
	selected := f.podsByPDB()
	for _, b := range f.PDBs {
		if len(selected[b]) > 0 {
			continue
		}
		found = append(found, Finding{
			Severity: Warning, Object: newPDBObject(b),
			Message: "its selector (" + metav1.FormatLabelSelector(b.Spec.Selector) + ") matches no pod: it protects nothing",
			Remedy:  "compare its selector with the labels of its pods; delete it if it is obsolete",
		})
	}
	return found
}
