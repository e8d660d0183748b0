package snapshot

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/slipway-dev/slipway/internal/placement/filter"
)

// registry holds counters by identity, and by the namespaces they look at.
type registry[T comparable] struct {
	byID  map[string]T
	local map[string]shelf[T]
	wide  shelf[T] // of those that may look at any namespace
}

// shelf holds counters by their anchors.
type shelf[T comparable] map[filter.Anchor][]T

func newRegistry[T comparable]() registry[T] {
	return registry[T]{byID: map[string]T{}, local: map[string]shelf[T]{}, wide: shelf[T]{}}
}

// put records a counter; namespaces is empty when it may look at any.
func (r *registry[T]) put(id string, counter T, namespaces []string, a filter.Anchor) {
	r.byID[id] = counter
	if len(namespaces) == 0 {
		r.wide[a] = append(r.wide[a], counter)
	}
	for _, ns := range namespaces {
		if r.local[ns] == nil {
			r.local[ns] = shelf[T]{}
		}
		r.local[ns][a] = append(r.local[ns][a], counter)
	}
}

// near lists the counters that may count pods with these labels.
func (r *registry[T]) near(l *filter.PodLabels) []T {
	list := r.local[l.Namespace.Name].near(nil, l.Labels)
	return r.wide.near(list, l.Labels)
}

func (s shelf[T]) near(list []T, set labels.Set) []T {
	if len(s) == 0 {
		return list
	}
	list = append(list, s[filter.Anchor{}]...)
	for key, value := range set {
		list = append(list, s[filter.Anchor{Key: key, Value: value}]...)
	}
	return list
}

// keep drops the counters that are not used.
func (r *registry[T]) keep(used map[T]bool) {
	for id, counter := range r.byID {
		if !used[counter] {
			delete(r.byID, id)
		}
	}
	r.wide.keep(used)
	for ns, s := range r.local {
		if s.keep(used); len(s) == 0 {
			delete(r.local, ns)
		}
	}
}

func (s shelf[T]) keep(used map[T]bool) {
	for a, list := range s {
		if list = slices.DeleteFunc(list, func(counter T) bool { return !used[counter] }); len(list) == 0 {
			delete(s, a)
		} else {
			s[a] = list
		}
	}
}
