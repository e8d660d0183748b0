package snapshot

import (
	"slices"

	"github.com/slipway-dev/slipway/internal/placement/filter"
)

// isSweepDue reports whether about half of the classes are unused. The cost of a sweep is proportional to what it
// keeps. Spread over the deletions before it, that is proportional to the events.
func (x *index) isSweepDue() bool { return x.unusedClasses > 1024+len(x.classes)/2 }

// sweepUnused drops classes without pods, and the labels, filters and counters that only they used. It returns the
// IDs of the dropped classes.
func (x *index) sweepUnused() (freed []int32) {
	x.unusedClasses = 0
	filters := map[*filter.NodeFilter]bool{}
	attractions := map[*filter.Attraction]bool{}
	repulsions := map[*filter.Repulsion]bool{}
	spreads := map[*filter.Spread]bool{}
	for key, c := range x.classes {
		if c.Members == 0 {
			delete(x.classes, key)
			x.ids.releaseID(c.ID)
			freed = append(freed, c.ID)
			continue
		}
		filters[c.Filter] = true
		for _, a := range slices.Concat(c.Affinity, c.AntiAffinity) {
			attractions[a] = true
		}
		for _, r := range c.Repulsions {
			repulsions[r] = true
		}
		for i := range c.Spreads {
			spreads[c.Spreads[i].Spread] = true
			filters[c.Spreads[i].Spread.Eligibility.Filter] = true
		}
	}
	for key, f := range x.filters {
		if !filters[f] {
			delete(x.filters, key)
		}
	}
	x.attractions.keepUsed(attractions)
	x.repulsions.keepUsed(repulsions)
	x.spreads.keepUsed(spreads)
	for a := range attractions {
		a.Readers = slices.DeleteFunc(a.Readers, isUnused)
	}
	for sp := range spreads {
		sp.Readers = slices.DeleteFunc(sp.Readers, isUnused)
	}
	x.sweepEligibilities(spreads)
	x.sweepLabels(attractions, repulsions, spreads)
	return freed
}

func isUnused(c *filter.Class) bool { return c.Members == 0 }

func (x *index) sweepEligibilities(used map[*filter.Spread]bool) {
	for id, e := range x.eligibilities {
		e.Spreads = slices.DeleteFunc(e.Spreads, func(sp *filter.Spread) bool { return !used[sp] })
		if len(e.Spreads) == 0 {
			delete(x.eligibilities, id)
		}
	}
}

func (x *index) sweepLabels(attractions map[*filter.Attraction]bool, repulsions map[*filter.Repulsion]bool, spreads map[*filter.Spread]bool) {
	for name, ns := range x.namespaces {
		ns.Sweep()
		for _, l := range ns.Pods {
			l.Attractions = slices.DeleteFunc(l.Attractions, func(a *filter.Attraction) bool { return !attractions[a] })
			l.Repulsions = slices.DeleteFunc(l.Repulsions, func(r *filter.Repulsion) bool { return !repulsions[r] })
			l.Spreads = slices.DeleteFunc(l.Spreads, func(sp *filter.Spread) bool { return !spreads[sp] })
		}
		if len(ns.Pods) == 0 && !ns.Known {
			delete(x.namespaces, name)
		}
	}
}
