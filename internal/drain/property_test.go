package drain

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/drainability/fromkubeapi"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"

	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/internal/drainability"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// world is a random cluster with random faults and a drain on random terms.
type world struct {
	pods    []podPlan
	budgets []budgetPlan

	latency, lag time.Duration
	controlling  time.Duration
	faulty       int // percent of the requests
	seed         int
	watchLives   time.Duration
	listFails    int // the first so many

	forced          bool
	limit, margin   time.Duration // deadline or GiveUp
	changeAt        time.Duration // 0 is never
	changedForced   bool
	changedLimit    time.Duration // counted from the change
	cancelAt        time.Duration // 0 is never
	inFlight        int
	disableEviction bool
	troubles        []trouble
	behind          int  // events that the first list lacks
	allPods         bool // NoticePolicy whatever the terms
}

// trouble is what an API server does to the requests of one verb, for all pods or for those of one app, for a while.
type trouble struct {
	verb        string
	app         string // empty is all
	from, until time.Duration
	fault
}

// troubleVerbs are the requests that troubles are drawn for.
var troubleVerbs = []string{"evict", "evict", "delete", "condition", "condition", "budgets", "list"}

func drawTrouble(t *rapid.T) trouble {
	x := trouble{
		verb: rapid.SampledFrom(troubleVerbs).Draw(t, "verb"),
		app:  rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "troubledApp"),
		from: seconds(t, "from", 0, 0, 5, 25),
	}
	x.until = x.from + seconds(t, "lasts", 1, 10, 3600)
	switch rapid.IntRange(-1, 5).Draw(t, "trouble") {
	case -1, 0:
		x.hang, x.worked = true, rapid.Bool().Draw(t, "worked")
	case 1:
		x.takes, x.worked = time.Duration(rapid.SampledFrom([]int{300, 1500, 8000}).Draw(t, "takes"))*time.Millisecond, true
	case 2:
		x.err = &kubeapi.StatusError{Code: 503, Message: "unavailable"}
	case 3:
		x.err = &kubeapi.StatusError{Code: 429, Message: "too many requests", RetryAfter: time.Second}
	case 4:
		x.takes = time.Duration(rapid.SampledFrom([]int{0, 10_000}).Draw(t, "takes")) * time.Millisecond
		x.err = &kubeapi.StatusError{Code: 500, Message: `Internal error occurred: failed calling webhook "keep.example.com": timeout`}
	default:
		x.err = errors.New("connect: connection refused")
	}
	return x
}

// concerns reports that the trouble is of requests of this verb, and of this pod; nil is none.
func (x trouble) concerns(verb string, p *simPod) bool {
	return x.verb == verb && (x.app == "" || p != nil && p.Labels["app"] == x.app)
}

type podPlan struct {
	copies  int
	changes []change
	arrives time.Duration
}

type budgetPlan struct {
	app     string // empty selects all
	healthy int
	always  bool
}

func seconds(t *rapid.T, name string, of ...int) time.Duration {
	return time.Duration(rapid.SampledFrom(of).Draw(t, name)) * time.Second
}

func drawWorld(t *rapid.T) world {
	w := world{
		latency:         time.Duration(rapid.IntRange(0, 300).Draw(t, "latency")) * time.Millisecond,
		lag:             time.Duration(rapid.SampledFrom([]int{0, 0, 10, 500, 3000}).Draw(t, "lag")) * time.Millisecond,
		controlling:     time.Duration(rapid.SampledFrom([]int{10, 10, 300, 3_600_000}).Draw(t, "controlling")) * time.Millisecond,
		faulty:          rapid.SampledFrom([]int{0, 0, 10, 40, 90}).Draw(t, "faulty"),
		seed:            rapid.Int().Draw(t, "seed"),
		watchLives:      seconds(t, "watchLives", 0, 0, 1, 7),
		listFails:       rapid.SampledFrom([]int{0, 0, 1, 20}).Draw(t, "listFails"),
		forced:          rapid.Bool().Draw(t, "forced"),
		limit:           seconds(t, "limit", 1, 2, 5, 10, 30, 60, 120, 600),
		margin:          seconds(t, "margin", 0, 0, 1, 3),
		changeAt:        seconds(t, "changeAt", 0, 0, 1, 10, 40),
		changedForced:   rapid.Bool().Draw(t, "changedForced"),
		changedLimit:    seconds(t, "changedLimit", 1, 15, 60, 600),
		cancelAt:        seconds(t, "cancelAt", 0, 0, 0, 0, 3, 30),
		inFlight:        rapid.SampledFrom([]int{1, 2, 32}).Draw(t, "inFlight"),
		disableEviction: rapid.IntRange(0, 9).Draw(t, "disableEviction") == 0,
		allPods:         rapid.Bool().Draw(t, "allPods"),
		behind:          rapid.SampledFrom([]int{0, 0, 1, 5, 1000}).Draw(t, "behind"),
	}
	for range rapid.SampledFrom([]int{0, 0, 1, 1, 3}).Draw(t, "troubles") {
		w.troubles = append(w.troubles, drawTrouble(t))
	}
	kinds := []change{
		nil, nil, nil, nil, notReady, unowned, emptyDir, ownedBy("DaemonSet"), ownedBy("StatefulSet"),
		phase("Pending"), phase("Succeeded"), annotation(drainability.DoNotEvict, "true"), annotation(drainability.DoNotDisrupt, "20s"),
		annotation("kubernetes.io/config.mirror", "x"), deleted(0, time.Minute), deleted(10*time.Second, 30*time.Second),
	}
	for range rapid.IntRange(0, 8).Draw(t, "pods") {
		stops := seconds(t, "stops", -1, 0, 1, 5, 20)
		if stops < 0 {
			stops = never
		}
		p := podPlan{
			copies:  rapid.SampledFrom([]int{1, 1, 1, 1, 30, 100}).Draw(t, "copies"),
			arrives: seconds(t, "arrives", 0, 0, 0, 1, 8),
			changes: []change{
				grace(seconds(t, "grace", 0, 1, 5, 30, 30, 120)), stopsIn(stops),
				label("app", rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "app")),
				in(rapid.SampledFrom([]string{"shop", "shop", "office"}).Draw(t, "namespace")),
				priority(rapid.SampledFrom([]int32{0, 0, 2_000_000_000}).Draw(t, "priority")),
				twinned(twin(rapid.IntRange(0, 2).Draw(t, "twin")), seconds(t, "twinUp", 0, 2, 15)),
			},
		}
		if k := kinds[rapid.IntRange(0, len(kinds)-1).Draw(t, "kind")]; k != nil {
			p.changes = append(p.changes, k)
		}
		w.pods = append(w.pods, p)
	}
	for range rapid.IntRange(0, 3).Draw(t, "budgets") {
		w.budgets = append(w.budgets, budgetPlan{
			app:     rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "budgetApp"),
			healthy: rapid.SampledFrom([]int{0, 1, 2, 30, 1000}).Draw(t, "healthy"),
			always:  rapid.Bool().Draw(t, "always"),
		})
	}
	return w
}

// drawPressed draws a notice for a node whose pods mostly have to be deleted past their budgets, while evictions fare badly.
func drawPressed(t *rapid.T) world {
	w := world{
		latency:     time.Duration(rapid.SampledFrom([]int{5, 100, 300, 1000}).Draw(t, "latency")) * time.Millisecond,
		controlling: 10 * time.Millisecond, forced: true, allPods: true, inFlight: 32, margin: 2 * time.Second,
		limit: seconds(t, "limit", 30, 60, 120, 300),
	}
	for range rapid.IntRange(0, 2).Draw(t, "troubles") {
		x := drawTrouble(t)
		if x.verb == "delete" || x.verb == "list" {
			x.verb = "evict"
		}
		w.troubles = append(w.troubles, x)
	}
	for range rapid.IntRange(1, 4).Draw(t, "pods") {
		w.pods = append(w.pods, podPlan{
			copies:  rapid.SampledFrom([]int{1, 5, 40, 100}).Draw(t, "copies"),
			arrives: seconds(t, "arrives", 0, 0, 0, 1, 8),
			changes: []change{
				grace(seconds(t, "grace", 1, 5, 30, 120)), stopsIn(0),
				label("app", rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "app")),
				in(rapid.SampledFrom([]string{"shop", "shop", "office"}).Draw(t, "namespace")),
			},
		})
	}
	for range rapid.IntRange(1, 3).Draw(t, "budgets") {
		w.budgets = append(w.budgets, budgetPlan{app: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "budgetApp"), healthy: 1000})
	}
	return w
}

// build sets the world up.
func (w world) build(s *sim) {
	s.latency, s.lag, s.behind, s.controlling = w.latency, w.lag, w.behind, w.controlling
	began := time.Now()
	s.fault = func(c call) *fault {
		for _, x := range w.troubles {
			if at := time.Since(began); x.concerns(c.verb, s.pods[c.UID]) && at >= x.from && at < x.until {
				f := x.fault
				return &f
			}
		}
		return w.fault(c)
	}
	if w.watchLives > 0 {
		s.watchLives = func(n int) (time.Duration, bool) { return w.watchLives, n%2 == 0 }
	}
	for i, p := range w.pods {
		for j := range p.copies {
			name := fmt.Sprintf("p%d-%d", i, j)
			if p.arrives == 0 {
				s.pod(name, p.changes...)
				continue
			}
			time.AfterFunc(p.arrives, func() { s.pod(name, p.changes...) })
		}
	}
	for i, b := range w.budgets {
		var labels map[string]string
		if b.app != "" {
			labels = map[string]string{"app": b.app}
		}
		s.budget(fmt.Sprintf("b%d", i), int32(b.healthy), 1000, labels).always = b.always
	}
}

// fault depends on the request alone, whatever the order in which requests arrive.
func (w world) fault(c call) *fault {
	if c.verb == "list" && c.n < w.listFails {
		return &fault{err: errors.New("list cut short")}
	}
	h := fnv.New32()
	fmt.Fprint(h, w.seed, c.verb, c.UID, c.n)
	n := int(h.Sum32() >> 1)
	if n%100 >= w.faulty {
		return nil
	}
	lost := errors.New("connection reset")
	if c.verb == "list" || c.verb == "budgets" {
		return &fault{err: lost}
	}
	faults := []fault{
		{err: lost},
		{err: lost, worked: true},
		{hang: true},
		{hang: true, worked: true},
		{err: &kubeapi.StatusError{Code: 503, Message: "unavailable"}},
		{err: &kubeapi.StatusError{Code: 504, Message: "timeout"}, worked: true},
		{err: &kubeapi.StatusError{Code: 429, Message: "too many requests", RetryAfter: time.Second}},
		{err: denial("The disruption budget x is still being processed by the server.")},
		{err: forbidden("not allowed")},
		{err: notFound("budgets", "x")},
		{err: &kubeapi.StatusError{Code: 409, Message: "conflict"}},
		{err: &kubeapi.StatusError{Code: 403, Message: "going", Causes: []kubeapi.Cause{{Reason: "NamespaceTerminating"}}}},
	}
	return &faults[n/100%len(faults)]
}

func (w world) terms(now time.Time, forced bool, limit time.Duration) Terms {
	if forced {
		return Terms{Deadline: now.Add(limit), Margin: w.margin}
	}
	return Terms{GiveUp: now.Add(limit)}
}

// run drains the world's node and returns every promise that was broken.
func (w world) run(parent context.Context) (broken []error) {
	s := newSim()
	w.build(s)
	breaks := func(format string, a ...any) {
		if len(broken) < 5 {
			broken = append(broken, fmt.Errorf(format, a...))
		}
	}
	o := Options{
		Node: node, MaxInFlight: w.inFlight, DisableEviction: w.disableEviction,
		OnProgress: checkProgress(func(a ...any) { breaks("%s", fmt.Sprint(a...)) }),
	}
	if w.allPods {
		o.Policy = ptr(podrules.Forced())
	}
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	began := time.Now()
	o.Terms = w.terms(began, w.forced, w.limit)
	d := New(s, o)
	last, forced, earliest := o.Terms, w.forced, o.Terms.end()
	var ended time.Time
	if w.changeAt > 0 && w.changeAt < w.limit {
		last = w.terms(began.Add(w.changeAt), w.changedForced, w.changedLimit)
		forced = forced || w.changedForced
		if w.changedForced && (!w.forced || last.end().Before(earliest)) {
			earliest = last.end()
		}
		time.AfterFunc(w.changeAt, func() { d.SetTerms(last) })
	}
	if w.cancelAt > 0 {
		time.AfterFunc(w.cancelAt, cancel)
	}
	r, err := d.Run(ctx)
	ended = time.Now()
	synctest.Wait()

	if (err == nil) != (r.Outcome == Drained) {
		breaks("outcome %s, error %v", r.Outcome, err)
	}
	if err := s.reconcile(r, w.watchLives == 0 && w.listFails == 0); err != nil {
		breaks("%w", err)
	}
	limit := sooner(last.Deadline, last.GiveUp)
	if ended.After(limit.Add(10 * time.Millisecond)) {
		breaks("Run returned %s after its limit", ended.Sub(limit))
	}
	if s.most > w.inFlight {
		breaks("%d requests of one verb at once, %d allowed", s.most, w.inFlight)
	}
	s.mu.Lock() // its timers go on
	w.checkRequests(s, forced, ended.Sub(began), breaks)
	switch r.Outcome {
	case Drained:
		w.checkDrained(s, d, breaks)
	case DeadlinePassed:
		w.checkAsked(s, d, last, began.Add(w.changeAt), breaks)
	}
	if forced {
		checkCutShort(s, r, earliest, breaks)
	}
	if w.forced && (w.changeAt == 0 || w.changeAt >= w.limit) {
		w.checkForced(s, d, o.Terms, began, breaks)
	}
	n := len(s.requests)
	s.mu.Unlock()
	time.Sleep(time.Hour)
	if len(s.asked("", nil)) != n {
		breaks("requests after the end")
	}
	return broken
}

func (w world) checkRequests(s *sim, forced bool, took time.Duration, breaks func(string, ...any)) {
	evictions, deletions, conditions := map[string]int{}, map[string]int{}, map[string]int{}
	for _, q := range s.requests {
		p := s.pods[q.removal.UID]
		if p == nil || p.Spec.NodeName != node || p.Name != q.removal.Name {
			breaks("request for a pod that is not the node's: %+v", q)
			continue
		}
		if q.verb == "delete" && !forced && !w.disableEviction {
			breaks("I2: deletion in a voluntary drain: %+v", q)
		}
		if g := q.removal.Grace; g != nil && *g == 0 && *p.Spec.TerminationGracePeriodSeconds != 0 {
			breaks("grace 0 for a pod that wants more: %+v", q)
		}
		switch {
		case q.verb == "evict" && q.err == nil:
			evictions[p.UID]++
		case q.verb == "delete":
			deletions[p.UID]++
		case q.verb == "condition":
			conditions[p.UID]++
		}
	}
	for uid, n := range deletions {
		if most := 5 + int(took/firstPause); n > most {
			breaks("%d deletions of %s in %s, want at most %d", n, uid, took, most)
		}
	}
	for uid, n := range conditions {
		if n > 1 {
			breaks("%d conditions of %s were written", n, uid)
		}
	}
	for uid, n := range evictions {
		if n > 1 {
			breaks("%d evictions of %s were accepted", n, uid)
		}
	}
	if w.faulty > 0 || len(w.troubles) > 0 {
		return
	}
	// Each pod is asked once in a batch, once more when force begins, and may change its gate once or twice; besides,
	// each gate is asked once a second: ready or not, for each budget and set of several.
	gates := 2 * (len(w.budgets) + 2)
	if most := 4*len(s.pods) + gates*(10+int(took/time.Second)); len(s.requests) > most {
		breaks("%d requests in %s, want at most %d", len(s.requests), took, most)
	}
}

// checkDrained: nothing that has to leave is left.
func (w world) checkDrained(s *sim, d *Drain, breaks func(string, ...any)) {
	for _, p := range s.left() {
		if p.CreationTimestamp.Equal(time.Now()) {
			continue // it came at the very instant at which the last list was made
		}
		if v := d.verdictOn(&p.Pod); v.Action != podrules.Leave {
			breaks("I7: drained with pod %s (%s) left", p.Name, v.Rule)
		}
	}
}

// isTroubled reports that a trouble may keep a pod from being asked in its time: one of its own deletion, or of reads. That
// its condition cannot be written is none, and that evictions fail is none. That others' deletions hang is none where they cannot
// use all slots.
func (w world) isTroubled(s *sim, p *simPod) bool {
	troubled := 0
	for _, x := range w.troubles {
		if x.verb == "list" || x.concerns("delete", p) {
			return true
		}
		for _, other := range s.pods {
			if x.concerns("delete", other) {
				troubled++
			}
		}
	}
	return troubled > w.inFlight/4
}

// checkAsked: where the API server did its part, every pod was asked before the deadline.
func (w world) checkAsked(s *sim, d *Drain, last Terms, changed time.Time, breaks func(string, ...any)) {
	if w.faulty > 0 || w.listFails > 0 || w.watchLives > 0 {
		return
	}
	asking := 2 * s.latency * time.Duration(2+len(s.pods)/w.inFlight) // everybody, twice
	needed := asking + s.lag + 5*time.Second
	for _, p := range s.left() {
		known := latest(changed, p.CreationTimestamp)
		if w.isTroubled(s, p) || d.verdictOn(&p.Pod).Action == podrules.Leave || last.Deadline.Sub(known) < needed || d.pods[p.UID] != nil && asking > max(d.pods[p.UID].wanted/2, shortestRequest/2) {
			continue
		}
		if p.DeletionTimestamp == nil {
			breaks("pod %s was never asked: %+v", p.Name, d.pods[p.UID].receipt())
		}
	}
}

// checkForced: a pod that a PodDisruptionBudget blocks is deleted in its time, whatever becomes of evictions and of its condition.
func (w world) checkForced(s *sim, d *Drain, terms Terms, began time.Time, breaks func(string, ...any)) {
	for _, x := range w.troubles {
		if x.verb == "delete" || x.verb == "list" {
			return
		}
	}
	if w.faulty > 0 {
		return
	}
	all := 0 // that have to leave
	for _, p := range d.pods {
		if p.action != podrules.Leave {
			all++
		}
	}
	asking := s.latency*time.Duration(1+all/w.inFlight) + longestConditionWait
	for _, p := range d.pods {
		at := forceAt(p.wanted, terms, began)
		if p.asked != Forced || !p.delays[0].first.Before(at.Add(-2*conditionLead)) {
			continue
		}
		if late := p.askedAt.Sub(at); late > asking+grudged(p.wanted, terms, began) {
			breaks("%s was deleted %s after its time", p.name(), late)
		}
	}
}

// checkCutShort: no pod is killed while there was time left for it.
func checkCutShort(s *sim, r Receipt, end time.Time, breaks func(string, ...any)) {
	for _, p := range r.Pods {
		was := s.pods[p.UID]
		// Whole seconds of grace and of deletionTimestamp cost up to one each.
		if p.Asked != NotAsked && p.CutShort() && was.endedAt.Before(end.Add(-2*time.Second)) && was.endedAt.After(r.Began.Add(2*time.Second)) {
			breaks("%s was killed %s before the end, given %s", p.Name, end.Sub(was.endedAt), was.given)
		}
	}
}

func TestAnyDrainKeepsItsPromises(t *testing.T)        { keepsPromises(t, drawWorld) }
func TestAnyPressedDrainKeepsItsPromises(t *testing.T) { keepsPromises(t, drawPressed) }

// TestHangingEvictionsDelayNoForcedDeletion has evictions that end in a refusal when they are given up, and more pods than may be asked at once.
func TestHangingEvictionsDelayNoForcedDeletion(t *testing.T) {
	w := world{
		latency: 100 * time.Millisecond, controlling: 10 * time.Millisecond, forced: true, allPods: true, inFlight: 32,
		margin: 2 * time.Second, limit: 30 * time.Second,
		troubles: []trouble{{verb: "evict", until: time.Hour, fault: fault{hang: true, worked: true}}},
		pods: []podPlan{
			{copies: 100, changes: []change{grace(time.Second), stopsIn(0), label("app", "b"), in("shop")}},
			{copies: 5, changes: []change{grace(2 * time.Minute), stopsIn(0), label("app", "a"), in("shop")}},
		},
		budgets: []budgetPlan{{healthy: 1000}, {app: "b", healthy: 1000}, {app: "b", healthy: 1000}},
	}
	synctest.Test(t, func(t *testing.T) {
		for _, err := range w.run(t.Context()) {
			t.Error(err)
		}
	})
}

func keepsPromises(t *testing.T, draw func(*rapid.T) world) {
	rapid.Check(t, func(rt *rapid.T) {
		w := draw(rt)
		var broken []error
		synctest.Test(t, func(t *testing.T) { broken = w.run(t.Context()) })
		if len(broken) > 0 {
			rt.Fatal(errors.Join(broken...))
		}
	})
}

func (d *Drain) verdictOn(p *kubeapi.Pod) podrules.Verdict {
	facts := fromkubeapi.Pod(p)
	return d.policy.Judge(&facts, time.Now())
}
