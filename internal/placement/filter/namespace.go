package filter

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// Namespace is what pods' selectors read of a namespace.
type Namespace struct {
	Name   string
	Known  bool // a Namespace object exists
	Labels labels.Set

	Pods     map[string]*PodLabels // by id
	Carrying map[Anchor][]*PodLabels
}

// PodLabels is one set of labels in one namespace, shared by all pods that carry it, with everything that counts them.
type PodLabels struct {
	Namespace *Namespace
	Labels    labels.Set
	ID        string
	Pods      []*Pod

	Attractions []*Attraction
	Spreads     []*Spread
	Repulsions  []*Repulsion // terms that concern a pod to be placed with these labels
}

// Candidates appends the labels that a selector with an anchor may match.
func (ns *Namespace) Candidates(list []*PodLabels, a Anchor) []*PodLabels {
	if a != (Anchor{}) {
		return append(list, ns.Carrying[a]...)
	}
	for _, l := range ns.Pods {
		list = append(list, l)
	}
	return list
}

// Add records labels that are new in the namespace.
func (ns *Namespace) Add(l *PodLabels) {
	ns.Pods[l.ID] = l
	for key, value := range l.Labels {
		a := Anchor{key, value}
		ns.Carrying[a] = append(ns.Carrying[a], l)
	}
}

// Sweep drops the labels that no pod carries any more.
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

// Anchor is a label that whatever a selector matches has to carry. By it the selectors that a set of labels may match,
// and the sets that a selector may match, are found without trying all. The zero anchor is that of a selector which
// demands no certain value of any label.
type Anchor struct{ Key, Value string }

// AnchorOf returns an anchor of a selector.
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

// AnchorOfAll is an anchor of what every term selects.
func AnchorOfAll(terms []*PodTerm) Anchor {
	for _, t := range terms {
		if t.Anchor != (Anchor{}) {
			return t.Anchor
		}
	}
	return Anchor{}
}
