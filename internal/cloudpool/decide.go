package cloudpool

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/cloudpool/api"
	"github.com/slipway-dev/slipway/internal/placement"
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
	ruleRegistering  = "machine-may-register"
	ruleRefused      = "retirement-refused"
	ruleMinimum      = "group-minimum" // as that of package placement, which counts nodes
)

// question is what a decision is about.
type question struct {
	desired int
	pairing *Pairing
	// leaving are the machines that are on their way out, by ID, and refused those that have proven not to go, with why.
	leaving map[string]bool
	refused map[string]string
	// only, if set, are the machines among which victims are chosen.
	only map[string]bool
	// disposed says that whoever asks has the machine be evictable.
	disposed bool
	// registration is how long a machine that runs may take to register its node.
	registration time.Duration
	now          time.Time
	// policy and rules are those of package placement.
	policy placement.Policy
	rules  placement.Options
	// nodes are all of the cluster.
	nodes []*corev1.Node
	// choose chooses among the nodes that no rule protects.
	choose func(k int, policy placement.Policy, rules placement.Options) (*placement.Selection, error)
}

// decide answers a question. Machines without a node go first, those that have only been asked for before all.
func decide(q question) (*Decision, error) {
	d := &Decision{Desired: q.desired, Unclear: q.pairing.Unclear}
	for _, m := range q.pairing.Members {
		if m.Machine.Active() && !q.leaving[m.Machine.ID] {
			d.Active++
		}
	}
	if d.Excess() == 0 || len(d.Unclear) > 0 {
		return d, nil
	}
	candidates := d.candidates(&q)
	d.takeWithoutNode(candidates, q.rules.Groups)
	if len(d.Victims) == d.Excess() {
		return d, nil
	}
	return d, d.takeNodes(&q, candidates)
}

// candidates are the members that count, and that no rule of this package holds.
func (d *Decision) candidates(q *question) []*Member {
	var list []*Member
	for i := range q.pairing.Members {
		m := &q.pairing.Members[i]
		if !m.Machine.Active() || q.leaving[m.Machine.ID] || q.only != nil && !q.only[m.Machine.ID] {
			continue
		}
		if rule, text := hold(m, q); rule != "" {
			d.pass(m, Passed{Rule: rule, Text: text})
			continue
		}
		list = append(list, m)
	}
	return list
}

// hold says why a machine cannot go by what it is itself.
func hold(m *Member, q *question) (rule, text string) {
	switch {
	case q.refused[m.Machine.ID] != "":
		return ruleRefused, q.refused[m.Machine.ID]
	case m.Unconfirmed != "":
		return ruleUnconfirmed, m.Unconfirmed
	case !m.Machine.Evictable() && !q.disposed:
		return ruleNotEvictable, "its machine's membershipStatus says that it is not evictable"
	case m.Node != nil:
		return "", ""
	case m.Doubt != "": // of one whose cloud calls it failed, too: it may be there, and run pods
		return ruleDoubt, "machine " + m.Machine.ID + " has no node that is known, and " + m.Doubt
	case m.Machine.State == api.Rejected:
		return "", ""
	case m.Machine.State == api.Running && (m.Machine.LaunchTime == nil || q.now.Sub(*m.Machine.LaunchTime) < q.registration):
		return ruleRegistering, "machine " + m.Machine.ID + " runs and has no node yet: it may be about to register"
	case m.Machine.State != api.Requested && m.Machine.State != api.Pending && m.Machine.State != api.Running:
		return ruleRegistering, fmt.Sprintf("machine %s has the state %q, which is not known", m.Machine.ID, m.Machine.State)
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
func (d *Decision) takeWithoutNode(candidates []*Member, groups []placement.Group) {
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
func below(groups []placement.Group, machines int) (text string, held bool) {
	for _, g := range groups {
		if machines < g.MinSize {
			return fmt.Sprintf("group %s would have %d machines left and has a minimum of %d", g.Name, max(0, machines), g.MinSize), true
		}
	}
	return "", false
}

// takeNodes asks placement for nodes that can go together.
func (d *Decision) takeNodes(q *question, candidates []*Member) error {
	byNode := map[string]*Member{}
	for _, m := range candidates {
		if m.Node != nil {
			byNode[m.Node.Name] = m
		}
	}
	rules := q.rules
	rules.Protected = map[string]string{}
	for _, n := range q.nodes {
		if byNode[n.Name] == nil {
			rules.Protected[n.Name] = "is no candidate"
		}
	}
	selection, err := q.choose(d.Excess()-len(d.Victims), q.policy, rules)
	if err != nil {
		return fmt.Errorf("choosing nodes: %w", err)
	}
	for _, v := range selection.Victims {
		m := byNode[v.Node]
		if m == nil {
			return fmt.Errorf("choosing nodes: node %s was chosen, which was no candidate", v.Node)
		}
		d.Victims = append(d.Victims, Victim{Machine: m.Machine.ID, Node: v.Node, Pods: len(v.Moves), Cost: v.Cost})
	}
	for _, p := range selection.Passed {
		if m := byNode[p.Node]; m != nil && len(p.Refusals) > 0 {
			d.pass(m, refusal(p.Refusals[0]))
		}
	}
	return nil
}

// refusal puts placement's reason in this package's words.
func refusal(r placement.Refusal) Passed {
	text := r
	text.Pod = ""
	return Passed{Rule: r.Rule, Pod: r.Pod, Text: text.String(), Remedy: r.Remedy}
}

// reasons is why nothing, or not enough, can go.
func (d *Decision) reasons() string {
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
