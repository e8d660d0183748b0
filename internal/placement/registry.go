package placement

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// anchor is a label that whatever a selector matches has to carry. By it the selectors that a set of labels may match,
// and the sets that a selector may match, are found without trying all. The zero anchor is that of a selector which
// demands no certain value of any label.
type anchor struct{ key, value string }

func anchorOf(s labels.Selector) anchor {
	requirements, selectable := s.Requirements()
	if !selectable {
		return anchor{}
	}
	for i := range requirements {
		r := &requirements[i]
		switch r.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			if values := r.ValuesUnsorted(); len(values) == 1 {
				return anchor{r.Key(), values[0]}
			}
		}
	}
	return anchor{}
}

// anchorOfAll is an anchor of what every term selects.
func anchorOfAll(terms []*podTerm) anchor {
	for _, t := range terms {
		if t.anchor != (anchor{}) {
			return t.anchor
		}
	}
	return anchor{}
}

// registry holds counters by identity, and by the namespaces they look at.
type registry[T comparable] struct {
	byID  map[string]T
	local map[string]shelf[T]
	wide  shelf[T] // of those that may look at any namespace
}

// shelf holds counters by their anchors.
type shelf[T comparable] map[anchor][]T

func newRegistry[T comparable]() registry[T] {
	return registry[T]{byID: map[string]T{}, local: map[string]shelf[T]{}, wide: shelf[T]{}}
}

// put records a counter; namespaces is empty when it may look at any.
func (r *registry[T]) put(id string, counter T, namespaces []string, a anchor) {
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
func (r *registry[T]) near(l *podLabels) []T {
	list := r.local[l.namespace.name].near(nil, l.labels)
	return r.wide.near(list, l.labels)
}

func (s shelf[T]) near(list []T, set labels.Set) []T {
	if len(s) == 0 {
		return list
	}
	list = append(list, s[anchor{}]...)
	for key, value := range set {
		list = append(list, s[anchor{key, value}]...)
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

// candidates lists the labels that a counter with these namespaces and this anchor may look at.
func (s *Snapshot) candidates(namespaces []string, a anchor) []*podLabels {
	var list []*podLabels
	if len(namespaces) == 0 {
		for _, ns := range s.namespaces {
			list = ns.candidates(list, a)
		}
		return list
	}
	for _, name := range namespaces {
		list = s.namespace(name).candidates(list, a)
	}
	return list
}

func (ns *namespace) candidates(list []*podLabels, a anchor) []*podLabels {
	if a != (anchor{}) {
		return append(list, ns.carrying[a]...)
	}
	for _, l := range ns.pods {
		list = append(list, l)
	}
	return list
}

// add records labels that are new in the namespace.
func (ns *namespace) add(l *podLabels) {
	ns.pods[l.id] = l
	for key, value := range l.labels {
		a := anchor{key, value}
		ns.carrying[a] = append(ns.carrying[a], l)
	}
}

// sweep drops the labels that no pod carries any more.
func (ns *namespace) sweep() {
	unused := func(l *podLabels) bool { return len(l.pods) == 0 }
	before := len(ns.pods)
	for id, l := range ns.pods {
		if unused(l) {
			delete(ns.pods, id)
		}
	}
	if len(ns.pods) == before {
		return
	}
	for a, list := range ns.carrying {
		if list = slices.DeleteFunc(list, unused); len(list) == 0 {
			delete(ns.carrying, a)
		} else {
			ns.carrying[a] = list
		}
	}
}
