package filter

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/placement"
)

// Pod is one pod of the snapshot: where it is, and what the rules of eviction read. Its needs are in its class.
type Pod struct {
	Key   placement.PodKey
	UID   types.UID
	Class *Class
	Takes []Amount // what it takes on its node: that of its class, unless it is being resized

	Node     int32  // none while it is pending or its node is not known
	NodeName string // as bound, empty while pending
	// NominatedTo is the node that the scheduler holds for the pending pod, if any.
	NominatedTo string
	Moved       bool  // a fork has taken it off the node it was on
	Place       int32 // in its node's list
	Rank        int32 // in its labels' list

	Priority    int32
	Created     time.Time
	Terminating bool
	// Unstarted is that it is Pending, Ready what its condition says, and APIServer that it is a static API server.
	Unstarted, Ready, APIServer bool
	Fact                        *Fact // what the rules read of it; counted while the snapshot has the pod
}

// Replaces reports whether p, freshly compiled, can take the place of old without touching any counter.
func (p *Pod) Replaces(old *Pod) bool {
	return p.UID == old.UID && p.Class == old.Class && p.NodeName == old.NodeName && p.Terminating == old.Terminating &&
		p.NominatedTo == old.NominatedTo && p.APIServer == old.APIServer &&
		slices.Equal(p.Takes, old.Takes)
}

// Fact is what the rules read of pods, held once for all pods that agree in it. Most pods of a cluster do.
type Fact struct {
	podrules.Facts
	ID   int32
	Pods int // that have it
}

// Readers lists the classes whose verdicts count the pod.
func (p *Pod) Readers() []*Class {
	var list []*Class
	for _, a := range p.Class.Labels.Attractions {
		list = append(list, a.Readers...)
	}
	for _, sp := range p.Class.Labels.Spreads {
		list = append(list, sp.Readers...)
	}
	return list
}
