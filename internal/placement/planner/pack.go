package planner

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/filter"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// Template is a type of instance that can be launched.
type Template struct {
	Name string
	// Node is the node that an instance would register.
	Node *corev1.Node
	// Pods are the classes of the pods that every instance runs, such as those of DaemonSets. They are classes of the snapshot.
	// The requests of pods that are not listed must be subtracted from the allocatable amounts of Node.
	Pods []*filter.PodClass
	// Sibling is the name of an existing node of the same type. Instances get its CSI drivers and attach limits. If it is empty, both
	// are unknown: no driver counts as missing, and there is no limit.
	Sibling string
	// Cost is the cost of one instance. All templates use the same unit.
	Cost float64
	// Zones lists the zones for launches, as values of topology.kubernetes.io/zone. If it is empty, the template's
	// labels are final.
	Zones []string
	// MaxLaunches is how many more instances may be launched. Nil means no limit.
	MaxLaunches *int
	// SharedLimits lists the limits that the template shares with others.
	SharedLimits []*LaunchLimit
}

// NewNode returns the node that an instance would register under a name in a zone. An empty zone keeps the template's
// zone.
func (f *Template) NewNode(name, zone string) *corev1.Node {
	n := *f.Node
	n.Name, n.UID = name, ""
	n.Labels = map[string]string{}
	maps.Copy(n.Labels, f.Node.Labels)
	n.Labels[corev1.LabelHostname] = name
	if zone != "" {
		n.Labels[corev1.LabelTopologyZone] = zone
	}
	return &n
}

// AddInstance adds an instance with its pods and CSI drivers to a fork of the snapshot. It fails if the node exists already.
func (f *Template) AddInstance(s *snapshot.Snapshot, fork snapshot.Fork, node *corev1.Node) error {
	if err := fork.AddNewNode(node); err != nil {
		return err
	}
	f.setUpInstance(s, fork, s.Nodes.Lookup(node.Name))
	return nil
}

// setUpInstance gives a new node the pods and CSI drivers of an instance.
func (f *Template) setUpInstance(s *snapshot.Snapshot, fork snapshot.Fork, n *filter.Node) {
	n.AssumeDrivers(s.Nodes.Lookup(f.Sibling))
	for _, c := range f.Pods {
		fork.AddPod(c, n)
	}
}

// freeAmounts returns, by resource, what the pods of a new instance leave of its allocatable amounts.
func (f *Template) freeAmounts(s *snapshot.Snapshot) []int64 {
	free := s.Filters.Resources.ToSlice(f.Node.Status.Allocatable)
	for _, c := range f.Pods {
		for _, a := range c.Usage {
			if int(a.Resource) < len(free) {
				free[a.Resource] -= a.Value
			}
		}
	}
	return free
}

// Objective says which instances to prefer.
type Objective string

const (
	// LeastWaste leaves the least cpu and memory of the instances unused.
	LeastWaste Objective = "LeastWaste"
	// LeastCost pays the least for the requests of the pods.
	LeastCost Objective = "LeastCost"
)

// Packing is the result of PackPods.
type Packing struct {
	// Moves lists the pods that can be placed, on existing nodes or on new instances, in the order of placement.
	Moves []Move `json:"moves,omitempty"`
	// Instances lists the instances to launch.
	Instances []PlannedInstance `json:"instances,omitempty"`
	// Unschedulable lists the unschedulable pods: no new instance would help them.
	Unschedulable []UnschedulablePod `json:"unschedulable,omitempty"`
	Cost          float64            `json:"cost"`
}

// PlannedInstance is one instance to launch, with the pods that it would run.
type PlannedInstance struct {
	Name     string             `json:"name"`
	Template string             `json:"template"`
	Zone     string             `json:"zone,omitempty"`
	Pods     []placement.PodKey `json:"pods"`
}

// UnschedulablePod is a pod that no template helps. Reasons says why, by template.
type UnschedulablePod struct {
	Pod     placement.PodKey  `json:"pod"`
	Reasons map[string]string `json:"reasons"`
	// ExhaustedLimits names, by template, the limit that forbids a launch which would help the pod.
	ExhaustedLimits map[string]string `json:"exhaustedLimits,omitempty"`
}

type packRun struct {
	*planRun
	templates      []Template
	objective      Objective
	offers         []offer
	scoreClass     func(*packRun, *filter.PodClass, *filter.Node) float64
	sizeByClass    []int64 // by ID of the class; see computeLargestShare
	resourceLimits map[*LaunchLimit]*resourceLimit
	launches       []plannedLaunch
	serial         int
}

// offer is a template in one zone.
type offer struct {
	template       *Template
	zone           string
	launchCount    *int // launches of the template in all zones
	resourceLimits []*resourceLimit
}

type plannedLaunch struct {
	offer
	object *corev1.Node
}

// demand holds the pending pods of one class.
type demand struct {
	class *filter.PodClass
	pods  []*filter.Pod
}

// PackPods plans new instances for the pending pods, or for the given ones of them. It uses free capacity on existing
// nodes first. The plan holds with all instances launched together and empty: every pod, largest first, fits where
// the plan says.
//
// The algorithm is greedy, instance by instance. It uses the better result of two scoring rules, which is not always
// the cheapest packing. In a fork it plans for the cluster with the changes of the fork. It fails if a given pod is
// not pending or a template is invalid.
func PackPods(s *snapshot.Snapshot, pods []placement.PodKey, templates []Template, objective Objective) (*Packing, error) {
	if err := validateTemplates(templates); err != nil {
		return nil, err
	}
	demands, err := groupPendingByClass(s, pods)
	if err != nil {
		return nil, err
	}
	balanced := packWithScoring(s, (*packRun).scoreByDotProduct, demands, templates, objective)
	if len(balanced.Instances) <= computeInstanceLowerBound(s, balanced, templates) {
		return balanced, nil
	}
	if largest := packWithScoring(s, (*packRun).scoreBySize, demands, templates, objective); largest.isBetterThan(balanced) {
		return largest, nil
	}
	return balanced, nil
}

func validateTemplates(templates []Template) error {
	for i := range templates {
		if templates[i].Node == nil || templates[i].Name == "" {
			return fmt.Errorf("template %d %q: name and node are required", i, templates[i].Name)
		}
	}
	return nil
}

// packWithScoring packs with one scoring rule. The class with the highest score is placed next on an instance.
func packWithScoring(s *snapshot.Snapshot, score func(*packRun, *filter.PodClass, *filter.Node) float64, demands []demand, templates []Template, objective Objective) *Packing {
	p := &packRun{
		planRun: beginPlanRun(s, LeastPods, &Options{}), templates: templates, objective: objective, scoreClass: score,
		resourceLimits: map[*LaunchLimit]*resourceLimit{},
	}
	defer p.close()
	p.meanAllocatable = computeMeanAllocatable(s, templates)
	p.sortDemandsHardestFirst(demands)
	p.addTemplateOffers()
	return p.packInRounds(demands)
}

// computeInstanceLowerBound returns a lower bound for the instances of a packing: the sum of the requests divided by the
// largest allocatable amount.
func computeInstanceLowerBound(s *snapshot.Snapshot, p *Packing, templates []Template) int {
	var sums, most []float64
	add := func(list *[]float64, r int32) *float64 {
		for int(r) >= len(*list) {
			*list = append(*list, 0)
		}
		return &(*list)[r]
	}
	for i := range templates {
		for r, value := range templates[i].freeAmounts(s) {
			has := add(&most, int32(r))
			*has = max(*has, float64(value))
		}
	}
	for i := range p.Instances {
		for _, key := range p.Instances[i].Pods {
			for _, a := range s.Pod(key).Class.Requests {
				*add(&sums, a.Resource) += float64(a.Value)
			}
		}
	}
	fewest := min(1, len(p.Instances))
	for r, sum := range sums {
		if has := *add(&most, int32(r)); has > 0 {
			fewest = max(fewest, int(math.Ceil(sum/has)))
		}
	}
	return fewest
}

// isBetterThan reports whether a packing helps more pods than another, or the same number at less cost.
func (p *Packing) isBetterThan(other *Packing) bool {
	return cmp.Or(cmp.Compare(len(p.Unschedulable), len(other.Unschedulable)), cmp.Compare(p.Cost, other.Cost),
		cmp.Compare(len(p.Instances), len(other.Instances))) < 0
}

// computeMeanAllocatable returns the mean allocatable amounts of the templates without their own pods, by resource. Sizes of pods are
// relative to it.
func computeMeanAllocatable(s *snapshot.Snapshot, templates []Template) []float64 {
	var means []float64
	for i := range templates {
		for r, value := range templates[i].freeAmounts(s) {
			for r >= len(means) {
				means = append(means, 0)
			}
			means[r] += float64(value) / float64(len(templates))
		}
	}
	return means
}

// sortDemandsHardestFirst puts demands with many constraints first, then large ones.
func (p *packRun) sortDemandsHardestFirst(demands []demand) {
	p.sizeByClass = make([]int64, p.s.ClassIDLimit())
	for _, d := range demands {
		p.sizeByClass[d.class.ID] = p.computeLargestShare(d.class)
	}
	slices.SortStableFunc(demands, func(a, b demand) int {
		return cmp.Or(cmp.Compare(b.class.ConstraintCount(), a.class.ConstraintCount()), cmp.Compare(p.sizeByClass[b.class.ID], p.sizeByClass[a.class.ID]))
	})
}

// groupPendingByClass returns the pending pods by class. If keys is not nil, it returns only these pods, and fails if one is
// not pending.
func groupPendingByClass(s *snapshot.Snapshot, keys []placement.PodKey) ([]demand, error) {
	pods := s.PendingPods()
	if keys != nil {
		pods = pods[:0]
		for _, key := range keys {
			p := s.Pod(key)
			if p == nil || p.Node != filter.None {
				return nil, fmt.Errorf("pod %s is not pending", key)
			}
			pods = append(pods, p)
		}
		slices.SortFunc(pods, func(a, b *filter.Pod) int { return a.Key.Compare(b.Key) })
	}
	places := map[*filter.PodClass]int{}
	var list []demand
	for _, p := range pods {
		i, ok := places[p.Class]
		if !ok {
			i = len(list)
			places[p.Class] = i
			list = append(list, demand{class: p.Class})
		}
		list[i].pods = append(list[i].pods, p)
	}
	return list, nil
}

// addTemplateOffers adds an offer for each template and zone.
func (p *packRun) addTemplateOffers() {
	for i := range p.templates {
		f := &p.templates[i]
		count := new(int)
		var resourceLimits []*resourceLimit
		for _, a := range f.SharedLimits {
			if p.resourceLimits[a] == nil {
				p.resourceLimits[a] = newResourceLimit(a)
			}
			resourceLimits = append(resourceLimits, p.resourceLimits[a])
		}
		for _, zone := range f.Zones {
			p.offers = append(p.offers, offer{f, zone, count, resourceLimits})
		}
		if len(f.Zones) == 0 {
			p.offers = append(p.offers, offer{f, f.Node.Labels[corev1.LabelTopologyZone], count, resourceLimits})
		}
	}
}

// noPod stands for the UID of a pod that is placed on a new instance. No pod is nominated there, so the UID does not matter.
const noPod = ""

// maxRounds is the largest number of rounds. Each round tries the plan with all instances so far, and then adds more.
const maxRounds = 5

// packInRounds adds instances until all pods that can be helped fit with all instances launched together.
func (p *packRun) packInRounds(demands []demand) *Packing {
	places := map[*filter.Pod]*filter.Node{}
	left := demands
	for round := range maxRounds {
		p.resetAndRelaunchInstances()
		left = p.placeDemands(demands, places)
		if round == maxRounds-1 {
			break
		}
		before := len(p.launches)
		left = p.addInstances(left)
		if len(p.launches) == before {
			break
		}
		p.recordPlaces(demands, places)
	}
	return p.buildPacking(demands, left)
}

// resetAndRelaunchInstances rolls back and launches the instances found so far.
func (p *packRun) resetAndRelaunchInstances() {
	p.fork.Reset()
	p.s.Search.UseDefaultOrder()
	order := slices.Clone(p.s.Search.Order)
	for i := range p.launches {
		order = append(order, p.addInstance(&p.launches[i]).ID)
	}
	p.s.Search.SetOrder(order)
}

func (p *packRun) addInstance(m *plannedLaunch) *filter.Node {
	n := p.fork.AddNode(m.object)
	m.template.setUpInstance(p.s, p.fork, n)
	return n
}

// placeDemands places every pod where it was placed before, or else where it fits. It returns the pods without a
// node.
func (p *packRun) placeDemands(demands []demand, earlierPlaces map[*filter.Pod]*filter.Node) (unplaced []demand) {
	var left []demand
	for _, d := range demands {
		var over []*filter.Pod
		if earlierPlaces[d.pods[0]] == nil && d.class.MustChooseCommonNode() && p.placeAllOnOneNode(d.pods) {
			continue
		}
		for _, pod := range d.pods {
			if n := p.findRelaunchedNode(earlierPlaces[pod]); n != nil && p.s.FitsOn(d.class, pod.UID, n) {
				p.fork.PlacePod(pod, n)
			} else if n := p.findTarget(pod); n != nil {
				p.fork.PlacePod(pod, n)
			} else {
				over = append(over, pod)
			}
		}
		if len(over) > 0 {
			left = append(left, demand{d.class, over})
		}
	}
	return left
}

// findRelaunchedNode returns the node of an earlier round under its new ID.
func (p *packRun) findRelaunchedNode(n *filter.Node) *filter.Node {
	if n == nil {
		return nil
	}
	return p.s.Nodes.Lookup(n.Name())
}

func (p *packRun) recordPlaces(demands []demand, places map[*filter.Pod]*filter.Node) {
	for _, d := range demands {
		for _, pod := range d.pods {
			if pod.Node != filter.None {
				places[pod] = p.s.Nodes.ByID(pod.Node)
			}
		}
	}
}

// addInstances launches instances, the best one at a time, until none would run any of the pods left. It returns
// these pods.
func (p *packRun) addInstances(left []demand) (unplaced []demand) {
	for len(left) > 0 {
		best := p.findBestOffer(left)
		if best == nil {
			return left
		}
		filled := 0
		for len(left) > 0 && best.canLaunch() {
			mark := p.fork.Mark()
			placed := p.launchAndFillInstance(*best, left)
			if placed == 0 || placed < filled {
				p.undoLastLaunch(mark)
				break
			}
			filled = placed
			left = p.listUnplaced(left)
			if p.hasInteractingPods(left) {
				break
			}
		}
	}
	return left
}

// hasInteractingPods reports whether the placement of a class depends on other pods. Then the next instance must be
// chosen again.
func (p *packRun) hasInteractingPods(left []demand) bool {
	return slices.ContainsFunc(left, func(d demand) bool { return d.class.InteractsWithOtherPods() })
}

func (o *offer) canLaunch() bool { return o.findExhaustedLimit() == "" }

// findExhaustedLimit returns the text of the limit that forbids one more instance, or an empty string.
func (o *offer) findExhaustedLimit() string {
	if o.template.MaxLaunches != nil && *o.launchCount >= *o.template.MaxLaunches {
		return fmt.Sprintf("at most %d may be launched", *o.template.MaxLaunches)
	}
	for _, resourceLimit := range o.resourceLimits {
		if !resourceLimit.allowsOneMoreInstance(o.template.capacityOrAllocatable()) {
			return resourceLimit.limit.Name
		}
	}
	return ""
}

// adjustForLaunch counts an instance as launched (sign 1) or not launched (sign -1).
func (o *offer) adjustForLaunch(sign int) {
	*o.launchCount += sign
	for _, resourceLimit := range o.resourceLimits {
		resourceLimit.adjustForInstance(o.template.capacityOrAllocatable(), sign)
	}
}

// undoLastLaunch undoes the last launch, and all changes after the given mark in the undo log.
func (p *packRun) undoLastLaunch(mark int) {
	p.fork.UndoToMark(mark)
	last := len(p.launches) - 1
	p.launches[last].adjustForLaunch(-1)
	p.launches = p.launches[:last]
}

// listUnplaced returns the demands without their placed pods.
func (p *packRun) listUnplaced(left []demand) []demand {
	var out []demand
	for _, d := range left {
		pods := d.pods
		for len(pods) > 0 && pods[0].Node != filter.None {
			pods = pods[1:]
		}
		if len(pods) > 0 {
			out = append(out, demand{d.class, pods})
		}
	}
	return out
}

// launchAndFillInstance adds an instance and fills it. It returns the number of pods placed on it.
func (p *packRun) launchAndFillInstance(o offer, left []demand) (placed int) {
	p.serial++
	object := o.template.NewNode(fmt.Sprintf("%s-new-%d", o.template.Name, p.serial), o.zone)
	o.adjustForLaunch(1)
	p.launches = append(p.launches, plannedLaunch{o, object})
	n := p.addInstance(&p.launches[len(p.launches)-1])
	var plain []demand
	for _, d := range left {
		switch {
		case !p.s.Filters.IsPlaceable(d.class) || d.pods[0].NeedsUnknownClaim():
		case d.class.InteractsWithOtherPods():
			placed += p.placeInteracting(n, d, placed)
		case p.s.FitsOn(d.class, noPod, n):
			plain = append(plain, d)
		}
	}
	return placed + p.placeByScore(n, plain)
}

// placeInteracting places as many pods of one class on an instance as fit. Pods that must share a node are placed all
// or none if the instance has pods already.
func (p *packRun) placeInteracting(n *filter.Node, d demand, placedBefore int) (placed int) {
	if placedBefore > 0 && d.class.MustChooseCommonNode() {
		if p.placeAllOn(n, d.pods) {
			return len(d.pods)
		}
		return 0
	}
	return p.placeWhileFitting(n, d)
}

// placeWhileFitting places pods of one class on an instance, one by one, until one does not fit.
func (p *packRun) placeWhileFitting(n *filter.Node, d demand) (placed int) {
	for i, pod := range d.pods {
		if !p.s.FitsOn(d.class, noPod, n) {
			return i
		}
		p.fork.PlacePod(pod, n)
	}
	return len(d.pods)
}

// placeByScore fills an instance with pods that do not interact. The class with the highest score comes next.
func (p *packRun) placeByScore(n *filter.Node, left []demand) (placed int) {
	for ; ; placed++ {
		var best *demand
		var furthest float64
		left = slices.DeleteFunc(left, func(d demand) bool { return len(d.pods) == 0 || !p.s.FitsOn(d.class, noPod, n) })
		for i := range left {
			if score := p.scoreClass(p, left[i].class, n); best == nil || score > furthest {
				best, furthest = &left[i], score
			}
		}
		if best == nil {
			return placed
		}
		if len(left) == 1 {
			return placed + p.placeWhileFitting(n, left[0])
		}
		p.fork.PlacePod(best.pods[0], n)
		best.pods = best.pods[1:]
	}
}

// scoreBySize prefers the largest pods.
func (p *packRun) scoreBySize(c *filter.PodClass, _ *filter.Node) float64 {
	return float64(p.sizeByClass[c.ID])
}

// scoreByDotProduct returns the dot product of the pod's requests and the free amounts, as shares of the node. Large
// pods come first, and no resource runs out long before the others (Panigrahy et al., Heuristics for Vector Bin
// Packing, 2011).
func (*packRun) scoreByDotProduct(c *filter.PodClass, n *filter.Node) float64 {
	var sum float64
	for _, a := range c.Requests {
		if has := float64(filter.AmountAt(n.Allocatable, a.Resource)); has > 0 {
			sum += float64(a.Value) / has * float64(n.FreeAmount(a.Resource)) / has
		}
	}
	return sum
}

// findBestOffer tries one instance of every offer and returns the offer with the best score. It returns nil if none
// takes a pod. With equal scores the zone with the fewest new instances wins.
func (p *packRun) findBestOffer(left []demand) *offer {
	var best *offer
	var bestScore float64
	fewest := 0
	for i := range p.offers {
		o := &p.offers[i]
		if !o.canLaunch() {
			continue
		}
		mark := p.fork.Mark()
		placed := p.launchAndFillInstance(*o, left)
		score := p.scoreLastInstance(*o)
		p.undoLastLaunch(mark)
		there := p.countLaunchesInZone(o)
		if placed > 0 && (best == nil || score > bestScore || score == bestScore && there < fewest) {
			best, bestScore, fewest = o, score, there
		}
	}
	return best
}

func (p *packRun) countLaunchesInZone(o *offer) int {
	count := 0
	for i := range p.launches {
		if p.launches[i].zone == o.zone {
			count++
		}
	}
	return count
}

// scoreLastInstance rates the last launched instance: the mean used share of its cpu and memory, or the used amount
// per cost. What every instance of its template runs does not count.
func (p *packRun) scoreLastInstance(o offer) float64 {
	n, free := p.s.Nodes.Lookup(p.launches[len(p.launches)-1].object.Name), o.template.freeAmounts(p.s)
	var share, size float64
	for _, r := range []int32{filter.ResourceCPU, filter.ResourceMemory} {
		most := filter.AmountAt(free, r)
		used := float64(most - n.FreeAmount(r))
		if most > 0 {
			share += used / float64(most) / 2
		}
		if mean := p.meanAllocatableOf(r); mean > 0 {
			size += used / mean
		}
	}
	if p.objective != LeastCost || o.template.Cost <= 0 {
		return share
	}
	return size / o.template.Cost
}

// buildPacking reads the result from the snapshot. It omits instances that take none of the pods at the end.
func (p *packRun) buildPacking(demands, left []demand) *Packing {
	out := &Packing{}
	index := map[string]int{}
	for _, m := range p.launches {
		n := p.s.Nodes.Lookup(m.object.Name)
		if n == nil || len(n.Pods) == len(m.template.Pods) {
			continue
		}
		index[m.object.Name] = len(out.Instances)
		out.Instances = append(out.Instances, PlannedInstance{Name: m.object.Name, Template: m.template.Name, Zone: m.zone})
		out.Cost += m.template.Cost
	}
	for _, d := range demands {
		for _, pod := range d.pods {
			if pod.Node == filter.None {
				continue
			}
			name := p.s.Nodes.ByID(pod.Node).Name()
			out.Moves = append(out.Moves, Move{pod.Key, name})
			if i, ok := index[name]; ok {
				out.Instances[i].Pods = append(out.Instances[i].Pods, pod.Key)
			}
		}
	}
	for _, d := range left {
		reasons, spent := p.explainOffers(d.class)
		for _, pod := range d.pods {
			if pod.Node == filter.None {
				out.Unschedulable = append(out.Unschedulable, UnschedulablePod{pod.Key, reasons, spent})
			}
		}
	}
	return out
}

// explainOffers says, by template, why a new instance does not help a class. exhaustedLimits names the limit of each template
// that would help but must not be launched.
func (p *packRun) explainOffers(c *filter.PodClass) (reasons, exhaustedLimits map[string]string) {
	reasons = map[string]string{}
	for i := range p.offers {
		o := &p.offers[i]
		limit := o.findExhaustedLimit()
		mark := p.fork.Mark()
		p.launchAndFillInstance(*o, nil)
		m := p.launches[len(p.launches)-1]
		v := p.s.JudgePodClass(c, "", p.s.Nodes.Lookup(m.object.Name))
		p.undoLastLaunch(mark)
		text := v.String()
		if v.Outcome == placement.Fits && limit != "" {
			text = limit
			if exhaustedLimits == nil {
				exhaustedLimits = map[string]string{}
			}
			exhaustedLimits[o.template.Name] = limit
		}
		reasons[o.template.Name] = text
	}
	return reasons, exhaustedLimits
}
