package snapshot

import (
	"errors"

	"github.com/slipway-dev/slipway/internal/placement/filter"
)

// ErrForked is returned by every event that reaches a snapshot while a fork is open: roll the fork back first.
var ErrForked = errors.New("snapshot is forked: roll the fork back before feeding events")

// undoLog is the undo log of a snapshot. It also counts events and open forks.
type undoLog struct {
	changes []change
	forks   int
	events  uint64 // for caches outside of the snapshot
}

// change is one entry of the undo log.
type change struct {
	kind       changeKind
	node       int32 // or the position of a room's bit, or its word
	index      int32
	wasMoved   bool // whether the pod had been moved before
	wasPending bool // whether the pod was pending before
	pod        *filter.Pod
	class      *filter.Class
}

type changeKind uint8

const (
	podAttached  changeKind = iota // pod was put on node
	podDetached                    // pod was taken off node, from place
	nodeRemoved                    // node was taken away
	nodeAdded                      // node was added
	bitCleared                     // a bit of the room of class was cleared
	bitmapReset                    // the room of class was begun anew
	wordComputed                   // one word of the room of class was made
)

// beginEvent counts an event. It fails while a fork is open.
func (j *undoLog) beginEvent() error {
	if j.forks > 0 {
		return ErrForked
	}
	j.events++
	return nil
}

func (j *undoLog) addChange(c change) { j.changes = append(j.changes, c) }
