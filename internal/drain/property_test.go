package drain

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/drainability/fromkubeapi"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"

	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/internal/drainability"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// scenario is a random cluster with random faults and a drain with random terms.
type scenario struct {
	pods []podSpec
	pdbs []pdbSpec

	latency, watchLag time.Duration
	controllerDelay   time.Duration
	faultPercent      int // percent of the requests
	seed              int
	watchLifetime     time.Duration
	listAnswerTime    time.Duration // of every second list, after the pods were read
	failingLists      int           // so many at the start

	forced          bool
	limit, margin   time.Duration // deadline or TimeoutAt
	changeTermsAt   time.Duration // 0 is never
	changedForced   bool
	changedLimit    time.Duration // counted from the change
	cancelAt        time.Duration // 0 is never
	inFlight        int
	disableEviction bool
	apiFailures     []apiFailure
	listLag         int  // events that the first list lacks
	evictAllPods    bool // all pods are evicted, even in a voluntary drain
	surgeSeed       int  // of a Surger that answers arbitrarily; 0 is none
	// observe, if set, is called after the drain. The simulation is locked.
	observe func(s *sim, d *Drain)
}

// apiFailure is a fault of the API server for one verb, for all pods or for the pods of one app, during some time.
type apiFailure struct {
	verb        string
	app         string // empty means all
	from, until time.Duration
	fault
}

// apiFailureVerbs are the verbs that may fail.
var apiFailureVerbs = []string{"evict", "evict", "delete", "condition", "condition", "budgets", "list"}

func drawAPIFailure(t *rapid.T) apiFailure {
	x := apiFailure{
		verb: rapid.SampledFrom(apiFailureVerbs).Draw(t, "verb"),
		app:  rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "troubledApp"),
		from: drawSeconds(t, "from", 0, 0, 5, 25),
	}
	x.until = x.from + drawSeconds(t, "lasts", 1, 10, 3600)
	switch rapid.IntRange(-1, 5).Draw(t, "trouble") {
	case -1, 0:
		x.hang, x.tookEffect = true, rapid.Bool().Draw(t, "worked")
	case 1:
		x.delay, x.tookEffect = time.Duration(rapid.SampledFrom([]int{300, 1500, 8000}).Draw(t, "takes"))*time.Millisecond, true
	case 2:
		x.err = &kubeapi.StatusError{Code: 503, Message: "unavailable"}
	case 3:
		x.err = &kubeapi.StatusError{Code: 429, Message: "too many requests", RetryAfter: time.Second}
	case 4:
		x.delay = time.Duration(rapid.SampledFrom([]int{0, 10_000}).Draw(t, "takes")) * time.Millisecond
		x.err = &kubeapi.StatusError{Code: 500, Message: `Internal error occurred: failed calling webhook "keep.example.com": timeout`}
	default:
		x.err = errors.New("connect: connection refused")
	}
	return x
}

// matches reports whether the failure affects requests of this verb for this pod. A nil pod means requests without a
// pod.
func (x apiFailure) matches(verb string, p *simPod) bool {
	return x.verb == verb && (x.app == "" || p != nil && p.Labels["app"] == x.app)
}

type podSpec struct {
	copies  int
	changes []podOption
	arrives time.Duration
	// recovers is when an unready pod becomes ready; 0 is never.
	recovers time.Duration
}

type pdbSpec struct {
	app     string // empty selects all
	healthy int
	always  bool
}

func drawSeconds(t *rapid.T, name string, of ...int) time.Duration {
	return time.Duration(rapid.SampledFrom(of).Draw(t, name)) * time.Second
}

func drawMilliseconds(t *rapid.T, name string, of ...int) time.Duration {
	return time.Duration(rapid.SampledFrom(of).Draw(t, name)) * time.Millisecond
}

func drawScenario(t *rapid.T) scenario {
	w := scenario{
		latency:         time.Duration(rapid.IntRange(0, 300).Draw(t, "latency")) * time.Millisecond,
		watchLag:        drawMilliseconds(t, "lag", 0, 0, 10, 500, 3000),
		controllerDelay: drawMilliseconds(t, "controlling", 10, 10, 300, 3_600_000),
		faultPercent:    rapid.SampledFrom([]int{0, 0, 10, 40, 90}).Draw(t, "faulty"),
		seed:            rapid.Int().Draw(t, "seed"),
		watchLifetime:   drawMilliseconds(t, "watchLives", 0, 0, 200, 1000, 7000),
		listAnswerTime:  drawSeconds(t, "listAnswers", 0, 0, 1, 8),
		failingLists:    rapid.SampledFrom([]int{0, 0, 1, 20}).Draw(t, "listFails"),
		forced:          rapid.Bool().Draw(t, "forced"),
		limit:           drawSeconds(t, "limit", 1, 2, 5, 10, 30, 60, 120, 600),
		margin:          drawSeconds(t, "margin", 0, 0, 1, 3),
		changeTermsAt:   drawSeconds(t, "changeAt", 0, 0, 1, 10, 40),
		changedForced:   rapid.Bool().Draw(t, "changedForced"),
		changedLimit:    drawSeconds(t, "changedLimit", 1, 15, 60, 600),
		cancelAt:        drawSeconds(t, "cancelAt", 0, 0, 0, 0, 3, 30),
		inFlight:        rapid.SampledFrom([]int{1, 2, 32, defaultMaxInFlight}).Draw(t, "inFlight"),
		disableEviction: rapid.IntRange(0, 9).Draw(t, "disableEviction") == 0,
		evictAllPods:    rapid.Bool().Draw(t, "allPods"),
		listLag:         rapid.SampledFrom([]int{0, 0, 1, 5, 1000}).Draw(t, "behind"),
	}
	for range rapid.SampledFrom([]int{0, 0, 1, 1, 3}).Draw(t, "troubles") {
		w.apiFailures = append(w.apiFailures, drawAPIFailure(t))
	}
	kinds := []podOption{
		nil, nil, nil, nil, asNotReady, withoutOwner, withEmptyDir, withOwner("DaemonSet"), withOwner("StatefulSet"),
		withPhase("Pending"), withPhase("Succeeded"), withAnnotation(drainability.DoNotEvict, "true"), withAnnotation(drainability.DoNotDisrupt, "20s"),
		withAnnotation("kubernetes.io/config.mirror", "x"), asDeleted(0, time.Minute), asDeleted(10*time.Second, 30*time.Second),
	}
	for range rapid.IntRange(0, 8).Draw(t, "pods") {
		stops := drawSeconds(t, "stops", -1, 0, 1, 5, 20)
		if stops < 0 {
			stops = never
		}
		p := podSpec{
			copies:  rapid.SampledFrom([]int{1, 1, 1, 1, 30, 100}).Draw(t, "copies"),
			arrives: drawMilliseconds(t, "arrives", 0, 0, 0, 400, 1000, 8000),
			changes: []podOption{
				withGrace(drawSeconds(t, "grace", 0, 1, 5, 30, 30, 120)), withStopTime(stops),
				withLabel("app", rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "app")),
				inNamespace(rapid.SampledFrom([]string{"shop", "shop", "office"}).Draw(t, "namespace")),
				withPriority(rapid.SampledFrom([]int32{0, 0, 2_000_000_000}).Draw(t, "priority")),
				withTwin(twinPolicy(rapid.IntRange(0, 2).Draw(t, "twin")), drawSeconds(t, "twinUp", 0, 2, 15)),
			},
		}
		if k := kinds[rapid.IntRange(0, len(kinds)-1).Draw(t, "kind")]; k != nil {
			p.changes = append(p.changes, k)
		}
		p.changes = append(p.changes, drawGroup(t))
		w.pods = append(w.pods, p)
	}
	for range rapid.IntRange(0, 2).Draw(t, "unhealthy") {
		w.pods = append(w.pods, drawUnhealthyPod(t))
	}
	for range rapid.IntRange(0, 3).Draw(t, "budgets") {
		w.pdbs = append(w.pdbs, pdbSpec{
			app:     rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "budgetApp"),
			healthy: rapid.SampledFrom([]int{0, 1, 2, 30, 1000}).Draw(t, "healthy"),
			always:  rapid.Bool().Draw(t, "always"),
		})
	}
	return w
}

// drawUnhealthyPod draws a pod of an owner that is on another node and not ready, so that a PDB may deny evictions for a while.
func drawUnhealthyPod(t *rapid.T) podSpec {
	return podSpec{
		copies: 1, recovers: drawSeconds(t, "recovers", 0, 5, 30),
		changes: []podOption{asNotReady, onNode(otherNode), withLabel("app", rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "unhealthyApp"))},
	}
}

// drawGroup draws the group of a pod, for few pods. The PodGroup does not exist.
func drawGroup(t *rapid.T) podOption {
	switch rapid.IntRange(0, 11).Draw(t, "group") {
	case 0:
		return inReplica("0")
	case 1:
		return inReplica("1")
	case 2:
		return inPodGroup("gang")
	}
	return func(*simPod) {}
}

// drawUrgentScenario draws a notice for a node with many pods that have to be deleted by force, while evictions fail.
func drawUrgentScenario(t *rapid.T) scenario {
	w := scenario{
		latency:         time.Duration(rapid.SampledFrom([]int{5, 100, 300, 1000}).Draw(t, "latency")) * time.Millisecond,
		controllerDelay: 10 * time.Millisecond, forced: true, evictAllPods: true, inFlight: defaultMaxInFlight, margin: 2 * time.Second,
		limit: drawSeconds(t, "limit", 30, 60, 120, 300),
	}
	for range rapid.IntRange(0, 2).Draw(t, "troubles") {
		x := drawAPIFailure(t)
		if x.verb == "delete" || x.verb == "list" {
			x.verb = "evict"
		}
		w.apiFailures = append(w.apiFailures, x)
	}
	for range rapid.IntRange(1, 4).Draw(t, "pods") {
		w.pods = append(w.pods, podSpec{
			copies:  rapid.SampledFrom([]int{1, 5, 40, 100}).Draw(t, "copies"),
			arrives: drawSeconds(t, "arrives", 0, 0, 0, 1, 8),
			changes: []podOption{
				withGrace(drawSeconds(t, "grace", 1, 5, 30, 120)), withStopTime(0),
				withLabel("app", rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "app")),
				inNamespace(rapid.SampledFrom([]string{"shop", "shop", "office"}).Draw(t, "namespace")), drawGroup(t),
			},
		})
	}
	for range rapid.IntRange(1, 3).Draw(t, "budgets") {
		w.pdbs = append(w.pdbs, pdbSpec{app: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "budgetApp"), healthy: 1000})
	}
	return w
}

// drawQuietScenario draws a voluntary drain of few pods, while the API server works.
func drawQuietScenario(t *rapid.T) scenario {
	w := scenario{latency: 5 * time.Millisecond, controllerDelay: 10 * time.Millisecond, inFlight: defaultMaxInFlight, evictAllPods: true, limit: drawSeconds(t, "limit", 10, 20, 30, 60, 120)}
	for range rapid.IntRange(1, 3).Draw(t, "pods") {
		w.pods = append(w.pods, podSpec{copies: 1, changes: []podOption{
			withGrace(drawSeconds(t, "grace", 1, 5)), withLabel("app", rapid.SampledFrom([]string{"a", "b"}).Draw(t, "app")),
		}})
	}
	if rapid.Bool().Draw(t, "unhealthy") {
		w.pods = append(w.pods, drawUnhealthyPod(t))
	}
	if rapid.Bool().Draw(t, "budget") {
		w.pdbs = []pdbSpec{{app: "a", healthy: rapid.SampledFrom([]int{1, 1000}).Draw(t, "healthy")}}
	}
	return w
}

// addTo creates the scenario's pods and PDBs in s.
func (w scenario) addTo(s *sim) {
	s.latency, s.watchLag, s.listLag, s.controllerDelay = w.latency, w.watchLag, w.listLag, w.controllerDelay
	began := time.Now()
	s.fault = func(c call) *fault {
		for _, x := range w.apiFailures {
			if at := time.Since(began); x.matches(c.verb, s.pods[c.UID]) && at >= x.from && at < x.until {
				f := x.fault
				return &f
			}
		}
		return w.faultFor(c)
	}
	if w.listAnswerTime > 0 {
		s.listAnswerTime = func(n int) time.Duration { return time.Duration(n%2) * w.listAnswerTime }
	}
	if w.watchLifetime > 0 {
		s.watchLifetime = func(n int) (time.Duration, bool) { return w.watchLifetime, n%2 == 0 }
	}
	for i, p := range w.pods {
		for j := range p.copies {
			name := fmt.Sprintf("p%d-%d", i, j)
			if p.recovers > 0 {
				pod := s.addPod(name, p.changes...)
				time.AfterFunc(p.recovers, func() { s.addOrUpdatePod(pod, asReady) })
				continue
			}
			if p.arrives == 0 {
				s.addPod(name, p.changes...)
				continue
			}
			time.AfterFunc(p.arrives, func() { s.addPod(name, p.changes...) })
		}
	}
	for i, b := range w.pdbs {
		var labels map[string]string
		if b.app != "" {
			labels = map[string]string{"app": b.app}
		}
		s.addPDB(fmt.Sprintf("b%d", i), int32(b.healthy), 1000, labels).alwaysAllowUnhealthy = b.always
	}
}

// faultFor depends on the request alone, and not on the order of arrival.
func (w scenario) faultFor(c call) *fault {
	if c.verb == "list" && c.n < w.failingLists {
		return &fault{err: errors.New("list cut short")}
	}
	h := fnv.New32()
	fmt.Fprint(h, w.seed, c.verb, c.UID, c.n)
	n := int(h.Sum32() >> 1)
	if n%100 >= w.faultPercent {
		return nil
	}
	lost := errors.New("connection reset")
	if c.verb == "list" || c.verb == "budgets" {
		return &fault{err: lost}
	}
	faults := []fault{
		{err: lost},
		{err: lost, tookEffect: true},
		{hang: true},
		{hang: true, tookEffect: true},
		{err: &kubeapi.StatusError{Code: 503, Message: "unavailable"}},
		{err: &kubeapi.StatusError{Code: 504, Message: "timeout"}, tookEffect: true},
		{err: &kubeapi.StatusError{Code: 429, Message: "too many requests", RetryAfter: time.Second}},
		{err: newDenial("The disruption budget x is still being processed by the server.")},
		{err: newForbidden("not allowed")},
		{err: newNotFound("budgets", "x")},
		{err: &kubeapi.StatusError{Code: 409, Message: "conflict"}},
		{err: &kubeapi.StatusError{Code: 403, Message: "going", Causes: []kubeapi.Cause{{Reason: "NamespaceTerminating"}}}},
	}
	return &faults[n/100%len(faults)]
}

func (w scenario) newTerms(now time.Time, forced bool, limit time.Duration) TimeLimits {
	if forced {
		return TimeLimits{Deadline: now.Add(limit), Margin: w.margin, AnnouncedAt: now}
	}
	return TimeLimits{TimeoutAt: now.Add(limit)}
}

// runAndCheck drains the scenario's node and returns every broken invariant.
func (w scenario) runAndCheck(parent context.Context) (broken []error) {
	s := newSim()
	w.addTo(s)
	breaks := func(format string, a ...any) {
		if len(broken) < 5 {
			broken = append(broken, fmt.Errorf(format, a...))
		}
	}
	o := Options{
		Node: node, MaxInFlight: w.inFlight, DisableEviction: w.disableEviction,
		OnProgress: newProgressChecker(func(a ...any) { breaks("%s", fmt.Sprint(a...)) }),
	}
	if w.evictAllPods {
		o.Policy = ptr(podrules.ForcedPolicy())
	}
	var restoring time.Duration
	if w.surgeSeed > 0 {
		o.Surger, restoring = newWildSurger(s, w.surgeSeed), maxRestoreWait
	}
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	began := time.Now()
	o.TimeLimits = w.newTerms(began, w.forced, w.limit)
	d := New(s, o)
	last, since, forced, earliest := o.TimeLimits, began, w.forced, o.TimeLimits.lastRemovalTime()
	var ended time.Time
	if w.changeTermsAt > 0 && w.changeTermsAt < w.limit {
		since = began.Add(w.changeTermsAt)
		last = w.newTerms(since, w.changedForced, w.changedLimit)
		forced = forced || w.changedForced
		if w.changedForced && (!w.forced || last.lastRemovalTime().Before(earliest)) {
			earliest = last.lastRemovalTime()
		}
		time.AfterFunc(w.changeTermsAt, func() { d.SetTimeLimits(last) })
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
	if err := s.compareReport(r, w.watchLifetime == 0 && w.failingLists == 0); err != nil {
		breaks("%w", err)
	}
	limit := last.Deadline
	if limit.IsZero() {
		limit = laterOf(last.TimeoutAt, began.Add(emptyCheckTime))
	}
	if ended.After(limit.Add(10*time.Millisecond + restoring)) {
		breaks("Run returned %s after its limit", ended.Sub(limit))
	}
	if s.maxInFlight > w.inFlight {
		breaks("%d requests of one verb at once, %d allowed", s.maxInFlight, w.inFlight)
	}
	s.mu.Lock() // its timers still run
	w.checkRequests(s, forced, ended.Sub(began), breaks)
	switch r.Outcome {
	case Drained:
		w.checkDrained(s, d, breaks)
	case DeadlinePassed:
		w.checkAllRequested(s, d, last, began.Add(w.changeTermsAt), breaks)
		w.checkNotEmptyBefore(s, d, r.EndedAt, breaks)
	case TimedOut:
		w.checkNotEmptyBefore(s, d, r.EndedAt, breaks)
	}
	if forced {
		checkCutShort(s, r, earliest, breaks)
	}
	if last.HasDeadline() {
		w.checkForced(s, d, last, since, breaks)
	}
	if w.observe != nil {
		w.observe(s, d)
	}
	n := len(s.requests)
	s.mu.Unlock()
	time.Sleep(time.Hour)
	if len(s.findRequests("", nil)) != n {
		breaks("requests after the end")
	}
	return broken
}

func (w scenario) checkRequests(s *sim, forced bool, took time.Duration, breaks func(string, ...any)) {
	evictions, deletions, conditions := map[string]int{}, map[string]int{}, map[string]int{}
	for _, q := range s.requests {
		p := s.pods[q.removal.UID]
		if p == nil || p.Spec.NodeName != node || p.Name != q.removal.Name {
			breaks("request for a pod of another node: %+v", q)
			continue
		}
		if q.verb == "delete" && !forced && !w.disableEviction || q.removal.DryRun && q.changedPod {
			breaks("I2: deletion in a voluntary drain: %+v", q)
		}
		if g := q.removal.GracePeriodSeconds; g != nil && *g == 0 && *p.Spec.TerminationGracePeriodSeconds != 0 {
			breaks("grace 0 for a pod that wants more: %+v", q)
		}
		switch {
		case q.removal.DryRun:
		case q.verb == "evict" && q.err == nil:
			evictions[p.UID]++
		case q.verb == "delete":
			deletions[p.UID]++
		case q.verb == "condition" && !kubeapi.IsForbidden(q.err): // after a forbidden one it is written again
			conditions[p.UID]++
		}
	}
	for uid, n := range deletions {
		if most := 5 + int(took/minRetryPause); n > most {
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
	if w.faultPercent > 0 || len(w.apiFailures) > 0 {
		return
	}
	// Each pod is requested once in a batch, once more at its forced deletion, and may change its backoff once or
	// twice. Besides, each backoff allows one request a second: ready or unready, for each PDB and each set of PDBs.
	// A group tries one pod a second, and all of them once that one may go.
	backoffs := 2*(len(w.pdbs)+2) + 6
	if most := 5*len(s.pods) + backoffs*(10+int(took/time.Second)); len(s.requests) > most {
		breaks("%d requests in %s, want at most %d", len(s.requests), took, most)
	}
}

// checkDrained checks that no pod is left that has to be removed.
func (w scenario) checkDrained(s *sim, d *Drain, breaks func(string, ...any)) {
	for _, p := range s.listRemainingPods() {
		if !p.CreationTimestamp.Before(s.finalReadAt) {
			continue // it arrived after the pods were read for the final list
		}
		if v := d.decisionFor(&p.Pod); v.Action != podrules.Skip {
			breaks("I7: drained with pod %s (%s) left", p.Name, v.Rule)
		}
	}
}

// checkNotEmptyBefore checks that the node was not empty for a while before a time, if the API server worked.
func (w scenario) checkNotEmptyBefore(s *sim, d *Drain, at time.Time, breaks func(string, ...any)) {
	if w.faultPercent > 0 || w.failingLists > 0 || w.watchLifetime > 0 || w.listAnswerTime > 0 || slices.ContainsFunc(w.apiFailures, func(x apiFailure) bool { return x.verb == "list" }) {
		return
	}
	empty := d.startedAt
	for _, p := range s.pods {
		switch {
		case p.Spec.NodeName != node:
		case p.gone:
			empty = laterOf(empty, p.endedAt)
		case d.decisionFor(&p.Pod).Action != podrules.Skip:
			return
		default:
			empty = laterOf(empty, p.CreationTimestamp)
		}
	}
	if most := 5*time.Second + w.watchLag + 4*w.latency; at.Sub(empty) > most {
		breaks("the node was empty for %s and counts as not drained", at.Sub(empty))
	}
}

// mayMissDeadline reports whether a failure may prevent a pod's request in time: of its own deletion, or of reads.
// Failing condition writes and failing evictions must not. Hanging deletions of other pods count only if they can use
// the whole limit.
func (w scenario) mayMissDeadline(s *sim, p *simPod) bool {
	troubled := 0
	for _, x := range w.apiFailures {
		if x.verb == "list" || x.matches("delete", p) {
			return true
		}
		for _, other := range s.pods {
			if x.matches("delete", other) {
				troubled++
			}
		}
	}
	return troubled > w.inFlight/4
}

// checkAllRequested checks that every pod was requested before the deadline, if the API server worked.
func (w scenario) checkAllRequested(s *sim, d *Drain, last TimeLimits, changed time.Time, breaks func(string, ...any)) {
	if w.faultPercent > 0 || w.failingLists > 0 || w.watchLifetime > 0 {
		return
	}
	asking := 2 * s.latency * time.Duration(2+len(s.pods)/w.inFlight) // every pod, twice
	needed := asking + s.watchLag + 5*time.Second
	for _, p := range s.listRemainingPods() {
		known := laterOf(changed, p.CreationTimestamp)
		if w.mayMissDeadline(s, p) || d.decisionFor(&p.Pod).Action == podrules.Skip || last.Deadline.Sub(known) < needed || d.pods[p.UID] != nil && asking > max(d.pods[p.UID].wantedGrace/2, minRequestTimeout/2) {
			continue
		}
		if p.DeletionTimestamp == nil {
			breaks("pod %s was never requested: %+v", p.Name, d.pods[p.UID].toReport())
		}
	}
}

// checkForced checks that a pod blocked by a PDB is deleted in time, even if evictions and condition writes fail, and not earlier.
// The drain has the terms since then.
func (w scenario) checkForced(s *sim, d *Drain, terms TimeLimits, since time.Time, breaks func(string, ...any)) {
	for _, x := range w.apiFailures {
		if x.verb == "delete" || x.verb == "list" {
			return
		}
	}
	if w.faultPercent > 0 {
		return
	}
	all := 0 // pods that have to be removed
	for _, p := range d.pods {
		if p.action != podrules.Skip {
			all++
		}
	}
	asking := s.latency*time.Duration(1+all/w.inFlight) + maxConditionWait
	for _, p := range d.pods {
		at := laterOf(since, forcedDeletionTime(p.wantedGrace, terms, since))
		if p.removal != ForceDeleted || !p.removalAt.After(since) { // with the terms before
			continue
		}
		if p.removalAt.Before(at) {
			breaks("%s was deleted %s too early", p.name(), at.Sub(p.removalAt))
		}
		if !p.firstRefusal().Before(at.Add(-2 * conditionLead)) {
			continue
		}
		if late := p.removalAt.Sub(at); late > asking+extraEvictionWait(p.wantedGrace, terms, since) {
			breaks("%s was deleted %s too late", p.name(), late)
		}
	}
}

// firstRefusal returns when a request of the pod was refused first.
func (p *podState) firstRefusal() (first time.Time) {
	for _, d := range p.delays {
		first = earlierNonZero(first, d.firstRefusal)
	}
	return first
}

// checkCutShort checks that no pod is killed while it had time left.
func checkCutShort(s *sim, r Report, end time.Time, breaks func(string, ...any)) {
	for _, p := range r.Pods {
		was := s.pods[p.UID]
		// Whole seconds of grace and of deletionTimestamp cost up to one each.
		if p.Removal != NotRemoved && p.WasCutShort() && was.endedAt.Before(end.Add(-2*time.Second)) && was.endedAt.After(r.StartedAt.Add(2*time.Second)) {
			breaks("%s was killed %s before the end, given %s", p.Name, end.Sub(was.endedAt), was.givenGrace)
		}
	}
}

func TestRandomDrainsKeepInvariants(t *testing.T)       { checkInvariants(t, drawScenario) }
func TestRandomUrgentDrainsKeepInvariants(t *testing.T) { checkInvariants(t, drawUrgentScenario) }

// TestHangingEvictionsDelayNoForcedDeletion uses evictions that hang and then fail, and more pods than the concurrency
// limit.
func TestHangingEvictionsDelayNoForcedDeletion(t *testing.T) {
	w := scenario{
		latency: 100 * time.Millisecond, controllerDelay: 10 * time.Millisecond, forced: true, evictAllPods: true, inFlight: 32,
		margin: 2 * time.Second, limit: 30 * time.Second,
		apiFailures: []apiFailure{{verb: "evict", until: time.Hour, fault: fault{hang: true, tookEffect: true}}},
		pods: []podSpec{
			{copies: 100, changes: []podOption{withGrace(time.Second), withStopTime(0), withLabel("app", "b"), inNamespace("shop")}},
			{copies: 5, changes: []podOption{withGrace(2 * time.Minute), withStopTime(0), withLabel("app", "a"), inNamespace("shop")}},
		},
		pdbs: []pdbSpec{{healthy: 1000}, {app: "b", healthy: 1000}, {app: "b", healthy: 1000}},
	}
	synctest.Test(t, func(t *testing.T) {
		for _, err := range w.runAndCheck(t.Context()) {
			t.Error(err)
		}
	})
}

func checkInvariants(t *testing.T, draw func(*rapid.T) scenario) {
	rapid.Check(t, func(rt *rapid.T) {
		w := draw(rt)
		var broken []error
		synctest.Test(t, func(t *testing.T) { broken = w.runAndCheck(t.Context()) })
		if len(broken) > 0 {
			rt.Fatal(errors.Join(broken...))
		}
	})
}

func (d *Drain) decisionFor(p *kubeapi.Pod) podrules.Decision {
	facts := fromkubeapi.PodFacts(p)
	return d.policy.Decide(&facts, time.Now())
}
