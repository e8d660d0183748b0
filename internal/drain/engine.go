package drain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/drainability/fromkubeapi"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	// settle is how long after its beginning a drain still expects new pods: a scheduler that had not heard of the cordon
	// may be binding one.
	settle = 500 * time.Millisecond
	// recountEvery is the pause between two recounts: while volumes are waited for, the watch may miss a pod.
	recountEvery = 10 * time.Second
	// whenAsked stands for "not by itself": the engine looks again whenever something happens.
	whenAsked = time.Hour
)

// Drain is one drain of one node. Run it once; SetTerms may be called from any goroutine while it runs.
type Drain struct {
	api API
	o   Options

	mu       sync.Mutex
	newTerms *Terms

	// inbox brings what the watch and the requests have learned to the engine's goroutine, which alone touches
	// everything below.
	inbox *inbox

	terms   Terms
	policy  podrules.Policy
	since   time.Time // when the drain first had a deadline
	began   time.Time
	over    bool
	pods    map[string]*podState // by UID
	named   []*podState          // all of them by namespace and name
	order   []*podState          // those that are not gone; see inOrder
	budgets *budgets
	lanes   map[string]*lane
	// queued counts the pods that wait in each lane; it is nil until a step needs it.
	queued     map[string]int
	evictions  *requests
	deletions  *requests
	listed     bool
	listErr    error
	lastSent   map[string]time.Time // the latest request by namespace
	window     *window
	conditions conditionWrites
	recount    recount
	detachment *detachment
	// relied is true while the node is drained as far as the caller knows.
	relied bool
	// background counts the goroutines of the watch and the requests.
	background sync.WaitGroup
}

// SetTerms changes how much time there is. Pods that are stopping already with more grace than is left are cut off at
// the end of it; time that was added is used for the pods that have not been asked yet. Setting the same terms again
// changes nothing.
func (d *Drain) SetTerms(t Terms) {
	d.mu.Lock()
	d.newTerms = &t
	d.mu.Unlock()
	d.inbox.put(nil)
}

func (d *Drain) takeTerms(now time.Time) {
	d.mu.Lock()
	t := d.newTerms
	d.newTerms = nil
	d.mu.Unlock()
	if t == nil {
		return
	}
	if t.Forced() && !d.terms.Forced() {
		d.since = now
	}
	d.terms = *t
	d.policy = policyFor(d.o, d.terms)
	for _, p := range d.pods {
		d.judge(p, now)
		if p.requesting { // for as long as the terms before allowed
			p.giveUp(now)
		}
	}
}

// Run drains; see the function Run.
func (d *Drain) Run(ctx context.Context) (Receipt, error) {
	work, stop := context.WithCancel(ctx)
	defer stop()
	d.began = time.Now()
	d.since = d.began
	d.background.Go(func() {
		if err := d.podsOnNode(work, d.handler()); work.Err() == nil {
			d.inbox.put(func(time.Time) { d.failed(fmt.Errorf("the watch ended for good: %w", err)) })
		}
	})
	outcome := d.conduct(work)
	for outcome == Drained && d.o.OnDrained != nil {
		outcome = d.standBy(work)
	}
	d.over = true
	stop()
	d.background.Wait()
	d.read() // the answers that the end of the drain has overtaken
	receipt := d.receipt(outcome)
	return receipt, d.verdict(ctx, outcome, receipt)
}

// conduct is the engine's loop: decide, then wait for news or for the next moment at which something is due.
func (d *Drain) conduct(ctx context.Context) Outcome {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		d.read()
		now := time.Now()
		d.takeTerms(now)
		if ctx.Err() != nil {
			d.report()
			if d.o.OnDrained == nil && d.empty() && d.recount.done { // only volumes are waited for
				return Drained
			}
			return Cancelled
		}
		review := d.review(now)
		d.sayArrival()
		outcome, over := d.outcome(now)
		if over {
			d.report()
			return outcome
		}
		next := sooner(d.step(ctx, now), review)
		d.report()
		timer.Reset(max(0, next.Sub(now)))
		select {
		case <-ctx.Done():
		case <-d.inbox.filled:
		case <-timer.C:
		}
	}
}

// read takes in all the news there is.
func (d *Drain) read() {
	for _, n := range d.inbox.take() {
		n(time.Now())
	}
}

func (d *Drain) handler() kubeapi.Handler[kubeapi.Pod] {
	return kubeapi.Handler[kubeapi.Pod]{
		Replaced: func(all []kubeapi.Pod) { d.inbox.put(func(now time.Time) { d.replace(all, now) }) },
		Changed:  func(p kubeapi.Pod) { d.inbox.put(func(now time.Time) { d.see(p, now) }) },
		Deleted:  func(p kubeapi.Pod) { d.inbox.put(func(now time.Time) { d.forget(p, now) }) },
		Failed:   func(err error) { d.inbox.put(func(time.Time) { d.failed(err) }) },
	}
}

func (d *Drain) failed(err error) {
	d.o.Logger.Warn("cannot follow the node's pods", "node", d.o.Node, "err", err)
	if !d.listed {
		d.listErr = err
	}
}

func (d *Drain) replace(all []kubeapi.Pod, now time.Time) {
	d.listed, d.listErr = true, nil
	d.update(all, slices.Collect(maps.Keys(d.pods)), now)
}

// update takes in a list. Of the pods in known, those that are not in it are gone.
func (d *Drain) update(all []kubeapi.Pod, known []string, now time.Time) {
	there := make(map[string]bool, len(all))
	for _, p := range all {
		there[p.UID] = true
		d.see(p, now)
	}
	for _, uid := range known {
		if p := d.pods[uid]; p != nil && !there[uid] {
			p.leave(now)
		}
	}
}

func (d *Drain) see(pod kubeapi.Pod, now time.Time) {
	p := d.pods[pod.UID]
	if p == nil {
		p = &podState{mayDelete: true, wanted: wantedGrace(&pod, d.o.GraceSeconds), wave: waveOf(&pod, d.o.WaveBoundaries)}
		p.pod = pod
		d.pods[pod.UID] = p
		d.order = append(d.order, p)
		i, _ := slices.BinarySearchFunc(d.named, p, byName)
		d.named = slices.Insert(d.named, i, p)
	}
	p.observe(pod)
	d.judge(p, now)
	d.budgets.place(p)
}

func (d *Drain) forget(pod kubeapi.Pod, now time.Time) {
	p := d.pods[pod.UID]
	if p == nil {
		return
	}
	p.observe(pod)
	p.leave(now)
	d.o.Logger.Debug("pod is gone", "pod", p.name(), "end", p.end)
}

// judge applies the rules and the policy, and then the caller's own wishes. Until it is asked to leave, a pod is judged
// anew each time: a protection may have been set or lifted meanwhile. One that somebody else deletes while it is
// waited for keeps its verdict.
func (d *Drain) judge(p *podState, now time.Time) {
	if p.gone || p.asked != NotAsked || p.requesting || (p.terminating() && p.judged) {
		return
	}
	policy := d.policy
	if d.o.PolicyOf != nil {
		policy = d.o.PolicyOf(p.pod)
	}
	facts := fromkubeapi.Pod(&p.pod)
	if d.o.Select != nil && !d.o.Select(p.pod) {
		facts.Flags |= podrules.Excluded
	}
	if d.o.Mark != nil {
		d.o.Mark(&facts, &p.pod)
	}
	v := policy.Judge(&facts, now)
	p.verdict, p.action, p.judged, p.reviewAt = Verdict{v.Rule, v.Text(&facts)}, v.Action, true, time.Time{}
	if v.Until != 0 {
		p.reviewAt = time.Unix(0, v.Until)
	}
}

// review does what time alone does to pods: protections expire, and patience with pods that do not stop ends. It
// returns when to do so again.
func (d *Drain) review(now time.Time) time.Time {
	var next time.Time
	for _, p := range d.order {
		if p.gone {
			continue
		}
		if p.asked == NotAsked && !p.requesting && !p.terminating() && !p.reviewAt.IsZero() {
			if !now.Before(p.reviewAt) {
				d.judge(p, now)
			}
			next = sooner(next, p.reviewAt)
		}
		if d.o.SkipTerminatingFor <= 0 || !p.terminating() || !p.present() {
			continue
		}
		if end := p.pod.DeletionTimestamp.Add(d.o.SkipTerminatingFor); now.Before(end) {
			next = sooner(next, end)
		} else {
			p.action = podrules.Leave
		}
	}
	return next
}

// outcome reports whether the drain is over.
func (d *Drain) outcome(now time.Time) (Outcome, bool) {
	switch {
	case d.listed && d.any(func(p *podState) bool { return p.present() && p.action == podrules.Refuse }):
		return RefusedOutcome, true
	case d.empty() && d.recount.done && d.detached(now):
		return Drained, true
	case d.terms.Forced() && !now.Before(d.terms.Deadline):
		return DeadlinePassed, true
	case !d.terms.GiveUp.IsZero() && !now.Before(d.terms.GiveUp):
		return GaveUp, true
	}
	return "", false
}

func (d *Drain) any(is func(*podState) bool) bool { return slices.ContainsFunc(d.order, is) }

// empty reports that, as far as is known, nothing is left that has to leave.
func (d *Drain) empty() bool { return d.listed && !d.any((*podState).present) }

// recount is the last look before a node is called drained: a list made after the last pod went. A watch may lag or be
// broken, and what it has not told is not known to be gone (I7). It is repeated while volumes are waited for.
type recount struct {
	asking bool
	done   bool
	next   time.Time
}

// count asks for the recount when the node seems empty, and returns when to look again.
func (d *Drain) count(ctx context.Context, now time.Time) time.Time {
	r := &d.recount
	if !d.empty() {
		r.done, r.next = false, time.Time{}
		return time.Time{}
	}
	if r.asking {
		return time.Time{}
	}
	if at := latest(r.next, d.began.Add(settle)); now.Before(at) {
		return at
	}
	r.asking = true
	known := slices.Collect(maps.Keys(d.pods)) // the watch may be the first to tell of one that came after the list was made
	d.background.Go(func() {
		pods, err := d.listPods(ctx)
		d.inbox.put(func(now time.Time) {
			r.asking = false
			if err != nil {
				r.done, r.next = false, now.Add(lastPause)
				d.failed(err)
				return
			}
			d.update(pods, known, now)
			r.done, r.next = true, now.Add(recountEvery) // unless one that has to leave has come meanwhile
		})
	})
	return time.Time{}
}

func (d *Drain) podsOnNode(ctx context.Context, h kubeapi.Handler[kubeapi.Pod]) error {
	return d.api.FollowPodsOn(ctx, d.o.Node, h)
}

// listPods makes one list of the node's pods.
func (d *Drain) listPods(ctx context.Context) ([]kubeapi.Pod, error) {
	pods, err := d.api.ListPodsOn(ctx, d.o.Node)
	if err != nil {
		return nil, fmt.Errorf("node %s: listing its pods: %w", d.o.Node, err)
	}
	return pods, nil
}

// listOnce follows until the first list, or the first failure.
func listOnce[T any](
	ctx context.Context, follow func(context.Context, kubeapi.Handler[T]) error,
) (all []T, err error) {
	once, enough := context.WithCancel(ctx)
	defer enough()
	err = errors.New("no answer")
	ended := follow(once, kubeapi.Handler[T]{
		Replaced: func(list []T) {
			if once.Err() == nil {
				all, err = list, nil
				enough()
			}
		},
		Failed: func(e error) {
			if once.Err() == nil {
				err = e
				enough()
			}
		},
	})
	if err != nil && ctx.Err() != nil {
		err = ended
	}
	return all, err
}

// step does everything that is due and returns when to look again if nothing happens before.
func (d *Drain) step(ctx context.Context, now time.Time) time.Time {
	next := d.nextLimit(now)
	if !d.listed {
		return next
	}
	pods := d.inOrder()
	d.queued, d.evictions.waitingIn, d.deletions.waitingIn = nil, nil, nil
	next = sooner(next, d.count(ctx, now))
	next = sooner(next, d.awaitDetach(ctx, now))
	open := d.openWaves(now)
	for _, p := range pods {
		switch {
		case p.requesting || !p.present():
		case p.waiting() && now.Before(open[p.wave]):
			p.obstruct(EarlierWave, "", "pods of lower priority leave first", now)
			next = sooner(next, open[p.wave])
		case p.waiting():
			next = sooner(next, d.ask(ctx, p, now))
		default:
			next = sooner(next, d.hurry(ctx, p, now))
		}
	}
	return next
}

// sooner is the earlier of two moments; zero is never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// nextLimit is the nearest moment at which the outcome may change by itself.
func (d *Drain) nextLimit(now time.Time) time.Time {
	next := now.Add(whenAsked)
	for _, t := range []time.Time{d.terms.Deadline, d.terms.GiveUp} {
		if t.After(now) && t.Before(next) {
			next = t
		}
	}
	return next
}

// openWaves says for each wave from when it may go: the first with pods in it at once, a later one when the earlier
// ones are gone or cannot be waited for any longer.
func (d *Drain) openWaves(now time.Time) []time.Time {
	open := make([]time.Time, len(d.o.WaveBoundaries)+1)
	longest := make([]time.Duration, len(open))
	first := len(open)
	for _, p := range d.order {
		if p.present() {
			longest[p.wave] = max(longest[p.wave], p.wanted)
			first = min(first, p.wave)
		}
	}
	for wave := first + 1; wave < len(open); wave++ {
		open[wave] = now.Add(whenAsked)
		if at, limited := latestStart(longest[wave], d.terms, d.since); limited {
			open[wave] = at
		}
	}
	return open
}

// inOrder returns the pods that are not gone by wave; inside a wave those first that have been refused least, so that
// what is blocked never holds up what is free and all that wait at a gate have their turn; then longest grace first,
// since who needs the most time must start first. The pods that the API server asked for patience follow: it may do so for
// one pod only. Of pods that are alike the UID decides, which is as good as chance:
// nodes that are drained at the same moment mostly have the same apps on them, and if all of them began with the same
// one, the API server would count all of it against one disruption budget, one conflict after another. While requests
// fail there may be a single slot, and the namespaces take turns.
func (d *Drain) inOrder() []*podState {
	turn := func(p *podState) time.Time {
		if !d.window.failing {
			return time.Time{}
		}
		return d.lastSent[p.pod.Namespace]
	}

	d.order = slices.DeleteFunc(d.order, func(p *podState) bool { return p.gone })
	slices.SortFunc(d.order, func(a, b *podState) int {
		return cmp.Or(a.wave-b.wave, turn(a).Compare(turn(b)), a.refusals-b.refusals, cmp.Compare(b.wanted, a.wanted), a.busy-b.busy,
			strings.Compare(a.pod.UID, b.pod.UID))
	})
	return d.order
}

func byName(a, b *podState) int {
	if c := strings.Compare(a.pod.Namespace, b.pod.Namespace); c != 0 {
		return c
	}
	if c := strings.Compare(a.pod.Name, b.pod.Name); c != 0 {
		return c
	}
	return strings.Compare(a.pod.UID, b.pod.UID)
}

// report hands the progress out.
func (d *Drain) report() {
	if d.o.OnProgress != nil {
		d.o.OnProgress(d.progress())
	}
}

func (d *Drain) progress() Progress {
	p := Progress{Node: d.o.Node, Began: d.began, Deadline: d.terms.Deadline, Listed: d.listed}
	p.Blocked = make([]Blocked, 0, len(d.order))
	for _, s := range d.named {
		switch {
		case s.action == podrules.Leave:
			p.Stayed++
			continue
		case s.gone:
			p.Gone++
		case s.asked != NotAsked || s.terminating():
			p.Asked++
			p.Blocked = append(p.Blocked, s.progress(d.began))
		default:
			p.Waiting++
			p.Blocked = append(p.Blocked, s.progress(d.began))
		}
		p.Total++
	}
	return p
}

func (d *Drain) receipt(outcome Outcome) Receipt {
	r := Receipt{Node: d.o.Node, Outcome: outcome, Began: d.began, Ended: time.Now(), Deadline: d.terms.Deadline, Pods: []PodReceipt{}}
	if outcome == Drained {
		r.Volumes = d.detachment.report
	}
	for _, p := range d.named {
		r.Pods = append(r.Pods, p.receipt())
	}
	return r
}

// verdict turns an outcome into the error of Run.
func (d *Drain) verdict(ctx context.Context, outcome Outcome, r Receipt) error {
	switch outcome {
	case Drained:
		return nil
	case Cancelled:
		return fmt.Errorf("node %s: drain cancelled: %w", d.o.Node, context.Cause(ctx))
	case RefusedOutcome:
		e := &Refused{Node: d.o.Node}
		for _, p := range r.Pods {
			if p.Action == podrules.Refuse && p.Left() {
				e.Pods = append(e.Pods, p)
			}
		}
		return e
	}
	e := &Unfinished{Node: d.o.Node, Outcome: outcome, Blocked: d.progress().Blocked}
	if !d.listed {
		e.Unknown = d.listErr
		if e.Unknown == nil {
			e.Unknown = fmt.Errorf("no answer from the API server")
		}
	}
	return e
}
