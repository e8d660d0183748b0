package pod

import (
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/drainability"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// managedPod returns a pod with a controller, and with annotations given as pairs of key and value.
func managedPod(annotations ...string) Input {
	in := Input{Controller: "ReplicaSet", Created: now.Add(-time.Hour), Annotations: map[string]string{}}
	for i := 0; i < len(annotations); i += 2 {
		in.Annotations[annotations[i]] = annotations[i+1]
	}
	return in
}

func withChange(in Input, change func(*Input)) Input {
	change(&in)
	return in
}

func setUnowned(in *Input)     { in.Controller = "" }
func addEmptyDir(in *Input)    { in.EmptyDirs = []string{"scratch"} }
func addHostPath(in *Input)    { in.HostPaths = []string{"logs"} }
func setFinished(in *Input)    { in.Finished = true }
func setTerminating(in *Input) { in.Terminating = true }
func setDaemonSet(in *Input)   { in.Controller = "DaemonSet" }

const (
	safe, volumes, evict, disrupt = drainability.SafeToEvict, drainability.SafeLocalVolumes, drainability.DoNotEvict, drainability.DoNotDisrupt
)

func TestEachPodKindHasItsRuleAndActions(t *testing.T) {
	for name, c := range map[string]struct {
		pod               Input
		rule              Rule
		voluntary, forced Action
	}{
		"ordinary":                        {managedPod(), NoRule, Evict, Evict},
		"mirror":                          {withChange(managedPod(mirrorAnnotation, "x"), setUnowned), RuleMirror, Skip, Skip},
		"mirror that is terminating":      {withChange(managedPod(mirrorAnnotation, "x"), setTerminating), RuleMirror, Skip, Skip},
		"owned by a Node, not a mirror":   {Input{Controller: "Node"}, RuleUnmanaged, RefuseDrain, Evict},
		"DaemonSet":                       {withChange(managedPod(), setDaemonSet), RuleDaemonSet, Skip, Skip},
		"DaemonSet with an emptyDir":      {withChange(withChange(managedPod(), setDaemonSet), addEmptyDir), RuleDaemonSet, Skip, Skip},
		"DaemonSet, terminating":          {withChange(withChange(managedPod(), setDaemonSet), setTerminating), RuleDaemonSet, Skip, Skip},
		"terminating":                     {withChange(managedPod(), setTerminating), RuleTerminating, AwaitTermination, AwaitTermination},
		"terminating and protected":       {withChange(managedPod(evict, "true"), setTerminating), RuleTerminating, AwaitTermination, AwaitTermination},
		"finished and unmanaged":          {withChange(withChange(managedPod(), setFinished), setUnowned), RuleFinished, Evict, Evict},
		"finished and protected":          {withChange(managedPod(safe, "false"), setFinished), RuleFinished, Evict, Evict},
		"safe-to-evict false":             {managedPod(safe, "false"), RuleProtected, RefuseDrain, Evict},
		"do-not-disrupt for 2 h":          {managedPod(disrupt, "2h"), RuleProtected, RefuseDrain, Evict},
		"do-not-disrupt, expired":         {managedPod(disrupt, "30m"), NoRule, Evict, Evict},
		"do-not-disrupt, expiring now":    {managedPod(disrupt, "1h"), NoRule, Evict, Evict},
		"one of two protections expired":  {managedPod(disrupt, "30m", evict, "2h"), RuleProtected, RefuseDrain, Evict},
		"unmanaged":                       {withChange(managedPod(), setUnowned), RuleUnmanaged, RefuseDrain, Evict},
		"unmanaged, safe to evict":        {withChange(managedPod(safe, "true"), setUnowned), RuleUnmanaged, Evict, Evict},
		"protected and unmanaged":         {withChange(managedPod(evict, "true"), setUnowned), RuleProtected, RefuseDrain, Evict},
		"emptyDir":                        {withChange(managedPod(), addEmptyDir), RuleLocalStorage, RefuseDrain, Evict},
		"emptyDir, safe to evict":         {withChange(managedPod(safe, "true"), addEmptyDir), RuleLocalStorage, Evict, Evict},
		"emptyDir, named as safe":         {withChange(managedPod(volumes, "tmp,scratch"), addEmptyDir), RuleLocalStorage, Evict, Evict},
		"emptyDir, another named as safe": {withChange(managedPod(volumes, "tmp"), addEmptyDir), RuleLocalStorage, RefuseDrain, Evict},
		"hostPath":                        {withChange(managedPod(), addHostPath), RuleHostPath, RefuseDrain, Evict},
		"hostPath, safe to evict":         {withChange(managedPod(safe, "true"), addHostPath), RuleHostPath, Evict, Evict},
		"hostPath, named as safe":         {withChange(managedPod(volumes, "logs"), addHostPath), RuleHostPath, Evict, Evict},
		"safe emptyDir and hostPath":      {withChange(withChange(managedPod(volumes, "scratch"), addEmptyDir), addHostPath), RuleHostPath, RefuseDrain, Evict},
	} {
		f := NewFacts(c.pod)
		v := VoluntaryPolicy().Decide(&f, now)
		if v.Rule != c.rule || v.Action != c.voluntary {
			t.Errorf("%s, voluntary: %s by %s, want %s by %s", name, v.Action, v.Rule, c.voluntary, c.rule)
		}
		if text := v.Reason(&f); (text == "") != (v.Rule == NoRule) {
			t.Errorf("%s: the reason is %q", name, text)
		}
		if got := ForcedPolicy().Decide(&f, now).Action; got != c.forced {
			t.Errorf("%s, forced: %s, want %s", name, got, c.forced)
		}
	}
}

func TestStrictestRuleDecides(t *testing.T) {
	withActions := func(p Policy, a Action, rules ...Rule) Policy {
		for _, r := range rules {
			p = p.WithAction(r, a)
		}
		return p
	}
	protected, safePod := managedPod(evict, "true"), managedPod(safe, "true")
	v, forced := VoluntaryPolicy(), ForcedPolicy()
	for name, c := range map[string]struct {
		policy Policy
		pod    Input
		rule   Rule
		action Action
	}{
		"protected, overridden":                         {withActions(v, Evict, RuleProtected), protected, RuleProtected, Evict},
		"protected and unmanaged, overridden":           {withActions(v, Evict, RuleProtected), withChange(protected, setUnowned), RuleUnmanaged, RefuseDrain},
		"protected with an emptyDir, overridden":        {withActions(v, Evict, RuleProtected), withChange(protected, addEmptyDir), RuleLocalStorage, RefuseDrain},
		"unmanaged with an emptyDir, forced":            {withActions(v, Evict, RuleUnmanaged), withChange(withChange(managedPod(), setUnowned), addEmptyDir), RuleLocalStorage, RefuseDrain},
		"unmanaged with an emptyDir, both forced":       {withActions(v, Evict, RuleUnmanaged, RuleLocalStorage), withChange(withChange(managedPod(), setUnowned), addEmptyDir), RuleUnmanaged, Evict},
		"emptyDir and hostPath, one allowed":            {withActions(v, Evict, RuleLocalStorage), withChange(withChange(managedPod(), addHostPath), addEmptyDir), RuleHostPath, RefuseDrain},
		"safe to evict, unmanaged with an emptyDir":     {v, withChange(withChange(safePod, setUnowned), addEmptyDir), RuleUnmanaged, Evict},
		"unmanaged pods are skipped, also if protected": {withActions(forced, Skip, RuleUnmanaged), withChange(protected, setUnowned), RuleUnmanaged, Skip},
		"unmanaged pods are skipped, also if safe":      {withActions(forced, Skip, RuleUnmanaged), withChange(safePod, setUnowned), RuleUnmanaged, Skip},
		"pods with data are skipped, also if safe":      {withActions(forced, Skip, RuleLocalStorage), withChange(safePod, addEmptyDir), RuleLocalStorage, Skip},
	} {
		f := NewFacts(c.pod)
		if got := c.policy.Decide(&f, now); got.Rule != c.rule || got.Action != c.action {
			t.Errorf("%s: %s by %s, want %s by %s", name, got.Action, got.Rule, c.action, c.rule)
		}
	}
}

func TestCallerFlagsTakePrecedence(t *testing.T) {
	for name, c := range map[string]struct {
		pod       Input
		flags     Flags
		rule      Rule
		action    Action
		recreated bool
	}{
		"keeps the node, a placeholder":    {managedPod(), KeepsNode | Placeholder, RuleKeepsNode, RefuseDrain, true},
		"not selected, finished":           {withChange(managedPod(), setFinished), Excluded, RuleExcluded, Skip, false},
		"not selected, protected":          {managedPod(evict, "true"), Excluded, RuleExcluded, Skip, true},
		"not selected, of a DaemonSet":     {withChange(managedPod(), setDaemonSet), Excluded, RuleExcluded, Skip, false},
		"not selected, a mirror":           {managedPod(mirrorAnnotation, ""), Excluded, RuleMirror, Skip, false},
		"placeholder with an emptyDir":     {withChange(managedPod(), addEmptyDir), Placeholder, RuleExcluded, Skip, true},
		"unmanaged pods are not recreated": {withChange(managedPod(safe, "true"), setUnowned), 0, RuleUnmanaged, Evict, false},
	} {
		f := NewFacts(c.pod)
		f.Flags |= c.flags
		if v := VoluntaryPolicy().Decide(&f, now); v.Rule != c.rule || v.Action != c.action || f.IsRecreated() != c.recreated {
			t.Errorf("%s: %s by %s, recreated %t", name, v.Action, v.Rule, f.IsRecreated())
		}
	}
}

func TestTemporaryProtectionHasItsEnd(t *testing.T) {
	f := NewFacts(managedPod(disrupt, "90m", evict, "2h"))
	v := VoluntaryPolicy().Decide(&f, now)
	if want := now.Add(time.Hour).UnixNano(); v.ValidUntil != want || !strings.Contains(v.Reason(&f), evict+`: "2h"`) {
		t.Errorf("until %d, want %d: %s", v.ValidUntil, want, v.Reason(&f))
	}
	if v := VoluntaryPolicy().Decide(&f, now.Add(time.Hour)); v.Rule != NoRule || v.ValidUntil != 0 {
		t.Errorf("after its end: %+v", v)
	}
}

func TestEquivalentPoliciesAreEqual(t *testing.T) {
	if p := VoluntaryPolicy().WithAction(RuleUnmanaged, Evict).WithAction(RuleUnmanaged, RefuseDrain); p != VoluntaryPolicy() || p.ActionFor(RuleUnmanaged) != RefuseDrain {
		t.Errorf("%+v", p)
	}
}

func TestRulesAndActionsRoundTripAsText(t *testing.T) {
	for r := range numRules {
		var parsed Rule
		if text, _ := r.MarshalText(); parsed.UnmarshalText(text) != nil || parsed != r || len(text) == 0 {
			t.Errorf("%s is read as %s", r, parsed)
		}
	}
	for a := Evict; a <= RefuseDrain; a++ {
		var parsed Action
		if text, _ := a.MarshalText(); parsed.UnmarshalText(text) != nil || parsed != a {
			t.Errorf("%s is read as %s", a, parsed)
		}
	}
	if new(Rule).UnmarshalText([]byte("x")) == nil || new(Action).UnmarshalText([]byte("x")) == nil {
		t.Error("unknown names are accepted")
	}
}
