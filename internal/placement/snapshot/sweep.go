package snapshot

import (
	"maps"
	"slices"

	"github.com/slipway-dev/slipway/internal/placement/filter"
)

// isSweepDue reports whether about half of the classes are unused. The cost of a sweep is proportional to what it
// keeps. Spread over the deletions before it, that is proportional to the events.
func (x *index) isSweepDue() bool { return x.unusedClasses > 1024+len(x.classes)/2 }

// dropUnusedClasses drops classes without pods, and the labels, filters, terms and counters that only they used. It frees topology
// domains without nodes. It returns the IDs of the dropped classes.
func (x *index) dropUnusedClasses() (droppedClassIDs []int32) {
	x.unusedClasses = 0
	filters := map[*filter.NodeFilter]bool{}
	attractions := map[*filter.AffinityCounter]bool{}
	repulsions := map[*filter.ExistingAntiAffinityCounter]bool{}
	spreads := map[*filter.SpreadCounter]bool{}
	for key, c := range x.classes {
		if c.PodCount == 0 {
			delete(x.classes, key)
			x.ids.releaseID(c.ID)
			droppedClassIDs = append(droppedClassIDs, c.ID)
			continue
		}
		filters[c.Filter] = true
		for _, a := range slices.Concat(c.AffinityCounters, c.AntiAffinityCounters) {
			attractions[a] = true
		}
		for _, r := range c.ExistingAntiAffinityCounters {
			repulsions[r] = true
		}
		for i := range c.SpreadConstraints {
			spreads[c.SpreadConstraints[i].Counter] = true
			filters[c.SpreadConstraints[i].Counter.EligibleNodes.Filter] = true
		}
	}
	for key, f := range x.filters {
		if !filters[f] {
			delete(x.filters, key)
		}
	}
	x.attractions.dropUnusedCounters(attractions)
	x.repulsions.dropUnusedCounters(repulsions)
	x.spreads.dropUnusedCounters(spreads)
	x.dropUnusedEligibilities(spreads)
	x.dropUnusedLabelsAndCounters(attractions, repulsions, spreads)
	x.dropUnusedTerms()
	for _, k := range x.keys {
		k.FreeUnusedDomains()
	}
	return droppedClassIDs
}

func (x *index) dropUnusedTerms() {
	used := map[*filter.PodTerm]bool{}
	for _, a := range x.attractions.byID {
		for _, t := range a.Terms {
			used[t] = true
		}
	}
	for _, r := range x.repulsions.byID {
		used[r.Term] = true
	}
	maps.DeleteFunc(x.terms, func(_ string, t *filter.PodTerm) bool { return !used[t] })
}

func (x *index) dropUnusedEligibilities(used map[*filter.SpreadCounter]bool) {
	for id, e := range x.eligibilities {
		e.SpreadCounters = slices.DeleteFunc(e.SpreadCounters, func(sp *filter.SpreadCounter) bool { return !used[sp] })
		if len(e.SpreadCounters) == 0 {
			delete(x.eligibilities, id)
		}
	}
}

func (x *index) dropUnusedLabelsAndCounters(attractions map[*filter.AffinityCounter]bool, repulsions map[*filter.ExistingAntiAffinityCounter]bool, spreads map[*filter.SpreadCounter]bool) {
	for name, ns := range x.namespaces {
		ns.DropUnusedLabelSets()
		for _, l := range ns.LabelSets {
			l.AffinityCounters = slices.DeleteFunc(l.AffinityCounters, func(a *filter.AffinityCounter) bool { return !attractions[a] })
			l.ExistingAntiAffinityCounters = slices.DeleteFunc(l.ExistingAntiAffinityCounters, func(r *filter.ExistingAntiAffinityCounter) bool { return !repulsions[r] })
			l.SpreadCounters = slices.DeleteFunc(l.SpreadCounters, func(sp *filter.SpreadCounter) bool { return !spreads[sp] })
		}
		if len(ns.LabelSets) == 0 && !ns.Exists {
			delete(x.namespaces, name)
		}
	}
}
