package filter

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// None means no node, no domain or no index.
const None int32 = -1

// TopologyKey is a node label that defines topology domains. Its values are interned as domain numbers.
type TopologyKey struct {
	Name     string
	Domains  map[string]int32
	values   []string
	free     []int32 // numbers of freed domains
	DomainOf []int32 // by node; None if the node does not have the label
}

func (k *TopologyKey) internDomain(value string) int32 {
	d, ok := k.Domains[value]
	if ok {
		return d
	}
	if last := len(k.free) - 1; last >= 0 {
		d, k.free = k.free[last], k.free[:last]
		k.values[d] = value
	} else {
		d = int32(len(k.values))
		k.values = append(k.values, value)
	}
	k.Domains[value] = d
	return d
}

// FreeUnusedDomains frees the numbers of the domains without nodes, so that new domains get them. Every counter of such a domain is
// zero.
func (k *TopologyKey) FreeUnusedDomains() {
	used := make([]bool, len(k.values))
	for _, d := range k.DomainOf {
		if d != None {
			used[d] = true
		}
	}
	for value, d := range k.Domains {
		if !used[d] {
			delete(k.Domains, value)
			k.values[d] = ""
			k.free = append(k.free, d)
		}
	}
}

// SetDomainOfNode records the domain of a node from its labels.
func (k *TopologyKey) SetDomainOfNode(nodeID int32, nodeLabels map[string]string) {
	for int(nodeID) >= len(k.DomainOf) {
		k.DomainOf = append(k.DomainOf, None)
	}
	k.DomainOf[nodeID] = None
	if value, ok := nodeLabels[k.Name]; ok {
		k.DomainOf[nodeID] = k.internDomain(value)
	}
}

// DomainCounts counts pods per domain of a topology key.
type DomainCounts struct {
	Key   *TopologyKey
	count []int32 // by domain; domains beyond its end count zero
	total int64   // over all domains
}

func (t *DomainCounts) countInDomain(domain int32) int32 {
	if int(domain) < len(t.count) {
		return t.count[domain]
	}
	return 0
}

// AdjustPodCount adds (sign 1) or removes (sign -1) a pod on a node. Nodes without the key are not counted.
func (t *DomainCounts) AdjustPodCount(nodeID, sign int32) {
	d := t.Key.DomainOf[nodeID]
	if d == None {
		return
	}
	t.count = growToIndex(t.count, d)
	t.count[d] += sign
	t.total += int64(sign)
}

func growToIndex(s []int32, i int32) []int32 {
	for int(i) >= len(s) {
		s = append(s, 0)
	}
	return s
}

// PodTerm is a compiled pod affinity term without its topology key.
type PodTerm struct {
	Key               string
	namespaces        map[string]bool
	namespaceSelector labels.Selector
	selector          labels.Selector
	RequiredLabel     RequiredLabel // of selector
	// FixedNamespaces lists the namespaces that the term applies to. It is nil if a namespace selector decides.
	FixedNamespaces []string
}

// NewPodTerm compiles a term that applies to the given namespaces and to those that its namespace selector matches.
func NewPodTerm(key string, namespaces []string, t *corev1.PodAffinityTerm) (*PodTerm, error) {
	selector, err := metav1.LabelSelectorAsSelector(t.LabelSelector)
	if err != nil {
		return nil, err
	}
	nsSelector, err := metav1.LabelSelectorAsSelector(t.NamespaceSelector)
	if err != nil {
		return nil, err
	}
	term := &PodTerm{
		Key: key, namespaces: map[string]bool{}, selector: selector, RequiredLabel: FindRequiredLabel(selector), namespaceSelector: nsSelector,
	}
	for _, name := range namespaces {
		term.namespaces[name] = true
	}
	if t.NamespaceSelector == nil {
		term.FixedNamespaces = slices.Sorted(maps.Keys(term.namespaces))
	}
	return term, nil
}

// selects reports whether the term of a new pod selects pods with these labels.
func (t *PodTerm) selects(l *PodLabels) bool {
	return t.includesNamespace(l.Namespace) && t.selector.Matches(l.Labels)
}

// includesNamespace reports whether the term of a new pod applies to a namespace now. Like the scheduler, it matches
// the namespace selector only against known namespaces. An empty selector includes all.
func (t *PodTerm) includesNamespace(ns *Namespace) bool {
	return t.namespaces[ns.Name] || t.namespaceSelector.Empty() || ns.Exists && t.namespaceSelector.Matches(ns.Labels)
}

// ExcludesNewPod reports whether the anti-affinity term of a placed pod concerns a new pod with these labels. An unknown
// namespace counts as one without labels.
func (t *PodTerm) ExcludesNewPod(l *PodLabels) bool {
	ns := t.namespaces[l.Namespace.Name] || t.namespaceSelector.Matches(l.Namespace.Labels)
	return ns && t.selector.Matches(l.Labels)
}

// AffinityCounter counts, per domain, the pods that all of its terms select. A new pod uses it for its affinity (all terms
// at once) and for its anti-affinity (one term at a time).
type AffinityCounter struct {
	DomainCounts
	ID    string
	Terms []*PodTerm
}

// SelectsPods reports whether pods with these labels are counted.
func (a *AffinityCounter) SelectsPods(l *PodLabels) bool {
	for _, t := range a.Terms {
		if !t.selects(l) {
			return false
		}
	}
	return true
}

// ExistingAntiAffinityCounter counts, per domain, the placed pods that have one anti-affinity term.
type ExistingAntiAffinityCounter struct {
	DomainCounts
	ID   string
	Term *PodTerm
}

// EligibleNodes is the set of nodes that topology spreading considers for one topology key. The nodes have all keys of
// the pod's constraints and pass the inclusion policies.
type EligibleNodes struct {
	ID             string
	key            *TopologyKey
	requiredKeys   []*TopologyKey
	Filter         *NodeFilter // its affinity and tolerations are used by the policies
	honorsAffinity bool        // nodeAffinityPolicy: Honor
	honorsTaints   bool        // nodeTaintsPolicy: Honor
	eligible       []bool      // by node
	nodesPerDomain []int32     // number of eligible nodes by domain
	domains        int32       // number of domains with an eligible node
	SpreadCounters []*SpreadCounter
}

// NewEligibleNodes returns a set without nodes.
func NewEligibleNodes(id string, key *TopologyKey, required []*TopologyKey, f *NodeFilter, affinity, taints bool) *EligibleNodes {
	return &EligibleNodes{ID: id, key: key, requiredKeys: required, Filter: f, honorsAffinity: affinity, honorsTaints: taints}
}

// isEligible evaluates the node object. It is called once per node and change of the node.
func (e *EligibleNodes) isEligible(n *Node) bool {
	for _, k := range e.requiredKeys {
		if k.DomainOf[n.ID] == None {
			return false
		}
	}
	if e.honorsAffinity && !e.Filter.matchesAffinity(n) {
		return false
	}
	return !e.honorsTaints || e.Filter.findUntoleratedTaint(n) == nil
}

// addNodeToDomain counts an eligible node. The first node of a domain adds the domain to the minimum of every spread.
func (e *EligibleNodes) addNodeToDomain(d int32) {
	e.nodesPerDomain = growToIndex(e.nodesPerDomain, d)
	e.nodesPerDomain[d]++
	if e.nodesPerDomain[d] == 1 {
		e.domains++
		for _, s := range e.SpreadCounters {
			s.histogram.addDomain(s.countInDomain(d))
		}
	}
}

func (e *EligibleNodes) removeNodeFromDomain(d int32) {
	e.nodesPerDomain[d]--
	if e.nodesPerDomain[d] == 0 {
		e.domains--
		for _, s := range e.SpreadCounters {
			s.histogram.removeDomain(s.countInDomain(d))
		}
	}
}

// SpreadCounter counts, per domain, the pods of one namespace that a selector matches on eligible nodes. It also knows the
// smallest count.
type SpreadCounter struct {
	DomainCounts
	ID            string
	EligibleNodes *EligibleNodes
	namespace     *Namespace
	selector      labels.Selector
	histogram     histogram
}

// NewSpreadCounter returns a counter without pods.
func NewSpreadCounter(id string, e *EligibleNodes, ns *Namespace, selector labels.Selector) *SpreadCounter {
	sp := &SpreadCounter{DomainCounts: DomainCounts{Key: e.key}, ID: id, EligibleNodes: e, namespace: ns, selector: selector}
	e.SpreadCounters = append(e.SpreadCounters, sp)
	for _, nodes := range e.nodesPerDomain {
		if nodes > 0 {
			sp.histogram.addDomain(0)
		}
	}
	return sp
}

// SelectsPods reports whether pods with these labels are counted. An empty selector counts nothing, although it matches.
func (s *SpreadCounter) SelectsPods(l *PodLabels) bool {
	return l.Namespace == s.namespace && !s.selector.Empty() && s.selector.Matches(l.Labels)
}

// AdjustPodCountIfEligible adds (sign 1) or removes (sign -1) a pod on a node, if the node is eligible.
func (s *SpreadCounter) AdjustPodCountIfEligible(nodeID, sign int32) {
	if !s.EligibleNodes.eligible[nodeID] {
		return
	}
	d := s.Key.DomainOf[nodeID]
	before := s.countInDomain(d)
	s.DomainCounts.AdjustPodCount(nodeID, sign)
	if s.EligibleNodes.nodesPerDomain[d] > 0 {
		s.histogram.removeDomain(before)
		s.histogram.addDomain(before + sign)
	}
}

// histogram counts the domains per pod count, and tracks the smallest pod count.
type histogram struct {
	domainsPerCount []int32 // by pod count
	domainCount     int32
	min             int32
}

func (h *histogram) addDomain(count int32) {
	h.domainsPerCount = growToIndex(h.domainsPerCount, count)
	h.domainsPerCount[count]++
	h.domainCount++
	if h.domainCount == 1 || count < h.min {
		h.min = count
	}
}

func (h *histogram) removeDomain(count int32) {
	h.domainsPerCount[count]--
	h.domainCount--
	if h.domainCount == 0 {
		h.min = 0
		return
	}
	for h.domainsPerCount[h.min] == 0 {
		h.min++
	}
}

// AddNodeIfEligible evaluates whether a node is eligible, and counts it if so.
func (e *EligibleNodes) AddNodeIfEligible(n *Node) {
	for int(n.ID) >= len(e.eligible) {
		e.eligible = append(e.eligible, false)
	}
	if e.eligible[n.ID] = e.isEligible(n); e.eligible[n.ID] && !n.RemovedByPlan {
		e.addNodeToDomain(e.key.DomainOf[n.ID])
	}
}

// RemoveNode removes a node from the set.
func (e *EligibleNodes) RemoveNode(n *Node) {
	if e.eligible[n.ID] {
		e.removeNodeFromDomain(e.key.DomainOf[n.ID])
		e.eligible[n.ID] = false
	}
}

// SetRemovedByPlan records that a plan removes a node without pods, or restores it. The node stays in its topology
// domain.
func (e *EligibleNodes) SetRemovedByPlan(n *Node, removed bool) {
	switch {
	case !e.eligible[n.ID]:
	case removed:
		e.removeNodeFromDomain(e.key.DomainOf[n.ID])
	default:
		e.addNodeToDomain(e.key.DomainOf[n.ID])
	}
}
