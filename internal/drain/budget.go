package drain

import (
	"context"
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
	// longestTurn is how long a request that hangs keeps the next one from passing the same gate.
	longestTurn = 2 * time.Second
	// followAgain is the pause before a namespace's budgets are followed again for which a right was missing.
	followAgain = 10 * time.Second
)

// budgets knows which disruption budgets stand in the way, and when each may be asked again.
type budgets struct {
	namespaces map[string]*namespaceBudgets
	gates      map[string]*gate
}

// namespaceBudgets are the budgets of one namespace. They are followed from when the first of many of its pods is about
// to be evicted, or one was denied, to the end of the drain: a budget that opens is used at once, and not at the next
// try.
type namespaceBudgets struct {
	following bool
	again     time.Time // when to follow them again that could not be followed
	known     bool
	byName    map[string]selectedBudget
}

type selectedBudget struct {
	budget  *kubeapi.PodDisruptionBudget
	matches func(map[string]string) bool
}

// gate is one thing that several pods wait for: a budget, a right, an API server in trouble. While it is closed nobody
// asks; after that one pod at a time does, until one is let through, and the next also when a request hangs. So the number
// of requests depends on the number of gates and on time, and not on the number of pods that wait.
type gate struct {
	reason Obstacle
	name   string // of the budget, as printed: namespace/name
	detail string // what the API server last said
	// serial gates stay one at a time: a budget that has let one pod go has most likely spent what it had.
	serial bool
	// evictions gates stand before evictions only.
	evictions bool
	busy      int       // requests under way
	sentAt    time.Time // the latest of them
	until     time.Time
	pause     time.Duration
}

// open reports whether a request may pass, and else from when on one may, or earlier, when an answer comes.
func (g *gate) open(now time.Time) (bool, time.Time) {
	switch {
	case now.Before(g.until):
		return false, g.until
	case g.busy > 0 && (g.serial || g.pause > 0) && now.Before(g.sentAt.Add(longestTurn)):
		return false, g.sentAt.Add(longestTurn)
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
	if ns == nil || !ns.known {
		return nil, false
	}
	var found []*kubeapi.PodDisruptionBudget
	for _, s := range ns.byName {
		if s.matches(p.Labels) {
			found = append(found, s.budget)
		}
	}
	return found, true
}

// unread reports that nobody has asked for the budgets of a namespace yet.
func (b *budgets) unread(namespace string) bool { return b.namespaces[namespace] == nil }

func (b *budgets) of(namespace string) *namespaceBudgets {
	ns := b.namespaces[namespace]
	if ns == nil {
		ns = &namespaceBudgets{byName: map[string]selectedBudget{}}
		b.namespaces[namespace] = ns
	}
	return ns
}

// learn takes in a list. After an error what was known before stands.
func (ns *namespaceBudgets) learn(list []kubeapi.PodDisruptionBudget, err error) {
	if err != nil {
		return
	}
	ns.known = true
	clear(ns.byName)
	for i := range list {
		ns.see(&list[i])
	}
}

// see takes in one budget. One with a selector that cannot be read selects nothing, which is also what the disruption
// controller makes of it.
func (ns *namespaceBudgets) see(b *kubeapi.PodDisruptionBudget) {
	sel, err := b.Spec.Selector.Selector()
	if err != nil {
		delete(ns.byName, b.Name)
		return
	}
	ns.byName[b.Name] = selectedBudget{b, func(l map[string]string) bool { return sel.Matches(labels.Set(l)) }}
}

// crowd is from how many waiting pods of a namespace on its budgets are worth a list and a watch before one has been denied. Fewer
// can only meet behind the same budget for half a second or so, and a storm of notices must not become one of lists: a
// node may have pods of as many namespaces as it has pods.
const crowd = 4

// crowded reports that a namespace has enough waiting pods for its budgets to be read in advance.
func (d *Drain) crowded(namespace string) bool {
	waiting := 0
	for _, p := range d.pods {
		if p.pod.Namespace == namespace && p.waiting() {
			waiting++
		}
	}
	return waiting >= crowd
}

// canFollow reports that a namespace's budgets are not being followed, and may be.
func (d *Drain) canFollow(namespace string, now time.Time) bool {
	ns := d.budgets.of(namespace)
	return !d.over && !ns.following && !now.Before(ns.again)
}

// followBudgets follows the budgets of a namespace, if that is not being done.
func (d *Drain) followBudgets(ctx context.Context, namespace string, now time.Time) {
	if !d.canFollow(namespace, now) {
		return
	}
	ns := d.budgets.of(namespace)
	ns.following = true
	follow, stop := context.WithCancel(ctx)
	put := func(n news) { d.inbox.put(func(now time.Time) { n(now); d.budgets.reassign(d.order, namespace, now) }) }
	handler := kubeapi.Handler[kubeapi.PodDisruptionBudget]{
		Replaced: func(all []kubeapi.PodDisruptionBudget) {
			put(func(now time.Time) {
				ns.learn(all, nil)
				d.rekeyLanes(namespace)
				for i := range all {
					d.heard(&all[i], now)
				}
			})
		},
		Changed: func(b kubeapi.PodDisruptionBudget) {
			put(func(now time.Time) { ns.see(&b); d.heard(&b, now) })
		},
		Deleted: func(b kubeapi.PodDisruptionBudget) { put(func(time.Time) { delete(ns.byName, b.Name) }) },
		Failed: func(err error) {
			d.o.Logger.Debug("cannot follow disruption budgets", "namespace", namespace, "err", err)
			if kubeapi.IsForbidden(err) { // and will be: what the denials say has to do
				stop()
			}
		},
	}
	d.background.Go(func() {
		defer stop()
		_ = d.api.FollowBudgets(follow, namespace, handler) // it ends with its context only
		d.inbox.put(func(now time.Time) { ns.following, ns.again = false, now.Add(followAgain) })
	})
}

// heard takes in what a budget's status says: the pods that wait for it may go, or the last one is counted.
func (d *Drain) heard(b *kubeapi.PodDisruptionBudget, now time.Time) {
	key := b.Namespace + "/" + b.Name
	if l := d.lanes[key]; l != nil {
		l.heard(b)
	}
	for _, key := range []string{key, key + whenNotReady} {
		if g := d.budgets.gates[key]; g != nil && g.reason == Budget && lets(b, key) {
			g.until = now
		}
	}
}

// lets reports whether, going by a budget's status, the pods that wait behind its gate may be asked again: those that
// are ready while it allows disruptions, those that are not while enough others are healthy (IfHealthyBudget).
func lets(b *kubeapi.PodDisruptionBudget, gate string) bool {
	if strings.HasSuffix(gate, whenNotReady) {
		return b.Status.CurrentHealthy >= b.Status.DesiredHealthy
	}
	return b.Status.DisruptionsAllowed > 0
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
		key += whenNotReady
	}
	return key
}

const whenNotReady = " (not ready)"

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
		len(s.DisruptedPods) == 0 && NeverAllows(s.DesiredHealthy, s.ExpectedPods)
}

// NeverAllows reports, of the status of a disruption budget, that it wants every pod that its workloads are to have to be
// healthy, or more, so that it allows no eviction however well they all are.
func NeverAllows(desiredHealthy, expectedPods int32) bool {
	return expectedPods > 0 && desiredHealthy >= expectedPods
}
