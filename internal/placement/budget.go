package placement

import (
	"slices"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// budget is what the eviction API reads of a PodDisruptionBudget.
type budget struct {
	key             PodKey
	selector        labels.Selector
	problem         string // why the selector cannot be read
	allowed         int32
	healthyEnough   bool // as many pods are healthy as the budget wants, and it wants any
	alwaysUnhealthy bool // unhealthyPodEvictionPolicy: AlwaysAllow
	stale           bool // the status is of an older generation
}

func newBudget(o *policyv1.PodDisruptionBudget) *budget {
	b := &budget{key: PodKey{Namespace: o.Namespace, Name: o.Name}, allowed: o.Status.DisruptionsAllowed,
		healthyEnough: o.Status.CurrentHealthy >= o.Status.DesiredHealthy && o.Status.DesiredHealthy > 0,
		stale:         o.Status.ObservedGeneration < o.Generation}
	b.alwaysUnhealthy = valueOr(o.Spec.UnhealthyPodEvictionPolicy, policyv1.IfHealthyBudget) == policyv1.AlwaysAllow
	selector, err := metav1.LabelSelectorAsSelector(o.Spec.Selector)
	if err != nil {
		b.problem = err.Error()
		selector = labels.Nothing()
	}
	b.selector = selector
	return b
}

func (s *Snapshot) setBudget(b *budget) {
	s.dropBudget(b.key)
	s.budgets[b.key] = b
	list := append(s.budgetsIn[b.key.Namespace], b)
	slices.SortFunc(list, func(a, b *budget) int { return compareKeys(a.key, b.key) })
	s.budgetsIn[b.key.Namespace] = list
}

func (s *Snapshot) dropBudget(key PodKey) {
	b, ok := s.budgets[key]
	if !ok {
		return
	}
	delete(s.budgets, key)
	s.budgetsIn[key.Namespace] = slices.DeleteFunc(s.budgetsIn[key.Namespace], func(x *budget) bool { return x == b })
	if len(s.budgetsIn[key.Namespace]) == 0 {
		delete(s.budgetsIn, key.Namespace)
	}
}
