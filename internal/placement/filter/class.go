package filter

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/nodedeclaredfeatures"
	"k8s.io/utils/ptr"

	"github.com/slipway-dev/slipway/internal/placement"
)

// PodClass holds everything that scheduling reads from a pod. It is compiled once and shared by all pods with the same
// needs.
type PodClass struct {
	Key      string
	ID       int32 // reused after the class is dropped
	PodCount int   // number of pods in the snapshot

	Labels   *PodLabels
	Filter   *NodeFilter
	Priority int32
	Requests []Amount // resources that a node must have free
	Usage    []Amount // resources that a placed pod uses; can hold negative requests, as written
	ports    []hostPort

	AffinityCounters             []*AffinityCounter // one per term; each counts the pods that match every term
	ownLabelsMatch               bool               // the pod's labels match its own affinity; namespace selectors are checked in affinitySelectsOwnPods
	AntiAffinityCounters         []*AffinityCounter
	ExistingAntiAffinityCounters []*ExistingAntiAffinityCounter // counters of the pods with the same anti-affinity terms as this class
	SpreadConstraints            []SpreadConstraint
	volumes                      *volumeNeeds // nil if scheduling reads nothing from the pod's volumes
	features                     nodedeclaredfeatures.FeatureSet
	needsFeatures                bool

	preFilterRefusal *placement.Reason  // refuses every node before any filter runs
	undecidable      []placement.Reason // why no node can be accepted
}

// Interner returns the objects that the classes of a cluster share. It is used only while a class is compiled.
type Interner interface {
	InternLabels(namespace string, set map[string]string) *PodLabels
	InternNodeFilter(nodeName string, spec *corev1.PodSpec) *NodeFilter
	InternTopologyKey(name string) *TopologyKey
	InternEligibleNodes(key *TopologyKey, required []*TopologyKey, f *NodeFilter, honorAffinity, honorTaints bool) *EligibleNodes
	InternSpreadCounter(e *EligibleNodes, ns *Namespace, selector labels.Selector, selectorKey string) *SpreadCounter
	InternPodTerm(namespace string, t *corev1.PodAffinityTerm) (*PodTerm, error)
	InternAffinityCounter(terms []*PodTerm, key *TopologyKey) *AffinityCounter
	InternExistingAntiAffinityCounter(term *PodTerm, key *TopologyKey) *ExistingAntiAffinityCounter
}

// SchedulingNeeds holds what scheduling reads from one pod.
type SchedulingNeeds struct {
	pod                    *corev1.Pod
	nodeName               string
	requests               []Amount
	ports                  []hostPort
	volumes                *volumeNeeds
	undecidable            []string
	features               nodedeclaredfeatures.FeatureSet
	needsFeatures          bool
	preferredSelectorError string // error in a selector of preferred pod affinity
}

// ReadSchedulingNeeds reads the scheduling needs of a pod. For an assigned pod it returns the needs of a recreated pod. The
// node name of an assigned pod says where it is, so it is not a need.
func ReadSchedulingNeeds(pod *corev1.Pod, ignoreNodeName bool, t *ResourceTable) SchedulingNeeds {
	spec := &pod.Spec
	d := SchedulingNeeds{
		pod: pod, nodeName: spec.NodeName, requests: t.ToAmounts(requestsToSchedule(pod)), ports: listHostPorts(spec),
		volumes: readVolumeNeeds(pod), undecidable: listUndecidableFeatures(spec), preferredSelectorError: findPreferredSelectorError(spec.Affinity),
	}
	if ignoreNodeName {
		d.nodeName = ""
	}
	d.features, d.needsFeatures = inferRequiredFeatures(spec)
	return d
}

// WriteKey writes the needs into a key. Pods with equal keys have equal needs.
func (d *SchedulingNeeds) WriteKey(e *KeyEncoder) {
	pod, spec := d.pod, &d.pod.Spec
	e.WriteText(pod.Namespace)
	e.WriteLabels(pod.Labels)
	e.writeNumber(int64(ptr.Deref(spec.Priority, 0)))
	e.WriteText(d.nodeName)
	e.WriteLabels(spec.NodeSelector)
	e.writeNodeSelector(requiredNodeSelector(spec.Affinity))
	e.writeTolerations(spec.Tolerations)
	e.writeAmounts(d.requests)
	e.WriteCount(len(d.ports))
	for _, p := range d.ports {
		e.WriteText(p.ip)
		e.WriteText(string(p.protocol))
		e.writeNumber(int64(p.port))
	}
	e.writePodAffinityTerms(requiredAffinityTerms(spec.Affinity))
	e.writePodAffinityTerms(requiredAntiAffinityTerms(spec.Affinity))
	e.writeHardSpreadConstraints(spec.TopologySpreadConstraints)
	d.volumes.writeTo(e)
	e.WriteTexts(d.undecidable)
	e.WriteCount(len(spec.SchedulingGates))
	for _, g := range spec.SchedulingGates {
		e.WriteText(g.Name)
	}
	e.WriteBool(d.needsFeatures)
	if d.needsFeatures {
		e.WriteText(d.features.String())
	}
	e.WriteText(d.preferredSelectorError)
}

// CompilePodClass returns a new class for pods with these needs.
func (d *SchedulingNeeds) CompilePodClass(key string, in Interner) *PodClass {
	pod, spec := d.pod, &d.pod.Spec
	c := &PodClass{
		Key: key, Priority: ptr.Deref(spec.Priority, 0), Usage: d.requests, Requests: keepPositive(d.requests), ports: d.ports,
		volumes: d.volumes, features: d.features, needsFeatures: d.needsFeatures,
		Labels: in.InternLabels(pod.Namespace, pod.Labels), Filter: in.InternNodeFilter(d.nodeName, spec),
	}
	for _, text := range d.undecidable {
		c.undecidable = append(c.undecidable, placement.Reason{Predicate: devicesPredicate, Message: text})
	}
	c.compileSchedulingGates(spec.SchedulingGates)
	c.compileTopologySpread(pod, in)
	c.compileInterPodAffinity(pod, d.preferredSelectorError, in)
	return c
}

// setRefusal records why every node is refused. The first call wins.
func (c *PodClass) setRefusal(predicate, text, scheduler string) {
	if c.preFilterRefusal == nil {
		c.preFilterRefusal = &placement.Reason{Predicate: predicate, Message: text, Scheduler: scheduler}
	}
}

// HasVolumes reports whether scheduling reads anything from the volumes of the class.
func (c *PodClass) HasVolumes() bool { return c.volumes != nil }

// ClaimCount returns the number of claims that a pod of the class uses.
func (c *PodClass) ClaimCount() int {
	if c.volumes == nil {
		return 0
	}
	return len(c.volumes.claims)
}

// hasEphemeralClaim reports whether a pod of the class uses a generic ephemeral volume. Its claim is created for each pod.
func (c *PodClass) hasEphemeralClaim() bool {
	return c.volumes != nil && slices.ContainsFunc(c.volumes.claims, func(r claimRef) bool { return r.ephemeral })
}

// PassesTopologyFilters runs the filters that depend on the placement of other pods, and checks the features of the node.
func (c *PodClass) PassesTopologyFilters(n *Node) bool {
	return c.checkTopologySpread(n.ID) == nil && c.checkInterPodAffinity(n.ID) == nil && c.nodeHasNeededFeatures(n)
}

// ConstraintCount returns the number of constraints of the class besides its size.
func (c *PodClass) ConstraintCount() int {
	return len(c.AffinityCounters) + len(c.AntiAffinityCounters) + len(c.SpreadConstraints) + len(c.ports)
}

// MustChooseCommonNode reports whether all pods of the class must run on one node, and no pod binds them to a node yet.
func (c *PodClass) MustChooseCommonNode() bool {
	if !c.affinitySelectsOwnPods() {
		return false
	}
	host := false
	for _, a := range c.AffinityCounters {
		if a.total > 0 {
			return false
		}
		host = host || a.Key.Name == corev1.LabelHostname
	}
	return host
}

// InteractsWithOtherPods reports whether the placement of other pods affects this class, or this class affects the placement of
// others.
func (c *PodClass) InteractsWithOtherPods() bool {
	return len(c.SpreadConstraints)+len(c.AffinityCounters)+len(c.AntiAffinityCounters)+len(c.Labels.ExistingAntiAffinityCounters) > 0
}
