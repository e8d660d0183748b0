package snapshot

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/slipway-dev/slipway/internal/placement/filter"
)

// registry holds counters by ID and by the namespaces that they apply to.
type registry[T comparable] struct {
	byID         map[string]T
	byNamespace  map[string]labelIndex[T]
	anyNamespace labelIndex[T] // counters that can apply to any namespace
}

// labelIndex holds counters by required label.
type labelIndex[T comparable] map[filter.RequiredLabel][]T

func newRegistry[T comparable]() registry[T] {
	return registry[T]{byID: map[string]T{}, byNamespace: map[string]labelIndex[T]{}, anyNamespace: labelIndex[T]{}}
}

// add records a counter. An empty list of namespaces means any namespace.
func (r *registry[T]) add(id string, counter T, namespaces []string, required filter.RequiredLabel) {
	r.byID[id] = counter
	if len(namespaces) == 0 {
		r.anyNamespace[required] = append(r.anyNamespace[required], counter)
	}
	for _, ns := range namespaces {
		if r.byNamespace[ns] == nil {
			r.byNamespace[ns] = labelIndex[T]{}
		}
		r.byNamespace[ns][required] = append(r.byNamespace[ns][required], counter)
	}
}

// listMatching lists the counters that may count pods with these labels.
func (r *registry[T]) listMatching(l *filter.PodLabels) []T {
	list := r.byNamespace[l.Namespace.Name].appendMatching(nil, l.Labels)
	return r.anyNamespace.appendMatching(list, l.Labels)
}

func (s labelIndex[T]) appendMatching(list []T, set labels.Set) []T {
	if len(s) == 0 {
		return list
	}
	list = append(list, s[filter.RequiredLabel{}]...)
	for key, value := range set {
		list = append(list, s[filter.RequiredLabel{Key: key, Value: value}]...)
	}
	return list
}

func (r *registry[T]) dropUnusedCounters(used map[T]bool) {
	for id, counter := range r.byID {
		if !used[counter] {
			delete(r.byID, id)
		}
	}
	r.anyNamespace.dropUnusedCounters(used)
	for ns, s := range r.byNamespace {
		if s.dropUnusedCounters(used); len(s) == 0 {
			delete(r.byNamespace, ns)
		}
	}
}

func (s labelIndex[T]) dropUnusedCounters(used map[T]bool) {
	for a, list := range s {
		if list = slices.DeleteFunc(list, func(counter T) bool { return !used[counter] }); len(list) == 0 {
			delete(s, a)
		} else {
			s[a] = list
		}
	}
}
