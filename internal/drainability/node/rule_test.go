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
			Labels: map[string]string{}, Annotations: map[string]string{}, Created: now.Add(-time.Hour), ReadyStatus: "True",
			HasTaint: func(key string) bool { return key == taint },
		}
		change(&in)
		return NewFacts(in)
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
		"marked in a snapshot": {func(in *Input) { in.Annotations[drainability.BeingRemovedMark] = "is being retired" }, Policy{}, "being-removed", false, "", false},
		"not Ready":            {func(in *Input) { in.ReadyStatus = "False" }, Policy{}, "", false, "is not Ready", false},
		"Ready is Unknown":     {func(in *Input) { in.ReadyStatus = "Unknown" }, Policy{}, "", false, "is not Ready", false},
		"I7 Ready is missing":  {func(in *Input) { in.ReadyStatus = "" }, Policy{}, "", false, "is not Ready", false},
		"cordoned":             {func(in *Input) { in.Unschedulable = true }, Policy{}, "", true, "is cordoned", false},
		"control plane, label": {func(in *Input) { in.Labels[role] = "" }, Policy{}, "control-plane", false, "", false},
		"control plane, taint": {func(*Input) { taint = role }, Policy{}, "control-plane", false, "", false},
		"virtual":              {func(in *Input) { in.Labels["type"] = "virtual-kubelet" }, Policy{}, "virtual", false, "", false},
		"EKS Fargate":          {func(in *Input) { in.Labels["eks.amazonaws.com/compute-type"] = "fargate" }, Policy{}, "virtual", false, "", false},
		"EKS, EC2":             {func(in *Input) { in.Labels["eks.amazonaws.com/compute-type"] = "ec2" }, Policy{}, "", true, "", false},
		"protected":            {func(in *Input) { in.Annotations[drainability.DoNotEvict] = "true" }, Policy{}, "protected", true, "", false},
		"protected for 30 min": {func(in *Input) { in.Annotations[drainability.DoNotEvict] = "30m" }, Policy{}, "", true, "", false},
		"overridden":           {func(in *Input) { in.Annotations[drainability.DoNotEvict] = "true" }, Policy{IgnoreProtections: true}, "", true, "", false},
		"another annotation is ignored": {
			func(in *Input) { in.Annotations[drainability.DoNotEvict] = "true" }, Policy{IgnoredAnnotation: drainability.Membership}, "protected", true, "", false,
		},
		"ignored": {
			func(in *Input) { in.Annotations[drainability.Membership] = "{}" }, Policy{IgnoredAnnotation: drainability.Membership}, "", true, "", false,
		},
	} {
		f := read(c.change)
		var rules []string
		for _, v := range c.policy.FindRefusals(&f, now) {
			rules = append(rules, v.Rule)
		}
		if got := strings.Join(rules, " "); got != c.rules {
			t.Errorf("%s: forbidden by %q, want %q", name, got, c.rules)
		}
		if reason, leaving := f.UnavailableReason(false); reason != c.reason || leaving != c.leaving || f.CanReceivePods() != c.receives {
			t.Errorf("%s: unavailable %q, being removed %t, receives pods %t", name, reason, leaving, f.CanReceivePods())
		}
		if reason, leaving := f.UnavailableReason(true); reason != "is being retired" || !leaving {
			t.Errorf("%s, retiring: %q, %t", name, reason, leaving)
		}
	}
}

func TestAPIServerPodIsFoundByLabelOrName(t *testing.T) {
	label := map[string]string{"component": "kube-apiserver"}
	if !IsAPIServerPod("kube-system", "x", "n", label) || !IsAPIServerPod("kube-system", "kube-apiserver-n", "n", nil) ||
		IsAPIServerPod("shop", "x", "n", label) || IsAPIServerPod("kube-system", "kube-apiserver-n", "", nil) || IsAPIServerPod("kube-system", "x", "n", nil) {
		t.Error("want a pod of kube-system that is bound and has the label or the name")
	}
}
