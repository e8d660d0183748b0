package snapshot

import (
	"errors"

	"github.com/slipway-dev/slipway/internal/placement/filter"
)

// ErrForked is returned for every event while a fork is open.
var ErrForked = errors.New("snapshot is forked: roll the fork back before feeding events")

// undoLog records the changes of forks. It also counts open forks.
type undoLog struct {
	changes []change
	forks   int
}

type change struct {
	kind       changeKind
	wasPending bool  // the pod was pending before
	node       int32 // or the position of a bit, or the index of a word
	index      int32
	wasMovedIn int32 // the fork that had moved the pod before
	pod        *filter.Pod
	class      *filter.PodClass
}

type changeKind uint8

const (
	podAttached  changeKind = iota // pod was placed on node
	podAdded                       // a new pod was added to its node
	podDetached                    // pod was removed from node, where it had the index
	nodeRemoved                    // node was removed
	nodeAdded                      // node was added
	nodeClosed                     // node takes no more pods
	nodeOpened                     // node takes pods again
	bitCleared                     // a bit in the bitmap of class was cleared
	bitmapReset                    // the bitmap of class was reset
	wordComputed                   // one word in the bitmap of class was computed
)

// countEventUnlessForked counts an event. It fails with ErrForked while a fork is open.
func (j *undoLog) countEventUnlessForked() error {
	if j.forks > 0 {
		return ErrForked
	}
	return nil
}

func (j *undoLog) addChange(c change) { j.changes = append(j.changes, c) }
