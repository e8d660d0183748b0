package filter

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/placement"
)

// Pod is one pod of the snapshot: its placement and what the eviction rules read. Its scheduling needs are in its
// class.
type Pod struct {
	Key   placement.PodKey
	UID   types.UID
	Class *PodClass
	Usage []Amount // what it uses on its node: the usage of its class, unless it is being resized

	Node     int32  // None while it is pending or its node is not known
	NodeName string // as bound, empty while pending
	// NominatedTo is the node that the scheduler has nominated for the pending pod, or empty.
	NominatedTo   string
	MovedIn       int32 // the depth of the last fork that has removed it from a node or placed it, 0 if none has
	IndexInNode   int32 // index in the list of its node
	IndexInLabels int32 // index in the list of its labels

	Priority    int32
	Created     time.Time
	Terminating bool
	// Unstarted: the phase is Pending. Ready: its Ready condition is True. APIServer: it is a static API server pod.
	Unstarted, Ready, APIServer bool
	Facts                       *SharedFacts // what the eviction rules read; counted while the snapshot has the pod
}

// IsMovedByPlan reports whether a fork has removed it from its original node, or has placed it.
func (p *Pod) IsMovedByPlan() bool { return p.MovedIn > 0 }

// NeedsUnknownClaim reports whether the pod would be recreated with a new claim of a generic ephemeral volume. It is unknown
// where that volume would be. The claim of a pending pod exists already, so it is known.
func (p *Pod) NeedsUnknownClaim() bool { return p.NodeName != "" && p.Class.hasEphemeralClaim() }

// CanReplace reports whether p can replace old without a change to any counter.
func (p *Pod) CanReplace(old *Pod) bool {
	return p.UID == old.UID && p.Class == old.Class && p.NodeName == old.NodeName && p.Terminating == old.Terminating &&
		p.NominatedTo == old.NominatedTo && p.APIServer == old.APIServer &&
		slices.Equal(p.Usage, old.Usage)
}

// SharedFacts holds what the eviction rules read from pods. Pods with equal values share it; most pods of a cluster do.
type SharedFacts struct {
	podrules.Facts
	ID   int32
	Pods int // number of pods with these facts
}
