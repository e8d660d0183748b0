package nodegroup

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/drainability/grouppolicy"
)

// defaultChecks is the number of consecutive checks if the spec sets checkEvery and not checks.
const defaultChecks = 2

// idleRule is the parsed field scaleDown.idleByLabel of a group, with defaults.
type idleRule struct {
	grouppolicy.PodSelection

	cooldown       time.Duration
	checkPeriod    time.Duration // how long a node must be idle for that many checks; 0 means no checks
	keepUnused     bool
	keepForPending bool
}

// newIdleRule returns the idle rule of a group, or nil if the group has none.
func newIdleRule(g *v1alpha1.NodeGroup) (*idleRule, error) {
	if g.Spec.ScaleDown == nil || g.Spec.ScaleDown.IdleByLabel == nil {
		return nil, nil
	}
	spec := g.Spec.ScaleDown.IdleByLabel
	pods, err := grouppolicy.NewIdleSelection(g)
	if err != nil {
		return nil, err
	}
	r := &idleRule{
		PodSelection: pods, cooldown: spec.Cooldown.Duration, keepUnused: spec.KeepUnused,
		keepForPending: spec.KeepForPending == nil || *spec.KeepForPending,
	}
	if spec.CheckEvery != nil {
		n := spec.Checks
		if n == 0 {
			n = defaultChecks
		}
		r.checkPeriod = time.Duration(n) * spec.CheckEvery.Duration
	}
	return r, nil
}

// podSelectorHash returns a hash of the rule's pod selectors and namespaces. Selectors that select the same pods and
// differ only in spelling have the same hash. If the hash changes, the times on the Nodes are about other pods and are
// ignored. Without a rule it returns "".
func (r *idleRule) podSelectorHash() string {
	if r == nil {
		return ""
	}
	namespaces := slices.Compact(slices.Sorted(slices.Values(r.Namespaces)))
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", canonicalRequirements(r.NodeKeepingPods), canonicalRequirements(r.Placeholders), namespaces))
	return hex.EncodeToString(sum[:8])
}

// canonicalRequirements returns the requirements of a selector, sorted. The result is different for a selector of
// nothing and a selector of everything.
func canonicalRequirements(selector labels.Selector) []string {
	requirements, selectable := selector.Requirements()
	all := []string{fmt.Sprint(selectable)}
	for _, r := range requirements {
		all = append(all, r.String())
	}
	slices.Sort(all[1:])
	return all
}

// isUnfinished reports whether a pod in this phase runs or may run later. A pod with an unknown phase counts as
// unfinished, because it may run on an unreachable node.
func isUnfinished(phase corev1.PodPhase) bool {
	return phase != corev1.PodSucceeded && phase != corev1.PodFailed
}

// Stage says how far a node is from being idle.
type Stage string

// The stages.
const (
	Busy    Stage = "Busy"    // a pod keeps it
	Unused  Stage = "Unused"  // it never had such a pod, and the rule keeps unused nodes
	Cooling Stage = "Cooling" // it has no such pod, and its cooldown runs
	Idle    Stage = "Idle"    // its cooldown has passed
)

// Idleness is the stage of a node, with its times.
type Idleness struct {
	Stage Stage
	// Since is when the node became idle, and Until when its cooldown ends. Both are zero while Busy or Unused.
	Since, Until time.Time
}

// podObservation says whether pods keep a node from being idle at one moment, and since when none has been seen.
type podObservation struct {
	hasKeepingPod bool
	// timeSinceKeepingPod is for how long this process has seen no keeping pod, by the monotonic clock. It is negative if it has
	// never seen one. A step of the wall clock cannot shorten it.
	quietFor time.Duration
	now      time.Time
}

// assessIdleness decides how idle one node is. From the annotations of the Node and an observation, it returns the new
// annotations and the idleness. The annotations change only when the first pod that keeps the node arrives or the last
// one ends.
//
// If a pod has kept the node before, the node is idle once the cooldown since the last such pod has passed. If no such
// pod is known, the node is also idle after enough consecutive checks without one. Either the manager was not running
// when the last such pod ended, or the node never had one.
func (r *idleRule) assessIdleness(m Marks, s podObservation) (updated Marks, idleness Idleness) {
	if s.hasKeepingPod {
		m.Since, m.Used = time.Time{}, true
		return m, Idleness{Stage: Busy}
	}
	if !m.Used && r.keepUnused {
		m.Since = time.Time{}
		return m, Idleness{Stage: Unused}
	}
	if m.Since.IsZero() || m.Since.After(s.now.Add(time.Second)) { // the clock was set back since
		m.Since = roundUpToSecond(s.now)
	}
	// The last pod ended after the written time: it was not seen, or the clock was set forward since.
	if last := s.now.Add(-s.quietFor); s.quietFor >= 0 && last.After(m.Since.Add(time.Second)) {
		m.Since, m.Used = roundUpToSecond(last), true
	}
	wait := r.cooldown
	if !m.Used && r.checkPeriod > 0 {
		wait = min(wait, r.checkPeriod)
	}
	found := Idleness{Stage: Cooling, Since: m.Since, Until: m.Since.Add(wait)}
	if until := s.now.Add(r.cooldown - s.quietFor); s.quietFor >= 0 && until.After(found.Until) {
		found.Until = until
	}
	if !s.now.Before(found.Until) {
		found.Stage = Idle
	}
	return m, found
}

// roundUpToSecond returns the time in whole seconds, because an annotation has no fractions. It rounds up, so that no
// cooldown is too short.
func roundUpToSecond(t time.Time) time.Time {
	whole := t.UTC().Truncate(time.Second)
	if whole.Before(t) {
		return whole.Add(time.Second)
	}
	return whole
}
