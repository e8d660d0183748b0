package placement

import (
	"fmt"
	"slices"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// budget is what the eviction API reads of a PodDisruptionBudget.
type budget struct {
	key             PodKey
	selector        labels.Selector
	allowed         int32
	healthyEnough   bool // as many pods are healthy as the budget wants, and it wants any
	alwaysUnhealthy bool // unhealthyPodEvictionPolicy: AlwaysAllow
	stale           bool // the status is of an older generation
}

func newBudget(o *policyv1.PodDisruptionBudget) *budget {
	b := &budget{
		key: PodKey{Namespace: o.Namespace, Name: o.Name}, allowed: o.Status.DisruptionsAllowed,
		healthyEnough: o.Status.CurrentHealthy >= o.Status.DesiredHealthy && o.Status.DesiredHealthy > 0,
		stale:         o.Status.ObservedGeneration < o.Generation,
	}
	b.alwaysUnhealthy = valueOr(o.Spec.UnhealthyPodEvictionPolicy, policyv1.IfHealthyBudget) == policyv1.AlwaysAllow
	// The eviction API takes a selector that it cannot read for one that matches nothing.
	selector, err := metav1.LabelSelectorAsSelector(o.Spec.Selector)
	if err != nil {
		selector = labels.Nothing()
	}
	b.selector = selector
	return b
}

func (s *Snapshot) setBudget(b *budget) {
	s.dropBudget(b.key)
	s.budgetChanges++
	s.budgets[b.key] = b
	in := b.key.Namespace
	s.budgetsIn[in] = append(s.budgetsIn[in], b)
	slices.SortFunc(s.budgetsIn[in], func(a, b *budget) int { return compareKeys(a.key, b.key) })
}

func (s *Snapshot) dropBudget(key PodKey) {
	b, ok := s.budgets[key]
	if !ok {
		return
	}
	s.budgetChanges++
	delete(s.budgets, key)
	s.budgetsIn[key.Namespace] = slices.DeleteFunc(s.budgetsIn[key.Namespace], func(x *budget) bool { return x == b })
	if len(s.budgetsIn[key.Namespace]) == 0 {
		delete(s.budgetsIn, key.Namespace)
	}
}

// over lists the budgets that select pods with these labels, in the order of their names.
func (s *Snapshot) budgetsOver(l *podLabels) []*budget {
	if l.budgetsAt != s.budgetChanges {
		l.budgets, l.budgetsAt = nil, s.budgetChanges
		for _, b := range s.budgetsIn[l.namespace.name] {
			if b.selector.Matches(l.labels) {
				l.budgets = append(l.budgets, b)
			}
		}
	}
	return l.budgets
}

// charge is what evicting one pod asks of the disruption budgets, by the rules of the eviction API: pods that have not
// started or are going anyway cost nothing, several budgets on one pod are an error there, and an unhealthy pod is free
// when its budget says so or when enough others are healthy. refused is the budget that forbids the eviction whatever
// is left of it.
func (s *Snapshot) charge(p *pod) (charged *budget, refused string) {
	if p.eviction.pending || p.terminating {
		return nil, ""
	}
	over := s.budgetsOver(p.class.labels)
	switch len(over) {
	case 0:
		return nil, ""
	case 1:
	default:
		return nil, fmt.Sprintf("is under %d disruption budgets (%s, %s), which the eviction API refuses", len(over),
			over[0].key.Name, over[1].key.Name)
	}
	b := over[0]
	if !p.eviction.healthy && (b.alwaysUnhealthy || b.healthyEnough) {
		return nil, ""
	}
	if b.stale {
		return b, fmt.Sprintf("is under disruption budget %s, whose status is not up to date", b.key.Name)
	}
	return b, ""
}

// ledger counts what a plan has taken of each budget.
type ledger map[*budget]int32

// afford reports whether the budgets allow evicting these pods on top of what was taken, naming the one that does not.
// Nothing is taken when it does not.
func (l ledger) afford(s *Snapshot, pods []*pod) (short *budget, needs int32) {
	if len(s.budgets) == 0 {
		return nil, 0
	}
	for i, p := range pods {
		b, _ := s.charge(p)
		if b == nil {
			continue
		}
		l[b]++
		if l[b] > b.allowed {
			needs = l[b]
			l.refund(s, pods[:i+1])
			return b, needs
		}
	}
	return nil, 0
}

func (l ledger) refund(s *Snapshot, pods []*pod) {
	if len(s.budgets) == 0 {
		return
	}
	for _, p := range pods {
		if b, _ := s.charge(p); b != nil {
			if l[b]--; l[b] == 0 {
				delete(l, b)
			}
		}
	}
}
