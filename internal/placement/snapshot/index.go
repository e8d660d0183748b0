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
	encoder   filter.KeyEncoder

	classes       map[string]*filter.PodClass
	ids           idPool // of classes
	unusedClasses int    // classes that lost their last pod since the last sweep

	filters       map[string]*filter.NodeFilter
	namespaces    map[string]*filter.Namespace
	keys          map[string]*filter.TopologyKey
	terms         map[string]*filter.PodTerm
	attractions   registry[*filter.AffinityCounter]
	repulsions    registry[*filter.ExistingAntiAffinityCounter]
	spreads       registry[*filter.SpreadCounter]
	eligibilities map[string]*filter.EligibleNodes
}

func newIndex(nodes *NodeSet) index {
	return index{
		nodes: nodes, resources: filter.NewResourceTable(), classes: map[string]*filter.PodClass{}, filters: map[string]*filter.NodeFilter{},
		namespaces: map[string]*filter.Namespace{}, keys: map[string]*filter.TopologyKey{}, terms: map[string]*filter.PodTerm{},
		attractions: newRegistry[*filter.AffinityCounter](), repulsions: newRegistry[*filter.ExistingAntiAffinityCounter](), spreads: newRegistry[*filter.SpreadCounter](),
		eligibilities: map[string]*filter.EligibleNodes{},
	}
}

// internPodClass returns the class of a pod, and compiles it if it is new. See ReadSchedulingNeeds for ignoreNodeName.
func (x *index) internPodClass(pod *corev1.Pod, ignoreNodeName bool) *filter.PodClass {
	d := filter.ReadSchedulingNeeds(pod, ignoreNodeName, x.resources)
	x.encoder.Reset()
	d.WriteKey(&x.encoder)
	if c, ok := x.classes[string(x.encoder.Bytes())]; ok {
		return c
	}
	c := d.CompilePodClass(x.encoder.Key(), x)
	c.ID = x.ids.allocateID()
	x.classes[c.Key] = c
	return c
}

func (x *index) countIfUnused(c *filter.PodClass) {
	if c.PodCount == 0 {
		x.unusedClasses++
	}
}

// InternNodeFilter returns the shared filter for the node needs of a pod.
func (x *index) InternNodeFilter(nodeName string, spec *corev1.PodSpec) *filter.NodeFilter {
	var e filter.KeyEncoder
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
	var e filter.KeyEncoder
	e.WriteLabels(set)
	space := x.internNamespace(ns)
	if l, ok := space.LabelSets[string(e.Bytes())]; ok {
		return l
	}
	l := &filter.PodLabels{Namespace: space, Labels: set, ID: e.Key()}
	space.AddLabelSet(l)
	x.reconnectCounters(l)
	return l
}

// reconnectCounters finds the counters that count these labels.
func (x *index) reconnectCounters(l *filter.PodLabels) {
	l.AffinityCounters, l.SpreadCounters, l.ExistingAntiAffinityCounters = nil, nil, nil
	for _, a := range x.attractions.listMatching(l) {
		if a.SelectsPods(l) {
			l.AffinityCounters = append(l.AffinityCounters, a)
		}
	}
	for _, sp := range x.spreads.listMatching(l) {
		if sp.SelectsPods(l) {
			l.SpreadCounters = append(l.SpreadCounters, sp)
		}
	}
	for _, r := range x.repulsions.listMatching(l) {
		if r.Term.ExcludesNewPod(l) {
			l.ExistingAntiAffinityCounters = append(l.ExistingAntiAffinityCounters, r)
		}
	}
}

// InternPodTerm returns the shared compiled form of a pod affinity term, for a pod in namespace ns.
func (x *index) InternPodTerm(ns string, t *corev1.PodAffinityTerm) (*filter.PodTerm, error) {
	namespaces := t.Namespaces
	if len(namespaces) == 0 && t.NamespaceSelector == nil {
		namespaces = []string{ns}
	}
	var e filter.KeyEncoder
	e.WriteTexts(namespaces)
	e.WriteLabelSelector(t.LabelSelector)
	e.WriteLabelSelector(t.NamespaceSelector)
	if term, ok := x.terms[string(e.Bytes())]; ok {
		return term, nil
	}
	term, err := filter.NewPodTerm(e.Key(), namespaces, t)
	if err == nil {
		x.terms[term.Key] = term
	}
	return term, err
}

// InternAffinityCounter returns the shared counter of the pods that all terms select, per domain of a key. A new counter
// includes the placed pods.
func (x *index) InternAffinityCounter(terms []*filter.PodTerm, key *filter.TopologyKey) *filter.AffinityCounter {
	var e filter.KeyEncoder
	e.WriteText(key.Name)
	for _, t := range terms {
		e.WriteText(t.Key)
	}
	if a, ok := x.attractions.byID[string(e.Bytes())]; ok {
		return a
	}
	a := &filter.AffinityCounter{DomainCounts: filter.DomainCounts{Key: key}, ID: e.Key(), Terms: terms}
	namespaces, common := terms[0].FixedNamespaces, filter.FindFirstRequiredLabel(terms)
	x.attractions.add(a.ID, a, namespaces, common)
	for _, l := range x.listCandidateLabelSets(namespaces, common) {
		if a.SelectsPods(l) {
			l.AffinityCounters = append(l.AffinityCounters, a)
			for _, p := range l.Pods {
				if p.Node != filter.None {
					a.AdjustPodCount(p.Node, 1)
				}
			}
		}
	}
	return a
}

// InternExistingAntiAffinityCounter returns the shared counter of the pods that have an anti-affinity term, per domain of a key. A new
// counter starts at zero: pods with the term belong to classes with this counter, and their first class is being
// compiled.
func (x *index) InternExistingAntiAffinityCounter(term *filter.PodTerm, key *filter.TopologyKey) *filter.ExistingAntiAffinityCounter {
	var e filter.KeyEncoder
	e.WriteText(key.Name)
	e.WriteText(term.Key)
	if r, ok := x.repulsions.byID[string(e.Bytes())]; ok {
		return r
	}
	r := &filter.ExistingAntiAffinityCounter{DomainCounts: filter.DomainCounts{Key: key}, ID: e.Key(), Term: term}
	x.repulsions.add(r.ID, r, term.FixedNamespaces, term.RequiredLabel)
	for _, l := range x.listCandidateLabelSets(term.FixedNamespaces, term.RequiredLabel) {
		if term.ExcludesNewPod(l) {
			l.ExistingAntiAffinityCounters = append(l.ExistingAntiAffinityCounters, r)
		}
	}
	return r
}

// InternTopologyKey returns the shared record of a topology key, with the domain of every node.
func (x *index) InternTopologyKey(name string) *filter.TopologyKey {
	k, ok := x.keys[name]
	if !ok {
		k = &filter.TopologyKey{Name: name, Domains: map[string]int32{}}
		x.keys[name] = k
		for _, n := range x.nodes.slots {
			k.DomainOf = append(k.DomainOf, filter.None)
			if n.Present {
				k.SetDomainOfNode(n.ID, n.Object.Labels)
			}
		}
	}
	return k
}

// InternEligibleNodes returns the shared set of nodes that topology spreading over a key considers. honorAffinity and honorTaints
// say whether the pod's node affinity and tolerations are honored.
func (x *index) InternEligibleNodes(key *filter.TopologyKey, required []*filter.TopologyKey, f *filter.NodeFilter,
	honorAffinity, honorTaints bool,
) *filter.EligibleNodes {
	var enc filter.KeyEncoder
	enc.WriteText(key.Name)
	for _, k := range required {
		enc.WriteText(k.Name)
	}
	enc.WriteCount(0)
	enc.WriteBool(honorAffinity)
	if honorAffinity {
		enc.WriteText(f.AffinityKey)
	}
	enc.WriteBool(honorTaints)
	if honorTaints {
		enc.WriteText(f.TolerationKey)
	}
	if e, ok := x.eligibilities[string(enc.Bytes())]; ok {
		return e
	}
	e := filter.NewEligibleNodes(enc.Key(), key, required, f, honorAffinity, honorTaints)
	x.eligibilities[e.ID] = e
	for _, n := range x.nodes.slots {
		if n.Present {
			e.AddNodeIfEligible(n)
		}
	}
	return e
}

// InternSpreadCounter returns the shared counter of the pods that a selector matches. selectorKey identifies the selector.
func (x *index) InternSpreadCounter(e *filter.EligibleNodes, ns *filter.Namespace, selector labels.Selector, selectorKey string) *filter.SpreadCounter {
	var enc filter.KeyEncoder
	enc.WriteText(e.ID)
	enc.WriteText(ns.Name)
	enc.WriteText(selectorKey)
	if sp, ok := x.spreads.byID[string(enc.Bytes())]; ok {
		return sp
	}
	sp := filter.NewSpreadCounter(enc.Key(), e, ns, selector)
	at := filter.FindRequiredLabel(selector)
	x.spreads.add(sp.ID, sp, []string{ns.Name}, at)
	for _, l := range ns.AppendCandidateLabelSets(nil, at) {
		if sp.SelectsPods(l) {
			l.SpreadCounters = append(l.SpreadCounters, sp)
			for _, p := range l.Pods {
				if p.Node != filter.None && !p.Terminating {
					sp.AdjustPodCountIfEligible(p.Node, 1)
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
		ns = &filter.Namespace{Name: name, LabelSets: map[string]*filter.PodLabels{}, LabelSetsByAnchor: map[filter.RequiredLabel][]*filter.PodLabels{}}
		x.namespaces[name] = ns
	}
	return ns
}

// listCandidateLabelSets lists the label sets that a counter with these namespaces and this required label can match.
func (x *index) listCandidateLabelSets(namespaces []string, required filter.RequiredLabel) []*filter.PodLabels {
	var list []*filter.PodLabels
	if len(namespaces) == 0 {
		for _, ns := range x.namespaces {
			list = ns.AppendCandidateLabelSets(list, required)
		}
		return list
	}
	for _, name := range namespaces {
		list = x.internNamespace(name).AppendCandidateLabelSets(list, required)
	}
	return list
}

// addToTopologies sets the node's domains and evaluates its eligibility.
func (x *index) addToTopologies(n *filter.Node) {
	for _, k := range x.keys {
		k.SetDomainOfNode(n.ID, n.Object.Labels)
	}
	for _, e := range x.eligibilities {
		e.AddNodeIfEligible(n)
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
		f.ForgetNode(n.ID)
	}
}

// setNamespaceLabelsAndRecount stores the labels of a namespace. If they have changed, its pods are counted again.
func (x *index) setNamespaceLabelsAndRecount(name string, exists bool, labelSet map[string]string) {
	ns := x.internNamespace(name)
	if ns.Exists == exists && labels.Equals(ns.Labels, labelSet) {
		return
	}
	filter.AdjustCountersForNamespace(ns, -1)
	ns.Exists, ns.Labels = exists, labelSet
	for _, l := range ns.LabelSets {
		x.reconnectCounters(l)
	}
	filter.AdjustCountersForNamespace(ns, 1)
}
