package filter

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// Namespace holds what selectors of pods read from a namespace.
type Namespace struct {
	Name   string
	Known  bool // the Namespace object exists
	Labels labels.Set

	Pods     map[string]*PodLabels // by ID
	Carrying map[Anchor][]*PodLabels
}

// PodLabels is one set of labels in one namespace, shared by all pods with these labels. It lists the counters that
// count these pods.
type PodLabels struct {
	Namespace *Namespace
	Labels    labels.Set
	ID        string
	Pods      []*Pod

	Attractions []*Attraction
	Spreads     []*Spread
	Repulsions  []*Repulsion // anti-affinity terms of placed pods that concern a new pod with these labels
}

// Candidates appends the label sets that a selector with this anchor can match.
func (ns *Namespace) Candidates(list []*PodLabels, a Anchor) []*PodLabels {
	if a != (Anchor{}) {
		return append(list, ns.Carrying[a]...)
	}
	for _, l := range ns.Pods {
		list = append(list, l)
	}
	return list
}

// Add records a new label set of the namespace.
func (ns *Namespace) Add(l *PodLabels) {
	ns.Pods[l.ID] = l
	for key, value := range l.Labels {
		a := Anchor{key, value}
		ns.Carrying[a] = append(ns.Carrying[a], l)
	}
}

// Sweep drops the label sets that no pod has.
func (ns *Namespace) Sweep() {
	unused := func(l *PodLabels) bool { return len(l.Pods) == 0 }
	before := len(ns.Pods)
	for id, l := range ns.Pods {
		if unused(l) {
			delete(ns.Pods, id)
		}
	}
	if len(ns.Pods) == before {
		return
	}
	for a, list := range ns.Carrying {
		if list = slices.DeleteFunc(list, unused); len(list) == 0 {
			delete(ns.Carrying, a)
		} else {
			ns.Carrying[a] = list
		}
	}
}

// Anchor is a label that every match of a selector must have. It serves as an index between selectors and label sets.
// The zero Anchor means that the selector requires no single value of any label.
type Anchor struct{ Key, Value string }

// AnchorOf returns a label that the selector requires, or the zero Anchor.
func AnchorOf(s labels.Selector) Anchor {
	requirements, selectable := s.Requirements()
	if !selectable {
		return Anchor{}
	}
	for i := range requirements {
		r := &requirements[i]
		switch r.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			if values := r.ValuesUnsorted(); len(values) == 1 {
				return Anchor{r.Key(), values[0]}
			}
		}
	}
	return Anchor{}
}

// AnchorOfAll returns a label that at least one of the terms requires, or the zero Anchor.
func AnchorOfAll(terms []*PodTerm) Anchor {
	for _, t := range terms {
		if t.Anchor != (Anchor{}) {
			return t.Anchor
		}
	}
	return Anchor{}
}
