package nodegroup

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

const minute = time.Minute

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func newTestRule(t must.T, change func(*v1alpha1.IdleByLabel)) *idleRule {
	g := newGroup("ci")
	change(g.Spec.ScaleDown.IdleByLabel)
	r, err := newIdleRule(g)
	must.NoError(t, err)
	return r
}

func TestNodeBecomesIdle(t *testing.T) {
	checks := func(r *v1alpha1.IdleByLabel) { r.CheckEvery = &metav1.Duration{Duration: 2 * minute} }
	unused := func(r *v1alpha1.IdleByLabel) { r.KeepUnused = true }
	since := func(ago time.Duration, used bool) Marks { return Marks{Since: noon.Add(-ago), Used: used} }
	for name, tt := range map[string]struct {
		change func(*v1alpha1.IdleByLabel)
		marks  Marks
		kept   bool
		want   Stage
		left   time.Duration
		after  Marks
	}{
		"a pod keeps it":                            {nil, since(9*minute, false), true, Busy, 0, Marks{Used: true}},
		"it has no pod":                             {nil, Marks{}, false, Cooling, 10 * minute, since(0, false)},
		"the cooldown runs":                         {nil, since(9*minute, true), false, Cooling, minute, since(9*minute, true)},
		"the cooldown is over":                      {nil, since(10*minute, true), false, Idle, 0, since(10*minute, true)},
		"two checks find no pod":                    {checks, since(4*minute, false), false, Idle, 0, since(4*minute, false)},
		"one check finds no pod":                    {checks, since(3*minute, false), false, Cooling, minute, since(3*minute, false)},
		"checks do not cut the cooldown short":      {checks, since(9*minute, true), false, Cooling, minute, since(9*minute, true)},
		"it never had a pod, unused nodes are kept": {unused, since(time.Hour, false), false, Unused, 0, Marks{}},
		"it had a pod, unused nodes are kept":       {unused, since(10*minute, true), false, Idle, 0, since(10*minute, true)},
		"the clock was set back since":              {nil, Marks{Since: noon.Add(time.Hour), Used: true}, false, Cooling, 10 * minute, since(0, true)},
	} {
		t.Run(name, func(t *testing.T) {
			r := newTestRule(t, func(r *v1alpha1.IdleByLabel) {
				if tt.change != nil {
					tt.change(r)
				}
			})
			marks, found := r.assessIdleness(tt.marks, podObservation{hasKeepingPod: tt.kept, quietFor: -1, now: noon})
			if found.Stage != tt.want || marks != tt.after {
				t.Errorf("%s and %+v, want %s and %+v", found.Stage, marks, tt.want, tt.after)
			}
			if left := found.Until.Sub(noon); found.Stage == Cooling && left != tt.left {
				t.Errorf("%s left, want %s", left, tt.left)
			}
		})
	}
}

// TestPodKindIsWhatTheRuleSelects compares with the rule of newGroup.
func TestPodKindIsWhatTheRuleSelects(t *testing.T) {
	in := func(key string, values ...string) metav1.LabelSelectorRequirement {
		return metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: values}
	}
	kind := func(like []metav1.LabelSelectorRequirement, namespaces ...string) string {
		return newTestRule(t, func(r *v1alpha1.IdleByLabel) {
			r.PodSelector.MatchExpressions, r.Namespaces = like, namespaces
		}).podSelectorHash()
	}
	is := kind([]metav1.LabelSelectorRequirement{in("a", "x", "y"), in("a", "y", "z"), in("b", "x")}, "one", "two")
	if again := kind([]metav1.LabelSelectorRequirement{in("b", "x"), in("a", "z", "y"), in("a", "y", "x")}, "two", "one", "two"); again != is {
		t.Errorf("in another order it is %s, and was %s", again, is)
	}
	same := func(r *v1alpha1.IdleByLabel) {
		r.KeepUnused, r.Cooldown, r.CheckEvery = true, metav1.Duration{Duration: minute}, &metav1.Duration{Duration: minute}
	}
	if other := newTestRule(t, same).podSelectorHash(); other != ciKind {
		t.Errorf("with other times it is %s, and was %s", other, ciKind)
	}
	seen := map[string]bool{is: true, ciKind: true}
	for _, other := range []string{
		kind(nil, "one"), kind(nil, "two"), kind(nil, "one", "two"), kind([]metav1.LabelSelectorRequirement{in("a", "x")}),
		kind([]metav1.LabelSelectorRequirement{in("a", "y")}),
	} {
		if seen[other] {
			t.Errorf("two that select other pods are %s", other)
		}
		seen[other] = true
	}
}

// TestNodeLeavesExactlyAfterItsCooldown has pods that come and go on a node, restarts of the manager, and changes of
// the wall clock. The test keeps its own record in true time.
func TestNodeLeavesExactlyAfterItsCooldown(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cooldown := time.Duration(rapid.IntRange(0, 600).Draw(t, "cooldown, s")) * time.Second
		r := newTestRule(t, func(r *v1alpha1.IdleByLabel) {
			r.Cooldown = metav1.Duration{Duration: cooldown}
			if rapid.Bool().Draw(t, "checks") {
				r.CheckEvery = &metav1.Duration{Duration: time.Duration(rapid.IntRange(1, 300).Draw(t, "every, s")) * time.Second}
				r.Checks = int32(rapid.IntRange(0, 4).Draw(t, "how many"))
			}
		})
		w := &timeline{rule: r, pods: 0, lastKept: -1}
		t.Repeat(map[string]func(*rapid.T){
			"a pod comes": func(*rapid.T) { w.pods++; w.checkStep(t) },
			"a pod goes":  func(*rapid.T) { w.pods = max(0, w.pods-1); w.checkStep(t) },
			"time passes": func(t *rapid.T) {
				w.advance(time.Duration(rapid.IntRange(1, 700_000).Draw(t, "ms")) * time.Millisecond)
				w.checkStep(t)
			},
			"the manager is restarted": func(*rapid.T) {
				// A restart loses what only the process knows. The clock is not changed meanwhile, because no process
				// could detect that.
				before, was := w.assess()
				w.seenKept = -1
				after, is := w.assess()
				if before.Used != after.Used || was.Stage == Busy != (is.Stage == Busy) {
					t.Fatalf("a restart made %+v, %+v of %+v, %+v", after, is, before, was)
				}
				w.checkStep(t)
			},
			"the clock is set back": func(t *rapid.T) {
				w.offset -= time.Duration(rapid.IntRange(2, 3600).Draw(t, "s")) * time.Second
				w.checkStep(t)
			},
			"the clock is set forward": func(t *rapid.T) {
				if w.seenKept >= 0 || w.lastKept < 0 { // or the process could not know
					w.offset += time.Duration(rapid.IntRange(2, 3600).Draw(t, "s")) * time.Second
				}
				w.checkStep(t)
			},
			"": func(t *rapid.T) { w.checkNodeBecomesIdle(t) },
		})
	})
}

// timeline is the history of a node in true time.
type timeline struct {
	rule   *idleRule
	now    time.Duration // true time
	offset time.Duration // of the wall clock
	pods   int
	marks  Marks

	lastKept time.Duration // in true time, the last moment with a pod; -1 is never
	seenKept time.Duration // the same, as this process has seen it
}

func (w *timeline) advance(d time.Duration) {
	w.now += d
	if w.pods > 0 {
		w.lastKept, w.seenKept = w.now, w.now
	}
}

func (w *timeline) assess() (Marks, Idleness) {
	quiet := time.Duration(-1)
	if w.seenKept > 0 {
		quiet = w.now - w.seenKept
	}
	return w.rule.assessIdleness(w.marks, podObservation{hasKeepingPod: w.pods > 0, quietFor: quiet, now: noon.Add(w.now + w.offset)})
}

func (w *timeline) checkStep(t *rapid.T) {
	if w.pods > 0 {
		w.lastKept, w.seenKept = w.now, w.now
	}
	marks, found := w.assess()
	w.marks = marks
	if found.Stage != Idle {
		return
	}
	if w.pods > 0 {
		t.Fatalf("idle with %d pods", w.pods)
	}
	if w.lastKept > 0 && w.now-w.lastKept < w.rule.cooldown {
		t.Fatalf("idle %s after its last pod, before the cooldown of %s", w.now-w.lastKept, w.rule.cooldown)
	}
}

// checkNodeBecomesIdle checks that a node without pods becomes idle, and that its marks change once at most.
func (w *timeline) checkNodeBecomesIdle(t *rapid.T) {
	if w.pods > 0 {
		return
	}
	alone := *w
	changes := 0
	for range 20 {
		marks, found := alone.assess()
		if marks != alone.marks {
			alone.marks = marks
			changes++
		}
		if found.Stage == Idle {
			if changes > 1 {
				t.Fatalf("written %d times", changes)
			}
			return
		}
		alone.now += alone.rule.cooldown/8 + time.Second
	}
	t.Fatalf("idle for %s but not found idle: %+v", alone.now-w.now, alone.marks)
}
