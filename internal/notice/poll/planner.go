package poll

import (
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
)

// Leads are how long before a planned interruption its notice is given to the agent.
type Leads struct {
	// Retirement applies to the type Terminate. If the notice is first read later, the lead is half of the time left.
	Retirement time.Duration
	// Maintenance applies to all other types.
	Maintenance time.Duration
}

// Planner holds back notices that come long before their interruption. It is safe for concurrent use.
type Planner struct {
	leads Leads

	mu    sync.Mutex
	known map[string]plannedNotice // by ID
}

// plannedNotice is what the planner knows of one notice.
type plannedNotice struct {
	notBefore time.Time
	lead      time.Duration
	given     bool // the agent acts on it
	takenBack bool // it was given, and then moved to a later time
}

// NewPlanner returns a planner.
func NewPlanner(l Leads) *Planner {
	return &Planner{leads: l, known: map[string]plannedNotice{}}
}

// Resume passes the notices that an earlier agent process was acting on. They stay given.
func (p *Planner) Resume(notices []notice.Notice) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range notices {
		p.known[n.ID] = plannedNotice{notBefore: n.NotBefore, lead: p.leadFor(n, n.NotBefore), given: true}
	}
}

// leadFor returns the lead of a notice that is first read now.
func (p *Planner) leadFor(n notice.Notice, now time.Time) time.Duration {
	if n.Type != notice.Terminate {
		return p.leads.Maintenance
	}
	if left := n.NotBefore.Sub(now); left > 0 && left < p.leads.Retirement {
		return max(left/2, min(left, p.leads.Maintenance))
	}
	return p.leads.Retirement
}

// Split separates the notices that are due from the planned ones. A notice without NotBefore, or with the status Started, is
// due. A given notice stays given, unless it moves to a time that is more than two leads away. Such a notice is in neither
// list, so that the agent restores the node. now is the time on the clock of NotBefore. next is when another notice becomes
// due; zero is never.
func (p *Planner) Split(notices []notice.Notice, now time.Time) (due, planned []notice.Notice, next time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	listed := map[string]bool{}
	for _, n := range notices {
		listed[n.ID] = true
		k, isKnown := p.known[n.ID]
		if !isKnown || !k.given && !k.notBefore.Equal(n.NotBefore) {
			k.notBefore, k.lead = n.NotBefore, p.leadFor(n, now)
		}
		starts := n.NotBefore.Add(-k.lead)
		switch {
		case n.NotBefore.IsZero(), n.Status == notice.Started, !now.Before(starts), k.given && starts.Sub(now) <= k.lead:
			k.given, k.takenBack = true, false
			due = append(due, n)
		default:
			k.takenBack = k.takenBack || k.given
			k.given = false
			if !k.takenBack {
				planned = append(planned, n)
			}
			if next.IsZero() || starts.Before(next) {
				next = starts
			}
		}
		p.known[n.ID] = k
	}
	for id := range p.known {
		if !listed[id] {
			delete(p.known, id)
		}
	}
	return due, planned, next
}
