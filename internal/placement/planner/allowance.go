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

// toAmount is a quantity of a resource as whole numbers: millicores of cpu, units of anything else.
func toAmount(name corev1.ResourceName, list corev1.ResourceList) int64 {
	quantity := list[name]
	if name == corev1.ResourceCPU {
		return quantity.MilliValue()
	}
	return quantity.Value()
}

// resourceLimit is what is left of an allowance while a plan runs.
type resourceLimit struct {
	limit     *Allowance
	instances int
	resources map[corev1.ResourceName]int64
}

func newResourceLimit(a *Allowance) *resourceLimit {
	p := &resourceLimit{limit: a, instances: math.MaxInt, resources: map[corev1.ResourceName]int64{}}
	if a.Machines != nil {
		p.instances = *a.Machines
	}
	for name := range a.Resources {
		p.resources[name] = toAmount(name, a.Resources)
	}
	return p
}

// allowsOneMore reports whether one more machine of a capacity is within what is left.
func (p *resourceLimit) allowsOneMore(capacity corev1.ResourceList) bool {
	if p.instances < 1 {
		return false
	}
	for name, left := range p.resources {
		if toAmount(name, capacity) > left {
			return false
		}
	}
	return true
}

// countInstance takes a machine out of the resourceLimit (1), or gives it back (-1).
func (p *resourceLimit) countInstance(capacity corev1.ResourceList, sign int) {
	if p.limit.Machines != nil {
		p.instances -= sign
	}
	for name := range p.resources {
		p.resources[name] -= int64(sign) * toAmount(name, capacity)
	}
}

// countedCapacity is what counts of a machine of the flavour against an allowance.
func (f *Flavour) countedCapacity() corev1.ResourceList {
	if len(f.Template.Status.Capacity) > 0 {
		return f.Template.Status.Capacity
	}
	return f.Template.Status.Allocatable
}
