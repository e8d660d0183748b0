package drain

import (
	"sort"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	// defaultGrace is what the API server sets where a pod names no grace.
	defaultGrace = 30 * time.Second
	// longestGrace is what a grace counts as that is longer: a time.Duration ends at 292 years, and a grace beyond it would
	// become a negative one, which the API server takes for one second.
	longestGrace = 10 * 365 * 24 * time.Hour
)

// wantedGrace is the time the pod may take to stop when nobody is in a hurry.
func wantedGrace(p *kubeapi.Pod, override *int64) time.Duration {
	switch {
	case override != nil && *override >= 0:
		return graceOf(*override)
	case p.Spec.TerminationGracePeriodSeconds != nil:
		if s := *p.Spec.TerminationGracePeriodSeconds; s >= 0 {
			return graceOf(s)
		}
		return time.Second // what the API server makes of a negative one
	}
	return defaultGrace
}

func graceOf(seconds int64) time.Duration {
	return time.Duration(min(seconds, int64(longestGrace/time.Second))) * time.Second
}

// grantedGrace caps what a pod wants to what is left before the deadline. It is whole seconds, as the API takes them,
// and never 0 unless the pod itself wants 0: grace 0 removes the object at once, while the process may still run, so
// that a StatefulSet could start its twin (https://kubernetes.io/docs/tasks/run-application/force-delete-stateful-set-pod/).
func grantedGrace(wanted time.Duration, t Terms, now time.Time) time.Duration {
	if !t.Forced() || wanted == 0 {
		return wanted
	}
	left := t.end().Sub(now).Truncate(time.Second)
	return min(wanted, max(left, time.Second))
}

// rounding is what a pod may lose when the time that is left is cut to whole seconds, as grantedGrace does: a request
// that is planned to the moment comes a few milliseconds after it.
const rounding = time.Second

// forceAt is when a pod that is still waiting for a disruption budget is deleted past it: late enough to give its
// replacement a chance to come up first, early enough to leave it the time to stop, and to let the request itself be
// answered. Where the whole window is short of twice that, half the window goes to each. The window is counted from when
// there first was a deadline: where a deadline is moved, the pods have been waiting since then.
func forceAt(wanted time.Duration, t Terms, since time.Time) time.Time {
	end := t.end()
	window := max(0, end.Sub(since))
	return end.Add(-min(max(wanted+rounding, shortestRequest), window/2))
}

// grudged is for how long after that an eviction is still waited for that is under way by then. There is such a time only
// where the window is too short for the pod's grace in any case. An API server that is slow because many machines of the
// cluster go at once would put the deletion at the end of the same queue; one that holds back this eviction only costs
// the pod no more than that.
func grudged(wanted time.Duration, t Terms, since time.Time) time.Duration {
	half := max(0, t.end().Sub(since)) / 2
	if wanted+rounding <= half {
		return 0
	}
	return half / 3
}

// waveOf is the index of the wave in which a pod of this priority leaves.
func waveOf(p *kubeapi.Pod, boundaries []int32) int {
	var priority int32
	if p.Spec.Priority != nil {
		priority = *p.Spec.Priority
	}
	return sort.Search(len(boundaries), func(i int) bool { return priority < boundaries[i] })
}

// latestStart is when a wave starts at the latest, although an earlier one is not gone yet: its longest grace, and a
// quarter of the window to wait for budgets in, must fit before the deadline. A voluntary drain has no latest start.
func latestStart(longest time.Duration, t Terms, since time.Time) (time.Time, bool) {
	if !t.Forced() {
		return time.Time{}, false
	}
	end := t.end()
	window := max(0, end.Sub(since))
	return end.Add(-longest - window/4), true
}
