// Package pod has the rules that decide what happens to a pod when its node is drained. They are pure functions of what
// adapters read from the pod, so that every caller gets the same answer.
package pod

import (
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/drainability"
)

// Facts is what the rules read of a pod. Two pods with equal facts get the same verdict.
type Facts struct {
	// Protection is the one that ends last; none has no key.
	Protection drainability.Protection
	// EmptyDirs and HostPaths name the volumes that are lost with the pod or its node: those not waived, if any.
	EmptyDirs, HostPaths string
	EmptyDir, HostPath   Local
	Owner                Owner
	Flags                Flags
}

// Owner is what would create the pod anew elsewhere.
type Owner uint8

// The owners.
const (
	None Owner = iota
	DaemonSet
	Controller
)

// Local is whether a pod has data in volumes of one kind on its node.
type Local uint8

// A volume's data is waived if annotations say that it may be lost.
const (
	NoVolume Local = iota
	Waived
	Kept
)

// Flags are what is true of a pod. Excluded, Placeholder and KeepsNode depend on labels: callers set them.
type Flags uint8

// The flags.
const (
	Mirror Flags = 1 << iota
	Terminating
	Finished
	SafeToEvict
	Excluded
	Placeholder
	KeepsNode
)

// Has reports whether a flag is set.
func (f *Facts) Has(flag Flags) bool { return f.Flags&flag != 0 }

// Recreated reports whether a controller creates the pod anew on another node once it has left this one.
func (f *Facts) Recreated() bool {
	return f.Owner == Controller && f.Flags&(Mirror|Terminating|Finished) == 0
}

// WaiveLocal says that the data on the node may be lost.
func (f *Facts) WaiveLocal() {
	f.EmptyDir, f.HostPath = min(f.EmptyDir, Waived), min(f.HostPath, Waived)
}

// Input is what adapters read from a pod.
type Input struct {
	Annotations map[string]string
	Created     time.Time
	// Controller is the kind of the owner with controller: true; empty if there is none.
	Controller            string
	Finished, Terminating bool
	// EmptyDirs are the names of emptyDir volumes on disk: those in memory hold no data to be kept.
	EmptyDirs, HostPaths []string
}

const mirrorAnnotation = "kubernetes.io/config.mirror"

// FactsOf derives the facts from what was read.
func FactsOf(in Input) Facts {
	var f Facts
	f.Protection, _ = drainability.Longest(drainability.OfPod(in.Annotations, in.Created))
	switch in.Controller {
	case "", "Node": // a Node owns the mirrors of its static pods, and creates nothing anew elsewhere
	case "DaemonSet":
		f.Owner = DaemonSet
	default:
		f.Owner = Controller
	}
	safe := drainability.IsSafeToEvict(in.Annotations)
	f.EmptyDir, f.EmptyDirs = localOf(in.EmptyDirs, in.Annotations, safe)
	f.HostPath, f.HostPaths = localOf(in.HostPaths, in.Annotations, safe)
	_, mirror := in.Annotations[mirrorAnnotation]
	f.set(Mirror, mirror)
	f.set(Terminating, in.Terminating)
	f.set(Finished, in.Finished)
	f.set(SafeToEvict, safe)
	return f
}

func (f *Facts) set(flag Flags, on bool) {
	if on {
		f.Flags |= flag
	}
}

// localOf reports whether volumes hold data that is to be kept, and names those that do, or else all.
func localOf(volumes []string, annotations map[string]string, safe bool) (Local, string) {
	if len(volumes) == 0 {
		return NoVolume, ""
	}
	var kept []string
	for _, name := range volumes {
		if !safe && !drainability.IsSafeVolume(annotations, name) {
			kept = append(kept, name)
		}
	}
	if len(kept) == 0 {
		return Waived, strings.Join(volumes, ", ")
	}
	return Kept, strings.Join(kept, ", ")
}
