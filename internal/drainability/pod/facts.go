// Package pod decides what happens to a pod when its node is drained. Its rules are pure functions of facts, so every
// caller gets the same decision. Adapters in other packages read the facts from the pod.
package pod

import (
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/drainability"
)

// Facts holds everything that the rules of this package read about a pod. Equal facts lead to equal decisions.
type Facts struct {
	// Protection is the last protection to end. Its Key is empty if there is none.
	Protection drainability.Protection
	// EmptyDirs and HostPaths name the volumes that are lost with the pod or its node. If some are not waived, only
	// those are named.
	EmptyDirs, HostPaths string
	EmptyDir, HostPath   LocalStorage
	Owner                OwnerKind
	Flags                Flags
	// Group is the group of an unfinished pod. No rule reads it: a drain evicts the pods of a group together.
	Group Group
}

// OwnerKind is the kind of controller that recreates the pod.
type OwnerKind uint8

const (
	NoOwner OwnerKind = iota
	OwnedByDaemonSet
	OwnedByController
)

// LocalStorage says whether a pod has data in node-local volumes of one kind.
type LocalStorage uint8

// LocalStorageWaived means that annotations of the pod permit the loss of its local data.
const (
	NoLocalStorage LocalStorage = iota
	LocalStorageWaived
	LocalStorageKept
)

// Flags are the boolean facts about a pod. Adapters do not know Excluded, Placeholder and KeepsNode, because these
// depend on selectors of the caller, so the caller sets them.
type Flags uint8

const (
	Mirror Flags = 1 << iota
	Terminating
	Finished
	SafeToEvict
	Excluded
	Placeholder
	KeepsNode
)

// HasFlag reports whether a flag is set. If flag combines several flags, one of them is enough.
func (f *Facts) HasFlag(flag Flags) bool { return f.Flags&flag != 0 }

// IsRecreated reports whether a controller creates a replacement on another node when the pod is gone.
func (f *Facts) IsRecreated() bool {
	return f.Owner == OwnedByController && f.Flags&(Mirror|Terminating|Finished) == 0
}

// WaiveLocalStorage changes the facts so that the loss of node-local data is permitted.
func (f *Facts) WaiveLocalStorage() {
	f.EmptyDir, f.HostPath = min(f.EmptyDir, LocalStorageWaived), min(f.HostPath, LocalStorageWaived)
}

// Input has the values that an adapter reads from a pod.
type Input struct {
	Labels, Annotations map[string]string
	Created             time.Time
	// Controller is the kind of the owner with controller: true; empty if there is none.
	Controller            string
	Finished, Terminating bool
	// EmptyDirs names the emptyDir volumes on disk. Those in memory hold no data worth keeping.
	EmptyDirs, HostPaths []string
	// PodGroup is spec.schedulingGroup.podGroupName.
	PodGroup string
}

const mirrorAnnotation = "kubernetes.io/config.mirror"

// NewFacts derives the facts from the input.
func NewFacts(in Input) Facts {
	var f Facts
	f.Protection, _ = drainability.FindLongestProtection(drainability.PodProtections(in.Annotations, in.Created))
	switch in.Controller {
	case "", "Node": // a Node owns the mirrors of its static pods and recreates none elsewhere
	case "DaemonSet":
		f.Owner = OwnedByDaemonSet
	default:
		f.Owner = OwnedByController
	}
	safe := drainability.IsSafeToEvict(in.Annotations)
	f.EmptyDir, f.EmptyDirs = classifyLocalVolumes(in.EmptyDirs, in.Annotations, safe)
	f.HostPath, f.HostPaths = classifyLocalVolumes(in.HostPaths, in.Annotations, safe)
	_, mirror := in.Annotations[mirrorAnnotation]
	f.setFlag(Mirror, mirror)
	f.setFlag(Terminating, in.Terminating)
	f.setFlag(Finished, in.Finished)
	f.setFlag(SafeToEvict, safe)
	if !in.Finished { // the work of a finished pod cannot be lost
		f.Group = FindGroup(in.Labels, in.PodGroup)
	}
	return f
}

func (f *Facts) setFlag(flag Flags, on bool) {
	if on {
		f.Flags |= flag
	}
}

// classifyLocalVolumes returns whether the volumes hold data that must be kept. It also returns the names of these
// volumes, or of all volumes if none must be kept.
func classifyLocalVolumes(volumes []string, annotations map[string]string, safe bool) (storage LocalStorage, names string) {
	if len(volumes) == 0 {
		return NoLocalStorage, ""
	}
	var kept []string
	for _, name := range volumes {
		if !safe && !drainability.IsSafeVolume(annotations, name) {
			kept = append(kept, name)
		}
	}
	if len(kept) == 0 {
		return LocalStorageWaived, strings.Join(volumes, ", ")
	}
	return LocalStorageKept, strings.Join(kept, ", ")
}
