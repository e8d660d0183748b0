package placement

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-helpers/nodedeclaredfeatures"
)

// schedulerVersion is the release whose verdicts this package gives.
var schedulerVersion = version.MustParse("1.36.0")

// class is everything that scheduling reads of a pod, compiled once and shared by all pods with the same needs.
type class struct {
	key     string
	members int // pods of the snapshot

	labels   *podLabels
	filter   *nodeFilter
	requests []amount // what a node must have free
	takes    []amount // what the pod takes once it is there; may hold negative requests as written
	ports    []hostPort

	affinity      []*attraction // one per term, all counting pods that match every term
	selfAffine    bool          // the pod matches its own affinity
	antiAffinity  []*attraction
	repulsions    []*repulsion // its own anti-affinity terms, as they concern others
	spreads       []spreadConstraint
	volumes       *volumeNeeds // nil without volumes that scheduling reads
	features      nodedeclaredfeatures.FeatureSet
	needsFeatures bool

	refusal     *Reason  // refuses every node before any is looked at
	undecidable []Reason // why no node can be accepted

	size  int64 // as last weighed; see sizeOf
	first *pod  // by name, of those last sorted; see largestFirst
	room  room
}

type hostPort struct {
	ip       string
	protocol corev1.Protocol
	port     int32
}

const anyIP = "0.0.0.0"

// spreadConstraint is one DoNotSchedule constraint of a class.
type spreadConstraint struct {
	spread     *spread
	maxSkew    int32
	minDomains int32
	self       int32 // 1 when the pod matches its own selector
}

// classOf returns the class of a pod, compiling it when it is new. assigned pods are classed by what they would need
// were they created anew: their node name is where they are, not what they ask for.
func (s *Snapshot) classOf(pod *corev1.Pod, assigned bool) *class {
	spec := &pod.Spec
	nodeName := spec.NodeName
	if assigned {
		nodeName = ""
	}
	takes := s.resources.sparse(requestsToSchedule(pod))
	e := &s.encoder
	e.reset()
	e.text(pod.Namespace)
	e.labels(pod.Labels)
	e.text(nodeName)
	e.labels(spec.NodeSelector)
	e.nodeSelector(requiredNodeSelector(spec.Affinity))
	e.tolerations(spec.Tolerations)
	e.amounts(takes)
	ports := hostPorts(spec)
	e.count(len(ports))
	for _, p := range ports {
		e.text(p.ip)
		e.text(string(p.protocol))
		e.number(int64(p.port))
	}
	e.podAffinityTerms(affinityTerms(spec.Affinity))
	e.podAffinityTerms(antiAffinityTerms(spec.Affinity))
	e.spreadConstraints(spec.TopologySpreadConstraints)
	volumes := volumeNeedsOf(pod)
	volumes.encode(e)
	e.texts(undecidableFeatures(spec))
	e.count(len(spec.SchedulingGates))
	for _, g := range spec.SchedulingGates {
		e.text(g.Name)
	}
	features, needsFeatures := requiredFeatures(spec)
	e.flag(needsFeatures)
	if needsFeatures {
		e.text(features.String())
	}
	preferred := preferredSelectorProblem(spec.Affinity)
	e.text(preferred)

	if c, ok := s.classes[string(e.buf)]; ok {
		return c
	}
	c := &class{
		key: e.key(), takes: takes, requests: positive(takes), ports: ports, volumes: volumes, features: features,
		needsFeatures: needsFeatures,
	}
	s.classes[c.key] = c
	c.labels = s.internLabels(pod.Namespace, pod.Labels)
	c.filter = s.internFilter(nodeName, spec)
	for _, text := range undecidableFeatures(spec) {
		c.undecidable = append(c.undecidable, Reason{Predicate: "DynamicResources", Text: text})
	}
	s.compileGates(c, spec)
	s.compileSpread(c, pod)
	s.compilePodAffinity(c, pod, preferred)
	return c
}

// refuse records the first reason that refuses every node.
func (c *class) refuse(predicate, text, scheduler string) {
	if c.refusal == nil {
		c.refusal = &Reason{predicate, text, scheduler}
	}
}

func (s *Snapshot) compileGates(c *class, spec *corev1.PodSpec) {
	if len(spec.SchedulingGates) == 0 {
		return
	}
	names := make([]string, len(spec.SchedulingGates))
	for i, g := range spec.SchedulingGates {
		names[i] = g.Name
	}
	text := fmt.Sprintf("waiting for scheduling gates: %v", names)
	c.refuse("SchedulingGates", text, text)
}

// undecidableFeatures lists what the pod uses that this package does not judge.
func undecidableFeatures(spec *corev1.PodSpec) []string {
	var list []string
	if len(spec.ResourceClaims) > 0 {
		list = append(list, fmt.Sprintf("resource claim %s is allocated by dynamic resource allocation",
			spec.ResourceClaims[0].Name))
	}
	if spec.SchedulingGroup != nil {
		list = append(list, "pod is scheduled as part of a group")
	}
	if spec.SchedulerName != "" && spec.SchedulerName != corev1.DefaultSchedulerName {
		list = append(list, fmt.Sprintf("pod is scheduled by %s, whose rules are not known", spec.SchedulerName))
	}
	return list
}

func requiredNodeSelector(a *corev1.Affinity) *corev1.NodeSelector {
	if a == nil || a.NodeAffinity == nil {
		return nil
	}
	return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

func affinityTerms(a *corev1.Affinity) []corev1.PodAffinityTerm {
	if a == nil || a.PodAffinity == nil {
		return nil
	}
	return a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

func antiAffinityTerms(a *corev1.Affinity) []corev1.PodAffinityTerm {
	if a == nil || a.PodAntiAffinity == nil {
		return nil
	}
	return a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

// internLabels returns the shared record of these labels, wired to everything that counts it.
func (s *Snapshot) internLabels(ns string, set map[string]string) *podLabels {
	var e encoder
	e.labels(set)
	space := s.namespace(ns)
	if l, ok := space.pods[string(e.buf)]; ok {
		return l
	}
	l := &podLabels{namespace: space, labels: set, id: e.key()}
	space.add(l)
	s.wire(l)
	return l
}

// wire finds everything that counts these labels.
func (s *Snapshot) wire(l *podLabels) {
	l.attractions, l.spreads, l.repulsions = nil, nil, nil
	for _, a := range s.attractions.near(l) {
		if a.selects(l) {
			l.attractions = append(l.attractions, a)
		}
	}
	for _, sp := range s.spreads.near(l) {
		if sp.counts(l) {
			l.spreads = append(l.spreads, sp)
		}
	}
	for _, r := range s.repulsions.near(l) {
		if r.term.repels(l) {
			l.repulsions = append(l.repulsions, r)
		}
	}
}

// internTerm compiles a pod affinity term for a pod of a namespace.
func (s *Snapshot) internTerm(ns string, t *corev1.PodAffinityTerm) (*podTerm, error) {
	namespaces := t.Namespaces
	if len(namespaces) == 0 && t.NamespaceSelector == nil {
		namespaces = []string{ns}
	}
	var e encoder
	e.texts(namespaces)
	e.labelSelector(t.LabelSelector)
	e.labelSelector(t.NamespaceSelector)
	if term, ok := s.terms[string(e.buf)]; ok {
		return term, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(t.LabelSelector)
	if err != nil {
		return nil, err
	}
	nsSelector, err := metav1.LabelSelectorAsSelector(t.NamespaceSelector)
	if err != nil {
		return nil, err
	}
	term := &podTerm{
		key: e.key(), namespaces: map[string]bool{}, selector: selector, anchor: anchorOf(selector), nsSelector: nsSelector,
		selectsUnlabelled: nsSelector.Matches(labels.Set(nil)),
	}
	for _, name := range namespaces {
		term.namespaces[name] = true
	}
	if t.NamespaceSelector == nil {
		term.reach = slices.Sorted(maps.Keys(term.namespaces))
	}
	s.terms[term.key] = term
	return term, nil
}

// internAttraction returns the counter of pods that all terms select, per domain of a key, counting what is there.
func (s *Snapshot) internAttraction(terms []*podTerm, key *topologyKey) *attraction {
	var e encoder
	e.text(key.name)
	for _, t := range terms {
		e.text(t.key)
	}
	if a, ok := s.attractions.byID[string(e.buf)]; ok {
		return a
	}
	a := &attraction{tally: tally{key: key}, id: e.key(), terms: terms}
	namespaces, common := terms[0].reach, anchorOfAll(terms)
	s.attractions.put(a.id, a, namespaces, common)
	for _, l := range s.candidates(namespaces, common) {
		if a.selects(l) {
			l.attractions = append(l.attractions, a)
			for _, p := range l.pods {
				if p.node != none {
					a.add(p.node, 1)
				}
			}
		}
	}
	return a
}

// internRepulsion returns the counter of pods that carry an anti-affinity term, per domain of a key. It starts at zero:
// pods that carry the term are of classes that hold the counter, and those are only now being compiled.
func (s *Snapshot) internRepulsion(term *podTerm, key *topologyKey) *repulsion {
	var e encoder
	e.text(key.name)
	e.text(term.key)
	if r, ok := s.repulsions.byID[string(e.buf)]; ok {
		return r
	}
	r := &repulsion{tally: tally{key: key}, id: e.key(), term: term}
	s.repulsions.put(r.id, r, term.reach, term.anchor)
	for _, l := range s.candidates(term.reach, term.anchor) {
		if term.repels(l) {
			l.repulsions = append(l.repulsions, r)
		}
	}
	return r
}

// internKey returns the record of a topology key, with the domain of every node.
func (s *Snapshot) internKey(name string) *topologyKey {
	k, ok := s.keys[name]
	if !ok {
		k = &topologyKey{name: name, domains: map[string]int32{}}
		s.keys[name] = k
		for _, n := range s.nodes {
			k.domainOf = append(k.domainOf, none)
			if n.present {
				k.setNode(n.id, n.object.Labels)
			}
		}
	}
	return k
}

// internEligibility returns the set of nodes that spreading over a key looks at; affinity and taints say whether those
// of the filter are honoured.
func (s *Snapshot) internEligibility(key *topologyKey, required []*topologyKey, f *nodeFilter,
	affinity, taints bool,
) *eligibility {
	var enc encoder
	enc.text(key.name)
	for _, k := range required {
		enc.text(k.name)
	}
	enc.count(0)
	enc.flag(affinity)
	if affinity {
		enc.text(f.affinityKey)
	}
	enc.flag(taints)
	if taints {
		enc.text(f.tolerationKey)
	}
	if e, ok := s.eligibilities[string(enc.buf)]; ok {
		return e
	}
	e := &eligibility{
		id: enc.key(), key: key, required: required, filter: f, affinity: affinity, taints: taints,
		eligible: make([]bool, len(s.nodes)),
	}
	s.eligibilities[e.id] = e
	for _, n := range s.nodes {
		if !n.present || !e.admits(n) {
			continue
		}
		e.eligible[n.id] = true
		if !n.out {
			e.enter(key.domainOf[n.id])
		}
	}
	return e
}

// internSpread returns the counter of the pods that a selector matches; selectorKey stands for the selector.
func (s *Snapshot) internSpread(e *eligibility, ns *namespace, selector labels.Selector, selectorKey string) *spread {
	var enc encoder
	enc.text(e.id)
	enc.text(ns.name)
	enc.text(selectorKey)
	if sp, ok := s.spreads.byID[string(enc.buf)]; ok {
		return sp
	}
	sp := &spread{tally: tally{key: e.key}, id: enc.key(), eligibility: e, namespace: ns, selector: selector}
	at := anchorOf(selector)
	s.spreads.put(sp.id, sp, []string{ns.name}, at)
	e.spreads = append(e.spreads, sp)
	for _, nodes := range e.nodes {
		if nodes > 0 {
			sp.histogram.join(0)
		}
	}
	for _, l := range ns.candidates(nil, at) {
		if sp.counts(l) {
			l.spreads = append(l.spreads, sp)
			for _, p := range l.pods {
				if p.node != none && !p.terminating {
					sp.add(p.node, 1)
				}
			}
		}
	}
	return sp
}
