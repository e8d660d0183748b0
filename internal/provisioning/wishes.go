package provisioning

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
)

const (
	// maxWishes bounds how many wishes are remembered.
	maxWishes = 10_000
	// wishKept is how long a wish is kept that is not repeated: one that could not be granted by then is given up, and one
	// that was granted may be granted again.
	wishKept = time.Hour
)

// Wishes are the machines that are asked for from outside, such as by plugins. They may be used concurrently.
type Wishes struct {
	mu   sync.Mutex
	all  map[string]*wish
	wake chan<- struct{}
}

// wish is one with what has become of it.
type wish struct {
	plan.Wish
	at   time.Time // when it was last asked for
	met  bool
	told string // the reasons for which it last was not granted
}

// NewWishes are none.
func NewWishes() *Wishes { return &Wishes{all: map[string]*wish{}} }

// Ask has machines ordered at the next look. A wish of an ID that was met before is not granted again before Withdraw. It
// reports whether the wish is taken: there are too many otherwise.
func (w *Wishes) Ask(asked plan.Wish) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if known := w.all[asked.ID]; known != nil {
		known.at = time.Now()
		return true
	}
	if len(w.all) >= maxWishes {
		return false
	}
	w.all[asked.ID] = &wish{Wish: asked, at: time.Now()}
	if w.wake != nil {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
	return true
}

// Withdraw forgets the wishes whose IDs begin so, since what they were for is gone.
func (w *Wishes) Withdraw(prefix string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.all {
		if strings.HasPrefix(id, prefix) {
			delete(w.all, id)
		}
	}
}

// open are those that were not met yet.
func (w *Wishes) open() (list []plan.Wish) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, known := range w.all {
		switch {
		case time.Since(known.at) > wishKept:
			delete(w.all, id)
		case !known.met:
			list = append(list, known.Wish)
		}
	}
	slices.SortFunc(list, func(a, b plan.Wish) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// settle takes in what was decided, and gives the wishes that cannot be granted now for other reasons than before.
func (w *Wishes) settle(verdicts []plan.WishVerdict) (refused []plan.WishVerdict) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, v := range verdicts {
		known := w.all[v.ID]
		if known == nil {
			continue
		}
		known.Count = v.Missing
		known.met = v.Missing == 0
		if text := sentence(v.Reasons); known.told != text {
			known.told = text
			refused = append(refused, v)
		}
	}
	return refused
}

// wishes are those that are open, without those of whose orders it is not known yet what comes of them.
func (a *Controller) wishes(groups []*known) []plan.Wish {
	a.settleWishes(a.outcomes(groups))
	return slices.DeleteFunc(a.o.Wishes.open(), func(w plan.Wish) bool {
		g := groupNamed(groups, w.Group)
		return g != nil && slices.ContainsFunc(g.memory.held, func(v grant) bool { return v.ID == w.ID })
	})
}

// grant is the word on a wish with the orders that it was granted by.
type grant struct {
	plan.WishVerdict
	by map[string]int // how many machines, by the order's ID
}

// grantOf is the word on a wish that the orders just placed grant.
func (m *memory) grantOf(v plan.WishVerdict) grant {
	g := grant{v, map[string]int{}}
	for kind, n := range v.By {
		g.by[m.placed[kind]] += n
	}
	return g
}

// unsettled reports whether the cloud has still to answer an order of a grant, or to show which machines it has made of one
// that failed.
func (m *memory) unsettled(g grant) bool {
	return slices.ContainsFunc(m.asked, func(a launch.Pending) bool {
		return g.by[a.ID] > 0 && (a.Answered.IsZero() || a.Answer != launch.Accepted && a.Answer != launch.NotMade)
	})
}

// outcome is what a grant comes to when that is known of its orders: what has not come is missing again. Of an order for several
// it is missing once, and what has come of it is for pods first.
func (m *memory) outcome(g grant) plan.WishVerdict {
	v := g.WishVerdict
	for id, n := range g.by {
		short := min(n, m.short[id])
		m.short[id] -= short
		v.Granted -= short
		v.Missing += short
	}
	return v
}

// outcomes are the grants of which it is known what they come to.
func (a *Controller) outcomes(groups []*known) (due []plan.WishVerdict) {
	for _, g := range groups {
		m := g.memory
		var held []grant
		for _, h := range m.held {
			if m.unsettled(h) {
				held = append(held, h)
				continue
			}
			due = append(due, m.outcome(h))
		}
		if m.held = held; len(held) == 0 {
			clear(m.short)
		}
	}
	return due
}

// tellWishes takes in what became of the wishes, and tells of those that cannot be granted. What was granted counts when it
// is known what comes of the orders.
func (a *Controller) tellWishes(groups []*known, verdicts []plan.WishVerdict) {
	var due []plan.WishVerdict
	for _, v := range verdicts {
		if g := groupNamed(groups, v.Group); g != nil && v.Granted > 0 {
			g.memory.held = append(g.memory.held, g.memory.grantOf(v))
			continue
		}
		due = append(due, v)
	}
	a.settleWishes(append(due, a.outcomes(groups)...))
}

func (a *Controller) settleWishes(verdicts []plan.WishVerdict) {
	for _, v := range a.o.Wishes.settle(verdicts) {
		if v.Missing > 0 {
			a.o.Log.Warn("machines that were wished for may not be ordered now", "wish", v.ID, "missing", v.Missing, "reasons", v.Reasons)
		}
	}
}
