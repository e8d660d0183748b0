package snapshot

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/slipway-dev/slipway/internal/placement/filter"
)

// index interns the classes of the pods and what they share: labels, filters, topologies and counters.
type index struct {
	nodes     *NodeSet
	resources *filter.ResourceTable
	encoder   filter.Encoder

	classes       map[string]*filter.Class
	ids           idPool // of classes
	unusedClasses int    // classes that lost their last pod since the last sweep

	filters       map[string]*filter.NodeFilter
	namespaces    map[string]*filter.Namespace
	keys          map[string]*filter.TopologyKey
	terms         map[string]*filter.PodTerm
	attractions   registry[*filter.Attraction]
	repulsions    registry[*filter.Repulsion]
	spreads       registry[*filter.Spread]
	eligibilities map[string]*filter.Eligibility
}

func newIndex(nodes *NodeSet) index {
	return index{
		nodes: nodes, resources: filter.NewResourceTable(), classes: map[string]*filter.Class{}, filters: map[string]*filter.NodeFilter{},
		namespaces: map[string]*filter.Namespace{}, keys: map[string]*filter.TopologyKey{}, terms: map[string]*filter.PodTerm{},
		attractions: newRegistry[*filter.Attraction](), repulsions: newRegistry[*filter.Repulsion](), spreads: newRegistry[*filter.Spread](),
		eligibilities: map[string]*filter.Eligibility{},
	}
}

// internClass returns the class of a pod, and compiles it if it is new. See ReadNeeds for assigned.
func (x *index) internClass(pod *corev1.Pod, assigned bool) *filter.Class {
	d := filter.ReadNeeds(pod, assigned, x.resources)
	x.encoder.Reset()
	d.Encode(&x.encoder)
	if c, ok := x.classes[string(x.encoder.Bytes())]; ok {
		return c
	}
	c := d.Compile(x.encoder.Key(), x)
	c.ID = x.ids.allocateID()
	x.classes[c.Key] = c
	return c
}

func (x *index) countIfUnused(c *filter.Class) {
	if c.Members == 0 {
		x.unusedClasses++
	}
}

// InternFilter returns the shared filter for the node needs of a pod.
func (x *index) InternFilter(nodeName string, spec *corev1.PodSpec) *filter.NodeFilter {
	var e filter.Encoder
	filter.EncodeNodeNeeds(&e, nodeName, spec)
	if f, ok := x.filters[string(e.Bytes())]; ok {
		return f
	}
	f := filter.NewNodeFilter(nodeName, spec)
	x.filters[f.Key] = f
	return f
}

// InternLabels returns the shared record of a label set. A new record is connected to all counters that count it.
func (x *index) InternLabels(ns string, set map[string]string) *filter.PodLabels {
	var e filter.Encoder
	e.Labels(set)
	space := x.internNamespace(ns)
	if l, ok := space.Pods[string(e.Bytes())]; ok {
		return l
	}
	l := &filter.PodLabels{Namespace: space, Labels: set, ID: e.Key()}
	space.Add(l)
	x.connectCounters(l)
	return l
}

// connectCounters finds the counters that count these labels.
func (x *index) connectCounters(l *filter.PodLabels) {
	l.Attractions, l.Spreads, l.Repulsions = nil, nil, nil
	for _, a := range x.attractions.listMatching(l) {
		if a.Selects(l) {
			l.Attractions = append(l.Attractions, a)
		}
	}
	for _, sp := range x.spreads.listMatching(l) {
		if sp.Counts(l) {
			l.Spreads = append(l.Spreads, sp)
		}
	}
	for _, r := range x.repulsions.listMatching(l) {
		if r.Term.Repels(l) {
			l.Repulsions = append(l.Repulsions, r)
		}
	}
}

// InternTerm returns the shared compiled form of a pod affinity term, for a pod in namespace ns.
func (x *index) InternTerm(ns string, t *corev1.PodAffinityTerm) (*filter.PodTerm, error) {
	namespaces := t.Namespaces
	if len(namespaces) == 0 && t.NamespaceSelector == nil {
		namespaces = []string{ns}
	}
	var e filter.Encoder
	e.Texts(namespaces)
	e.LabelSelector(t.LabelSelector)
	e.LabelSelector(t.NamespaceSelector)
	if term, ok := x.terms[string(e.Bytes())]; ok {
		return term, nil
	}
	term, err := filter.NewPodTerm(e.Key(), namespaces, t)
	if err == nil {
		x.terms[term.Key] = term
	}
	return term, err
}

// InternAttraction returns the shared counter of the pods that all terms select, per domain of a key. A new counter
// includes the placed pods.
func (x *index) InternAttraction(terms []*filter.PodTerm, key *filter.TopologyKey) *filter.Attraction {
	var e filter.Encoder
	e.Text(key.Name)
	for _, t := range terms {
		e.Text(t.Key)
	}
	if a, ok := x.attractions.byID[string(e.Bytes())]; ok {
		return a
	}
	a := &filter.Attraction{Tally: filter.Tally{Key: key}, ID: e.Key(), Terms: terms}
	namespaces, common := terms[0].Reach, filter.AnchorOfAll(terms)
	x.attractions.add(a.ID, a, namespaces, common)
	for _, l := range x.listCandidateLabels(namespaces, common) {
		if a.Selects(l) {
			l.Attractions = append(l.Attractions, a)
			for _, p := range l.Pods {
				if p.Node != filter.None {
					a.Add(p.Node, 1)
				}
			}
		}
	}
	return a
}

// InternRepulsion returns the shared counter of the pods that have an anti-affinity term, per domain of a key. A new
// counter starts at zero: pods with the term belong to classes with this counter, and their first class is being
// compiled.
func (x *index) InternRepulsion(term *filter.PodTerm, key *filter.TopologyKey) *filter.Repulsion {
	var e filter.Encoder
	e.Text(key.Name)
	e.Text(term.Key)
	if r, ok := x.repulsions.byID[string(e.Bytes())]; ok {
		return r
	}
	r := &filter.Repulsion{Tally: filter.Tally{Key: key}, ID: e.Key(), Term: term}
	x.repulsions.add(r.ID, r, term.Reach, term.Anchor)
	for _, l := range x.listCandidateLabels(term.Reach, term.Anchor) {
		if term.Repels(l) {
			l.Repulsions = append(l.Repulsions, r)
		}
	}
	return r
}

// InternKey returns the shared record of a topology key, with the domain of every node.
func (x *index) InternKey(name string) *filter.TopologyKey {
	k, ok := x.keys[name]
	if !ok {
		k = &filter.TopologyKey{Name: name, Domains: map[string]int32{}}
		x.keys[name] = k
		for _, n := range x.nodes.slots {
			k.DomainOf = append(k.DomainOf, filter.None)
			if n.Present {
				k.SetNode(n.ID, n.Object.Labels)
			}
		}
	}
	return k
}

// InternEligibility returns the shared set of nodes that topology spreading over a key considers. affinity and taints
// say whether the pod's node affinity and tolerations are honored.
func (x *index) InternEligibility(key *filter.TopologyKey, required []*filter.TopologyKey, f *filter.NodeFilter,
	affinity, taints bool,
) *filter.Eligibility {
	var enc filter.Encoder
	enc.Text(key.Name)
	for _, k := range required {
		enc.Text(k.Name)
	}
	enc.Count(0)
	enc.Flag(affinity)
	if affinity {
		enc.Text(f.AffinityKey)
	}
	enc.Flag(taints)
	if taints {
		enc.Text(f.TolerationKey)
	}
	if e, ok := x.eligibilities[string(enc.Bytes())]; ok {
		return e
	}
	e := filter.NewEligibility(enc.Key(), key, required, f, affinity, taints)
	x.eligibilities[e.ID] = e
	for _, n := range x.nodes.slots {
		if n.Present {
			e.AddNode(n)
		}
	}
	return e
}

// InternSpread returns the shared counter of the pods that a selector matches. selectorKey identifies the selector.
func (x *index) InternSpread(e *filter.Eligibility, ns *filter.Namespace, selector labels.Selector, selectorKey string) *filter.Spread {
	var enc filter.Encoder
	enc.Text(e.ID)
	enc.Text(ns.Name)
	enc.Text(selectorKey)
	if sp, ok := x.spreads.byID[string(enc.Bytes())]; ok {
		return sp
	}
	sp := filter.NewSpread(enc.Key(), e, ns, selector)
	at := filter.AnchorOf(selector)
	x.spreads.add(sp.ID, sp, []string{ns.Name}, at)
	for _, l := range ns.Candidates(nil, at) {
		if sp.Counts(l) {
			l.Spreads = append(l.Spreads, sp)
			for _, p := range l.Pods {
				if p.Node != filter.None && !p.Terminating {
					sp.Add(p.Node, 1)
				}
			}
		}
	}
	return sp
}

// internNamespace returns the record of a namespace, and creates it if it is new.
func (x *index) internNamespace(name string) *filter.Namespace {
	ns, ok := x.namespaces[name]
	if !ok {
		ns = &filter.Namespace{Name: name, Pods: map[string]*filter.PodLabels{}, Carrying: map[filter.Anchor][]*filter.PodLabels{}}
		x.namespaces[name] = ns
	}
	return ns
}

// listCandidateLabels lists the label sets that a counter with these namespaces and this anchor can match.
func (x *index) listCandidateLabels(namespaces []string, a filter.Anchor) []*filter.PodLabels {
	var list []*filter.PodLabels
	if len(namespaces) == 0 {
		for _, ns := range x.namespaces {
			list = ns.Candidates(list, a)
		}
		return list
	}
	for _, name := range namespaces {
		list = x.internNamespace(name).Candidates(list, a)
	}
	return list
}

// addToTopologies sets the node's domains and evaluates its eligibility.
func (x *index) addToTopologies(n *filter.Node) {
	for _, k := range x.keys {
		k.SetNode(n.ID, n.Object.Labels)
	}
	for _, e := range x.eligibilities {
		e.AddNode(n)
	}
}

// removeFromTopologies undoes addToTopologies. No pod of the node may be counted at this point.
func (x *index) removeFromTopologies(n *filter.Node) {
	for _, e := range x.eligibilities {
		e.RemoveNode(n)
	}
	for _, k := range x.keys {
		k.DomainOf[n.ID] = filter.None
	}
}

func (x *index) forgetNodeVerdicts(n *filter.Node) {
	for _, f := range x.filters {
		f.Forget(n.ID)
	}
}

// setNamespaceLabels stores the labels of a namespace. If they have changed, its pods are counted again.
func (x *index) setNamespaceLabels(name string, known bool, set map[string]string) {
	ns := x.internNamespace(name)
	if ns.Known == known && labels.Equals(ns.Labels, set) {
		return
	}
	filter.CountPlaced(ns, -1)
	ns.Known, ns.Labels = known, set
	for _, l := range ns.Pods {
		x.connectCounters(l)
	}
	filter.CountPlaced(ns, 1)
}
