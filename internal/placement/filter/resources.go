package filter

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/component-helpers/resource"
)

// Resources that every node has come first, so that their indices are constant.
const (
	ResourceCPU = iota // in millicores
	ResourceMemory
	resourceEphemeralStorage
	firstScalar
)

// Amount is a requested or used amount of one interned resource.
type Amount struct {
	Resource int32
	Value    int64
}

// ResourceTable interns resource names, so that amounts fit in slices instead of maps.
type ResourceTable struct {
	names []corev1.ResourceName
	index map[corev1.ResourceName]int32
}

// NewResourceTable returns a table with the resources that every node has.
func NewResourceTable() *ResourceTable {
	t := &ResourceTable{index: map[corev1.ResourceName]int32{}}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		t.intern(name)
	}
	return t
}

func (t *ResourceTable) intern(name corev1.ResourceName) int32 {
	i, ok := t.index[name]
	if !ok {
		i = int32(len(t.names))
		t.names = append(t.names, name)
		t.index[name] = i
	}
	return i
}

// internNewNames interns the new names of a list in alphabetical order, so that reasons always come in the same
// order.
func (t *ResourceTable) internNewNames(list corev1.ResourceList) {
	var unknown []corev1.ResourceName
	for name := range list {
		if _, ok := t.index[name]; !ok && IsCheckedByScheduler(name) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	for _, name := range unknown {
		t.intern(name)
	}
}

// ToAmounts converts a list to amounts, sorted by resource. It omits zeros and resources that the scheduler does not
// count.
func (t *ResourceTable) ToAmounts(list corev1.ResourceList) []Amount {
	t.internNewNames(list)
	var amounts []Amount
	for name, quantity := range list {
		if !IsCheckedByScheduler(name) {
			continue
		}
		value := quantity.Value()
		if name == corev1.ResourceCPU {
			value = quantity.MilliValue()
		}
		if value != 0 {
			amounts = append(amounts, Amount{t.intern(name), value})
		}
	}
	slices.SortFunc(amounts, func(a, b Amount) int { return int(a.Resource - b.Resource) })
	return amounts
}

// ToSlice converts a list to a slice that is indexed by resource. Resources beyond its end are zero.
func (t *ResourceTable) ToSlice(list corev1.ResourceList) []int64 {
	values := make([]int64, len(t.names))
	for _, a := range t.ToAmounts(list) {
		for int(a.Resource) >= len(values) {
			values = append(values, 0)
		}
		values[a.Resource] = a.Value
	}
	return values
}

// AmountAt returns the value of a resource in a dense slice, which can be shorter than the table.
func AmountAt(values []int64, resource int32) int64 {
	if int(resource) < len(values) {
		return values[resource]
	}
	return 0
}

// IsCheckedByScheduler reports whether the scheduler counts a resource. It counts cpu, memory, ephemeral storage, extended
// resources, huge pages, attachable volumes and names under kubernetes.io/. It ignores other names without a prefix.
func IsCheckedByScheduler(name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return true
	case corev1.ResourcePods:
		return false
	}
	s := string(name)
	if strings.Contains(s, corev1.ResourceDefaultNamespacePrefix) ||
		strings.HasPrefix(s, corev1.ResourceHugePagesPrefix) ||
		strings.HasPrefix(s, corev1.ResourceAttachableVolumesPrefix) {
		return true
	}
	if !strings.Contains(s, "/") || strings.HasPrefix(s, corev1.DefaultResourceRequestsPrefix) {
		return false
	}
	return len(validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+s)) == 0
}

// requestsToSchedule returns the requests of a pod that has no node yet. Only the specification counts.
func requestsToSchedule(pod *corev1.Pod) corev1.ResourceList {
	return resource.PodRequests(pod, resource.PodResourcesOptions{})
}

// RequestsWhenPlaced returns the requests that a placed pod uses on its node. During a resize the largest of the
// requested, allocated and actuated values counts.
func RequestsWhenPlaced(pod *corev1.Pod) corev1.ResourceList {
	return resource.PodRequests(pod, resource.PodResourcesOptions{
		UseStatusResources: true,
		InPlacePodLevelResourcesVerticalScalingEnabled: true,
	})
}

// HasResourcesInStatus reports whether the status of the pod can make RequestsWhenPlaced differ from requestsToSchedule.
func HasResourcesInStatus(pod *corev1.Pod) bool {
	if pod.Status.Resources != nil || pod.Status.AllocatedResources != nil || resource.IsPodResizeInfeasible(pod) {
		return true
	}
	says := func(c corev1.ContainerStatus) bool { return c.Resources != nil || c.AllocatedResources != nil }
	return slices.ContainsFunc(pod.Status.ContainerStatuses, says) ||
		slices.ContainsFunc(pod.Status.InitContainerStatuses, says)
}

// keepPositive drops amounts of zero or less. The scheduler ignores negative requests.
func keepPositive(amounts []Amount) []Amount {
	return slices.DeleteFunc(slices.Clone(amounts), func(a Amount) bool { return a.Value <= 0 })
}
