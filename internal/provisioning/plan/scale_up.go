package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/filter"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
)

// Launch is a launch of instances of one template in one group.
type Launch struct {
	Group    string `json:"group"`
	Template string `json:"template"`
	Count    int    `json:"count"`
	// Pods are the pods that the instances would take.
	Pods    []placement.PodKey `json:"pods,omitempty"`
	Reasons []Reason           `json:"reasons"`
}

// Outcome is the result for an unschedulable pod.
type Outcome string

// The outcomes. The rules of the same name explain them.
const (
	Launching     Outcome = "Launching"     // an instance is launched for it
	Provisioning  Outcome = "Provisioning"  // an instance for it is provisioning
	Fits          Outcome = "Schedulable"   // an existing node would take it
	Preempted     Outcome = "Preempting"    // the scheduler preempts other pods for it
	Unschedulable Outcome = "Unschedulable" // no instance that may be launched now would take it
)

// PodVerdict is the result for one pod.
type PodVerdict struct {
	Pod     placement.PodKey `json:"pod"`
	Outcome Outcome          `json:"outcome"`
	// Node is the node or instance that takes the pod.
	Node    string   `json:"node,omitempty"`
	Reasons []Reason `json:"reasons,omitempty"`
}

// Decision is the result of DecideScaleUp: the launches, and the verdict on each pod. Both are sorted.
type Decision struct {
	Launches []Launch     `json:"launches,omitempty"`
	Pods     []PodVerdict `json:"pods,omitempty"`
	// LaunchRequests are the verdicts on the launch requests, in their order.
	LaunchRequests []LaunchRequestVerdict `json:"launchRequests,omitempty"`

	placedOnNodes   []planner.Move // pods and headroom that fit on existing nodes
	missingHeadroom int            // headroom pods without room or a possible launch
	// unplacedPods are pods of candidates that may not fit on the other nodes.
	unplacedPods []placement.PodKey
}

// DecideScaleUp decides which instances to launch.
func DecideScaleUp(w *Input) (*Decision, error) {
	var d *Decision
	err := w.simulateInFork(func(r *forkedCluster) (err error) {
		defer r.assumeDriversOfNewNodes()()
		d, err = r.planLaunches(w.podsWithoutNomination(), 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("decide which instances to launch: %w", err)
	}
	for _, p := range w.Pods {
		if p.Nominated != "" {
			d.Pods = append(d.Pods, PodVerdict{Pod: p.Key, Outcome: Preempted, Node: p.Nominated, Reasons: []Reason{{
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

// podsWithoutNomination returns the pods that may need a launch.
func (w *Input) podsWithoutNomination() []placement.PodKey {
	keys := make([]placement.PodKey, 0, len(w.Pods))
	for _, p := range w.Pods {
		if p.Nominated == "" {
			keys = append(keys, p.Key)
		}
	}
	return keys
}

// forkedCluster is a fork of the snapshot for one decision. In the fork, starting nodes look as they will when they have
// started.
type forkedCluster struct {
	*Input
	fork         snapshot.Fork
	headroomPods map[string][]placement.PodKey // the headroom pods, by group
	templateByID map[string]*groupTemplate     // by ID
	templates    []*groupTemplate
	// startingNodes are the Nodes that still count as provisioning. They are found once, because each check reads the Node.
	startingNodes []string
	siblingOfNew  map[string]string // the node with the CSI drivers of its instance type, by the name of each new Node
}

// groupTemplate is a template of a group with derived values.
type groupTemplate struct {
	*Template
	group    *Group
	position int // the position in the group's order
	id       string
	pods     []*filter.PodClass // the pods that every instance runs
	sibling  sibling
}

// sibling is a node that shows what a new node of its instance type will have. A name is "" if no node shows it.
type sibling struct{ static, drivers string } // the nodes with the static pods and the CSI drivers

// simulateInFork calls decide in a fork with started nodes and pending headroom pods.
func (w *Input) simulateInFork(decide func(*forkedCluster) error) (err error) {
	r := &forkedCluster{Input: w, headroomPods: map[string][]placement.PodKey{}, templateByID: map[string]*groupTemplate{}, siblingOfNew: map[string]string{}}
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
		siblings := r.findSiblings(g)
		r.addTemplates(g, siblings)
		for j := range g.Nodes {
			n := g.Nodes[j].Object
			as := n // the snapshot may not have this Node yet
			switch {
			case g.IsProvisioning(n, w.Now):
				r.startingNodes = append(r.startingNodes, n.Name)
				undo = append(undo, func() error { return w.Snapshot.SetNode(n) })
				as = toStartedNode(n, startupTaints(g.Group), g.DevicesByNode[n.Name])
			case !g.isNew(n, w.Now):
				continue
			}
			if err := w.Snapshot.SetNode(as); err != nil {
				return err
			}
			r.siblingOfNew[n.Name] = siblings[n.Labels[corev1.LabelInstanceTypeStable]].drivers
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
	if err := r.addPodsOfInstances(); err != nil {
		return err
	}
	return decide(r)
}

func startupTaints(g *v1alpha1.NodeGroup) []string {
	if g.Spec.ScaleUp == nil {
		return nil
	}
	return g.Spec.ScaleUp.StartupTaints
}

// addTemplates adds the templates of a group. siblings has the sibling of each instance type.
func (r *forkedCluster) addTemplates(g *Group, siblings map[string]sibling) {
	for j := range g.Templates {
		k := &groupTemplate{Template: &g.Templates[j], group: g, position: j, id: g.name() + "/" + g.Templates[j].Name}
		if k.Node != nil {
			k.sibling = siblings[k.Node.Labels[corev1.LabelInstanceTypeStable]]
		}
		r.templateByID[k.id] = k
		r.templates = append(r.templates, k)
	}
}

// isNew reports whether a Node is younger than the join timeout. It may not have registered all of its CSI drivers.
func (g *Group) isNew(n *corev1.Node, now time.Time) bool {
	return now.Before(n.CreationTimestamp.Add(g.joinTimeout()))
}

// findSiblings returns the sibling of each instance type of the group. A new node without CSI drivers shows no drivers:
// otherwise the pod that it was launched for would fit on no instance until its drivers have registered.
func (w *Input) findSiblings(g *Group) map[string]sibling {
	nodes, siblings := map[string][]*corev1.Node{}, map[string]sibling{}
	for i := range g.Nodes {
		n := g.Nodes[i].Object
		instanceType := n.Labels[corev1.LabelInstanceTypeStable]
		nodes[instanceType] = append(nodes[instanceType], n)
	}
	for instanceType, same := range nodes {
		slices.SortFunc(same, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) }) // the caller's order differs each time
		name := planner.ChooseSibling(w.Snapshot, same)
		is := sibling{static: name, drivers: name}
		at := slices.IndexFunc(same, func(n *corev1.Node) bool { return n.Name == name })
		if known := w.Snapshot.Nodes.Lookup(name); g.isNew(same[at], w.Now) && (known == nil || known.DriverCount() == 0) {
			is.drivers = ""
		}
		siblings[instanceType] = is
	}
	return siblings
}

// assumeDriversOfNewNodes gives new nodes the CSI drivers of an instance that is not launched yet, until undo is called. A new node
// may not have registered its drivers. A pod fits on it if it fits on the template, so that no second instance is
// launched for the pod.
func (r *forkedCluster) assumeDriversOfNewNodes() (undo func()) {
	for name, sibling := range r.siblingOfNew {
		r.Snapshot.Nodes.Lookup(name).AssumeDrivers(r.Snapshot.Nodes.Lookup(sibling))
	}
	return func() {
		for name := range r.siblingOfNew {
			r.Snapshot.Storage.UpdateNodeFromCSINode(r.Snapshot.Nodes.Lookup(name))
		}
	}
}

// addPodsOfInstances adds the pods that every instance runs to each template with known resources: those of DaemonSets, and the
// static pods of the sibling.
func (r *forkedCluster) addPodsOfInstances() error {
	daemons := slices.SortedFunc(slices.Values(r.DaemonSets), func(a, b *appsv1.DaemonSet) int { // the caller's order differs each time
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, k := range r.templates {
		if k.Node == nil {
			continue
		}
		pods, err := listDaemonSetPods(k.Node, daemons)
		if err != nil {
			return err
		}
		for _, p := range pods {
			k.pods = append(k.pods, r.Snapshot.ClassOfNewPod(p))
		}
		if n := r.Snapshot.Nodes.Lookup(k.sibling.static); n != nil {
			for _, p := range n.Pods {
				if p.Facts.Flags&podrules.Mirror != 0 {
					k.pods = append(k.pods, p.Class)
				}
			}
		}
	}
	return nil
}

// planLaunches decides what to launch, in a fork of its own. removedNodes is how many nodes were removed from the outer
// fork and still count in the input.
func (r *forkedCluster) planLaunches(pods []placement.PodKey, removedNodes int, removedGroups ...string) (*Decision, error) {
	fork := r.Snapshot.Fork()
	defer fork.Rollback()
	p := &scaleUp{forkedCluster: r, launchByTemplate: map[string]*Launch{}, templateByInstance: map[string]string{}, launchedByGroup: map[string]int{}, removedNodes: removedNodes, removedGroups: removedGroups}
	if err := p.addProvisioningInstances(); err != nil {
		return nil, err
	}
	if err := p.planLaunchesToMinSize(); err != nil {
		return nil, err
	}
	left, err := p.placePodsTierByTier(pods)
	if err != nil {
		return nil, err
	}
	for _, h := range left {
		p.podVerdicts = append(p.podVerdicts, p.newUnplacedVerdict(h))
	}
	if err := p.planRequestedLaunches(); err != nil {
		return nil, err
	}
	if err := p.planHeadroomLaunches(); err != nil {
		return nil, err
	}
	return p.toDecision(), nil
}

// scaleUp is a scale-up decision in progress.
type scaleUp struct {
	*forkedCluster
	removedNodes       int
	removedGroups      []string           // the groups of the removed nodes, one entry per node
	launchByTemplate   map[string]*Launch // by ID of the template
	templateByInstance map[string]string  // by node: the ID of the template of a planned or provisioning instance
	provisioningNames  []string           // the provisioning instances in templateByInstance
	launchedByGroup    map[string]int     // planned instances, by group
	serial             int
	podVerdicts        []PodVerdict
	requestVerdicts    []LaunchRequestVerdict
	placedOnNodes      []planner.Move // pods and headroom that fit on existing nodes
	missingHeadroom    int
}

// addProvisioningInstances adds the provisioning instances to the fork.
func (p *scaleUp) addProvisioningInstances() error {
	for i := range p.Groups {
		g := &p.Groups[i]
		for _, m := range g.provisioningInstances() {
			k := p.findTemplate(g, m.Template)
			switch {
			case g.takesPods(m.ID):
				continue // its Node is in the snapshot already
			case k == nil || k.Node == nil:
				continue // its resources are unknown, so that no pod can be placed on it
			}
			name := "awaited/" + g.name() + "/" + m.ID
			if err := p.addInstance(k, name); err != nil {
				return err
			}
			p.provisioningNames = append(p.provisioningNames, name)
		}
	}
	return nil
}

// findTemplate finds a group's template by name. An empty name means the first.
func (p *scaleUp) findTemplate(g *Group, name string) *groupTemplate {
	for _, k := range p.templates {
		if k.group == g && (name == "" || launch.IsSameTemplate(k.Name, name)) {
			return k
		}
	}
	return nil
}

func toPlannerTemplate(k *groupTemplate) *planner.Template {
	return &planner.Template{Name: k.id, Node: k.Node, Pods: k.pods, Sibling: k.sibling.drivers, Cost: k.Cost}
}

// addInstance adds an instance of a template to the fork.
func (p *scaleUp) addInstance(k *groupTemplate, name string) error {
	p.templateByInstance[name] = k.id
	template := toPlannerTemplate(k)
	return template.AddInstance(p.Snapshot, p.fork, template.NewNode(name, ""))
}

// planLaunchesToMinSize launches the instances that groups lack to their minimum size, from the preferred templates.
func (p *scaleUp) planLaunchesToMinSize() error {
	for i := range p.Groups {
		g := &p.Groups[i]
		if up := g.scaleUpSpec(); up == nil || up.EnforceMinSize != nil && !*up.EnforceMinSize {
			continue
		}
		size := p.groupSize(g)
		missing := int(g.Group.Spec.MinSize) - size - g.Unreplaced
		for _, k := range p.templates {
			if missing <= 0 {
				break
			}
			if k.group != g || p.whyTemplateNotLaunchable(k) != nil {
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
					Message: fmt.Sprintf("the group has %d instances; its minimum is %d", size, g.Group.Spec.MinSize),
				})
			}
			missing -= n
		}
	}
	return nil
}

// countRemovedNodes counts the nodes of a group that were removed from the fork.
func (p *scaleUp) countRemovedNodes(g *Group) (n int) {
	for _, name := range p.removedGroups {
		if name == g.name() {
			n++
		}
	}
	return n
}

// simulateLaunch adds an instance of a template to the fork, and returns its name.
func (p *scaleUp) simulateLaunch(template *groupTemplate) (string, error) {
	p.serial++
	name := fmt.Sprintf("new/%s/%d", template.id, p.serial)
	return name, p.addInstance(template, name)
}

// simulateLaunches adds n instances of a template to the fork.
func (p *scaleUp) simulateLaunches(k *groupTemplate, n int) error {
	for range n {
		if _, err := p.simulateLaunch(k); err != nil {
			return err
		}
	}
	return nil
}

// whyTemplateNotLaunchable returns why a template may not be launched. It returns nil if it may.
func (p *scaleUp) whyTemplateNotLaunchable(k *groupTemplate) *Reason {
	switch closed := cmp.Or(p.CheckUnreadyLimit(), k.group.whyGroupNotLaunchable()); {
	case closed != nil:
		return closed
	case k.ClosedReason != nil:
		return k.ClosedReason
	case k.group.whyNeverUsable(k.Name) != nil:
		return k.group.whyNeverUsable(k.Name)
	case k.Node == nil:
		return &Reason{
			Rule: ShapeUnknown, Group: k.group.name(), Template: k.Name,
			Message: "the resources of this template are unknown: declare spec.scaleUp.templates[].allocatable",
		}
	}
	return nil
}

// whyGroupNotLaunchable returns why nothing may be launched in the group. It returns nil if launches are allowed.
func (g *Group) whyGroupNotLaunchable() *Reason {
	if g.NotAccepted != "" {
		return &Reason{Rule: nodegroup.NotAccepted, Group: g.name(), Message: "the NodeGroup is not accepted: " + g.NotAccepted}
	}
	if g.ClosedReason != nil {
		return g.ClosedReason
	}
	return g.WhyNotSelected()
}

// launchTier is a set of templates that are tried together.
type launchTier struct {
	objective planner.Objective
	templates []*groupTemplate
}

// sortTemplatesIntoTiers sorts the templates that may be launched by the priority of their groups, then by policy. With the
// policy Priority, each template is a tier of its own.
func (p *scaleUp) sortTemplatesIntoTiers() []launchTier {
	type place struct {
		priority int32
		policy   int
		at       int
	}
	places := map[place]*launchTier{}
	for _, k := range p.templates {
		up := k.group.scaleUpSpec()
		if up == nil || p.whyTemplateNotLaunchable(k) != nil {
			continue
		}
		at := place{priority: up.Priority}
		objective := planner.LeastWaste
		switch up.Policy {
		case v1alpha1.LeastCost:
			at.policy, objective = 0, planner.LeastCost
		case v1alpha1.FirstTemplate:
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

// placePodsTierByTier places pods on existing nodes, provisioning instances and new instances, tier by tier. It returns the pods
// without a place, with the reasons of every tier.
func (p *scaleUp) placePodsTierByTier(pods []placement.PodKey) ([]planner.UnschedulablePod, error) {
	if len(pods) == 0 {
		return nil, nil
	}
	tiers := p.sortTemplatesIntoTiers()
	if len(tiers) == 0 {
		tiers = []launchTier{{objective: planner.LeastWaste}}
	}
	var left []planner.UnschedulablePod
	why := map[placement.PodKey]planner.UnschedulablePod{}
	for _, t := range tiers {
		packing, err := planner.PackPods(p.Snapshot, pods, p.toPlannerTemplates(t.templates), t.objective)
		if err != nil {
			return nil, err
		}
		if err := p.applyPacking(packing, PodsWait, "pods are unschedulable"); err != nil {
			return nil, err
		}
		left, pods = nil, nil
		for _, h := range packing.Unschedulable {
			h = mergeReasons(why[h.Pod], h)
			why[h.Pod] = h
			left, pods = append(left, h), append(pods, h.Pod)
		}
		if len(pods) == 0 {
			break
		}
	}
	return left, nil
}

// mergeReasons merges the reasons of two tiers.
func mergeReasons(before, now planner.UnschedulablePod) planner.UnschedulablePod {
	if before.Reasons == nil {
		return now
	}
	out := planner.UnschedulablePod{Pod: now.Pod, Reasons: map[string]string{}, ExhaustedLimits: map[string]string{}}
	for _, h := range []planner.UnschedulablePod{before, now} {
		for id, reason := range h.Reasons {
			out.Reasons[id] = reason
		}
		for id, limit := range h.ExhaustedLimits {
			out.ExhaustedLimits[id] = limit
		}
	}
	return out
}

// toPlannerTemplates converts templates to templates of the planner. Each one gets the limits that are left now.
func (p *scaleUp) toPlannerTemplates(templates []*groupTemplate) []planner.Template {
	cluster := p.remainingClusterLimits()
	shared := map[*Group][]*launchLimit{}
	out := make([]planner.Template, 0, len(templates))
	for _, k := range templates {
		if shared[k.group] == nil {
			shared[k.group] = append(p.remainingGroupLimits(k.group), cluster...)
		}
		f := *toPlannerTemplate(k)
		for _, a := range shared[k.group] {
			f.SharedLimits = append(f.SharedLimits, &a.LaunchLimit)
		}
		out = append(out, f)
	}
	return out
}

// applyPacking launches the instances of a packing in the fork and moves its pods.
func (p *scaleUp) applyPacking(packing *planner.Packing, reasonRule, message string) error {
	names := map[string]string{}
	for _, m := range packing.Instances {
		k := p.templateByID[m.Template]
		name, err := p.simulateLaunch(k)
		if err != nil {
			return err
		}
		names[m.Name] = name
		var pods []placement.PodKey
		if reasonRule == PodsWait {
			pods = m.Pods
		}
		p.addLaunch(k, 1, pods, Reason{Rule: reasonRule, Group: k.group.name(), Template: k.Name, Message: message})
	}
	for _, m := range packing.Moves {
		to := cmp.Or(names[m.To], m.To)
		if err := p.fork.MovePod(m.Pod, to); err != nil {
			return err
		}
		if _, isInstance := p.templateByInstance[to]; !isInstance {
			p.placedOnNodes = append(p.placedOnNodes, m)
		}
		if reasonRule == PodsWait {
			p.podVerdicts = append(p.podVerdicts, p.newPlacedVerdict(m.Pod, to))
		}
	}
	return nil
}

// addLaunch adds n instances of a template to the launches.
func (p *scaleUp) addLaunch(k *groupTemplate, n int, pods []placement.PodKey, why Reason) {
	o := p.launchByTemplate[k.id]
	if o == nil {
		o = &Launch{Group: k.group.name(), Template: k.Name}
		p.launchByTemplate[k.id] = o
	}
	o.Count += n
	o.Pods = append(o.Pods, pods...)
	if !slices.Contains(o.Reasons, why) {
		o.Reasons = append(o.Reasons, why)
	}
	p.launchedByGroup[k.group.name()] += n
}

// newPlacedVerdict returns the verdict on a pod that has a place.
func (p *scaleUp) newPlacedVerdict(key placement.PodKey, node string) PodVerdict {
	v := PodVerdict{Pod: key, Node: node, Outcome: Fits}
	id, isInstance := p.templateByInstance[node]
	switch {
	case !isInstance:
		v.Reasons = []Reason{{Rule: HasRoom, Message: "the pod fits on node " + node}}
		return v
	case slices.Contains(p.provisioningNames, node):
		v.Outcome = Provisioning
	default:
		v.Outcome = Launching
	}
	k := p.templateByID[id]
	rule, message := OnItsWay, "an instance for it is provisioning"
	if v.Outcome == Launching {
		rule, message = MachineOrdered, "an instance is launched for it"
	}
	v.Reasons = []Reason{{Rule: rule, Group: k.group.name(), Template: k.Name, Message: message}}
	return v
}

// newUnplacedVerdict returns the verdict on a pod without a place, with a reason for each template.
func (p *scaleUp) newUnplacedVerdict(h planner.UnschedulablePod) PodVerdict {
	v := PodVerdict{Pod: h.Pod, Outcome: Unschedulable}
	for i := range p.Groups {
		g := &p.Groups[i]
		if g.scaleUpSpec() == nil {
			continue
		}
		if len(g.Templates) == 0 {
			v.Reasons = append(v.Reasons, whyNoTemplate(g))
		}
	}
	for _, k := range p.templates {
		if k.group.scaleUpSpec() == nil {
			continue
		}
		r := Reason{Rule: DoesNotFit, Group: k.group.name(), Template: k.Name, Message: h.Reasons[k.id]}
		if closed := p.whyTemplateNotLaunchable(k); closed != nil {
			r.Rule, r.Message = closed.Rule, closed.Message
		} else if limit := h.ExhaustedLimits[k.id]; limit != "" {
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
	if closed := g.whyGroupNotLaunchable(); closed != nil {
		return *closed
	}
	return Reason{Rule: NoTemplate, Group: g.name(), Message: "its cloud has no template for it"}
}

// toDecision returns the plan as data.
func (p *scaleUp) toDecision() *Decision {
	d := &Decision{Pods: p.podVerdicts, LaunchRequests: p.requestVerdicts, placedOnNodes: p.placedOnNodes, missingHeadroom: p.missingHeadroom}
	for _, k := range p.templates {
		if o := p.launchByTemplate[k.id]; o != nil {
			slices.SortFunc(o.Pods, comparePodKeys)
			d.Launches = append(d.Launches, *o)
		}
	}
	return d
}

// countLaunchedInstances counts the instances that the decision launches.
func (d *Decision) countLaunchedInstances() (n int) {
	for _, o := range d.Launches {
		n += o.Count
	}
	return n
}

// countLaunchedAndUnplaced counts the launched instances, and the pods and headroom pods without a place.
func (d *Decision) countLaunchedAndUnplaced() int {
	n := d.countLaunchedInstances() + d.missingHeadroom
	for i := range d.Pods {
		if d.Pods[i].Outcome == Unschedulable {
			n++
		}
	}
	return n
}
