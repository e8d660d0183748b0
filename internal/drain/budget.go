package drain

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	firstBudgetPause = 200 * time.Millisecond
	// maxBudgetPause while a deadline presses, and without one. A budget opens when a replacement becomes ready, which
	// takes seconds; with one question per budget and pause this stays cheap however many pods wait.
	maxBudgetPauseForced    = time.Second
	maxBudgetPauseVoluntary = 5 * time.Second
	// reread is how often the budgets of a namespace are read again while something waits for them.
	reread = 10 * time.Second
)

// budgets knows which disruption budgets stand in the way, and when each may be asked again. It is read when the
// first eviction of a namespace is denied, not before: most drains need none.
type budgets struct {
	namespaces map[string]*namespaceBudgets
	gates      map[string]*gate
}

type namespaceBudgets struct {
	asking bool
	readAt time.Time
	err    error
	list   []selectedBudget
}

type selectedBudget struct {
	budget  kubeapi.PodDisruptionBudget
	matches func(map[string]string) bool
}

// gate is one budget that has denied an eviction. Behind it one pod at a time asks; the first that is let through
// is followed by the next at once, and a denial makes all of them wait.
type gate struct {
	name  string // as printed, namespace/name
	busy  bool   // somebody is asking right now
	until time.Time
	pause time.Duration
}

func newBudgets() *budgets {
	return &budgets{namespaces: map[string]*namespaceBudgets{}, gates: map[string]*gate{}}
}

// covering returns the names of the budgets that select the pod, and whether the namespace's budgets are known.
func (b *budgets) covering(p *kubeapi.Pod) ([]*kubeapi.PodDisruptionBudget, bool) {
	ns := b.namespaces[p.Namespace]
	if ns == nil || ns.readAt.IsZero() || ns.err != nil {
		return nil, false
	}
	var found []*kubeapi.PodDisruptionBudget
	for i := range ns.list {
		if ns.list[i].matches(p.Labels) {
			found = append(found, &ns.list[i].budget)
		}
	}
	return found, true
}

// learn takes in what a namespace's list said. A budget with a selector that cannot be read selects nothing, which
// is also what the disruption controller makes of it.
func (b *budgets) learn(namespace string, list []kubeapi.PodDisruptionBudget, err error, now time.Time) {
	ns := b.namespaces[namespace]
	ns.asking, ns.readAt, ns.err = false, now, err
	if err != nil {
		return
	}
	ns.list = ns.list[:0]
	for _, budget := range list {
		if sel, err := budget.Spec.Selector.Selector(); err == nil {
			matches := func(l map[string]string) bool { return sel.Matches(labels.Set(l)) }
			ns.list = append(ns.list, selectedBudget{budget, matches})
		}
	}
}

// stale reports that the budgets of a namespace should be read (again), and marks them as being read.
func (b *budgets) stale(namespace string, now time.Time) bool {
	ns := b.namespaces[namespace]
	if ns == nil {
		ns = &namespaceBudgets{}
		b.namespaces[namespace] = ns
	}
	if ns.asking || (!ns.readAt.IsZero() && now.Before(ns.readAt.Add(reread))) {
		return false
	}
	ns.asking = true
	return true
}

// gateFor returns the gate that a denied pod waits at: its budget's where that is known, else the one that the
// denial names, else one for the namespace.
func (b *budgets) gateFor(p *kubeapi.Pod, denial string) *gate {
	key := p.Namespace + "/" + budgetNamedIn(denial)
	if covering, ok := b.covering(p); ok && len(covering) > 0 {
		key = p.Namespace + "/" + covering[0].Name
	}
	g := b.gates[key]
	if g == nil {
		g = &gate{name: key}
		b.gates[key] = g
	}
	return g
}

// deny closes the gate for a while, longer each time. Denials of requests that were under way together count once.
func (g *gate) deny(now time.Time, forced bool, retryAfter time.Duration) {
	if now.Before(g.until) {
		return
	}
	longest := maxBudgetPauseVoluntary
	if forced {
		longest = maxBudgetPauseForced
	}
	g.pause = min(max(2*g.pause, firstBudgetPause), longest)
	g.until = now.Add(max(g.pause, min(retryAfter, longest)))
}

func (g *gate) allow() { g.pause, g.until = 0, time.Time{} }

// budgetNamedIn reads the budget's name out of the API server's "The disruption budget NAME needs 2 healthy pods and
// has 2 currently". It is only a fallback for when budgets may not be listed.
func budgetNamedIn(denial string) string {
	_, rest, ok := strings.Cut(denial, "disruption budget ")
	if !ok {
		return "?"
	}
	name, _, _ := strings.Cut(rest, " ")
	return name
}

// explain says what the budgets over a pod would need, in one sentence a person can act on.
func explain(p *kubeapi.Pod, covering []*kubeapi.PodDisruptionBudget, denial string) string {
	switch len(covering) {
	case 0:
		return denial
	case 1:
		return explainOne(covering[0])
	}
	names := make([]string, len(covering))
	for i, b := range covering {
		names[i] = b.Name
	}
	return fmt.Sprintf("pod is selected by %d disruption budgets (%s) and the API server evicts no such pod: make their "+
		"selectors disjoint", len(covering), strings.Join(names, ", "))
}

func explainOne(b *kubeapi.PodDisruptionBudget) string {
	s := b.Status
	now := fmt.Sprintf("budget %s allows %d disruptions: %d of %d pods are healthy, %d must be", b.Name,
		s.DisruptionsAllowed, s.CurrentHealthy, s.ExpectedPods, s.DesiredHealthy)
	if neverAllows(b) {
		return now + "; with every pod healthy it still allows none, so that it never will: raise the replicas or relax the budget"
	}
	return now
}

// neverAllows is the test of a budget that no waiting helps: every pod is healthy, none is on its way out, and still
// no disruption is allowed.
func neverAllows(b *kubeapi.PodDisruptionBudget) bool {
	s := b.Status
	return s.ExpectedPods > 0 && s.CurrentHealthy >= s.ExpectedPods && s.DisruptionsAllowed == 0 &&
		len(s.DisruptedPods) == 0 && s.DesiredHealthy >= s.ExpectedPods
}
