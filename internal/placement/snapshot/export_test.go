package snapshot

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// Dump writes the logical state of a snapshot as text, so that tests can compare two states. Pods come in the order
// of their node's list. Domains, slots and caches can differ between equal states, so it writes what they mean.
func (s *Snapshot) Dump(ordered bool) string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for name, n := range s.Nodes.byName {
		var pods []string
		for i, p := range n.Pods {
			if int(p.IndexInNode) != i || p.Node != n.ID {
				add("CORRUPT place of %s", p.Key)
			}
			pods = append(pods, fmt.Sprintf("%s/%t", p.Key, p.IsMovedByPlan()))
		}
		if !ordered {
			slices.Sort(pods)
		}
		used := map[string]int64{}
		for r, value := range n.Used {
			if value != 0 {
				used[field(s.Filters.Resources, "names").Index(r).String()] = value
			}
		}
		volumes := map[string]int64{}
		for c, count := range field(n, "volumePods").Seq2() {
			v := c.Elem().FieldByName("volumes").Elem()
			volumes[fmt.Sprint(v.FieldByName("claims"), v.FieldByName("inTree"), v.FieldByName("disks").Len())] += count.Int()
		}
		add("node %s out=%t used=%v ports=%v volumes=%v pods=%v", name, n.RemovedByPlan, used, field(n, "ports"), volumes, pods)
	}
	for id, a := range s.index.attractions.byID {
		add("attraction %q %v %v", id, domains(a, "count"), field(a, "total"))
	}
	for id, r := range s.index.repulsions.byID {
		add("repulsion %q %v %v", id, domains(r, "count"), field(r, "total"))
	}
	for id, sp := range s.index.spreads.byID {
		h := field(sp, "histogram")
		add("spread %q %v %v min=%v of %v", id, domains(sp, "count"), field(sp, "total"), h.FieldByName("min"), h.FieldByName("domainCount"))
	}
	for id, e := range s.index.eligibilities {
		add("eligibility %q %v %v", id, domains(e, "nodesPerDomain"), field(e, "domains"))
	}
	for key, p := range s.pods {
		_, pending := s.pending[p]
		add("pod %s pending=%t home=%s moved=%t", key, pending, p.NodeName, p.IsMovedByPlan())
	}
	add("claims %v", field(&s.Storage, "podsPerClaim"))
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// field reads an unexported field of a type in another package.
func field(of any, name string) reflect.Value { return reflect.ValueOf(of).Elem().FieldByName(name) }

// domains returns the counts that are not zero, by the value of the topology key.
func domains(counter any, counts string) map[string]int64 {
	found := map[string]int64{}
	key := field(counter, "Key")
	if !key.IsValid() {
		key = field(counter, "key")
	}
	for d := range field(counter, counts).Len() {
		if count := field(counter, counts).Index(d).Int(); count != 0 {
			found[key.Elem().FieldByName("values").Index(d).String()] = count
		}
	}
	return found
}

// SweepUnused drops unused classes, labels, filters and counters.
func (s *Snapshot) SweepUnused() { s.index.dropUnusedClasses() }

// DomainNumbers returns how many numbers the domains of a topology key have used.
func (s *Snapshot) DomainNumbers(key string) int { return field(s.index.keys[key], "values").Len() }

// TermCount returns the number of pod affinity terms.
func (s *Snapshot) TermCount() int { return len(s.index.terms) }

// UndoLogSize returns the number of entries in the undo log and the number of open forks.
func (s *Snapshot) UndoLogSize() (changes, open int) { return len(s.journal.changes), s.journal.forks }

// KnownNamespaces returns the labels of the namespaces that have a Namespace object.
func (s *Snapshot) KnownNamespaces() map[string]labels.Set {
	known := map[string]labels.Set{}
	for name, ns := range s.index.namespaces {
		if ns.Exists {
			known[name] = ns.Labels
		}
	}
	return known
}
