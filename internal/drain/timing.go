package drain

import (
	"sort"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	// defaultGrace is what the API server sets if a pod has no grace.
	defaultGrace = 30 * time.Second
	// maxGrace replaces a longer grace. A time.Duration ends at 292 years; a grace beyond that would become negative,
	// which the API server reads as 1 second.
	maxGrace = 10 * 365 * 24 * time.Hour
)

// wantedGrace returns the time the pod may take to stop without a deadline.
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

// capGrace caps the wanted grace to the time before the deadline. The result is in whole seconds, as in the API. It is
// 0 only if the pod itself wants 0: grace 0 removes the object at once, while the process may still run, so that a
// StatefulSet could start a second one
// (https://kubernetes.io/docs/tasks/run-application/force-delete-stateful-set-pod/).
func capGrace(wanted time.Duration, t TimeLimits, now time.Time) time.Duration {
	if !t.HasDeadline() || wanted == 0 {
		return wanted
	}
	left := t.lastRemovalTime().Sub(now).Truncate(time.Second)
	return min(wanted, max(left, time.Second))
}

// graceRounding is what a pod may lose when the time left is cut to whole seconds, as capGrace does. A request is sent
// a few milliseconds after its planned time.
const graceRounding = time.Second

// forcedDeletionTime returns when a pod that still waits for a PDB is deleted. That is as late as possible, so that its
// replacement can start first. It leaves the pod time to stop and the request time to be answered. If the whole time is
// shorter than twice that, half of it goes to each. The time counts from since, when there first was a deadline: a
// moved deadline does not restart it.
func forcedDeletionTime(wanted time.Duration, t TimeLimits, since time.Time) time.Time {
	end := t.lastRemovalTime()
	total := max(0, end.Sub(since))
	return end.Add(-min(max(wanted+graceRounding, minRequestTimeout), total/2))
}

// extraEvictionWait returns how long after the forced deletion time an eviction in flight may still continue. It is
// positive only if the time is too short for the pod's grace in any case. If many instances stop at once, the deletion
// would wait in the same queue of the API server. Waiting for the eviction costs the pod no more than that.
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

// latestWaveStart returns when a wave starts at the latest, even if an earlier one is not gone. Its longest grace, and
// a quarter of the time for PDBs, must fit before the deadline. A voluntary drain has no latest start.
func latestWaveStart(longest time.Duration, t TimeLimits, deadlineSince time.Time) (start time.Time, limited bool) {
	if !t.HasDeadline() {
		return time.Time{}, false
	}
	end := t.lastRemovalTime()
	total := max(0, end.Sub(deadlineSince))
	return end.Add(-longest - total/4), true
}
