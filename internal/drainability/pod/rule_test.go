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
		"ordinary":                        {managedPod(), Ordinary, Evict, Evict},
		"mirror":                          {withChange(managedPod(mirrorAnnotation, "x"), setUnowned), ByMirror, Leave, Leave},
		"mirror that is terminating":      {withChange(managedPod(mirrorAnnotation, "x"), setTerminating), ByMirror, Leave, Leave},
		"owned by a Node, not a mirror":   {Input{Controller: "Node"}, ByUnmanaged, Refuse, Evict},
		"DaemonSet":                       {withChange(managedPod(), setDaemonSet), ByDaemonSet, Leave, Leave},
		"DaemonSet with an emptyDir":      {withChange(withChange(managedPod(), setDaemonSet), addEmptyDir), ByDaemonSet, Leave, Leave},
		"DaemonSet, terminating":          {withChange(withChange(managedPod(), setDaemonSet), setTerminating), ByDaemonSet, Leave, Leave},
		"terminating":                     {withChange(managedPod(), setTerminating), ByTerminating, Await, Await},
		"terminating and protected":       {withChange(managedPod(evict, "true"), setTerminating), ByTerminating, Await, Await},
		"finished and unmanaged":          {withChange(withChange(managedPod(), setFinished), setUnowned), ByFinished, Evict, Evict},
		"finished and protected":          {withChange(managedPod(safe, "false"), setFinished), ByFinished, Evict, Evict},
		"safe-to-evict false":             {managedPod(safe, "false"), ByProtected, Refuse, Evict},
		"do-not-disrupt for 2 h":          {managedPod(disrupt, "2h"), ByProtected, Refuse, Evict},
		"do-not-disrupt, expired":         {managedPod(disrupt, "30m"), Ordinary, Evict, Evict},
		"do-not-disrupt, expiring now":    {managedPod(disrupt, "1h"), Ordinary, Evict, Evict},
		"one of two protections expired":  {managedPod(disrupt, "30m", evict, "2h"), ByProtected, Refuse, Evict},
		"unmanaged":                       {withChange(managedPod(), setUnowned), ByUnmanaged, Refuse, Evict},
		"unmanaged, safe to evict":        {withChange(managedPod(safe, "true"), setUnowned), ByUnmanaged, Evict, Evict},
		"protected and unmanaged":         {withChange(managedPod(evict, "true"), setUnowned), ByProtected, Refuse, Evict},
		"emptyDir":                        {withChange(managedPod(), addEmptyDir), ByLocalStorage, Refuse, Evict},
		"emptyDir, safe to evict":         {withChange(managedPod(safe, "true"), addEmptyDir), ByLocalStorage, Evict, Evict},
		"emptyDir, named as safe":         {withChange(managedPod(volumes, "tmp,scratch"), addEmptyDir), ByLocalStorage, Evict, Evict},
		"emptyDir, another named as safe": {withChange(managedPod(volumes, "tmp"), addEmptyDir), ByLocalStorage, Refuse, Evict},
		"hostPath":                        {withChange(managedPod(), addHostPath), ByHostPath, Refuse, Evict},
		"hostPath, safe to evict":         {withChange(managedPod(safe, "true"), addHostPath), ByHostPath, Evict, Evict},
		"hostPath, named as safe":         {withChange(managedPod(volumes, "logs"), addHostPath), ByHostPath, Evict, Evict},
		"safe emptyDir and hostPath":      {withChange(withChange(managedPod(volumes, "scratch"), addEmptyDir), addHostPath), ByHostPath, Refuse, Evict},
	} {
		f := FactsOf(c.pod)
		v := Voluntary().Judge(&f, now)
		if v.Rule != c.rule || v.Action != c.voluntary {
			t.Errorf("%s, voluntary: %s by %s, want %s by %s", name, v.Action, v.Rule, c.voluntary, c.rule)
		}
		if text := v.Text(&f); (text == "") != (v.Rule == Ordinary) {
			t.Errorf("%s: the reason is %q", name, text)
		}
		if got := Forced().Judge(&f, now).Action; got != c.forced {
			t.Errorf("%s, forced: %s, want %s", name, got, c.forced)
		}
	}
}

func TestStrictestRuleDecides(t *testing.T) {
	withActions := func(p Policy, a Action, rules ...Rule) Policy {
		for _, r := range rules {
			p = p.With(r, a)
		}
		return p
	}
	protected, safePod := managedPod(evict, "true"), managedPod(safe, "true")
	v, forced := Voluntary(), Forced()
	for name, c := range map[string]struct {
		policy Policy
		pod    Input
		rule   Rule
		action Action
	}{
		"protected, overridden":                         {withActions(v, Evict, ByProtected), protected, ByProtected, Evict},
		"protected and unmanaged, overridden":           {withActions(v, Evict, ByProtected), withChange(protected, setUnowned), ByUnmanaged, Refuse},
		"protected with an emptyDir, overridden":        {withActions(v, Evict, ByProtected), withChange(protected, addEmptyDir), ByLocalStorage, Refuse},
		"unmanaged with an emptyDir, forced":            {withActions(v, Evict, ByUnmanaged), withChange(withChange(managedPod(), setUnowned), addEmptyDir), ByLocalStorage, Refuse},
		"unmanaged with an emptyDir, both forced":       {withActions(v, Evict, ByUnmanaged, ByLocalStorage), withChange(withChange(managedPod(), setUnowned), addEmptyDir), ByUnmanaged, Evict},
		"emptyDir and hostPath, one allowed":            {withActions(v, Evict, ByLocalStorage), withChange(withChange(managedPod(), addHostPath), addEmptyDir), ByHostPath, Refuse},
		"safe to evict, unmanaged with an emptyDir":     {v, withChange(withChange(safePod, setUnowned), addEmptyDir), ByUnmanaged, Evict},
		"unmanaged pods are skipped, also if protected": {withActions(forced, Leave, ByUnmanaged), withChange(protected, setUnowned), ByUnmanaged, Leave},
		"unmanaged pods are skipped, also if safe":      {withActions(forced, Leave, ByUnmanaged), withChange(safePod, setUnowned), ByUnmanaged, Leave},
		"pods with data are skipped, also if safe":      {withActions(forced, Leave, ByLocalStorage), withChange(safePod, addEmptyDir), ByLocalStorage, Leave},
	} {
		f := FactsOf(c.pod)
		if got := c.policy.Judge(&f, now); got.Rule != c.rule || got.Action != c.action {
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
		"keeps the node, a placeholder":    {managedPod(), KeepsNode | Placeholder, ByKeepsNode, Refuse, true},
		"not selected, finished":           {withChange(managedPod(), setFinished), Excluded, ByExcluded, Leave, false},
		"not selected, protected":          {managedPod(evict, "true"), Excluded, ByExcluded, Leave, true},
		"not selected, of a DaemonSet":     {withChange(managedPod(), setDaemonSet), Excluded, ByExcluded, Leave, false},
		"not selected, a mirror":           {managedPod(mirrorAnnotation, ""), Excluded, ByMirror, Leave, false},
		"placeholder with an emptyDir":     {withChange(managedPod(), addEmptyDir), Placeholder, ByExcluded, Leave, true},
		"unmanaged pods are not recreated": {withChange(managedPod(safe, "true"), setUnowned), 0, ByUnmanaged, Evict, false},
	} {
		f := FactsOf(c.pod)
		f.Flags |= c.flags
		if v := Voluntary().Judge(&f, now); v.Rule != c.rule || v.Action != c.action || f.Recreated() != c.recreated {
			t.Errorf("%s: %s by %s, recreated %t", name, v.Action, v.Rule, f.Recreated())
		}
	}
}

func TestTemporaryProtectionHasItsEnd(t *testing.T) {
	f := FactsOf(managedPod(disrupt, "90m", evict, "2h"))
	v := Voluntary().Judge(&f, now)
	if want := now.Add(time.Hour).UnixNano(); v.Until != want || !strings.Contains(v.Text(&f), evict+`: "2h"`) {
		t.Errorf("until %d, want %d: %s", v.Until, want, v.Text(&f))
	}
	if v := Voluntary().Judge(&f, now.Add(time.Hour)); v.Rule != Ordinary || v.Until != 0 {
		t.Errorf("after its end: %+v", v)
	}
}

func TestEquivalentPoliciesAreEqual(t *testing.T) {
	if p := Voluntary().With(ByUnmanaged, Evict).With(ByUnmanaged, Refuse); p != Voluntary() || p.Of(ByUnmanaged) != Refuse {
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
	for a := Evict; a <= Refuse; a++ {
		var parsed Action
		if text, _ := a.MarshalText(); parsed.UnmarshalText(text) != nil || parsed != a {
			t.Errorf("%s is read as %s", a, parsed)
		}
	}
	if new(Rule).UnmarshalText([]byte("x")) == nil || new(Action).UnmarshalText([]byte("x")) == nil {
		t.Error("unknown names are accepted")
	}
}
