package autoscaler

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/nodegroup/scaling"
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
	scaling.Wish
	at   time.Time // when it was last asked for
	met  bool
	told string // the reasons for which it last was not granted
}

// NewWishes are none.
func NewWishes() *Wishes { return &Wishes{all: map[string]*wish{}} }

// Ask has machines ordered at the next look. A wish of an ID that was met before is not granted again before Withdraw. It
// reports whether the wish is taken: there are too many otherwise.
func (w *Wishes) Ask(asked scaling.Wish) bool {
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
func (w *Wishes) open() (list []scaling.Wish) {
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
	slices.SortFunc(list, func(a, b scaling.Wish) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// settle takes in what was decided. Orders that the cloud has not taken, by group, leave their wishes open. It gives the
// wishes that cannot be granted now for other reasons than before.
func (w *Wishes) settle(verdicts []scaling.WishVerdict, failed map[string]bool) (refused []scaling.WishVerdict) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, v := range verdicts {
		known := w.all[v.ID]
		if known == nil || v.Granted > 0 && failed[known.Group] {
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
