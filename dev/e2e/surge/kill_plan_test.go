package surge_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/slipway-dev/slipway/dev/faultproxy"
)

// killPlan distributes the kills of a program over many drains of the same Deployments. One drain has a kill at one request of each
// surge, because the surges run at the same time. Its methods may be called concurrently.
type killPlan struct {
	mu       sync.Mutex
	random   *rand.Rand
	groups   []*killGroup
	turn     int
	kills    int
	restores map[killedRestore]int // interrupted requests
}

// killGroup holds the kills that a drain may have together. All are at requests of surges, or all are at other requests. Otherwise a
// request that all surges await would often stop them before theirs.
type killGroup struct {
	then     afterKill
	ofSurges bool
	points   []*plannedKill // in the order of the requests in a drain
	window   int
}

// plannedKill is a kill at one moment of one request.
type plannedKill struct {
	id       faultproxy.RequestID
	moment   faultproxy.Moment
	position int // of the request in its group
	state    killState
	missed   int // drains that had to be killed there, and were not
}

type killState int

const (
	killOpen killState = iota
	killPlanned
	killDone
	killMissed
)

// maxMissed is how many drains try a kill. Some requests do not occur in each drain.
const maxMissed = 5

// killBatch holds the kills of one drain.
type killBatch struct {
	then   afterKill
	points map[faultproxy.RequestID]faultproxy.Moment
	// restore is a kind of request, and a moment, at which the next process is killed too while it restores sizes. It may be empty.
	restore killedRestore
	// lives is how many processes may be killed, one after the other. Each is killed at the points that are left.
	lives int
	group *killGroup
}

// maxLives limits the kills of one drain. A process sends most requests that are of no surge one after the other, so each kill interrupts
// few of them.
const maxLives = 8

type killedRestore struct {
	kind   string
	moment faultproxy.Moment
}

// surgeSeparator separates the kind of a request from the Deployment of its surge.
const surgeSeparator = " of "

// splitSurge returns the kind of a request without the Deployment of its surge.
func splitSurge(kind string) (request, deployment string) {
	request, deployment, _ = strings.Cut(kind, surgeSeparator)
	return request, deployment
}

// newKillPlan plans kills at the requests of a drain with the given number of surges. Without a restart, it leaves out reads: a read
// changes nothing, so a kill at it leaves the same state as a kill at the writes around it.
func newKillPlan(requests []faultproxy.Request, surges int) *killPlan {
	p := &killPlan{random: rand.New(rand.NewPCG(11, 0)), restores: map[killedRestore]int{}}
	for _, then := range []afterKill{restarted, dead} {
		// Two requests of each surge are close enough in time.
		ofSurges, others := &killGroup{then: then, ofSurges: true, window: 2 * surges}, &killGroup{then: then, window: surges}
		p.groups = append(p.groups, ofSurges, others)
		for _, r := range requests {
			if then == dead && r.Method == http.MethodGet {
				continue
			}
			g := others
			if _, deployment := splitSurge(r.Kind); deployment != "" {
				g = ofSurges
			}
			position := len(g.points) / len(faultproxy.Moments())
			for _, moment := range faultproxy.Moments() {
				g.points = append(g.points, &plannedKill{id: r.RequestID, moment: moment, position: position})
			}
		}
	}
	return p
}

// restoreKinds are the requests of a process that restores the size after the crash of another one.
var restoreKinds = []string{
	"PUT /apis/coordination.k8s.io/v1/namespaces/*/leases/*", "PUT /apis/apps/v1/namespaces/*/deployments/*/scale",
	"PATCH /api/v1/namespaces/*/pods/*", "DELETE /apis/coordination.k8s.io/v1/namespaces/*/leases/*",
}

// next returns the kills of the next drain, or nil if none are left.
func (p *killPlan) next() *killBatch {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range p.groups {
		g := p.groups[p.turn%len(p.groups)]
		p.turn++
		points := g.choose(p.random)
		if len(points) == 0 {
			continue
		}
		b := &killBatch{then: g.then, points: points, lives: 1, group: g}
		if g.then == restarted && !g.ofSurges {
			b.lives = maxLives
		}
		if round := p.turn / len(p.groups); g.then == restarted && g.ofSurges && round%2 == 0 {
			moments := faultproxy.Moments()
			b.restore = killedRestore{restoreKinds[round/2%len(restoreKinds)], moments[round/2/len(restoreKinds)%len(moments)]}
		}
		return b
	}
	return nil
}

// choose plans one kill for each surge, or for each other request. They are close to one another, so that no request waits for its
// timeout while others run, and where most surges have a request without a kill. A random choice lets the kill find the surges in
// different states.
func (g *killGroup) choose(random *rand.Rand) map[faultproxy.RequestID]faultproxy.Moment {
	var open []*plannedKill
	for _, k := range g.points {
		if k.state == killOpen {
			open = append(open, k)
		}
	}
	var choices map[string][]*plannedKill
	for first := range open {
		if c := g.choicesFrom(open[first:]); len(c) > len(choices) {
			choices = c
		}
	}
	points := map[faultproxy.RequestID]faultproxy.Moment{}
	for _, track := range slices.Sorted(maps.Keys(choices)) {
		k := choices[track][random.IntN(len(choices[track]))]
		k.state = killPlanned
		points[k.id] = k.moment
	}
	return points
}

// choicesFrom returns the kills in the window that begins with the first one, by their surge or else by their request.
func (g *killGroup) choicesFrom(open []*plannedKill) map[string][]*plannedKill {
	choices := map[string][]*plannedKill{}
	for _, k := range open {
		if k.position >= open[0].position+g.window {
			break
		}
		_, track := splitSurge(k.id.Kind)
		if track == "" {
			track = k.id.String()
		}
		choices[track] = append(choices[track], k)
	}
	return choices
}

// record records the requests at which a drain was killed. The others of its batch are planned again.
func (p *killPlan) record(b *killBatch, kills int, killed []faultproxy.RequestID, restoring int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kills += kills
	if restoring > 0 {
		p.restores[b.restore] += restoring
	}
	for _, k := range b.group.points {
		if b.points[k.id] != k.moment || k.state != killPlanned {
			continue
		}
		switch k.missed++; {
		case slices.Contains(killed, k.id):
			k.state = killDone
		case k.missed < maxMissed:
			k.state = killOpen
		default:
			k.state = killMissed
		}
	}
}

// progress returns text with the numbers of kills.
func (p *killPlan) progress() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := fmt.Sprintf("%d kills", p.kills)
	for _, then := range []afterKill{restarted, dead} {
		var killed, all int
		kinds := map[string]bool{} // kind, number within the surge and moment; true with a kill
		for _, g := range p.groups {
			if g.then != then {
				continue
			}
			for _, k := range g.points {
				request, _ := splitSurge(k.id.Kind)
				different := fmt.Sprintf("%s, %d, %s", request, k.id.Nth, k.moment)
				kinds[different] = kinds[different] || k.state == killDone
				if all++; k.state == killDone {
					killed++
				}
			}
		}
		different := len(kinds)
		maps.DeleteFunc(kinds, func(_ string, killed bool) bool { return !killed })
		text += fmt.Sprintf("; %s: killed before and after requests %d of %d, of these different within a surge %d of %d", then, killed, all, len(kinds), different)
	}
	restores := 0
	for _, n := range p.restores {
		restores += n
	}
	return text + fmt.Sprintf("; the next process was killed too at %d requests, in %d ways", restores, len(p.restores))
}

// missedKinds returns the kinds of requests that had no kill at a moment. Each request within a surge is a kind of its own.
func (p *killPlan) missedKinds() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	killed := map[string]bool{}
	for _, g := range p.groups {
		for _, k := range g.points {
			request, deployment := splitSurge(k.id.Kind)
			kind := fmt.Sprintf("%s, %s, %s", request, k.moment, g.then)
			if deployment != "" {
				kind = fmt.Sprintf("%s, number %d in its surge", kind, k.id.Nth)
			}
			killed[kind] = killed[kind] || k.state == killDone
		}
	}
	maps.DeleteFunc(killed, func(_ string, killed bool) bool { return killed })
	return slices.Sorted(maps.Keys(killed))
}

// missedRestores returns the kinds of requests, of those that a process of the plan sends, at which no process was killed while it
// restored sizes.
func (p *killPlan) missedRestores() (kinds []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, kind := range restoreKinds {
		isKind := func(k *plannedKill) bool { request, _ := splitSurge(k.id.Kind); return request == kind }
		isSent := slices.ContainsFunc(p.groups, func(g *killGroup) bool { return slices.ContainsFunc(g.points, isKind) })
		killed := 0
		for _, moment := range faultproxy.Moments() {
			killed += p.restores[killedRestore{kind, moment}]
		}
		if isSent && killed == 0 {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// openKills returns the kills that no drain had.
func (p *killPlan) openKills() (all []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range p.groups {
		for _, k := range g.points {
			if k.state != killDone {
				all = append(all, fmt.Sprintf("%s, %s, %s", k.id, k.moment, g.then))
			}
		}
	}
	return all
}

// planRequests returns the requests of a drain with two surges, and one request that is of no surge.
func planRequests() []faultproxy.Request {
	return []faultproxy.Request{
		{Method: http.MethodPatch, RequestID: faultproxy.RequestID{Kind: "PATCH /node", Nth: 1}},
		{Method: http.MethodGet, RequestID: faultproxy.RequestID{Kind: "GET /pod of web-0", Nth: 1}},
		{Method: http.MethodGet, RequestID: faultproxy.RequestID{Kind: "GET /pod of web-1", Nth: 1}},
		{Method: http.MethodPut, RequestID: faultproxy.RequestID{Kind: "PUT /scale of web-0", Nth: 1}},
		{Method: http.MethodPut, RequestID: faultproxy.RequestID{Kind: "PUT /scale of web-1", Nth: 1}},
		{Method: http.MethodPut, RequestID: faultproxy.RequestID{Kind: "PUT /scale of web-0", Nth: 2}},
		{Method: http.MethodPut, RequestID: faultproxy.RequestID{Kind: "PUT /scale of web-1", Nth: 2}},
	}
}

func TestKillPlanKillsAtEachMomentOfEachRequest(t *testing.T) {
	p := newKillPlan(planRequests(), 2)
	killed := map[string]int{}
	drains := 0
	for b := p.next(); b != nil; b = p.next() {
		drains++
		var stopped []faultproxy.RequestID
		surges := map[string]bool{}
		for id, moment := range b.points {
			killed[fmt.Sprintf("%s, %s, %s", id, moment, b.then)]++
			stopped = append(stopped, id)
			_, deployment := splitSurge(id.Kind)
			if surges[deployment] {
				t.Errorf("two kills at surge %q: %v", deployment, b.points)
			}
			surges[deployment] = true
		}
		p.record(b, 1, stopped, 0)
	}
	// Two moments of seven requests with a restart, and of the five writes without.
	if len(killed) != 24 || len(p.openKills()) != 0 || len(p.missedKinds()) != 0 {
		t.Errorf("%d different kills, want 24; none at %v", len(killed), p.openKills())
	}
	for kill, n := range killed {
		if n != 1 {
			t.Errorf("%d kills at %s", n, kill)
		}
	}
	if drains >= len(killed) {
		t.Errorf("%d drains for %d kills", drains, len(killed))
	}
}

// TestKillPlanEndsWithoutMissingRequests has drains that never send a request.
func TestKillPlanEndsWithoutMissingRequests(t *testing.T) {
	p := newKillPlan(planRequests(), 2)
	const missing = "PUT /scale of web-1"
	for b := p.next(); b != nil; b = p.next() {
		var stopped []faultproxy.RequestID
		for id := range b.points {
			if id.Kind != missing {
				stopped = append(stopped, id)
			}
		}
		p.record(b, min(1, len(stopped)), stopped, 0)
	}
	if all := p.openKills(); len(all) != 8 || slices.ContainsFunc(all, func(k string) bool { return !strings.HasPrefix(k, missing) }) {
		t.Errorf("no kills at %q, want only those at %s", all, missing)
	}
	if kinds := p.missedKinds(); len(kinds) != 0 {
		t.Errorf("missed kinds %q, but another surge had kills at them", kinds)
	}
	p = newKillPlan(planRequests(), 2)
	for b := p.next(); b != nil; b = p.next() {
		p.record(b, 0, nil, 0)
	}
	if kinds := p.missedKinds(); len(kinds) != 2*(4+3) { // two moments of PATCH, GET and both PUTs with a restart, and of the writes without
		t.Errorf("missed kinds %q without a kill", kinds)
	}
}

// TestKillPlanGoesOnBehindMissingRequests has drains that never send an early request. The window of each choice is smaller than the rest.
func TestKillPlanGoesOnBehindMissingRequests(t *testing.T) {
	var requests []faultproxy.Request
	for n := range 20 {
		requests = append(requests, faultproxy.Request{Method: http.MethodPut, RequestID: faultproxy.RequestID{Kind: "PUT /scale of web-0", Nth: n + 1}})
	}
	p := newKillPlan(requests, 1)
	for b := p.next(); b != nil; b = p.next() {
		var stopped []faultproxy.RequestID
		for id := range b.points {
			if id.Nth != 2 {
				stopped = append(stopped, id)
			}
		}
		p.record(b, len(stopped), stopped, 0)
	}
	if all := p.openKills(); len(all) != 4 || slices.ContainsFunc(all, func(k string) bool { return !strings.Contains(k, "2") }) {
		t.Errorf("no kills at %q, want only those at the second request", all)
	}
	if kinds := p.missedKinds(); len(kinds) != 4 {
		t.Errorf("missed kinds %q, want two moments of the second request with and without a restart", kinds)
	}
}

// TestKillPlanGivesNoKillToTwoDrains has drains at the same time.
func TestKillPlanGivesNoKillToTwoDrains(t *testing.T) {
	p := newKillPlan(planRequests(), 2)
	given := map[string]bool{}
	for b := p.next(); b != nil; b = p.next() {
		for id, moment := range b.points {
			kill := fmt.Sprintf("%s, %s, %s", id, moment, b.then)
			if given[kill] {
				t.Errorf("%s was given to two drains", kill)
			}
			given[kill] = true
		}
	}
}
