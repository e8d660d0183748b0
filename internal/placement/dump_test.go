package placement

import (
	"fmt"
	"slices"
	"strings"
)

// dump writes the whole logical state of a snapshot, pods in the order of their nodes' lists, so that two states can be
// compared as texts. Domains, slots and caches, which may differ between equal states, are written by their meaning.
func (s *Snapshot) dump(ordered bool) string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for name, n := range s.nodeByName {
		var pods []string
		for i, p := range n.pods {
			if int(p.place) != i || p.node != n.id {
				add("CORRUPT place of %s", p.key)
			}
			pods = append(pods, fmt.Sprintf("%s/%t", p.key, p.moved))
		}
		if !ordered {
			slices.Sort(pods)
		}
		used := map[string]int64{}
		for r, value := range n.used {
			if value != 0 {
				used[string(s.resources.names[r])] = value
			}
		}
		volumes := map[string]int32{}
		for c, count := range n.volumePods {
			var e encoder // class keys hold the numbers of interned resources, which differ between snapshots
			c.volumes.encode(&e)
			volumes[e.key()] += count
		}
		add("node %s out=%t used=%v ports=%v volumes=%q pods=%v", name, n.out, used, n.ports, volumes, pods)
	}
	domains := func(t *tally) map[string]int32 {
		counts := map[string]int32{}
		for d, count := range t.count {
			if count != 0 {
				counts[t.key.values[d]] = count
			}
		}
		return counts
	}
	for id, a := range s.attractions.byID {
		add("attraction %q %v %d", id, domains(&a.tally), a.total)
	}
	for id, r := range s.repulsions.byID {
		add("repulsion %q %v %d", id, domains(&r.tally), r.total)
	}
	for id, sp := range s.spreads.byID {
		add("spread %q %v %d min=%d of %d", id, domains(&sp.tally), sp.total, sp.histogram.min, sp.histogram.members)
	}
	for id, e := range s.eligibilities {
		nodes := map[string]int32{}
		for d, count := range e.nodes {
			if count != 0 {
				nodes[e.key.values[d]] = count
			}
		}
		add("eligibility %q %v %d", id, nodes, e.domains)
	}
	for key, p := range s.pods {
		_, pending := s.pending[p]
		add("pod %s pending=%t home=%s moved=%t", key, pending, p.nodeName, p.moved)
	}
	add("claims %v", s.storage.inUse)
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
