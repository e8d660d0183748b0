package planner

import (
	"math"

	corev1 "k8s.io/api/core/v1"
)

// Allowance is what may be launched at most of all flavours together that are within it.
type Allowance struct {
	// Name says whose limit it is.
	Name string
	// Machines is how many more may be launched; nil sets no limit.
	Machines *int
	// Resources are how much more capacity may be launched; what is not named has no limit.
	Resources corev1.ResourceList
}

// amountOf is a quantity of a resource as whole numbers: millicores of cpu, units of anything else.
func amountOf(name corev1.ResourceName, list corev1.ResourceList) int64 {
	quantity := list[name]
	if name == corev1.ResourceCPU {
		return quantity.MilliValue()
	}
	return quantity.Value()
}

// resourceLimit is what is left of an allowance while a plan runs.
type resourceLimit struct {
	allowance *Allowance
	machines  int
	resources map[corev1.ResourceName]int64
}

func newResourceLimit(a *Allowance) *resourceLimit {
	p := &resourceLimit{allowance: a, machines: math.MaxInt, resources: map[corev1.ResourceName]int64{}}
	if a.Machines != nil {
		p.machines = *a.Machines
	}
	for name := range a.Resources {
		p.resources[name] = amountOf(name, a.Resources)
	}
	return p
}

// affords reports whether one more machine of a capacity is within what is left.
func (p *resourceLimit) affords(capacity corev1.ResourceList) bool {
	if p.machines < 1 {
		return false
	}
	for name, left := range p.resources {
		if amountOf(name, capacity) > left {
			return false
		}
	}
	return true
}

// spend takes a machine out of the resourceLimit (1), or gives it back (-1).
func (p *resourceLimit) spend(capacity corev1.ResourceList, sign int) {
	if p.allowance.Machines != nil {
		p.machines -= sign
	}
	for name := range p.resources {
		p.resources[name] -= int64(sign) * amountOf(name, capacity)
	}
}

// capacity is what counts of a machine of the flavour against an allowance.
func (f *Flavour) capacity() corev1.ResourceList {
	if len(f.Template.Status.Capacity) > 0 {
		return f.Template.Status.Capacity
	}
	return f.Template.Status.Allocatable
}
