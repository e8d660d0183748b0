package plan

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
)

// Order is what one group is to get of one kind.
type Order struct {
	Group    string `json:"group"`
	Template string `json:"template"`
	Count    int    `json:"count"`
	// Pods are those that the machines would take.
	Pods    []placement.PodKey `json:"pods,omitempty"`
	Reasons []Reason           `json:"reasons"`
}

// Outcome is what becomes of a pod that waits.
type Outcome string

// The outcomes. The rules of the same name say more.
const (
	Ordered  Outcome = "Ordered"  // a machine is ordered for it
	Awaits   Outcome = "Awaits"   // a machine for it is on its way
	Fits     Outcome = "Fits"     // a node that is there would take it
	Waits    Outcome = "Waits"    // the scheduler is making room for it
	Helpless Outcome = "Helpless" // nothing that may be ordered now helps it
)

// PodVerdict is the word on one pod.
type PodVerdict struct {
	Pod     placement.PodKey `json:"pod"`
	Outcome Outcome          `json:"outcome"`
	// Node is the one that would take it, or the machine that will.
	Node    string   `json:"node,omitempty"`
	Reasons []Reason `json:"reasons,omitempty"`
}

// Decision is the answer of Up: what to order, and what becomes of each pod. Both are sorted.
type Decision struct {
	Orders []Order      `json:"orders,omitempty"`
	Pods   []PodVerdict `json:"pods,omitempty"`
	// Wishes are the words on the world's wishes, in their order.
	Wishes []WishVerdict `json:"wishes,omitempty"`

	placedOnNodes   []planner.Move // pods and slots that nodes which are there take
	missingHeadroom int            // slots for which there is no room, and no machine may be ordered
	// unplacedPods are pods of victims for which the other nodes may have no room.
	unplacedPods []placement.PodKey
}

// Up says which machines to order.
func Up(w *World) (*Decision, error) {
	var d *Decision
	err := w.simulate(func(r *forkedCluster) (err error) {
		d, err = r.planLaunches(w.podsWithoutNomination(), 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("deciding which machines to order: %w", err)
	}
	for _, p := range w.Pods {
		if p.Nominated != "" {
			d.Pods = append(d.Pods, PodVerdict{Pod: p.Key, Outcome: Waits, Node: p.Nominated, Reasons: []Reason{{
				Rule: Preempting, Message: "the scheduler is making room for it on node " + p.Nominated,
			}}})
		}
	}
	slices.SortFunc(d.Pods, func(a, b PodVerdict) int { return comparePodKeys(a.Pod, b.Pod) })
	return d, nil
}

func comparePodKeys(a, b placement.PodKey) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// podsWithoutNomination are the pods that a machine could be ordered for.
func (w *World) podsWithoutNomination() []placement.PodKey {
	keys := make([]placement.PodKey, 0, len(w.Pods))
	for _, p := range w.Pods {
		if p.Nominated == "" {
			keys = append(keys, p.Key)
		}
	}
	return keys
}

// forkedCluster is one decision, in a fork of the snapshot in which nodes that arrive are as they will be.
type forkedCluster struct {
	*World
	fork              snapshot.Fork
	headroomPods      map[string][]placement.PodKey // by group, the spare room that it keeps
	templateByFlavour map[string]*groupTemplate     // by name of its flavour
	templates         []*groupTemplate
}

// groupTemplate is a kind of a group with what is made of it.
type groupTemplate struct {
	*Kind
	group    *Group
	position int // in the group's order
	flavour  string
	node     *corev1.Node // with the pods of DaemonSets deducted
}

// simulate calls decide in a fork in which the nodes that arrive are as they will be, and the slots of head-room wait.
func (w *World) simulate(decide func(*forkedCluster) error) (err error) {
	r := &forkedCluster{World: w, headroomPods: map[string][]placement.PodKey{}, templateByFlavour: map[string]*groupTemplate{}}
	if err := r.makeTemplates(); err != nil {
		return err
	}
	var undo []func() error
	defer func() {
		for _, back := range slices.Backward(undo) {
			if failed := back(); failed != nil && err == nil {
				err = failed
			}
		}
	}()
	for i := range w.Groups {
		g := &w.Groups[i]
		for j := range g.Nodes {
			n := g.Nodes[j].Object
			as := n // the snapshot may not have heard yet that it has come
			switch {
			case g.IsProvisioning(n, w.Now):
				undo = append(undo, func() error { return w.Snapshot.SetNode(n) })
				as = toStartedNode(n, startupTaints(g.Group), g.Devices[n.Name])
			case !w.Now.Before(n.CreationTimestamp.Add(g.joinTimeout())):
				continue
			}
			if err := w.Snapshot.SetNode(as); err != nil {
				return err
			}
		}
		for _, slot := range r.makeHeadroomPods(g) {
			key := placement.PodKey{Namespace: slot.Namespace, Name: slot.Name}
			undo = append(undo, func() error { return w.Snapshot.DeletePod(key) })
			if err := w.Snapshot.SetPod(slot); err != nil {
				return err
			}
			r.headroomPods[g.name()] = append(r.headroomPods[g.name()], key)
		}
	}
	r.fork = w.Snapshot.Fork()
	defer r.fork.Rollback()
	return decide(r)
}

func startupTaints(g *v1alpha1.NodeGroup) []string {
	if g.Spec.ScaleUp == nil {
		return nil
	}
	return g.Spec.ScaleUp.StartupTaints
}

// makeTemplates makes the template of every kind of which it is known what it has.
func (r *forkedCluster) makeTemplates() error {
	for i := range r.Groups {
		g := &r.Groups[i]
		for j := range g.Kinds {
			k := &groupTemplate{Kind: &g.Kinds[j], group: g, position: j, flavour: g.name() + "/" + g.Kinds[j].Name}
			if k.Node != nil {
				template, err := deductDaemonSets(k.Node, r.Daemons)
				if err != nil {
					return err
				}
				k.node = template
			}
			r.templateByFlavour[k.flavour] = k
			r.templates = append(r.templates, k)
		}
	}
	return nil
}

// planLaunches decides in a fork of its own. gone is how many nodes the fork has taken away of those that the world counts.
func (r *forkedCluster) planLaunches(keys []placement.PodKey, gone int, leaving ...string) (*Decision, error) {
	fork := r.Snapshot.Fork()
	defer fork.Rollback()
	p := &scaleUp{forkedCluster: r, launchByFlavour: map[string]*Order{}, flavourByInstance: map[string]string{}, launchedByGroup: map[string]int{}, removedNodes: gone, removedGroups: leaving}
	if err := p.addProvisioningInstances(); err != nil {
		return nil, err
	}
	if err := p.launchToMinSize(); err != nil {
		return nil, err
	}
	left, err := p.placePods(keys)
	if err != nil {
		return nil, err
	}
	for _, h := range left {
		p.podVerdicts = append(p.podVerdicts, p.newUnplacedVerdict(h))
	}
	if err := p.launchRequested(); err != nil {
		return nil, err
	}
	if err := p.launchHeadroom(); err != nil {
		return nil, err
	}
	return p.toDecision(), nil
}

// scaleUp is a decision in the making.
type scaleUp struct {
	*forkedCluster
	removedNodes      int
	removedGroups     []string          // groups of the nodes that are taken away, one entry for each
	launchByFlavour   map[string]*Order // by flavour
	flavourByInstance map[string]string // by node: the flavour of a machine that is ordered, or on its way
	provisioningNames []string          // machines on their way, of those
	launchedByGroup   map[string]int    // ordered by group
	serial            int
	podVerdicts       []PodVerdict
	requestVerdicts   []WishVerdict
	placedOnNodes     []planner.Move // pods and slots that nodes which are there take
	missingHeadroom   int
}

// addProvisioningInstances puts the machines that are on their way where they will be.
func (p *scaleUp) addProvisioningInstances() error {
	for i := range p.Groups {
		g := &p.Groups[i]
		for _, m := range g.provisioningInstances() {
			k := p.findTemplate(g, m.Kind)
			if k == nil || k.node == nil {
				continue // nobody knows what it will be: it helps nobody
			}
			name := "awaited/" + g.name() + "/" + m.ID
			if err := p.fork.Launch(toFlavour(k).Node(name, "")); err != nil {
				return err
			}
			p.flavourByInstance[name] = k.flavour
			p.provisioningNames = append(p.provisioningNames, name)
		}
	}
	return nil
}

// findTemplate finds a group's kind by its name; no name is the first.
func (p *scaleUp) findTemplate(g *Group, name string) *groupTemplate {
	for _, k := range p.templates {
		if k.group == g && (name == "" || launch.SameKind(k.Name, name)) {
			return k
		}
	}
	return nil
}

func toFlavour(k *groupTemplate) *planner.Flavour {
	return &planner.Flavour{Name: k.flavour, Template: k.node, Cost: k.Cost}
}

// launchToMinSize orders what a group has too few, of its preferred kind.
func (p *scaleUp) launchToMinSize() error {
	for i := range p.Groups {
		g := &p.Groups[i]
		if up := g.scaleUpSpec(); up == nil || up.KeepMinimum != nil && !*up.KeepMinimum {
			continue
		}
		size := p.groupSize(g)
		missing := int(g.Group.Spec.Minimum) - size - g.Unreplaced
		for _, k := range p.templates {
			if missing <= 0 {
				break
			}
			if k.group != g || p.whyClosed(k) != nil {
				continue
			}
			n := missing
			for _, a := range p.allLimits(g) {
				n = min(n, a.maxInstances(k))
			}
			if err := p.simulateLaunches(k, n); err != nil {
				return err
			}
			if n > 0 {
				p.addLaunch(k, n, nil, Reason{
					Rule: BelowMinimum, Group: g.name(), Template: k.Name,
					Message: fmt.Sprintf("the group has %d machines and a minimum of %d", size, g.Group.Spec.Minimum),
				})
			}
			missing -= n
		}
	}
	return nil
}

// countRemoved is how many nodes of a group the fork has taken away.
func (p *scaleUp) countRemoved(g *Group) (n int) {
	for _, name := range p.removedGroups {
		if name == g.name() {
			n++
		}
	}
	return n
}

// simulateLaunch puts a machine of a kind where it will be, and gives its name.
func (p *scaleUp) simulateLaunch(k *groupTemplate) (string, error) {
	p.serial++
	name := fmt.Sprintf("new/%s/%d", k.flavour, p.serial)
	p.flavourByInstance[name] = k.flavour
	return name, p.fork.Launch(toFlavour(k).Node(name, ""))
}

// simulateLaunches launches n machines of a kind.
func (p *scaleUp) simulateLaunches(k *groupTemplate, n int) error {
	for range n {
		if _, err := p.simulateLaunch(k); err != nil {
			return err
		}
	}
	return nil
}

// whyClosed is why none of a kind may be ordered; nil when one may.
func (p *scaleUp) whyClosed(k *groupTemplate) *Reason {
	switch closed := cmp.Or(p.Braked(), k.group.whyClosed()); {
	case closed != nil:
		return closed
	case k.Closed != nil:
		return k.Closed
	case k.group.whyNeverUsable(k.Name) != nil:
		return k.group.whyNeverUsable(k.Name)
	case k.node == nil:
		return &Reason{
			Rule: ShapeUnknown, Group: k.group.name(), Template: k.Name,
			Message: "nobody has said what such a machine has, and no node has shown it: declare what is allocatable",
		}
	}
	return nil
}

// whyClosed is why nothing may be ordered for a group; nil when something may.
func (g *Group) whyClosed() *Reason {
	if g.NotAccepted != "" {
		return &Reason{Rule: nodegroup.NotAccepted, Group: g.name(), Message: "the NodeGroup is not acted on: " + g.NotAccepted}
	}
	if g.Closed != nil {
		return g.Closed
	}
	return g.NotSelected()
}

// tier is kinds that are asked together.
type launchTier struct {
	objective planner.Objective
	templates []*groupTemplate
}

// sortIntoTiers orders the kinds that may be ordered: by the priority of their groups, and within one by policy. Of a group whose
// policy is its own order each kind comes after those before it.
func (p *scaleUp) sortIntoTiers() []launchTier {
	type place struct {
		priority int32
		policy   int
		at       int
	}
	places := map[place]*launchTier{}
	for _, k := range p.templates {
		up := k.group.scaleUpSpec()
		if up == nil || p.whyClosed(k) != nil {
			continue
		}
		at := place{priority: up.Priority}
		objective := planner.LeastWaste
		switch up.Policy {
		case v1alpha1.LeastCost:
			at.policy, objective = 0, planner.LeastCost
		case v1alpha1.ByPriority:
			at.policy, at.at = 2, k.position
		default:
			at.policy = 1
		}
		if places[at] == nil {
			places[at] = &launchTier{objective: objective}
		}
		places[at].templates = append(places[at].templates, k)
	}
	keys := make([]place, 0, len(places))
	for at := range places {
		keys = append(keys, at)
	}
	slices.SortFunc(keys, func(a, b place) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.policy, b.policy), cmp.Compare(a.at, b.at))
	})
	out := make([]launchTier, 0, len(keys))
	for _, at := range keys {
		out = append(out, *places[at])
	}
	return out
}

// placePods places pods on what is there, on its way, or to be ordered, tier by tier, and returns those that nothing helps,
// with the reasons of every tier.
func (p *scaleUp) placePods(keys []placement.PodKey) ([]planner.Helpless, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	tiers := p.sortIntoTiers()
	if len(tiers) == 0 {
		tiers = []launchTier{{objective: planner.LeastWaste}}
	}
	var left []planner.Helpless
	why := map[placement.PodKey]planner.Helpless{}
	for _, t := range tiers {
		packing, err := planner.Pack(p.Snapshot, keys, p.toFlavours(t.templates), t.objective)
		if err != nil {
			return nil, err
		}
		if err := p.applyPacking(packing, PodsWait, "pods wait for room"); err != nil {
			return nil, err
		}
		left, keys = nil, nil
		for _, h := range packing.Helpless {
			h = mergeReasons(why[h.Pod], h)
			why[h.Pod] = h
			left, keys = append(left, h), append(keys, h.Pod)
		}
		if len(keys) == 0 {
			break
		}
	}
	return left, nil
}

// mergeReasons joins the reasons of an earlier tier to those of a later one.
func mergeReasons(before, now planner.Helpless) planner.Helpless {
	if before.Reasons == nil {
		return now
	}
	out := planner.Helpless{Pod: now.Pod, Reasons: map[string]string{}, Spent: map[string]string{}}
	for _, h := range []planner.Helpless{before, now} {
		for flavour, reason := range h.Reasons {
			out.Reasons[flavour] = reason
		}
		for flavour, limit := range h.Spent {
			out.Spent[flavour] = limit
		}
	}
	return out
}

// toFlavours makes placement's of kinds, with what is left of the limits now.
func (p *scaleUp) toFlavours(kinds []*groupTemplate) []planner.Flavour {
	cluster := p.clusterLimits()
	shared := map[*Group][]*launchLimit{}
	out := make([]planner.Flavour, 0, len(kinds))
	for _, k := range kinds {
		if shared[k.group] == nil {
			shared[k.group] = append(p.groupLimits(k.group), cluster...)
		}
		f := *toFlavour(k)
		for _, a := range shared[k.group] {
			f.Within = append(f.Within, &a.Allowance)
		}
		out = append(out, f)
	}
	return out
}

// applyPacking does in the fork what a packing says: its machines are there, and its pods on them.
func (p *scaleUp) applyPacking(packing *planner.Packing, rule, why string) error {
	names := map[string]string{}
	for _, m := range packing.Machines {
		k := p.templateByFlavour[m.Flavour]
		name, err := p.simulateLaunch(k)
		if err != nil {
			return err
		}
		names[m.Name] = name
		var pods []placement.PodKey
		if rule == PodsWait {
			pods = m.Pods
		}
		p.addLaunch(k, 1, pods, Reason{Rule: rule, Group: k.group.name(), Template: k.Name, Message: why})
	}
	for _, m := range packing.Moves {
		to := cmp.Or(names[m.To], m.To)
		if err := p.fork.Move(m.Pod, to); err != nil {
			return err
		}
		if _, machine := p.flavourByInstance[to]; !machine {
			p.placedOnNodes = append(p.placedOnNodes, m)
		}
		if rule == PodsWait {
			p.podVerdicts = append(p.podVerdicts, p.newPlacedVerdict(m.Pod, to))
		}
	}
	return nil
}

// addLaunch adds to what is ordered of a kind.
func (p *scaleUp) addLaunch(k *groupTemplate, n int, pods []placement.PodKey, why Reason) {
	o := p.launchByFlavour[k.flavour]
	if o == nil {
		o = &Order{Group: k.group.name(), Template: k.Name}
		p.launchByFlavour[k.flavour] = o
	}
	o.Count += n
	o.Pods = append(o.Pods, pods...)
	if !slices.Contains(o.Reasons, why) {
		o.Reasons = append(o.Reasons, why)
	}
	p.launchedByGroup[k.group.name()] += n
}

// newPlacedVerdict says what becomes of a pod that has a place.
func (p *scaleUp) newPlacedVerdict(key placement.PodKey, node string) PodVerdict {
	v := PodVerdict{Pod: key, Node: node, Outcome: Fits}
	flavour, machine := p.flavourByInstance[node]
	switch {
	case !machine:
		v.Reasons = []Reason{{Rule: HasRoom, Message: "node " + node + " would take it"}}
		return v
	case slices.Contains(p.provisioningNames, node):
		v.Outcome = Awaits
	default:
		v.Outcome = Ordered
	}
	k := p.templateByFlavour[flavour]
	rule, message := OnItsWay, "a machine for it is on its way"
	if v.Outcome == Ordered {
		rule, message = MachineOrdered, "a machine is ordered for it"
	}
	v.Reasons = []Reason{{Rule: rule, Group: k.group.name(), Template: k.Name, Message: message}}
	return v
}

// newUnplacedVerdict says why nothing helps a pod, kind by kind.
func (p *scaleUp) newUnplacedVerdict(h planner.Helpless) PodVerdict {
	v := PodVerdict{Pod: h.Pod, Outcome: Helpless}
	for i := range p.Groups {
		g := &p.Groups[i]
		if g.scaleUpSpec() == nil {
			continue
		}
		if len(g.Kinds) == 0 {
			v.Reasons = append(v.Reasons, whyNoTemplate(g))
		}
	}
	for _, k := range p.templates {
		if k.group.scaleUpSpec() == nil {
			continue
		}
		r := Reason{Rule: DoesNotFit, Group: k.group.name(), Template: k.Name, Message: h.Reasons[k.flavour]}
		if closed := p.whyClosed(k); closed != nil {
			r.Rule, r.Message = closed.Rule, closed.Message
		} else if limit := h.Spent[k.flavour]; limit != "" {
			r.Rule, r.Message = limit, p.limitMessage(k.group, limit)
		}
		v.Reasons = append(v.Reasons, r)
	}
	if len(v.Reasons) == 0 {
		v.Reasons = []Reason{{Rule: NoGroup, Message: "no NodeGroup has spec.scaleUp"}}
	}
	return v
}

func whyNoTemplate(g *Group) Reason {
	if closed := g.whyClosed(); closed != nil {
		return *closed
	}
	return Reason{Rule: NoTemplate, Group: g.name(), Message: "its cloud has no kind of machine for it"}
}

// toDecision is the plan as data.
func (p *scaleUp) toDecision() *Decision {
	d := &Decision{Pods: p.podVerdicts, Wishes: p.requestVerdicts, placedOnNodes: p.placedOnNodes, missingHeadroom: p.missingHeadroom}
	for _, k := range p.templates {
		if o := p.launchByFlavour[k.flavour]; o != nil {
			slices.SortFunc(o.Pods, comparePodKeys)
			d.Orders = append(d.Orders, *o)
		}
	}
	return d
}

// countInstances is how many machines a decision orders.
func (d *Decision) countInstances() (n int) {
	for _, o := range d.Orders {
		n += o.Count
	}
	return n
}

// countDemand measures what is missing: the machines that a decision orders, and the pods and slots that it can do nothing for.
func (d *Decision) countDemand() int {
	n := d.countInstances() + d.missingHeadroom
	for i := range d.Pods {
		if d.Pods[i].Outcome == Helpless {
			n++
		}
	}
	return n
}
