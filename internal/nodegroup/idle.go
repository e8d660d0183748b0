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

// defaultChecks is how many checks in a row are meant where checkEvery is given alone.
const defaultChecks = 2

// idleRule is IdleByLabel, with its selectors parsed and its defaults filled in.
type idleRule struct {
	grouppolicy.Selection

	cooldown       time.Duration
	checkPeriod    time.Duration // so long a node is found idle in as many checks as it takes; 0 is no checks
	keepUnused     bool
	keepForPending bool
}

// newIdleRule gives the rule of a group; nil when it has none.
func newIdleRule(g *v1alpha1.NodeGroup) (*idleRule, error) {
	if g.Spec.ScaleDown == nil || g.Spec.ScaleDown.IdleByLabel == nil {
		return nil, nil
	}
	spec := g.Spec.ScaleDown.IdleByLabel
	pods, err := grouppolicy.Idle(g)
	if err != nil {
		return nil, err
	}
	r := &idleRule{
		Selection: pods, cooldown: spec.Cooldown.Duration, keepUnused: spec.KeepUnused,
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

// podSelectorHash is a hash of which pods the rule selects, however it puts it: what is written of others' coming and going says nothing of
// these. No rule has none.
func (r *idleRule) podSelectorHash() string {
	if r == nil {
		return ""
	}
	namespaces := slices.Compact(slices.Sorted(slices.Values(r.Namespaces)))
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", canonicalRequirements(r.Keeping), canonicalRequirements(r.Placeholders), namespaces))
	return hex.EncodeToString(sum[:8])
}

// canonicalRequirements are a selector's requirements in an order of their own. Nothing and everything differ.
func canonicalRequirements(selector labels.Selector) []string {
	requirements, selectable := selector.Requirements()
	all := []string{fmt.Sprint(selectable)}
	for _, r := range requirements {
		all = append(all, r.String())
	}
	slices.Sort(all[1:])
	return all
}

// isUnfinished reports whether a pod still does something, or will. One whose node is silent may.
func isUnfinished(phase corev1.PodPhase) bool {
	return phase != corev1.PodSucceeded && phase != corev1.PodFailed
}

// Stage is how far a node is on the way to being idle.
type Stage string

// The stages.
const (
	Busy    Stage = "Busy"    // a pod keeps it
	Unused  Stage = "Unused"  // it never had such a pod, and nodes like that are kept
	Cooling Stage = "Cooling" // it has none, and not for long enough
	Idle    Stage = "Idle"    // it has had none for long enough
)

// Idleness is what the pods on a node say of it.
type Idleness struct {
	Stage Stage
	// Since is when the node was found without such a pod, and Until when that is for long enough; zero while Busy or
	// Unused.
	Since, Until time.Time
}

// podObservation is what is seen of one node at one moment.
type podObservation struct {
	hasKeepingPod bool
	// quietFor is for how long this process has seen no pod that keeps the node, by a clock that nobody sets; below zero when
	// it has never seen one. It is what a step of the wall clock cannot shorten.
	quietFor time.Duration
	now      time.Time
}

// assessIdleness is the state machine of one node: what is written on it, and what is seen of it, give what is to be written on it
// and how idle it is. What is written changes when a pod comes or the last one goes, and not in between.
//
// A node that had such a pod is idle when the last one has been gone for the cooldown, whatever the checks say. One of
// which that is not known is idle, too, when so many checks in a row have found it without: the manager may have been
// away when its last pod ended, or it never had one.
func (r *idleRule) assessIdleness(m Marks, s podObservation) (Marks, Idleness) {
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
	// The last pod went after what is written: it came and went unseen, or the clock was set forward since.
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

// roundUpToSecond is the time as annotations hold it. It is rounded up, so that no cooldown is cut short.
func roundUpToSecond(t time.Time) time.Time {
	whole := t.UTC().Truncate(time.Second)
	if whole.Before(t) {
		return whole.Add(time.Second)
	}
	return whole
}
