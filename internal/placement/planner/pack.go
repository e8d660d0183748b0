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

// Flavour is a kind of machine that could be launched.
type Flavour struct {
	Name string
	// Template is the node that such a machine would register, pods of DaemonSets deducted from its allocatable.
	Template *corev1.Node
	// Cost is what one machine costs, in any unit that is the same for all flavours.
	Cost float64
	// Zones are those that the machine can be launched in, as values of topology.kubernetes.io/zone; empty when the
	// template's own labels are final.
	Zones []string
	// Max is how many more may be launched; nil sets no limit.
	Max *int
	// Within are limits that the flavour shares with others.
	Within []*Allowance
}

// Node is the node that a machine of the flavour would register under a name in a zone; an empty zone leaves the
// template's.
func (f *Flavour) Node(name, zone string) *corev1.Node {
	n := *f.Template
	n.Name, n.UID = name, ""
	n.Labels = map[string]string{}
	maps.Copy(n.Labels, f.Template.Labels)
	n.Labels[corev1.LabelHostname] = name
	if zone != "" {
		n.Labels[corev1.LabelTopologyZone] = zone
	}
	return &n
}

// Objective says which machines are best.
type Objective string

const (
	// LeastWaste leaves the least of the machines' cpu and memory unused.
	LeastWaste Objective = "LeastWaste"
	// LeastCost pays the least for what the pods ask.
	LeastCost Objective = "LeastCost"
)

// Packing is the answer of Pack.
type Packing struct {
	// Moves lists the pods that can be placed, in the order in which they were, on nodes that are there or on machines
	// to launch.
	Moves []Move `json:"moves,omitempty"`
	// Machines are those to launch, with the pods that each would take.
	Machines []Machine `json:"machines,omitempty"`
	// Helpless lists the pods that no machine would help.
	Helpless []Helpless `json:"unschedulable,omitempty"`
	Cost     float64    `json:"cost"`
}

// Machine is one machine to launch.
type Machine struct {
	Name    string             `json:"name"`
	Flavour string             `json:"flavour"`
	Zone    string             `json:"zone,omitempty"`
	Pods    []placement.PodKey `json:"pods"`
}

// Helpless is a pod that no flavour helps, with the reasons that a new machine of each would give.
type Helpless struct {
	Pod     placement.PodKey  `json:"pod"`
	Reasons map[string]string `json:"reasons"`
	// Spent names, by flavour, the limit for which no more of it may be launched, though a machine would take the pod.
	Spent map[string]string `json:"spent,omitempty"`
}

// packer is one run of Pack.
type packer struct {
	*planner
	flavours       []Flavour
	objective      Objective
	offers         []offer
	next           func(*packer, *filter.Class, *filter.Node) float64
	sizes          []int64 // by ID of the class; see sizeOf
	resourceLimits map[*Allowance]*resourceLimit
	machines       []launched
	serial         int
}

// offer is a flavour in one zone.
type offer struct {
	flavour        *Flavour
	zone           string
	count          *int // launched of the flavour
	resourceLimits []*resourceLimit
}

type launched struct {
	offer
	object *corev1.Node
}

// demand is the pending pods of one class.
type demand struct {
	class *filter.Class
	pods  []*filter.Pod
}

// Pack answers which new machines would take the pending pods, or those of them that are given by key. Free room on
// existing nodes is used first. The answer holds for the machines launched together: with all of them there and empty,
// every pod, largest first, fits where it is said to go. It is greedy, machine by machine, in two ways of which the better
// counts, and not promised to be the cheapest there is. Asked in a fork, it answers for what the fork has made of the cluster.
func Pack(s *snapshot.Snapshot, pods []placement.PodKey, flavours []Flavour, objective Objective) (*Packing, error) {
	if err := validateFlavours(flavours); err != nil {
		return nil, err
	}
	demands, err := demands(s, pods)
	if err != nil {
		return nil, err
	}
	balanced := packBy(s, (*packer).along, demands, flavours, objective)
	if len(balanced.Machines) <= fewest(s, balanced, flavours) {
		return balanced, nil
	}
	if largest := packBy(s, (*packer).large, demands, flavours, objective); largest.better(balanced) {
		return largest, nil
	}
	return balanced, nil
}

func validateFlavours(flavours []Flavour) error {
	for i := range flavours {
		if flavours[i].Template == nil || flavours[i].Name == "" {
			return fmt.Errorf("flavour %d %q has no name or no template", i, flavours[i].Name)
		}
	}
	return nil
}

// packBy packs by one rule of which pod is next on a machine that is being filled: the one of the class that it gives the
// highest number.
func packBy(s *snapshot.Snapshot, next func(*packer, *filter.Class, *filter.Node) float64, demands []demand, flavours []Flavour, objective Objective) *Packing {
	p := &packer{
		planner: newPlanner(s, LeastPods, &Options{}), flavours: flavours, objective: objective, next: next,
		resourceLimits: map[*Allowance]*resourceLimit{},
	}
	defer p.close()
	p.mean = meanFlavour(s, flavours)
	p.weigh(demands)
	p.offer()
	return p.pack(demands)
}

// fewest is how many machines it takes at least for the pods that a packing puts on new ones: the sum of their requests,
// divided by the most that any machine has.
func fewest(s *snapshot.Snapshot, p *Packing, flavours []Flavour) int {
	var sums, most []float64
	add := func(list *[]float64, r int32) *float64 {
		for int(r) >= len(*list) {
			*list = append(*list, 0)
		}
		return &(*list)[r]
	}
	for i := range flavours {
		for r, value := range s.Chain.Resources.Dense(flavours[i].Template.Status.Allocatable) {
			has := add(&most, int32(r))
			*has = max(*has, float64(value))
		}
	}
	for i := range p.Machines {
		for _, key := range p.Machines[i].Pods {
			for _, a := range s.Pod(key).Class.Requests {
				*add(&sums, a.Resource) += float64(a.Value)
			}
		}
	}
	fewest := min(1, len(p.Machines))
	for r, sum := range sums {
		if has := *add(&most, int32(r)); has > 0 {
			fewest = max(fewest, int(math.Ceil(sum/has)))
		}
	}
	return fewest
}

// better reports whether a packing helps more pods than another, or as many for less.
func (p *Packing) better(other *Packing) bool {
	return cmp.Or(cmp.Compare(len(p.Helpless), len(other.Helpless)), cmp.Compare(p.Cost, other.Cost),
		cmp.Compare(len(p.Machines), len(other.Machines))) < 0
}

// meanFlavour is what the mean of the machines on offer has, by resource. Beside it the pods are weighed.
func meanFlavour(s *snapshot.Snapshot, flavours []Flavour) []float64 {
	var means []float64
	for i := range flavours {
		for r, value := range s.Chain.Resources.Dense(flavours[i].Template.Status.Allocatable) {
			for r >= len(means) {
				means = append(means, 0)
			}
			means[r] += float64(value) / float64(len(flavours))
		}
	}
	return means
}

// weigh sorts demands: strict and large ones come first.
func (p *packer) weigh(demands []demand) {
	p.sizes = make([]int64, p.s.ClassIDs())
	for _, d := range demands {
		p.sizes[d.class.ID] = p.sizeOf(d.class)
	}
	slices.SortStableFunc(demands, func(a, b demand) int {
		return cmp.Or(cmp.Compare(b.class.Strictness(), a.class.Strictness()), cmp.Compare(p.sizes[b.class.ID], p.sizes[a.class.ID]))
	})
}

// demands groups the pods by class.
func demands(s *snapshot.Snapshot, keys []placement.PodKey) ([]demand, error) {
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
	places := map[*filter.Class]int{}
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

// offer lists the flavours by zone.
func (p *packer) offer() {
	for i := range p.flavours {
		f := &p.flavours[i]
		count := new(int)
		var resourceLimits []*resourceLimit
		for _, a := range f.Within {
			if p.resourceLimits[a] == nil {
				p.resourceLimits[a] = newResourceLimit(a)
			}
			resourceLimits = append(resourceLimits, p.resourceLimits[a])
		}
		for _, zone := range f.Zones {
			p.offers = append(p.offers, offer{f, zone, count, resourceLimits})
		}
		if len(f.Zones) == 0 {
			p.offers = append(p.offers, offer{f, f.Template.Labels[corev1.LabelTopologyZone], count, resourceLimits})
		}
	}
}

// rounds bounds how often machines are added after the plan was tried with all of them there at once.
const rounds = 5

// pack adds machines until all pods that can be helped fit with all machines launched together.
func (p *packer) pack(demands []demand) *Packing {
	places := map[*filter.Pod]*filter.Node{}
	left := demands
	for round := range rounds {
		p.start()
		left = p.settle(demands, places)
		if round == rounds-1 {
			break
		}
		before := len(p.machines)
		left = p.add(left)
		if len(p.machines) == before {
			break
		}
		p.remember(demands, places)
	}
	return p.answer(demands, left)
}

// start takes everything back and launches the machines found so far.
func (p *packer) start() {
	p.fork.Reset()
	p.s.Rooms.ArrangePlain()
	order := slices.Clone(p.s.Rooms.Order)
	for i := range p.machines {
		order = append(order, p.fork.Add(p.machines[i].object).ID)
	}
	p.s.Rooms.Arrange(order)
}

// settle places every pod where it was placed before, or else where it fits, and returns those left over.
func (p *packer) settle(demands []demand, places map[*filter.Pod]*filter.Node) []demand {
	var left []demand
	for _, d := range demands {
		var over []*filter.Pod
		if places[d.pods[0]] == nil && d.class.ShareNode() && p.together(d.pods) {
			continue
		}
		for _, pod := range d.pods {
			if n := p.before(places[pod]); n != nil && p.s.Fits(d.class, pod.UID, n) {
				p.fork.Put(pod, n)
			} else if n := p.target(pod); n != nil {
				p.fork.Put(pod, n)
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

// before finds the node of an earlier round under its new slot.
func (p *packer) before(n *filter.Node) *filter.Node {
	if n == nil {
		return nil
	}
	return p.s.Nodes.Named(n.Name())
}

func (p *packer) remember(demands []demand, places map[*filter.Pod]*filter.Node) {
	for _, d := range demands {
		for _, pod := range d.pods {
			if pod.Node != filter.None {
				places[pod] = p.s.Nodes.At(pod.Node)
			}
		}
	}
}

// add launches machines, the best one at a time, until none would take a pod of those left over, which it returns.
func (p *packer) add(left []demand) []demand {
	for len(left) > 0 {
		best := p.best(left)
		if best == nil {
			return left
		}
		filled := 0
		for len(left) > 0 && best.available() {
			mark := p.fork.Mark()
			placed := p.launch(*best, left)
			if placed == 0 || placed < filled {
				p.recall(mark)
				break
			}
			filled = placed
			left = p.rest(left)
			if p.zoned(left) {
				break
			}
		}
	}
	return left
}

// zoned reports whether any class left cares for topology, so that the next machine had better be chosen anew.
func (p *packer) zoned(left []demand) bool {
	return slices.ContainsFunc(left, func(d demand) bool { return d.class.Social() })
}

// available reports whether one more machine may be launched.
func (o *offer) available() bool { return o.spent() == "" }

// spent says in words which limit forbids one more machine; empty when none does.
func (o *offer) spent() string {
	if o.flavour.Max != nil && *o.count >= *o.flavour.Max {
		return fmt.Sprintf("no more than %d may be launched", *o.flavour.Max)
	}
	for _, resourceLimit := range o.resourceLimits {
		if !resourceLimit.affords(o.flavour.capacity()) {
			return resourceLimit.allowance.Name
		}
	}
	return ""
}

// spend counts a machine as launched (1) or taken back (-1).
func (o *offer) spend(sign int) {
	*o.count += sign
	for _, resourceLimit := range o.resourceLimits {
		resourceLimit.spend(o.flavour.capacity(), sign)
	}
}

// recall takes back the machine launched last, and everything since a mark of the log.
func (p *packer) recall(mark int) {
	p.fork.Undo(mark)
	last := len(p.machines) - 1
	p.machines[last].spend(-1)
	p.machines = p.machines[:last]
}

// rest lists the demands that are not met yet.
func (p *packer) rest(left []demand) []demand {
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

// launch adds a machine and fills it. It returns how many pods it took.
func (p *packer) launch(o offer, left []demand) int {
	p.serial++
	object := o.flavour.Node(fmt.Sprintf("%s-new-%d", o.flavour.Name, p.serial), o.zone)
	o.spend(1)
	p.machines = append(p.machines, launched{o, object})
	n := p.fork.Add(object)
	placed := 0
	var plain []demand
	for _, d := range left {
		switch {
		case !p.s.Chain.Placeable(d.class) || d.class.HasEphemeral():
		case d.class.Social():
			placed += p.takeIn(n, d, placed)
		case p.s.Fits(d.class, d.pods[0].UID, n):
			plain = append(plain, d)
		}
	}
	return placed + p.fillUp(n, plain)
}

// takeIn puts as many pods of one class on a machine as fit. Those that have to share a node go beside others all or
// none; first in line, as many as there is room for.
func (p *packer) takeIn(n *filter.Node, d demand, before int) int {
	if before > 0 && d.class.ShareNode() {
		if p.fill(n, d.pods) {
			return len(d.pods)
		}
		return 0
	}
	return p.takeAll(n, d)
}

// takeAll puts pods of one class on a machine, one by one, as long as they fit.
func (p *packer) takeAll(n *filter.Node, d demand) int {
	for i, pod := range d.pods {
		if !p.s.Fits(d.class, pod.UID, n) {
			return i
		}
		p.fork.Put(pod, n)
	}
	return len(d.pods)
}

// fillUp fills a machine with pods that do not care for each other, by the plan's rule of which is next.
func (p *packer) fillUp(n *filter.Node, left []demand) int {
	for placed := 0; ; placed++ {
		var best *demand
		var furthest float64
		left = slices.DeleteFunc(left, func(d demand) bool { return len(d.pods) == 0 || !p.s.Fits(d.class, d.pods[0].UID, n) })
		for i := range left {
			if score := p.next(p, left[i].class, n); best == nil || score > furthest {
				best, furthest = &left[i], score
			}
		}
		if best == nil {
			return placed
		}
		if len(left) == 1 {
			return placed + p.takeAll(n, left[0])
		}
		p.fork.Put(best.pods[0], n)
		best.pods = best.pods[1:]
	}
}

// large puts the largest pods first.
func (p *packer) large(c *filter.Class, _ *filter.Node) float64 { return float64(p.sizes[c.ID]) }

// along is how far the requests of a pod, as shares of a node, point in the direction of what is left of it: large pods
// come first, and none of the resources runs out long before the others (Panigrahy et al., Heuristics for Vector Bin
// Packing, 2011).
func (*packer) along(c *filter.Class, n *filter.Node) float64 {
	var sum float64
	for _, a := range c.Requests {
		if has := float64(filter.At(n.Allocatable, a.Resource)); has > 0 {
			sum += float64(a.Value) / has * float64(n.Free(a.Resource)) / has
		}
	}
	return sum
}

// best tries one machine of every offer and returns the one with the best score; nil when none takes a pod. Among equal
// scores the zone with the fewest new machines wins.
func (p *packer) best(left []demand) *offer {
	var best *offer
	var bestScore float64
	fewest := 0
	for i := range p.offers {
		o := &p.offers[i]
		if !o.available() {
			continue
		}
		mark := p.fork.Mark()
		placed := p.launch(*o, left)
		score := p.score(*o)
		p.recall(mark)
		there := p.inZone(o)
		if placed > 0 && (best == nil || score > bestScore || score == bestScore && there < fewest) {
			best, bestScore, fewest = o, score, there
		}
	}
	return best
}

func (p *packer) inZone(o *offer) int {
	count := 0
	for i := range p.machines {
		if p.machines[i].zone == o.zone {
			count++
		}
	}
	return count
}

// score rates the machine launched last: the mean share of its cpu and memory that is used, or what is used per cost.
func (p *packer) score(o offer) float64 {
	n := p.s.Nodes.Named(p.machines[len(p.machines)-1].object.Name)
	used := n.Load() / 2
	if p.objective != LeastCost || o.flavour.Cost <= 0 {
		return used
	}
	var size float64
	for _, r := range []int32{filter.ResourceCPU, filter.ResourceMemory} {
		if mean := p.meanOf(r); mean > 0 {
			size += float64(filter.At(n.Used, r)) / mean
		}
	}
	return size / o.flavour.Cost
}

// answer reads the plan off the snapshot. Machines that ended up empty are not launched.
func (p *packer) answer(demands, left []demand) *Packing {
	out := &Packing{}
	index := map[string]int{}
	for _, m := range p.machines {
		n := p.s.Nodes.Named(m.object.Name)
		if n == nil || len(n.Pods) == 0 {
			continue
		}
		index[m.object.Name] = len(out.Machines)
		out.Machines = append(out.Machines, Machine{Name: m.object.Name, Flavour: m.flavour.Name, Zone: m.zone})
		out.Cost += m.flavour.Cost
	}
	for _, d := range demands {
		for _, pod := range d.pods {
			if pod.Node == filter.None {
				continue
			}
			name := p.s.Nodes.At(pod.Node).Name()
			out.Moves = append(out.Moves, Move{pod.Key, name})
			if i, ok := index[name]; ok {
				out.Machines[i].Pods = append(out.Machines[i].Pods, pod.Key)
			}
		}
	}
	for _, d := range left {
		reasons, spent := p.reasons(d.class)
		for _, pod := range d.pods {
			if pod.Node == filter.None {
				out.Helpless = append(out.Helpless, Helpless{pod.Key, reasons, spent})
			}
		}
	}
	return out
}

// reasons says why a new machine of each flavour does not help a class, and of which flavours no more may be launched
// though one would help.
func (p *packer) reasons(c *filter.Class) (reasons, spent map[string]string) {
	reasons = map[string]string{}
	for i := range p.offers {
		o := &p.offers[i]
		limit := o.spent()
		mark := p.fork.Mark()
		p.launch(*o, nil)
		m := p.machines[len(p.machines)-1]
		v := p.s.JudgeClass(c, "", p.s.Nodes.Named(m.object.Name))
		p.recall(mark)
		text := v.String()
		if v.Outcome == placement.Fits && limit != "" {
			text = limit
			if spent == nil {
				spent = map[string]string{}
			}
			spent[o.flavour.Name] = limit
		}
		reasons[o.flavour.Name] = text
	}
	return reasons, spent
}
