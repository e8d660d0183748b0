package drain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	// settle is how long the node must have been free of pods that have to leave: a scheduler that had not heard of the
	// cordon may still bind one.
	settle = 500 * time.Millisecond
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
	inbox chan func(now time.Time)

	terms    Terms
	since    time.Time // when the terms came into force
	began    time.Time
	pods     map[string]*podState // by UID
	budgets  *budgets
	listed   bool
	listErr  error
	inFlight int
	requests sync.WaitGroup
}

// SetTerms changes how much time there is. Pods that are stopping already with more grace than is left are told to
// hurry; time that was added is used for the pods that have not been asked yet.
func (d *Drain) SetTerms(t Terms) {
	d.mu.Lock()
	d.newTerms = &t
	d.mu.Unlock()
	select {
	case d.inbox <- func(time.Time) {}: // wake the engine
	default: // it has things to read and will look
	}
}

func (d *Drain) takeTerms(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.newTerms != nil {
		d.terms, d.since, d.newTerms = *d.newTerms, now, nil
	}
}

// Run drains; see the function Run.
func (d *Drain) Run(ctx context.Context) (Receipt, error) {
	work, stop := context.WithCancel(ctx)
	d.began = time.Now()
	d.since = d.began
	d.requests.Go(func() { _ = d.api.FollowPodsOn(work, d.o.Node, d.handler(work)) })
	outcome := d.conduct(work)
	stop()
	d.requests.Wait()
	receipt := d.receipt(outcome)
	if outcome == Drained && d.o.Volumes != nil {
		receipt.Volumes = awaitDetach(ctx, d.o.Volumes, d.o.Node, d.drainedPods(), d.terms)
		receipt.Ended = time.Now()
	}
	return receipt, d.verdict(ctx, outcome, receipt)
}

// conduct is the engine's loop: decide, then wait for news or for the next moment at which something is due.
func (d *Drain) conduct(ctx context.Context) Outcome {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		now := time.Now()
		d.takeTerms(now)
		outcome, over := d.outcome(now)
		if over {
			d.report()
			return outcome
		}
		next := d.step(ctx, now)
		d.report()
		timer.Reset(max(0, next.Sub(now)))
		select {
		case <-ctx.Done():
			return Cancelled
		case news := <-d.inbox:
			d.read(news)
		case <-timer.C:
		}
	}
}

// read takes in news, and whatever else has come meanwhile, so that a burst of events costs one decision.
func (d *Drain) read(news func(time.Time)) {
	now := time.Now()
	for {
		news(now)
		select {
		case news = <-d.inbox:
		default:
			return
		}
	}
}

// tell brings news to the engine; it gives up when the drain is over.
func (d *Drain) tell(ctx context.Context, news func(now time.Time)) {
	select {
	case d.inbox <- news:
	case <-ctx.Done():
	}
}

func (d *Drain) handler(ctx context.Context) kubeapi.Handler[kubeapi.Pod] {
	return kubeapi.Handler[kubeapi.Pod]{
		Replaced: func(all []kubeapi.Pod) { d.tell(ctx, func(now time.Time) { d.replace(all, now) }) },
		Changed:  func(p kubeapi.Pod) { d.tell(ctx, func(now time.Time) { d.see(p, now) }) },
		Deleted:  func(p kubeapi.Pod) { d.tell(ctx, func(now time.Time) { d.forget(p, now) }) },
		Failed:   func(err error) { d.tell(ctx, func(time.Time) { d.failed(err) }) },
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
	there := make(map[string]bool, len(all))
	for _, p := range all {
		there[p.UID] = true
		d.see(p, now)
	}
	for uid, p := range d.pods {
		if !there[uid] {
			p.leave(now)
		}
	}
}

func (d *Drain) see(pod kubeapi.Pod, now time.Time) {
	judge := func(p *kubeapi.Pod) (Verdict, Action) { return d.judge(p, now) }
	p := d.pods[pod.UID]
	if p == nil {
		p = &podState{mayDelete: true, wanted: wantedGrace(&pod, d.o.GraceSeconds), wave: waveOf(&pod, d.o.WaveBoundaries)}
		p.verdict, p.action = judge(&pod)
		d.pods[pod.UID] = p
	}
	p.observe(pod, judge)
}

func (d *Drain) forget(pod kubeapi.Pod, now time.Time) {
	p := d.pods[pod.UID]
	if p == nil {
		return
	}
	p.pod = pod
	p.leave(now)
	d.o.Logger.Debug("pod is gone", "pod", pod.Namespace+"/"+pod.Name, "end", p.end)
}

// judge applies the rules and the policy, and then the caller's own wishes.
func (d *Drain) judge(p *kubeapi.Pod, now time.Time) (Verdict, Action) {
	v := Classify(p, now)
	if d.o.Select != nil && v.Rule != Mirror && !d.o.Select(*p) {
		v = Verdict{Excluded, "not selected"}
	}
	action := d.o.Policy.Of(v.Rule)
	if v.Rule == Terminating && d.o.SkipTerminatingFor > 0 && now.Sub(askedToStop(p)) > d.o.SkipTerminatingFor {
		action = Leave
	}
	return v, action
}

// askedToStop is when a terminating pod was deleted: deletionTimestamp is the end of its grace.
func askedToStop(p *kubeapi.Pod) time.Time {
	if p.DeletionGracePeriodSeconds == nil {
		return *p.DeletionTimestamp
	}
	return p.DeletionTimestamp.Add(-time.Duration(*p.DeletionGracePeriodSeconds) * time.Second)
}

// outcome reports whether the drain is over.
func (d *Drain) outcome(now time.Time) (Outcome, bool) {
	if d.listed {
		if d.any(func(p *podState) bool { return p.present() && p.action == Refuse }) {
			return RefusedOutcome, true
		}
		if d.inFlight == 0 && !d.any((*podState).present) && !now.Before(d.began.Add(settle)) {
			return Drained, true
		}
	}
	if d.terms.Forced() && !now.Before(d.terms.Deadline) {
		return DeadlinePassed, true
	}
	if !d.terms.GiveUp.IsZero() && !now.Before(d.terms.GiveUp) {
		return GaveUp, true
	}
	return "", false
}

func (d *Drain) any(is func(*podState) bool) bool {
	for _, p := range d.pods {
		if is(p) {
			return true
		}
	}
	return false
}

// step does everything that is due and returns when to look again if nothing happens before.
func (d *Drain) step(ctx context.Context, now time.Time) time.Time {
	next := d.nextLimit(now)
	if !d.listed {
		return next
	}
	open := d.openWaves(now)
	for _, p := range d.inOrder() {
		if p.requesting {
			continue
		}
		var due time.Time
		switch {
		case p.waiting() && now.Before(open[p.wave]):
			p.obstruct(EarlierWave, "", "pods of lower priority leave first", now)
			due = open[p.wave]
		case p.waiting():
			due = d.ask(ctx, p, now)
		case p.present():
			due = d.hurry(ctx, p, now)
		}
		if !due.IsZero() && due.Before(next) {
			next = due
		}
	}
	return next
}

// nextLimit is the nearest moment at which the outcome may change by itself.
func (d *Drain) nextLimit(now time.Time) time.Time {
	next := now.Add(whenAsked)
	for _, t := range []time.Time{d.terms.Deadline, d.terms.GiveUp, d.began.Add(settle)} {
		if t.After(now) && t.Before(next) {
			next = t
		}
	}
	return next
}

// openWaves says for each wave with pods in it from when it may go: the first at once, a later one when the earlier ones
// are gone or cannot be waited for any longer.
func (d *Drain) openWaves(now time.Time) map[int]time.Time {
	longest := map[int]time.Duration{}
	first := -1
	for _, p := range d.pods {
		if !p.present() {
			continue
		}
		longest[p.wave] = max(longest[p.wave], p.wanted)
		if first < 0 || p.wave < first {
			first = p.wave
		}
	}
	open := make(map[int]time.Time, len(longest))
	for wave, grace := range longest {
		latest, limited := latestStart(grace, d.terms, d.since)
		switch {
		case wave == first:
			open[wave] = time.Time{}
		case limited:
			open[wave] = latest
		default:
			open[wave] = now.Add(whenAsked)
		}
	}
	return open
}

// inOrder sorts the pods by wave, longest grace first, since who needs the most time must start first.
func (d *Drain) inOrder() []*podState {
	all := make([]*podState, 0, len(d.pods))
	for _, p := range d.pods {
		if p.present() {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b *podState) int {
		return cmp.Or(cmp.Compare(a.wave, b.wave), cmp.Compare(b.wanted, a.wanted),
			cmp.Compare(a.pod.Namespace, b.pod.Namespace), cmp.Compare(a.pod.Name, b.pod.Name))
	})
	return all
}

// report hands the progress out.
func (d *Drain) report() {
	if d.o.OnProgress != nil {
		d.o.OnProgress(d.progress())
	}
}

func (d *Drain) progress() Progress {
	p := Progress{Node: d.o.Node, Began: d.began, Deadline: d.terms.Deadline, Listed: d.listed}
	for _, s := range d.pods {
		switch {
		case s.action == Leave:
			p.Stayed++
			continue
		case s.gone:
			p.Gone++
		case s.action == Refuse:
			p.Waiting++
			s.obstruct(ByPolicy, "", fmt.Sprintf("%s: %s", s.verdict.Rule, s.verdict.Detail), d.began)
			p.Blocked = append(p.Blocked, s.progress())
		case s.waiting():
			p.Waiting++
			p.Blocked = append(p.Blocked, s.progress())
		default:
			p.Asked++
			p.Blocked = append(p.Blocked, s.progress())
		}
		p.Total++
	}
	slices.SortFunc(p.Blocked, func(a, b Blocked) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod))
	})
	return p
}

func (d *Drain) receipt(outcome Outcome) Receipt {
	r := Receipt{Node: d.o.Node, Outcome: outcome, Began: d.began, Ended: time.Now(), Deadline: d.terms.Deadline}
	for _, p := range d.pods {
		r.Pods = append(r.Pods, p.receipt())
	}
	slices.SortFunc(r.Pods, func(a, b PodReceipt) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return r
}

func (d *Drain) drainedPods() []kubeapi.Pod {
	var all []kubeapi.Pod
	for _, p := range d.pods {
		if p.action != Leave {
			all = append(all, p.pod)
		}
	}
	return all
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
			if p.Action == Refuse && p.Left() {
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
