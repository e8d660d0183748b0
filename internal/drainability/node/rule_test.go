package node

import (
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/drainability"
)

func TestNodeRules(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	taint := ""
	read := func(change func(*Input)) Facts {
		taint = ""
		in := Input{
			Labels: map[string]string{}, Annotations: map[string]string{}, Created: now.Add(-time.Hour), Ready: "True",
			Tainted: func(key string) bool { return key == taint },
		}
		change(&in)
		return FactsOf(in)
	}
	const role = "node-role.kubernetes.io/control-plane"
	for name, c := range map[string]struct {
		change   func(*Input)
		policy   Policy
		rules    string
		receives bool
		reason   string
		leaving  bool
	}{
		"ordinary":             {func(*Input) {}, Policy{}, "", true, "", false},
		"removed by a tool":    {func(in *Input) { in.RemovedBy = []string{"a", "b"} }, Policy{}, "being-removed", false, "is being removed by a, b", true},
		"being deleted":        {func(in *Input) { in.Deleting = true }, Policy{}, "being-removed", false, "is being deleted", true},
		"not Ready":            {func(in *Input) { in.Ready = "False" }, Policy{}, "", false, "is not Ready", false},
		"Ready is Unknown":     {func(in *Input) { in.Ready = "Unknown" }, Policy{}, "", false, "is not Ready", false},
		"I7 Ready is missing":  {func(in *Input) { in.Ready = "" }, Policy{}, "", false, "is not Ready", false},
		"cordoned":             {func(in *Input) { in.Unschedulable = true }, Policy{}, "", true, "is cordoned", false},
		"control plane, label": {func(in *Input) { in.Labels[role] = "" }, Policy{}, "control-plane", false, "", false},
		"control plane, taint": {func(*Input) { taint = role }, Policy{}, "control-plane", false, "", false},
		"virtual":              {func(in *Input) { in.Labels["type"] = "virtual-kubelet" }, Policy{}, "virtual", false, "", false},
		"protected":            {func(in *Input) { in.Annotations[drainability.DoNotEvict] = "true" }, Policy{}, "protected", true, "", false},
		"protected for 30 min": {func(in *Input) { in.Annotations[drainability.DoNotEvict] = "30m" }, Policy{}, "", true, "", false},
		"overridden":           {func(in *Input) { in.Annotations[drainability.DoNotEvict] = "true" }, Policy{Override: true}, "", true, "", false},
		"another annotation is ignored": {
			func(in *Input) { in.Annotations[drainability.DoNotEvict] = "true" }, Policy{Lifted: drainability.Membership}, "protected", true, "", false,
		},
		"ignored": {
			func(in *Input) { in.Annotations[drainability.Membership] = "{}" }, Policy{Lifted: drainability.Membership}, "", true, "", false,
		},
	} {
		f := read(c.change)
		var rules []string
		for _, v := range c.policy.Judge(&f, now) {
			rules = append(rules, v.Rule)
		}
		if got := strings.Join(rules, " "); got != c.rules {
			t.Errorf("%s: forbidden by %q, want %q", name, got, c.rules)
		}
		if reason, leaving := f.Unavailable(false); reason != c.reason || leaving != c.leaving || f.ReceivesPods() != c.receives {
			t.Errorf("%s: unavailable %q, being removed %t, receives pods %t", name, reason, leaving, f.ReceivesPods())
		}
		if reason, leaving := f.Unavailable(true); reason != "is being retired" || !leaving {
			t.Errorf("%s, retiring: %q, %t", name, reason, leaving)
		}
	}
}

func TestAPIServerPodIsFoundByLabelOrName(t *testing.T) {
	label := map[string]string{"component": "kube-apiserver"}
	if !IsAPIServer("kube-system", "x", "n", label) || !IsAPIServer("kube-system", "kube-apiserver-n", "n", nil) ||
		IsAPIServer("shop", "x", "n", label) || IsAPIServer("kube-system", "kube-apiserver-n", "", nil) || IsAPIServer("kube-system", "x", "n", nil) {
		t.Error("want a pod of kube-system that is bound and has the label or the name")
	}
}
