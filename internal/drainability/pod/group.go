package pod

import (
	"bytes"
	"encoding/json"
)

// Group names pods that lose their work together: if one of them is gone, its controller restarts all of them. The name is
// unique in the namespace of the pods. The zero Group means that the pod has no group.
type Group struct {
	Kind GroupKind
	Name string
}

// GroupKind is the kind of object that makes pods a group.
type GroupKind string

const (
	// PodGroup is a PodGroup of scheduling.k8s.io. Its disruptionMode says whether its pods lose their work together.
	PodGroup GroupKind = "PodGroup"
	// LeaderWorkerSet is one replica of a LeaderWorkerSet: a leader and its workers.
	LeaderWorkerSet GroupKind = "LeaderWorkerSet"
	// JobSet is one Job of a JobSet.
	JobSet GroupKind = "JobSet"
)

// The labels that the controllers of LeaderWorkerSet and JobSet set on their pods.
const (
	lwsName       = "leaderworkerset.sigs.k8s.io/name"
	lwsGroupIndex = "leaderworkerset.sigs.k8s.io/group-index"
	lwsGroupKey   = "leaderworkerset.sigs.k8s.io/group-key"
	jobSetName    = "jobset.sigs.k8s.io/jobset-name"
	jobSetJobName = "jobset.sigs.k8s.io/replicatedjob-name"
	jobSetIndex   = "jobset.sigs.k8s.io/job-index"
)

// DisruptionMode says whether the pods of a PodGroup can be disrupted one by one.
type DisruptionMode string

const (
	// DisruptionModeUnknown is a mode that was not read, or that a later version of Kubernetes has.
	DisruptionModeUnknown DisruptionMode = ""
	DisruptionModeSingle  DisruptionMode = "single"
	DisruptionModeAll     DisruptionMode = "all"
)

// ParseDisruptionMode returns the mode in spec.disruptionMode of a PodGroup. It is {"all":{}} or {"single":{}} from v1alpha3 on,
// and "PodGroup" or "Pod" in v1alpha2. The default is single.
func ParseDisruptionMode(raw []byte) DisruptionMode {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
		return DisruptionModeSingle
	}
	var name string
	if json.Unmarshal(raw, &name) == nil {
		switch name {
		case "Pod":
			return DisruptionModeSingle
		case "PodGroup":
			return DisruptionModeAll
		}
		return DisruptionModeUnknown
	}
	var mode struct{ Single, All *struct{} }
	switch err := json.Unmarshal(raw, &mode); {
	case err != nil:
	case mode.All != nil:
		return DisruptionModeAll
	case mode.Single != nil:
		return DisruptionModeSingle
	}
	return DisruptionModeUnknown
}

// ResolveMode returns the group that the pods of a group lose their work with. mode is the mode of a PodGroup. If it is single, only
// the labels of the pod decide. If it is unknown, the PodGroup counts as all, so that no work is lost.
func (g Group) ResolveMode(labels map[string]string, mode DisruptionMode) Group {
	if g.Kind == PodGroup && mode == DisruptionModeSingle {
		return FindGroup(labels, "")
	}
	return g
}

// FindGroup returns the group of a pod from its labels and spec.schedulingGroup.podGroupName. A PodGroup has priority, until
// [Group.ResolveMode] is called with its mode.
func FindGroup(labels map[string]string, podGroup string) Group {
	if podGroup != "" {
		return Group{PodGroup, podGroup}
	}
	if set := labels[lwsName]; set != "" {
		for _, key := range []string{lwsGroupIndex, lwsGroupKey} {
			if replica := labels[key]; replica != "" {
				return Group{LeaderWorkerSet, set + "/" + replica}
			}
		}
	}
	set, job, index := labels[jobSetName], labels[jobSetJobName], labels[jobSetIndex]
	if set != "" && job != "" && index != "" {
		return Group{JobSet, set + "/" + job + "/" + index}
	}
	return Group{}
}

// IsZero reports whether the pod has no group.
func (g Group) IsZero() bool { return g == Group{} }

// String returns a text such as "JobSet/train/workers/0", or "" without a group.
func (g Group) String() string {
	if g.IsZero() {
		return ""
	}
	return string(g.Kind) + "/" + g.Name
}
