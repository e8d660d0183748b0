package placement

import "slices"

// sweepIfWorthIt drops what no pod uses any more, once that is about as much as what is used. The work is proportional
// to what is kept, and so, spread over the deletions that led to it, to the events.
func (s *Snapshot) sweepIfWorthIt() {
	if s.garbage > 1024+len(s.classes)/2 {
		s.sweep()
	}
}

// sweep drops classes without pods, and the labels, filters and counters that only they used.
func (s *Snapshot) sweep() {
	s.garbage = 0
	filters := map[*nodeFilter]bool{}
	attractions := map[*attraction]bool{}
	repulsions := map[*repulsion]bool{}
	spreads := map[*spread]bool{}
	for key, c := range s.classes {
		if c.members == 0 {
			delete(s.classes, key)
			continue
		}
		filters[c.filter] = true
		for _, a := range slices.Concat(c.affinity, c.antiAffinity) {
			attractions[a] = true
		}
		for _, r := range c.repulsions {
			repulsions[r] = true
		}
		for i := range c.spreads {
			spreads[c.spreads[i].spread] = true
			filters[c.spreads[i].spread.eligibility.filter] = true
		}
	}
	for key, f := range s.filters {
		if !filters[f] {
			delete(s.filters, key)
		}
	}
	s.attractions.keep(attractions)
	s.repulsions.keep(repulsions)
	s.spreads.keep(spreads)
	for a := range attractions {
		a.readers = slices.DeleteFunc(a.readers, unread)
	}
	for sp := range spreads {
		sp.readers = slices.DeleteFunc(sp.readers, unread)
	}
	s.sweepEligibilities(spreads)
	s.sweepLabels(attractions, repulsions, spreads)
}

func unread(c *class) bool { return c.members == 0 }

func (s *Snapshot) sweepEligibilities(used map[*spread]bool) {
	for id, e := range s.eligibilities {
		e.spreads = slices.DeleteFunc(e.spreads, func(sp *spread) bool { return !used[sp] })
		if len(e.spreads) == 0 {
			delete(s.eligibilities, id)
		}
	}
}

func (s *Snapshot) sweepLabels(attractions map[*attraction]bool, repulsions map[*repulsion]bool, spreads map[*spread]bool) {
	for name, ns := range s.namespaces {
		ns.sweep()
		for _, l := range ns.pods {
			l.attractions = slices.DeleteFunc(l.attractions, func(a *attraction) bool { return !attractions[a] })
			l.repulsions = slices.DeleteFunc(l.repulsions, func(r *repulsion) bool { return !repulsions[r] })
			l.spreads = slices.DeleteFunc(l.spreads, func(sp *spread) bool { return !spreads[sp] })
		}
		if len(ns.pods) == 0 && !ns.known {
			delete(s.namespaces, name)
		}
	}
}
