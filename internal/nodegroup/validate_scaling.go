package nodegroup

import (
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

func checkScaleUp(fail func(string, ...any), g *v1alpha1.NodeGroup) {
	const field = "spec.scaleUp"
	up := g.Spec.ScaleUp
	if g.Spec.MaxSize == nil {
		fail("%s: needs spec.maxSize: how many nodes the group may have", field)
	}
	switch up.Policy {
	case "", v1alpha1.LeastWaste, v1alpha1.LeastCost, v1alpha1.FirstTemplate:
	default:
		fail("%s.policy: %q: want %s, %s or %s", field, up.Policy, v1alpha1.LeastWaste, v1alpha1.LeastCost, v1alpha1.FirstTemplate)
	}
	checkAtLeast(fail, field+".joinTimeout", up.JoinTimeout, 10*time.Second)
	names := map[string]bool{}
	for i, t := range up.Templates {
		if t.Name == "" || names[t.Name] {
			fail("%s.templates[%d].name: %q: want a unique name", field, i, t.Name)
		}
		names[t.Name] = true
		for resource, quantity := range t.Allocatable {
			if quantity.Sign() < 0 {
				fail("%s.templates[%d].allocatable: %s: %s: must not be negative", field, i, resource, quantity.String())
			}
		}
	}
	if q := up.Limits.CPU; q != nil && q.Sign() < 0 {
		fail("%s.limits.cpu: %s: must not be negative", field, q)
	}
	if q := up.Limits.Memory; q != nil && q.Sign() < 0 {
		fail("%s.limits.memory: %s: must not be negative", field, q)
	}
	checkHeadroom(fail, field+".headroom", up.Headroom)
	for i, key := range up.StartupTaints {
		if key == "" {
			fail("%s.startupTaints[%d]: is empty: want the key of a taint", field, i)
		}
	}
}

func checkHeadroom(fail func(string, ...any), field string, h *v1alpha1.Headroom) {
	if h == nil {
		return
	}
	if h.Slots < 1 || h.Slots > 1000 {
		fail("%s.slots: %d: want 1 to 1000", field, h.Slots)
	}
	if len(h.Requests) == 0 {
		fail("%s.requests: is empty: want what each pod requests, such as cpu and memory", field)
	}
	for resource, quantity := range h.Requests {
		if quantity.Sign() < 0 {
			fail("%s.requests: %s: %s: must not be negative", field, resource, quantity.String())
		}
	}
}

func checkUnderutilized(fail func(string, ...any), r *v1alpha1.UnderutilizedRule) {
	const field = "spec.scaleDown.underutilized"
	all := r.AllOf
	if all == nil {
		all = &v1alpha1.UnderutilizedLimits{}
	} else if *all == (v1alpha1.UnderutilizedLimits{}) {
		fail("%s.allOf: is empty: want cpuAtMost, memoryAtMost or podsAtMost", field)
	}
	for name, percent := range map[string]*int32{
		"cpuBelow": r.CPUBelow, "memoryBelow": r.MemoryBelow, "allOf.cpuAtMost": all.CPUAtMost, "allOf.memoryAtMost": all.MemoryAtMost,
	} {
		if percent != nil && (*percent < 0 || *percent > 100) {
			fail("%s.%s: %d: want 0 to 100", field, name, *percent)
		}
	}
	for name, pods := range map[string]*int32{"podsAtMost": r.PodsAtMost, "allOf.podsAtMost": all.PodsAtMost} {
		if pods != nil && *pods < 0 {
			fail("%s.%s: %d: want 0 or more", field, name, *pods)
		}
	}
	checkAtLeast(fail, field+".cooldown", r.Cooldown, 0)
}
