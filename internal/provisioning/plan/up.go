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
	Ordered  Outcome = "Launching"     // a machine is ordered for it
	Awaits   Outcome = "Provisioning"  // a machine for it is on its way
	Fits     Outcome = "Schedulable"   // a node that is there would take it
	Waits    Outcome = "Preempting"    // the scheduler is making room for it
	Helpless Outcome = "Unschedulable" // nothing that may be ordered now helps it
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

	settled []planner.Move // pods and slots that nodes which are there take
	short   int            // slots for which there is no room, and no machine may be ordered
	// unplaced are pods of victims for which the other nodes may have no room.
	unplaced []placement.PodKey
}

// Up says which machines to order.
func Up(w *World) (*Decision, error) {
	var d *Decision
	err := w.arranged(func(r *round) (err error) {
		d, err = r.up(w.keys(), 0)
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
	slices.SortFunc(d.Pods, func(a, b PodVerdict) int { return compareKeys(a.Pod, b.Pod) })
	return d, nil
}

func compareKeys(a, b placement.PodKey) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// keys are the pods that a machine could be ordered for.
func (w *World) keys() []placement.PodKey {
	keys := make([]placement.PodKey, 0, len(w.Pods))
	for _, p := range w.Pods {
		if p.Nominated == "" {
			keys = append(keys, p.Key)
		}
	}
	return keys
}

// round is one decision, in a fork of the snapshot in which nodes that arrive are as they will be.
type round struct {
	*World
	fork  snapshot.Fork
	slots map[string][]placement.PodKey // by group, the spare room that it keeps
	kinds map[string]*kind              // by name of its flavour
	order []*kind
}

// kind is a kind of a group with what is made of it.
type kind struct {
	*Kind
	group    *Group
	at       int // in the group's order
	flavour  string
	template *corev1.Node // with the pods of DaemonSets deducted
}

// arranged calls decide in a fork in which the nodes that arrive are as they will be, and the slots of head-room wait.
func (w *World) arranged(decide func(*round) error) (err error) {
	r := &round{World: w, slots: map[string][]placement.PodKey{}, kinds: map[string]*kind{}}
	if err := r.shapes(); err != nil {
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
				as = arrived(n, startupTaints(g.Group), g.Devices[n.Name])
			case !w.Now.Before(n.CreationTimestamp.Add(g.joinTimeout())):
				continue
			}
			if err := w.Snapshot.SetNode(as); err != nil {
				return err
			}
		}
		for _, slot := range r.headRoom(g) {
			key := placement.PodKey{Namespace: slot.Namespace, Name: slot.Name}
			undo = append(undo, func() error { return w.Snapshot.DeletePod(key) })
			if err := w.Snapshot.SetPod(slot); err != nil {
				return err
			}
			r.slots[g.name()] = append(r.slots[g.name()], key)
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

// shapes makes the template of every kind of which it is known what it has.
func (r *round) shapes() error {
	for i := range r.Groups {
		g := &r.Groups[i]
		for j := range g.Kinds {
			k := &kind{Kind: &g.Kinds[j], group: g, at: j, flavour: g.name() + "/" + g.Kinds[j].Name}
			if k.Node != nil {
				template, err := serve(k.Node, r.Daemons)
				if err != nil {
					return err
				}
				k.template = template
			}
			r.kinds[k.flavour] = k
			r.order = append(r.order, k)
		}
	}
	return nil
}

// up decides in a fork of its own. gone is how many nodes the fork has taken away of those that the world counts.
func (r *round) up(keys []placement.PodKey, gone int, leaving ...string) (*Decision, error) {
	fork := r.Snapshot.Fork()
	defer fork.Rollback()
	p := &plan{round: r, ordered: map[string]*Order{}, machines: map[string]string{}, count: map[string]int{}, gone: gone, leaving: leaving}
	if err := p.launchAwaited(); err != nil {
		return nil, err
	}
	if err := p.keepMinimum(); err != nil {
		return nil, err
	}
	left, err := p.serve(keys)
	if err != nil {
		return nil, err
	}
	for _, h := range left {
		p.verdicts = append(p.verdicts, p.helpless(h))
	}
	if err := p.grant(); err != nil {
		return nil, err
	}
	if err := p.keepRoom(); err != nil {
		return nil, err
	}
	return p.decision(), nil
}

// plan is a decision in the making.
type plan struct {
	*round
	gone     int
	leaving  []string          // groups of the nodes that are taken away, one entry for each
	ordered  map[string]*Order // by flavour
	machines map[string]string // by node: the flavour of a machine that is ordered, or on its way
	awaited  []string          // machines on their way, of those
	count    map[string]int    // ordered by group
	serial   int
	verdicts []PodVerdict
	wishes   []WishVerdict
	settled  []planner.Move // pods and slots that nodes which are there take
	short    int
}

// launchAwaited puts the machines that are on their way where they will be.
func (p *plan) launchAwaited() error {
	for i := range p.Groups {
		g := &p.Groups[i]
		for _, m := range g.provisioning() {
			k := p.kindOf(g, m.Kind)
			if k == nil || k.template == nil {
				continue // nobody knows what it will be: it helps nobody
			}
			name := "awaited/" + g.name() + "/" + m.ID
			if err := p.fork.Launch(flavourOf(k).Node(name, "")); err != nil {
				return err
			}
			p.machines[name] = k.flavour
			p.awaited = append(p.awaited, name)
		}
	}
	return nil
}

// kindOf finds a group's kind by its name; no name is the first.
func (p *plan) kindOf(g *Group, name string) *kind {
	for _, k := range p.order {
		if k.group == g && (name == "" || launch.SameKind(k.Name, name)) {
			return k
		}
	}
	return nil
}

func flavourOf(k *kind) *planner.Flavour {
	return &planner.Flavour{Name: k.flavour, Template: k.template, Cost: k.Cost}
}

// keepMinimum orders what a group has too few, of its preferred kind.
func (p *plan) keepMinimum() error {
	for i := range p.Groups {
		g := &p.Groups[i]
		if up := g.scaleUp(); up == nil || up.KeepMinimum != nil && !*up.KeepMinimum {
			continue
		}
		size := p.size(g)
		missing := int(g.Group.Spec.Minimum) - size - g.Unreplaced
		for _, k := range p.order {
			if missing <= 0 {
				break
			}
			if k.group != g || p.closed(k) != nil {
				continue
			}
			n := missing
			for _, a := range p.allowances(g) {
				n = min(n, a.affordable(k))
			}
			if err := p.launchAll(k, n); err != nil {
				return err
			}
			if n > 0 {
				p.add(k, n, nil, Reason{
					Rule: BelowMinimum, Group: g.name(), Template: k.Name,
					Message: fmt.Sprintf("the group has %d machines and a minimum of %d", size, g.Group.Spec.Minimum),
				})
			}
			missing -= n
		}
	}
	return nil
}

// lost is how many nodes of a group the fork has taken away.
func (p *plan) lost(g *Group) (n int) {
	for _, name := range p.leaving {
		if name == g.name() {
			n++
		}
	}
	return n
}

// launch puts a machine of a kind where it will be, and gives its name.
func (p *plan) launch(k *kind) (string, error) {
	p.serial++
	name := fmt.Sprintf("new/%s/%d", k.flavour, p.serial)
	p.machines[name] = k.flavour
	return name, p.fork.Launch(flavourOf(k).Node(name, ""))
}

// launchAll launches n machines of a kind.
func (p *plan) launchAll(k *kind, n int) error {
	for range n {
		if _, err := p.launch(k); err != nil {
			return err
		}
	}
	return nil
}

// closed is why none of a kind may be ordered; nil when one may.
func (p *plan) closed(k *kind) *Reason {
	switch closed := cmp.Or(p.Braked(), k.group.closed()); {
	case closed != nil:
		return closed
	case k.Closed != nil:
		return k.Closed
	case k.group.neverUsable(k.Name) != nil:
		return k.group.neverUsable(k.Name)
	case k.template == nil:
		return &Reason{
			Rule: ShapeUnknown, Group: k.group.name(), Template: k.Name,
			Message: "nobody has said what such a machine has, and no node has shown it: declare what is allocatable",
		}
	}
	return nil
}

// closed is why nothing may be ordered for a group; nil when something may.
func (g *Group) closed() *Reason {
	if g.NotAccepted != "" {
		return &Reason{Rule: nodegroup.NotAccepted, Group: g.name(), Message: "the NodeGroup is not acted on: " + g.NotAccepted}
	}
	if g.Closed != nil {
		return g.Closed
	}
	return g.NotSelected()
}

// tier is kinds that are asked together.
type tierOf struct {
	objective planner.Objective
	kinds     []*kind
}

// tiers orders the kinds that may be ordered: by the priority of their groups, and within one by policy. Of a group whose
// policy is its own order each kind comes after those before it.
func (p *plan) tiers() []tierOf {
	type place struct {
		priority int32
		policy   int
		at       int
	}
	places := map[place]*tierOf{}
	for _, k := range p.order {
		up := k.group.scaleUp()
		if up == nil || p.closed(k) != nil {
			continue
		}
		at := place{priority: up.Priority}
		objective := planner.LeastWaste
		switch up.Policy {
		case v1alpha1.LeastCost:
			at.policy, objective = 0, planner.LeastCost
		case v1alpha1.ByPriority:
			at.policy, at.at = 2, k.at
		default:
			at.policy = 1
		}
		if places[at] == nil {
			places[at] = &tierOf{objective: objective}
		}
		places[at].kinds = append(places[at].kinds, k)
	}
	keys := make([]place, 0, len(places))
	for at := range places {
		keys = append(keys, at)
	}
	slices.SortFunc(keys, func(a, b place) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.policy, b.policy), cmp.Compare(a.at, b.at))
	})
	out := make([]tierOf, 0, len(keys))
	for _, at := range keys {
		out = append(out, *places[at])
	}
	return out
}

// serve places pods on what is there, on its way, or to be ordered, tier by tier, and returns those that nothing helps,
// with the reasons of every tier.
func (p *plan) serve(keys []placement.PodKey) ([]planner.Helpless, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	tiers := p.tiers()
	if len(tiers) == 0 {
		tiers = []tierOf{{objective: planner.LeastWaste}}
	}
	var left []planner.Helpless
	why := map[placement.PodKey]planner.Helpless{}
	for _, t := range tiers {
		packing, err := planner.Pack(p.Snapshot, keys, p.flavours(t.kinds), t.objective)
		if err != nil {
			return nil, err
		}
		if err := p.carryOut(packing, PodsWait, "pods wait for room"); err != nil {
			return nil, err
		}
		left, keys = nil, nil
		for _, h := range packing.Helpless {
			h = merged(why[h.Pod], h)
			why[h.Pod] = h
			left, keys = append(left, h), append(keys, h.Pod)
		}
		if len(keys) == 0 {
			break
		}
	}
	return left, nil
}

// merged joins the reasons of an earlier tier to those of a later one.
func merged(before, now planner.Helpless) planner.Helpless {
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

// flavours makes placement's of kinds, with what is left of the limits now.
func (p *plan) flavours(kinds []*kind) []planner.Flavour {
	cluster := p.clusterAllowance()
	shared := map[*Group][]*allowance{}
	out := make([]planner.Flavour, 0, len(kinds))
	for _, k := range kinds {
		if shared[k.group] == nil {
			shared[k.group] = append(p.groupAllowances(k.group), cluster...)
		}
		f := *flavourOf(k)
		for _, a := range shared[k.group] {
			f.Within = append(f.Within, &a.Allowance)
		}
		out = append(out, f)
	}
	return out
}

// carryOut does in the fork what a packing says: its machines are there, and its pods on them.
func (p *plan) carryOut(packing *planner.Packing, rule, why string) error {
	names := map[string]string{}
	for _, m := range packing.Machines {
		k := p.kinds[m.Flavour]
		name, err := p.launch(k)
		if err != nil {
			return err
		}
		names[m.Name] = name
		var pods []placement.PodKey
		if rule == PodsWait {
			pods = m.Pods
		}
		p.add(k, 1, pods, Reason{Rule: rule, Group: k.group.name(), Template: k.Name, Message: why})
	}
	for _, m := range packing.Moves {
		to := cmp.Or(names[m.To], m.To)
		if err := p.fork.Move(m.Pod, to); err != nil {
			return err
		}
		if _, machine := p.machines[to]; !machine {
			p.settled = append(p.settled, m)
		}
		if rule == PodsWait {
			p.verdicts = append(p.verdicts, p.placed(m.Pod, to))
		}
	}
	return nil
}

// add adds to what is ordered of a kind.
func (p *plan) add(k *kind, n int, pods []placement.PodKey, why Reason) {
	o := p.ordered[k.flavour]
	if o == nil {
		o = &Order{Group: k.group.name(), Template: k.Name}
		p.ordered[k.flavour] = o
	}
	o.Count += n
	o.Pods = append(o.Pods, pods...)
	if !slices.Contains(o.Reasons, why) {
		o.Reasons = append(o.Reasons, why)
	}
	p.count[k.group.name()] += n
}

// placed says what becomes of a pod that has a place.
func (p *plan) placed(key placement.PodKey, node string) PodVerdict {
	v := PodVerdict{Pod: key, Node: node, Outcome: Fits}
	flavour, machine := p.machines[node]
	switch {
	case !machine:
		v.Reasons = []Reason{{Rule: HasRoom, Message: "node " + node + " would take it"}}
		return v
	case slices.Contains(p.awaited, node):
		v.Outcome = Awaits
	default:
		v.Outcome = Ordered
	}
	k := p.kinds[flavour]
	rule, message := OnItsWay, "a machine for it is on its way"
	if v.Outcome == Ordered {
		rule, message = MachineOrdered, "a machine is ordered for it"
	}
	v.Reasons = []Reason{{Rule: rule, Group: k.group.name(), Template: k.Name, Message: message}}
	return v
}

// helpless says why nothing helps a pod, kind by kind.
func (p *plan) helpless(h planner.Helpless) PodVerdict {
	v := PodVerdict{Pod: h.Pod, Outcome: Helpless}
	for i := range p.Groups {
		g := &p.Groups[i]
		if g.scaleUp() == nil {
			continue
		}
		if len(g.Kinds) == 0 {
			v.Reasons = append(v.Reasons, noKind(g))
		}
	}
	for _, k := range p.order {
		if k.group.scaleUp() == nil {
			continue
		}
		r := Reason{Rule: DoesNotFit, Group: k.group.name(), Template: k.Name, Message: h.Reasons[k.flavour]}
		if closed := p.closed(k); closed != nil {
			r.Rule, r.Message = closed.Rule, closed.Message
		} else if limit := h.Spent[k.flavour]; limit != "" {
			r.Rule, r.Message = limit, p.limit(k.group, limit)
		}
		v.Reasons = append(v.Reasons, r)
	}
	if len(v.Reasons) == 0 {
		v.Reasons = []Reason{{Rule: NoGroup, Message: "no NodeGroup has spec.scaleUp"}}
	}
	return v
}

func noKind(g *Group) Reason {
	if closed := g.closed(); closed != nil {
		return *closed
	}
	return Reason{Rule: NoTemplate, Group: g.name(), Message: "its cloud has no kind of machine for it"}
}

// decision is the plan as data.
func (p *plan) decision() *Decision {
	d := &Decision{Pods: p.verdicts, Wishes: p.wishes, settled: p.settled, short: p.short}
	for _, k := range p.order {
		if o := p.ordered[k.flavour]; o != nil {
			slices.SortFunc(o.Pods, compareKeys)
			d.Orders = append(d.Orders, *o)
		}
	}
	return d
}

// machines is how many machines a decision orders.
func (d *Decision) machines() (n int) {
	for _, o := range d.Orders {
		n += o.Count
	}
	return n
}

// wants measures what is missing: the machines that a decision orders, and the pods and slots that it can do nothing for.
func (d *Decision) wants() int {
	n := d.machines() + d.short
	for i := range d.Pods {
		if d.Pods[i].Outcome == Helpless {
			n++
		}
	}
	return n
}
