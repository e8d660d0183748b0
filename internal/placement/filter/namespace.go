package filter

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// Namespace holds what selectors of pods read from a namespace.
type Namespace struct {
	Name   string
	Exists bool // the Namespace object exists
	Labels labels.Set

	LabelSets         map[string]*PodLabels // by ID
	LabelSetsByAnchor map[RequiredLabel][]*PodLabels
}

// PodLabels is one set of labels in one namespace, shared by all pods with these labels. It lists the counters that
// count these pods.
type PodLabels struct {
	Namespace *Namespace
	Labels    labels.Set
	ID        string
	Pods      []*Pod

	AffinityCounters             []*AffinityCounter
	SpreadCounters               []*SpreadCounter
	ExistingAntiAffinityCounters []*ExistingAntiAffinityCounter // anti-affinity terms of placed pods that concern a new pod with these labels
}

// AppendCandidateLabelSets appends the label sets that can match a selector with this required label.
func (ns *Namespace) AppendCandidateLabelSets(list []*PodLabels, required RequiredLabel) []*PodLabels {
	if required != (RequiredLabel{}) {
		return append(list, ns.LabelSetsByAnchor[required]...)
	}
	for _, l := range ns.LabelSets {
		list = append(list, l)
	}
	return list
}

// AddLabelSet records a new label set of the namespace.
func (ns *Namespace) AddLabelSet(l *PodLabels) {
	ns.LabelSets[l.ID] = l
	for key, value := range l.Labels {
		a := RequiredLabel{key, value}
		ns.LabelSetsByAnchor[a] = append(ns.LabelSetsByAnchor[a], l)
	}
}

// DropUnusedLabelSets drops the label sets that no pod has.
func (ns *Namespace) DropUnusedLabelSets() {
	unused := func(l *PodLabels) bool { return len(l.Pods) == 0 }
	before := len(ns.LabelSets)
	for id, l := range ns.LabelSets {
		if unused(l) {
			delete(ns.LabelSets, id)
		}
	}
	if len(ns.LabelSets) == before {
		return
	}
	for a, list := range ns.LabelSetsByAnchor {
		if list = slices.DeleteFunc(list, unused); len(list) == 0 {
			delete(ns.LabelSetsByAnchor, a)
		} else {
			ns.LabelSetsByAnchor[a] = list
		}
	}
}

// RequiredLabel is a label that every match of a selector must have. It serves as an index between selectors and label
// sets. The zero RequiredLabel means that the selector requires no single value of any label.
type RequiredLabel struct{ Key, Value string }

// FindRequiredLabel returns a label that the selector requires, or the zero RequiredLabel.
func FindRequiredLabel(s labels.Selector) RequiredLabel {
	requirements, selectable := s.Requirements()
	if !selectable {
		return RequiredLabel{}
	}
	for i := range requirements {
		r := &requirements[i]
		switch r.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			if values := r.ValuesUnsorted(); len(values) == 1 {
				return RequiredLabel{r.Key(), values[0]}
			}
		}
	}
	return RequiredLabel{}
}

// FindFirstRequiredLabel returns a label that at least one of the terms requires, or the zero RequiredLabel.
func FindFirstRequiredLabel(terms []*PodTerm) RequiredLabel {
	for _, t := range terms {
		if t.RequiredLabel != (RequiredLabel{}) {
			return t.RequiredLabel
		}
	}
	return RequiredLabel{}
}
