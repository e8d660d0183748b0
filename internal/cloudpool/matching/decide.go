package matching

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// Decision is which machines are to go so that a pool comes to a size, and why the others stay. It is data: it is what is
// answered, written down and acted upon.
type Decision struct {
	// Desired is the size that was asked for, and Active how many machines count now, those that are leaving not.
	Desired int `json:"desiredSize"`
	Active  int `json:"active"`
	// Victims are the machines to take away, in this order.
	Victims []Victim `json:"victims,omitempty"`
	// Passed are the machines that cannot go, each with the reason that decided.
	Passed []Passed `json:"passed,omitempty"`
	// Unclear is what contradicts itself between machines and nodes. With any there are no victims.
	Unclear []string `json:"unclear,omitempty"`
}

// Excess is how many machines are too many.
func (d *Decision) Excess() int { return max(0, d.Active-d.Desired) }

// Victim is a machine that is to go.
type Victim struct {
	Machine string `json:"machine"`
	// Node is empty for a machine that has none.
	Node string `json:"node,omitempty"`
	// Pods is how many pods have to find another place.
	Pods int     `json:"pods,omitempty"`
	Cost float64 `json:"cost,omitempty"`
}

// Passed is a machine that cannot go.
type Passed struct {
	Machine string `json:"machine"`
	Node    string `json:"node,omitempty"`
	// Rule names the rule, such as "disruption-budget", and Pod the pod that it concerns, as namespace/name.
	Rule   string `json:"rule"`
	Pod    string `json:"pod,omitempty"`
	Text   string `json:"text"`
	Remedy string `json:"remedy,omitempty"`
}

// String is why the machine cannot go, in one line.
func (p Passed) String() string {
	name := p.Node
	if name == "" {
		name = p.Machine
	}
	text := p.Text
	if p.Pod != "" {
		text = "pod " + p.Pod + " " + text
	}
	return fmt.Sprintf("%s is not a viable scale-down candidate: %s (%s)", name, text, p.Rule)
}

// Rules of this package, beside those of package placement.
const (
	ruleNotEvictable = "machine-not-evictable"
	ruleDoubt        = "machine-may-be-a-node"
	ruleUnconfirmed  = "machine-not-confirmed"
	RuleRegistering  = "machine-may-register"
	ruleRefused      = "retirement-refused"
	RuleLastWorker   = "last-worker"
	ruleMinimum      = "group-minimum" // as that of package placement, which counts nodes
)

// Question is what a decision is about.
type Question struct {
	Desired int
	Pairing *Pairing
	// Leaving are the machines that are on their way out, by ID, and Refused those that have proven not to go, with why.
	Leaving map[string]bool
	Refused map[string]string
	// Only, if set, are the machines among which victims are chosen.
	Only map[string]bool
	// Disposed says that whoever asks has the machine be evictable.
	Disposed bool
	// Registration is how long a machine that runs may take to register its node.
	Registration time.Duration
	Now          time.Time
	// Policy and Rules are those of package placement.
	Policy planner.Policy
	Rules  planner.Options
	// Nodes are all of the cluster, and Retiring the names of those that a NodeRetirement takes out, of whichever pool. KeepLast
	// keeps the last one that is Ready and takes pods.
	Nodes    []*corev1.Node
	Retiring map[string]bool
	KeepLast bool
	// Choose chooses among the nodes that no rule protects.
	Choose func(k int, policy planner.Policy, rules planner.Options) (*planner.Selection, error)
}

// Decide answers a Question. Machines without a node go first, those that have only been asked for before all.
func Decide(q Question) (*Decision, error) {
	d := &Decision{Desired: q.Desired, Unclear: q.Pairing.Unclear}
	for _, m := range q.Pairing.Members {
		if m.Machine.Active() && !q.Leaving[m.Machine.ID] {
			d.Active++
		}
	}
	if d.Excess() == 0 || len(d.Unclear) > 0 {
		return d, nil
	}
	candidates := d.candidates(&q)
	d.takeWithoutNode(candidates, q.Rules.Groups)
	if len(d.Victims) == d.Excess() {
		return d, nil
	}
	return d, d.takeNodes(&q, candidates)
}

// candidates are the members that count, and that no rule of this package holds.
func (d *Decision) candidates(q *Question) []*Member {
	var list []*Member
	for i := range q.Pairing.Members {
		m := &q.Pairing.Members[i]
		if !m.Machine.Active() || q.Leaving[m.Machine.ID] || q.Only != nil && !q.Only[m.Machine.ID] {
			continue
		}
		if rule, text := CheckMachine(m, q); rule != "" {
			d.pass(m, Passed{Rule: rule, Text: text})
			continue
		}
		list = append(list, m)
	}
	return list
}

// CheckMachine says why a machine cannot go by what it is itself.
func CheckMachine(m *Member, q *Question) (rule, text string) {
	switch {
	case q.Refused[m.Machine.ID] != "":
		return ruleRefused, q.Refused[m.Machine.ID]
	case m.Unconfirmed != "":
		return ruleUnconfirmed, m.Unconfirmed
	case !m.Machine.Evictable() && !q.Disposed:
		return ruleNotEvictable, "its machine's membershipStatus says that it is not evictable"
	case m.Node != nil:
		return "", ""
	case m.Doubt != "": // of one whose cloud calls it failed, too: it may be there, and run pods
		return ruleDoubt, "machine " + m.Machine.ID + " has no node that is known, and " + m.Doubt
	case m.Machine.State == api.Rejected:
		return "", ""
	case m.Machine.State == api.Running && (m.Machine.LaunchTime == nil || q.Now.Sub(*m.Machine.LaunchTime) < q.Registration):
		return RuleRegistering, "machine " + m.Machine.ID + " runs and has no node yet: it may be about to register"
	case m.Machine.State != api.Requested && m.Machine.State != api.Pending && m.Machine.State != api.Running:
		return RuleRegistering, fmt.Sprintf("machine %s has the state %q, which is not known", m.Machine.ID, m.Machine.State)
	}
	return "", ""
}

func (d *Decision) pass(m *Member, p Passed) {
	p.Machine = m.Machine.ID
	if m.Node != nil {
		p.Node = m.Node.Name
	}
	d.Passed = append(d.Passed, p)
}

// earliness orders machines without a node: the less there is of one, the sooner it goes.
func earliness(s api.MachineState) int {
	return slices.Index([]api.MachineState{api.Requested, api.Pending, api.Running}, s)
}

// takeWithoutNode takes machines without a node, as far as the minimum of their group lets it.
func (d *Decision) takeWithoutNode(candidates []*Member, groups []planner.Group) {
	var list []*Member
	for _, m := range candidates {
		if m.Node == nil {
			list = append(list, m)
		}
	}
	slices.SortStableFunc(list, func(a, b *Member) int {
		return cmp.Compare(earliness(a.Machine.State), earliness(b.Machine.State))
	})
	for _, m := range list[:min(len(list), d.Excess())] {
		if minimum, held := below(groups, d.Active-len(d.Victims)-1); held {
			d.pass(m, Passed{Rule: ruleMinimum, Text: minimum})
			continue
		}
		d.Victims = append(d.Victims, Victim{Machine: m.Machine.ID})
	}
}

// below says which group's minimum so many machines would be below.
func below(groups []planner.Group, machines int) (text string, held bool) {
	for _, g := range groups {
		if machines < g.MinSize {
			return fmt.Sprintf("group %s would have %d machines left and has a minimum of %d", g.Name, max(0, machines), g.MinSize), true
		}
	}
	return "", false
}

// takeNodes asks placement for nodes that can go together.
func (d *Decision) takeNodes(q *Question, candidates []*Member) error {
	byNode := map[string]*Member{}
	for _, m := range candidates {
		if m.Node != nil {
			byNode[m.Node.Name] = m
		}
	}
	rules := q.Rules
	rules.Excluded = map[string]string{}
	for _, n := range q.Nodes {
		if byNode[n.Name] == nil {
			rules.Excluded[n.Name] = "is no candidate"
		}
	}
	selection, err := chooseAmong(byNode, q, d.Excess()-len(d.Victims), rules)
	if err != nil {
		return err
	}
	for _, v := range selection.Victims {
		m := byNode[v.Node]
		if q.KeepLast && IsLastWorker(q.Nodes, d.leavingNodes(q, v.Node)) {
			d.pass(m, Passed{Rule: RuleLastWorker, Text: LastWorkerText})
			continue
		}
		d.Victims = append(d.Victims, Victim{Machine: m.Machine.ID, Node: v.Node, Pods: len(v.Moves), Cost: v.Cost})
	}
	for _, p := range selection.Passed {
		if m := byNode[p.Node]; m != nil && len(p.Refusals) > 0 {
			d.pass(m, ToPassed(p.Refusals[0]))
		}
	}
	return nil
}

// chooseAmong chooses among candidates alone. A node that has joined since the nodes were read is not excluded yet: if it is chosen, it is
// excluded, and the choice is made again.
func chooseAmong(candidates map[string]*Member, q *Question, k int, rules planner.Options) (*planner.Selection, error) {
	for {
		selection, err := q.Choose(k, q.Policy, rules)
		if err != nil {
			return nil, fmt.Errorf("choosing nodes: %w", err)
		}
		isNew := false
		for _, v := range selection.Victims {
			switch why, excluded := rules.Excluded[v.Node]; {
			case candidates[v.Node] != nil:
			case excluded:
				return nil, fmt.Errorf("choosing nodes: node %s was chosen, although it %s", v.Node, why)
			default:
				rules.Excluded[v.Node], isNew = "has joined since the pool was read", true
			}
		}
		if !isNew {
			return selection, nil
		}
	}
}

// LastWorkerText is why the last worker stays.
const LastWorkerText = "no other schedulable nodes to evacuate to: want --remove-last-worker if it is to go all the same"

// leavingNodes are the nodes that leave, those chosen so far and one more.
func (d *Decision) leavingNodes(q *Question, more string) map[string]bool {
	leaving := map[string]bool{more: true}
	maps.Copy(leaving, q.Retiring)
	for _, v := range d.Victims {
		leaving[v.Node] = true
	}
	for i := range q.Pairing.Members {
		if m := &q.Pairing.Members[i]; m.Node != nil && q.Leaving[m.Machine.ID] {
			leaving[m.Node.Name] = true
		}
	}
	return leaving
}

// IsLastWorker reports that without some nodes the cluster has none that is Ready and takes pods. Those of the control plane do
// not count.
func IsLastWorker(nodes []*corev1.Node, leaving map[string]bool) bool {
	return !slices.ContainsFunc(nodes, func(n *corev1.Node) bool {
		ready := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
		return !leaving[n.Name] && ready && !n.Spec.Unschedulable && n.DeletionTimestamp == nil && !retirement.IsControlPlane(n.Labels)
	})
}

// ToPassed puts placement's reason in this package's words.
func ToPassed(r planner.Refusal) Passed {
	text := r
	text.Pod = ""
	return Passed{Rule: r.Rule, Pod: r.Pod, Text: text.String(), Remedy: r.Remedy}
}

// Reasons is why nothing, or not enough, can go.
func (d *Decision) Reasons() string {
	if len(d.Unclear) > 0 {
		return "it is not clear which machine is which node, so that nothing is removed: " + strings.Join(d.Unclear, "; ")
	}
	all := make([]string, 0, len(d.Passed))
	for _, p := range d.Passed {
		all = append(all, p.String())
	}
	if len(all) == 0 {
		all = append(all, "the pool has no machine that could go")
	}
	return "found no viable candidates for scaling down: " + strings.Join(all, "; ")
}
