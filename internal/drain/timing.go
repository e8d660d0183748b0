package drain

import (
	"sort"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	// defaultGrace is the grace that the API server sets if a pod specifies none.
	defaultGrace = 30 * time.Second
	// maxGrace is the longest grace; it replaces any longer one. A time.Duration overflows at 292 years and becomes
	// negative. The API server reads a negative grace as 1 second.
	maxGrace = 10 * 365 * 24 * time.Hour
)

// wantedGrace returns how long the pod may take to stop without a deadline. A value of override of 0 or more replaces
// the grace of the pod.
func wantedGrace(p *kubeapi.Pod, override *int64) time.Duration {
	switch {
	case override != nil && *override >= 0:
		return toGrace(*override)
	case p.Spec.TerminationGracePeriodSeconds != nil:
		if s := *p.Spec.TerminationGracePeriodSeconds; s >= 0 {
			return toGrace(s)
		}
		return time.Second // what the API server uses for a negative one
	}
	return defaultGrace
}

func toGrace(seconds int64) time.Duration {
	return time.Duration(min(seconds, int64(maxGrace/time.Second))) * time.Second
}

// capGrace returns the wanted grace, or the time before the deadline if that is shorter. The result is in whole
// seconds, as in the API, and at least 1 second unless the pod itself wants 0. A grace of 0 removes the object at once,
// while the process may still run. A StatefulSet could then start a second process
// (https://kubernetes.io/docs/tasks/run-application/force-delete-stateful-set-pod/).
func capGrace(wanted time.Duration, t TimeLimits, now time.Time) time.Duration {
	if !t.HasDeadline() || wanted == 0 {
		return wanted
	}
	left := t.lastRemovalTime().Sub(now).Truncate(time.Second)
	return min(wanted, max(left, time.Second))
}

// graceRounding is the most grace that a pod can lose because capGrace rounds down to whole seconds. It is lost because
// a request is sent a few milliseconds after its planned time.
const graceRounding = time.Second

// forcedDeletionTime returns when the drain deletes a pod that still waits for a PDB. The time is as late as possible,
// so that a replacement pod can start first. After it, the pod has its grace, or the request has minRequestTimeout to
// be answered, if that is longer. If this is more than half of the whole time, half of the whole time is used. The
// whole time begins at since: when there first was a deadline, or when a later notice brought another one. A moved deadline
// does not change since.
func forcedDeletionTime(wanted time.Duration, t TimeLimits, since time.Time) time.Time {
	end := t.lastRemovalTime()
	total := max(0, end.Sub(since))
	return end.Add(-min(max(wanted+graceRounding, minRequestTimeout), total/2))
}

// extraEvictionWait returns how long the drain waits for an eviction in flight after the forced deletion time. It is
// positive only if the time is too short for the pod's grace in any case. If many instances stop at once, a deletion
// would wait in the same queue of the API server. So this wait costs the pod no additional time.
func extraEvictionWait(wanted time.Duration, t TimeLimits, deadlineSince time.Time) time.Duration {
	half := max(0, t.lastRemovalTime().Sub(deadlineSince)) / 2
	if wanted+graceRounding <= half {
		return 0
	}
	return half / 3
}

// waveIndex returns the index of the wave of a pod with this priority.
func waveIndex(p *kubeapi.Pod, boundaries []int32) int {
	var priority int32
	if p.Spec.Priority != nil {
		priority = *p.Spec.Priority
	}
	return sort.Search(len(boundaries), func(i int) bool { return priority < boundaries[i] })
}

// latestWaveStart returns the latest start of a wave, even if pods of an earlier wave are not gone. Before the deadline
// there must be time for the wave's longest grace, and for PDBs a quarter of the whole time. It returns false without a
// deadline.
func latestWaveStart(longest time.Duration, t TimeLimits, deadlineSince time.Time) (start time.Time, limited bool) {
	if !t.HasDeadline() {
		return time.Time{}, false
	}
	end := t.lastRemovalTime()
	total := max(0, end.Sub(deadlineSince))
	return end.Add(-longest - total/4), true
}
