package pod

import (
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/drainability"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// ofController is a pod that a controller recreates, with annotations in pairs of key and value.
func ofController(annotations ...string) Input {
	in := Input{Controller: "ReplicaSet", Created: now.Add(-time.Hour), Annotations: map[string]string{}}
	for i := 0; i < len(annotations); i += 2 {
		in.Annotations[annotations[i]] = annotations[i+1]
	}
	return in
}

func with(in Input, change func(*Input)) Input {
	change(&in)
	return in
}

func unowned(in *Input)     { in.Controller = "" }
func emptyDir(in *Input)    { in.EmptyDirs = []string{"scratch"} }
func onHost(in *Input)      { in.HostPaths = []string{"logs"} }
func isFinished(in *Input)  { in.Finished = true }
func isDeleted(in *Input)   { in.Terminating = true }
func ofDaemonSet(in *Input) { in.Controller = "DaemonSet" }

const (
	safe, volumes, evict, disrupt = drainability.SafeToEvict, drainability.SafeLocalVolumes, drainability.DoNotEvict, drainability.DoNotDisrupt
)

func TestEachKindOfPodHasItsRuleAndItsActionUnderBothPolicies(t *testing.T) {
	for name, c := range map[string]struct {
		pod               Input
		rule              Rule
		voluntary, forced Action
	}{
		"ordinary":                        {ofController(), Ordinary, Evict, Evict},
		"mirror":                          {with(ofController(mirrorAnnotation, "x"), unowned), ByMirror, Leave, Leave},
		"mirror that is terminating":      {with(ofController(mirrorAnnotation, "x"), isDeleted), ByMirror, Leave, Leave},
		"owned by a Node, not a mirror":   {Input{Controller: "Node"}, ByUnmanaged, Refuse, Evict},
		"DaemonSet":                       {with(ofController(), ofDaemonSet), ByDaemonSet, Leave, Leave},
		"DaemonSet with an emptyDir":      {with(with(ofController(), ofDaemonSet), emptyDir), ByDaemonSet, Leave, Leave},
		"DaemonSet, terminating":          {with(with(ofController(), ofDaemonSet), isDeleted), ByDaemonSet, Leave, Leave},
		"terminating":                     {with(ofController(), isDeleted), ByTerminating, Await, Await},
		"terminating and protected":       {with(ofController(evict, "true"), isDeleted), ByTerminating, Await, Await},
		"finished and unmanaged":          {with(with(ofController(), isFinished), unowned), ByFinished, Evict, Evict},
		"finished and protected":          {with(ofController(safe, "false"), isFinished), ByFinished, Evict, Evict},
		"safe-to-evict false":             {ofController(safe, "false"), ByProtected, Refuse, Evict},
		"do-not-disrupt for 2 h":          {ofController(disrupt, "2h"), ByProtected, Refuse, Evict},
		"do-not-disrupt, expired":         {ofController(disrupt, "30m"), Ordinary, Evict, Evict},
		"do-not-disrupt, expiring now":    {ofController(disrupt, "1h"), Ordinary, Evict, Evict},
		"one of two protections expired":  {ofController(disrupt, "30m", evict, "2h"), ByProtected, Refuse, Evict},
		"unmanaged":                       {with(ofController(), unowned), ByUnmanaged, Refuse, Evict},
		"unmanaged, safe to evict":        {with(ofController(safe, "true"), unowned), ByUnmanaged, Evict, Evict},
		"protected and unmanaged":         {with(ofController(evict, "true"), unowned), ByProtected, Refuse, Evict},
		"emptyDir":                        {with(ofController(), emptyDir), ByLocalStorage, Refuse, Evict},
		"emptyDir, safe to evict":         {with(ofController(safe, "true"), emptyDir), ByLocalStorage, Evict, Evict},
		"emptyDir, named as safe":         {with(ofController(volumes, "tmp,scratch"), emptyDir), ByLocalStorage, Evict, Evict},
		"emptyDir, another named as safe": {with(ofController(volumes, "tmp"), emptyDir), ByLocalStorage, Refuse, Evict},
		"hostPath":                        {with(ofController(), onHost), ByHostPath, Refuse, Evict},
		"hostPath, safe to evict":         {with(ofController(safe, "true"), onHost), ByHostPath, Evict, Evict},
		"hostPath, named as safe":         {with(ofController(volumes, "logs"), onHost), ByHostPath, Evict, Evict},
		"safe emptyDir and hostPath":      {with(with(ofController(volumes, "scratch"), emptyDir), onHost), ByHostPath, Refuse, Evict},
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

func TestPermissionToLoseOneThingIsNoPermissionToLoseAnother(t *testing.T) {
	give := func(p Policy, a Action, rules ...Rule) Policy {
		for _, r := range rules {
			p = p.With(r, a)
		}
		return p
	}
	protected, safePod := ofController(evict, "true"), ofController(safe, "true")
	v, forced := Voluntary(), Forced()
	for name, c := range map[string]struct {
		policy Policy
		pod    Input
		rule   Rule
		action Action
	}{
		"protected, overridden":                     {give(v, Evict, ByProtected), protected, ByProtected, Evict},
		"protected and unmanaged, overridden":       {give(v, Evict, ByProtected), with(protected, unowned), ByUnmanaged, Refuse},
		"protected with an emptyDir, overridden":    {give(v, Evict, ByProtected), with(protected, emptyDir), ByLocalStorage, Refuse},
		"unmanaged with an emptyDir, forced":        {give(v, Evict, ByUnmanaged), with(with(ofController(), unowned), emptyDir), ByLocalStorage, Refuse},
		"unmanaged with an emptyDir, both forced":   {give(v, Evict, ByUnmanaged, ByLocalStorage), with(with(ofController(), unowned), emptyDir), ByUnmanaged, Evict},
		"emptyDir and hostPath, one allowed":        {give(v, Evict, ByLocalStorage), with(with(ofController(), onHost), emptyDir), ByHostPath, Refuse},
		"safe to evict, unmanaged with an emptyDir": {v, with(with(safePod, unowned), emptyDir), ByUnmanaged, Evict},
		"unmanaged pods stay, protected or not":     {give(forced, Leave, ByUnmanaged), with(protected, unowned), ByUnmanaged, Leave},
		"unmanaged pods stay, also if safe":         {give(forced, Leave, ByUnmanaged), with(safePod, unowned), ByUnmanaged, Leave},
		"data stays, also if safe":                  {give(forced, Leave, ByLocalStorage), with(safePod, emptyDir), ByLocalStorage, Leave},
	} {
		f := FactsOf(c.pod)
		if got := c.policy.Judge(&f, now); got.Rule != c.rule || got.Action != c.action {
			t.Errorf("%s: %s by %s, want %s by %s", name, got.Action, got.Rule, c.action, c.rule)
		}
	}
}

func TestWhatTheCallerMarksComesBeforeThePodsOwnState(t *testing.T) {
	for name, c := range map[string]struct {
		pod       Input
		flags     Flags
		rule      Rule
		action    Action
		recreated bool
	}{
		"keeps the node, a placeholder":    {ofController(), KeepsNode | Placeholder, ByKeepsNode, Refuse, true},
		"not selected, finished":           {with(ofController(), isFinished), Excluded, ByExcluded, Leave, false},
		"not selected, protected":          {ofController(evict, "true"), Excluded, ByExcluded, Leave, true},
		"not selected, of a DaemonSet":     {with(ofController(), ofDaemonSet), Excluded, ByExcluded, Leave, false},
		"not selected, a mirror":           {ofController(mirrorAnnotation, ""), Excluded, ByMirror, Leave, false},
		"placeholder with an emptyDir":     {with(ofController(), emptyDir), Placeholder, ByExcluded, Leave, true},
		"unmanaged pods are not recreated": {with(ofController(safe, "true"), unowned), 0, ByUnmanaged, Evict, false},
	} {
		f := FactsOf(c.pod)
		f.Flags |= c.flags
		if v := Voluntary().Judge(&f, now); v.Rule != c.rule || v.Action != c.action || f.Recreated() != c.recreated {
			t.Errorf("%s: %s by %s, recreated %t", name, v.Action, v.Rule, f.Recreated())
		}
	}
}

func TestAVerdictThatTimeChangesSaysWhen(t *testing.T) {
	f := FactsOf(ofController(disrupt, "90m", evict, "2h"))
	v := Voluntary().Judge(&f, now)
	if want := now.Add(time.Hour).UnixNano(); v.Until != want || !strings.Contains(v.Text(&f), evict+`: "2h"`) {
		t.Errorf("until %d, want %d: %s", v.Until, want, v.Text(&f))
	}
	if v := Voluntary().Judge(&f, now.Add(time.Hour)); v.Rule != Ordinary || v.Until != 0 {
		t.Errorf("after its end: %+v", v)
	}
}

func TestPoliciesThatDoTheSameAreEqual(t *testing.T) {
	if p := Voluntary().With(ByUnmanaged, Evict).With(ByUnmanaged, Refuse); p != Voluntary() || p.Of(ByUnmanaged) != Refuse {
		t.Errorf("%+v", p)
	}
}

func TestRulesAndActionsAreReadAsTheyAreWritten(t *testing.T) {
	for r := range numRules {
		var again Rule
		if text, _ := r.MarshalText(); again.UnmarshalText(text) != nil || again != r || len(text) == 0 {
			t.Errorf("%s is read as %s", r, again)
		}
	}
	for a := Evict; a <= Refuse; a++ {
		var again Action
		if text, _ := a.MarshalText(); again.UnmarshalText(text) != nil || again != a {
			t.Errorf("%s is read as %s", a, again)
		}
	}
	if new(Rule).UnmarshalText([]byte("x")) == nil || new(Action).UnmarshalText([]byte("x")) == nil {
		t.Error("unknown names are accepted")
	}
}
