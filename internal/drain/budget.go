package drain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	// maxBudgetPause while a deadline presses, and without one. A budget opens when a replacement becomes ready, which
	// takes seconds; with one question per budget and pause this stays cheap however many pods wait.
	maxBudgetPauseForced    = time.Second
	maxBudgetPauseVoluntary = 5 * time.Second
	// reread is how often the budgets of a namespace are read again while something waits for them.
	reread = 10 * time.Second
)

// budgets knows which disruption budgets stand in the way, and when each may be asked again. Those of a namespace are
// read when the first of many pods is about to be evicted, or one was denied, and again while something waits for them.
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

// gate is one thing that several pods wait for: a budget, a right, an API server in trouble. While it is closed nobody
// asks; after that one pod at a time does, until one is let through. So the number of requests depends on the number
// of gates and on time, and not on the number of pods that wait.
type gate struct {
	reason Obstacle
	name   string // of the budget, as printed: namespace/name
	detail string // what the API server last said
	// serial gates stay one at a time: a budget that has let one pod go has most likely spent what it had.
	serial bool
	// evictions gates stand before evictions only.
	evictions bool
	busy      int // requests under way
	until     time.Time
	pause     time.Duration
}

// open reports whether a request may pass, and else from when on one may; zero is when an answer comes.
func (g *gate) open(now time.Time) (bool, time.Time) {
	switch {
	case now.Before(g.until):
		return false, g.until
	case g.busy > 0 && (g.serial || g.pause > 0):
		return false, time.Time{}
	}
	return true, time.Time{}
}

// close closes the gate for at least the given pause, longer each time. The refusals of requests that were under way
// together count once.
func (g *gate) close(now time.Time, least, longest time.Duration) {
	if now.Before(g.until) {
		return
	}
	g.pause = min(max(2*g.pause, least), longest)
	g.until = now.Add(g.pause)
}

func (g *gate) allow() { g.pause, g.until = 0, time.Time{} }

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

// unread reports that nobody has asked for the budgets of a namespace yet.
func (b *budgets) unread(namespace string) bool { return b.namespaces[namespace] == nil }

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

// exempt pods are evicted without a look at the budgets (canIgnorePDB in the API server).
func exempt(p *kubeapi.Pod) bool {
	return p.Status.Phase == "Pending" || p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed"
}

// gateKey names the gate before the evictions of a pod that these budgets cover. Pods that are not ready have one of
// their own: depending on its unhealthyPodEvictionPolicy a budget lets them go while it holds the ready ones.
func gateKey(p *kubeapi.Pod, budgets string) string {
	key := p.Namespace + "/" + budgets
	if !ready(p) {
		key += " (not ready)"
	}
	return key
}

// ready takes a pod that says nothing for ready.
func ready(p *kubeapi.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True"
		}
	}
	return true
}

// gateFor returns the gate that a denied pod waits at: its budget's where that is known, else that of the one the
// denial names.
func (b *budgets) gateFor(p *kubeapi.Pod, denial *kubeapi.StatusError) *gate {
	name := budgetNamedIn(denialOf(denial))
	if covering, ok := b.covering(p); ok && len(covering) == 1 {
		name = covering[0].Name
	}
	return b.gate(gateKey(p, name), gate{reason: Budget, name: p.Namespace + "/" + name, serial: true, evictions: true})
}

// gateOfSeveral returns the gate of the pods that the same several budgets cover.
func (b *budgets) gateOfSeveral(p *kubeapi.Pod) *gate {
	covering, _ := b.covering(p)
	return b.gate(gateKey(p, names(covering)), gate{reason: SeveralBudgets, serial: true, evictions: true})
}

// gateOfRights returns the gate of the pods of a namespace for which a right is missing.
func (b *budgets) gateOfRights(p *kubeapi.Pod, how Asked) *gate {
	return b.gate(p.Namespace+" "+string(how), gate{reason: NoRight, evictions: how == Evicted})
}

func (b *budgets) gate(key string, as gate) *gate {
	g := b.gates[key]
	if g == nil {
		g = &as
		b.gates[key] = g
	}
	return g
}

func names(covering []*kubeapi.PodDisruptionBudget) string {
	all := make([]string, len(covering))
	for i, b := range covering {
		all[i] = b.Name
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// place makes a pod wait at the gate of the budgets that are known to cover it, if they have denied others already.
func (b *budgets) place(p *podState) {
	if !p.waiting() || p.forcing || (p.gate != nil && !p.gate.evictions) {
		return
	}
	covering, ok := b.covering(&p.pod)
	if !ok || len(covering) == 0 {
		return
	}
	if exempt(&p.pod) {
		p.gate = nil
		return
	}
	if g := b.gates[gateKey(&p.pod, names(covering))]; g != nil || p.gate != nil && p.gate.reason == Budget {
		p.gate = g
	}
}

// regroup places the pods of a namespace that wait nowhere yet.
func (b *budgets) regroup(pods []*podState, namespace string) {
	for _, p := range pods {
		if p.gate == nil && p.pod.Namespace == namespace {
			b.place(p)
		}
	}
}

// reassign places all pods of a namespace whose budgets have just been read, and says better what they wait for. A pod
// that no budget covers any more is free.
func (b *budgets) reassign(pods []*podState, namespace string, now time.Time) {
	for _, p := range pods {
		if p.pod.Namespace != namespace || !p.waiting() {
			continue
		}
		if p.gate != nil && p.gate.evictions && p.gate.reason != NoRight {
			b.move(p)
		} else {
			b.place(p)
		}
		if g := p.gate; g != nil && (p.blocked.Reason == Budget || p.blocked.Reason == SeveralBudgets) {
			p.obstruct(g.reason, g.name, b.explain(g.reason, &p.pod, g.detail), now)
		}
	}
}

// move takes a pod to the gate of the budgets that now cover it, and its pause with it.
func (b *budgets) move(p *podState) {
	covering, _ := b.covering(&p.pod)
	old := p.gate
	switch {
	case len(covering) == 0:
		p.gate = nil
		return
	case len(covering) == 1:
		name := covering[0].Name
		p.gate = b.gate(gateKey(&p.pod, name), gate{reason: Budget, name: p.pod.Namespace + "/" + name, serial: true, evictions: true})
	default:
		p.gate = b.gateOfSeveral(&p.pod)
	}
	if p.gate != old && p.gate.until.IsZero() {
		p.gate.until, p.gate.pause, p.gate.detail = old.until, old.pause, old.detail
	}
}

// explain says what the budgets over a pod would need, in one sentence a person can act on. Where they are not known,
// or are not the obstacle, it is what the API server said.
func (b *budgets) explain(obstacle Obstacle, p *kubeapi.Pod, said string) string {
	covering, _ := b.covering(p)
	switch {
	case obstacle == SeveralBudgets && len(covering) > 1:
		return fmt.Sprintf("pod is selected by %d disruption budgets (%s) and the API server evicts no such pod: make their "+
			"selectors disjoint", len(covering), names(covering))
	case obstacle == Budget && len(covering) == 1 && strings.Contains(said, " needs "):
		return explainOne(covering[0])
	case obstacle == Budget && len(covering) == 1: // not a matter of numbers
		return said + " (" + explainOne(covering[0]) + ")"
	}
	return said
}

func explainOne(b *kubeapi.PodDisruptionBudget) string {
	s := b.Status
	now := fmt.Sprintf("budget %s allows %d disruptions: %d of %d pods are healthy, %d must be", b.Name,
		s.DisruptionsAllowed, s.CurrentHealthy, s.ExpectedPods, s.DesiredHealthy)
	if n := len(s.DisruptedPods); n > 0 {
		now += fmt.Sprintf("; it still counts %d pods as being evicted, for up to two minutes", n)
	}
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
