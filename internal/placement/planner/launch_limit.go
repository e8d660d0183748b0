package planner

import (
	"math"

	corev1 "k8s.io/api/core/v1"
)

// LaunchLimit limits the launches of all templates that share it.
type LaunchLimit struct {
	// Name says which limit this is, in error texts.
	Name string
	// Instances is how many more instances may be launched. Nil means no limit.
	Instances *int
	// Resources is how much more capacity may be launched. A resource that is not listed has no limit.
	Resources corev1.ResourceList
}

// toAmount converts a quantity to a whole number: millicores of cpu, units of other resources.
func toAmount(name corev1.ResourceName, list corev1.ResourceList) int64 {
	quantity := list[name]
	if name == corev1.ResourceCPU {
		return quantity.MilliValue()
	}
	return quantity.Value()
}

// resourceLimit is the rest of an allowance during a plan.
type resourceLimit struct {
	limit     *LaunchLimit
	instances int
	resources map[corev1.ResourceName]int64
}

func newResourceLimit(a *LaunchLimit) *resourceLimit {
	p := &resourceLimit{limit: a, instances: math.MaxInt, resources: map[corev1.ResourceName]int64{}}
	if a.Instances != nil {
		p.instances = *a.Instances
	}
	for name := range a.Resources {
		p.resources[name] = toAmount(name, a.Resources)
	}
	return p
}

// allowsOneMoreInstance reports whether one more instance with this capacity is within the rest.
func (p *resourceLimit) allowsOneMoreInstance(capacity corev1.ResourceList) bool {
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

// adjustForInstance subtracts a launched instance (sign 1) or adds it back (sign -1).
func (p *resourceLimit) adjustForInstance(capacity corev1.ResourceList, sign int) {
	if p.limit.Instances != nil {
		p.instances -= sign
	}
	for name := range p.resources {
		p.resources[name] -= int64(sign) * toAmount(name, capacity)
	}
}

// capacityOrAllocatable returns the capacity of one instance that counts against an allowance.
func (f *Template) capacityOrAllocatable() corev1.ResourceList {
	if len(f.Node.Status.Capacity) > 0 {
		return f.Node.Status.Capacity
	}
	return f.Node.Status.Allocatable
}
