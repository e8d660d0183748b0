package placement

import (
	"k8s.io/apimachinery/pkg/labels"
)

// none stands for no node, no domain, no position.
const none int32 = -1

// topologyKey is a node label by which pods are spread or kept together. Its values are interned as domains.
type topologyKey struct {
	name     string
	domains  map[string]int32
	values   []string
	domainOf []int32 // by node; none when the node has no such label
}

func (k *topologyKey) domain(value string) int32 {
	d, ok := k.domains[value]
	if !ok {
		d = int32(len(k.values))
		k.domains[value] = d
		k.values = append(k.values, value)
	}
	return d
}

// setNode records the domain of a node from its labels.
func (k *topologyKey) setNode(n int32, nodeLabels map[string]string) {
	for int(n) >= len(k.domainOf) {
		k.domainOf = append(k.domainOf, none)
	}
	k.domainOf[n] = none
	if value, ok := nodeLabels[k.name]; ok {
		k.domainOf[n] = k.domain(value)
	}
}

// tally counts pods per domain of a key.
type tally struct {
	key   *topologyKey
	count []int32 // by domain; domains beyond its end count zero
	total int64   // over all domains
}

func (t *tally) in(domain int32) int32 {
	if int(domain) < len(t.count) {
		return t.count[domain]
	}
	return 0
}

// add counts a pod on a node; nodes without the key are not counted.
func (t *tally) add(n, sign int32) {
	d := t.key.domainOf[n]
	if d == none {
		return
	}
	t.count = grow(t.count, d)
	t.count[d] += sign
	t.total += int64(sign)
}

func grow(s []int32, i int32) []int32 {
	for int(i) >= len(s) {
		s = append(s, 0)
	}
	return s
}

// podTerm is a compiled pod affinity term without its topology key.
type podTerm struct {
	key        string
	namespaces map[string]bool
	nsSelector labels.Selector
	selector   labels.Selector
	anchor     anchor // of selector
	// selectsUnlabelled: nsSelector matches a namespace without labels.
	selectsUnlabelled bool
	// reach lists the namespaces that the term can look at; nil when a namespace selector decides.
	reach []string
}

// selects reports whether the term, being one of the pod to be placed, selects pods with these labels. The scheduler
// unrolls the namespace selector over the namespaces it knows, and tests it once more against no labels at all: a
// selector of negative requirements therefore selects pods of every namespace.
func (t *podTerm) selects(l *podLabels) bool {
	ns := t.namespaces[l.namespace.name] || t.selectsUnlabelled ||
		l.namespace.known && t.nsSelector.Matches(l.namespace.labels)
	return ns && t.selector.Matches(l.labels)
}

// repels reports whether the term, being an anti-affinity term of a pod already placed, concerns a pod with these
// labels. A namespace that is not known counts as one without labels.
func (t *podTerm) repels(l *podLabels) bool {
	ns := t.namespaces[l.namespace.name] || t.nsSelector.Matches(l.namespace.labels)
	return ns && t.selector.Matches(l.labels)
}

// attraction counts, per domain, the pods that all of its terms select. It serves the affinity of a pod to be placed
// (all of its terms at once) and its anti-affinity (one term at a time).
type attraction struct {
	tally
	id      string
	terms   []*podTerm
	readers []*class
}

func (a *attraction) selects(l *podLabels) bool {
	for _, t := range a.terms {
		if !t.selects(l) {
			return false
		}
	}
	return true
}

// repulsion counts, per domain, the placed pods that carry one anti-affinity term.
type repulsion struct {
	tally
	id   string
	term *podTerm
}

// eligibility is the set of nodes that topology spreading looks at for one topology key: they carry all keys of the
// pod's constraints and pass the inclusion policies.
type eligibility struct {
	id       string
	key      *topologyKey
	required []*topologyKey
	filter   *nodeFilter // whose affinity and tolerations the policies compare
	affinity bool        // nodeAffinityPolicy: Honor
	taints   bool        // nodeTaintsPolicy: Honor
	eligible []bool      // by node
	nodes    []int32     // eligible nodes per domain
	domains  int32       // domains with at least one eligible node
	spreads  []*spread
}

// admits judges a node by its object; it is asked once per node and change of the node.
func (e *eligibility) admits(n *node) bool {
	for _, k := range e.required {
		if k.domainOf[n.id] == none {
			return false
		}
	}
	if e.affinity && !e.filter.matchesAffinity(n) {
		return false
	}
	return !e.taints || e.filter.untolerated(n) == nil
}

// enter and leave keep the number of eligible nodes per domain. A domain that gains its first or loses its last one
// joins or leaves the minimum of every spread.
func (e *eligibility) enter(d int32) {
	e.nodes = grow(e.nodes, d)
	e.nodes[d]++
	if e.nodes[d] == 1 {
		e.domains++
		for _, s := range e.spreads {
			s.histogram.join(s.in(d))
		}
	}
}

func (e *eligibility) leave(d int32) {
	e.nodes[d]--
	if e.nodes[d] == 0 {
		e.domains--
		for _, s := range e.spreads {
			s.histogram.leave(s.in(d))
		}
	}
}

// spread counts, per domain, the pods of one namespace that a selector matches on eligible nodes, and knows the minimum.
type spread struct {
	tally
	id          string
	eligibility *eligibility
	namespace   *namespace
	selector    labels.Selector
	histogram   histogram
	readers     []*class
}

// counts reports whether pods with these labels are counted. An empty selector counts nothing, though it matches.
func (s *spread) counts(l *podLabels) bool {
	return l.namespace == s.namespace && !s.selector.Empty() && s.selector.Matches(l.labels)
}

// add counts a pod on a node if the node is eligible.
func (s *spread) add(n, sign int32) {
	if !s.eligibility.eligible[n] {
		return
	}
	d := s.key.domainOf[n]
	before := s.in(d)
	s.tally.add(n, sign)
	if s.eligibility.nodes[d] > 0 {
		s.histogram.leave(before)
		s.histogram.join(before + sign)
	}
}

// histogram holds how many domains have which count, and from it the smallest count.
type histogram struct {
	domains []int32 // by count
	members int32
	min     int32
}

func (h *histogram) join(count int32) {
	h.domains = grow(h.domains, count)
	h.domains[count]++
	h.members++
	if h.members == 1 || count < h.min {
		h.min = count
	}
}

func (h *histogram) leave(count int32) {
	h.domains[count]--
	h.members--
	if h.members == 0 {
		h.min = 0
		return
	}
	for h.domains[h.min] == 0 {
		h.min++
	}
}

// namespace is what pods' selectors read of a namespace.
type namespace struct {
	name   string
	known  bool // a Namespace object exists
	labels labels.Set

	pods     map[string]*podLabels // by id
	carrying map[anchor][]*podLabels
}

// podLabels is one set of labels in one namespace, shared by all pods that carry it, with everything that counts them.
type podLabels struct {
	namespace *namespace
	labels    labels.Set
	id        string
	pods      []*pod

	attractions []*attraction
	spreads     []*spread
	repulsions  []*repulsion // terms that concern a pod to be placed with these labels

	budgets   []*budget // that select these labels
	budgetsAt uint64    // the change of budgets at which they were looked up
}
