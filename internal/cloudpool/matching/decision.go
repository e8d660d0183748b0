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
	"github.com/slipway-dev/slipway/internal/drainability/fromcorev1"
	noderules "github.com/slipway-dev/slipway/internal/drainability/node"
	"github.com/slipway-dev/slipway/internal/placement/planner"
)

// Decision says which machines to remove so that a pool reaches a size, and why the other machines are not removed. It
// contains only data, because it is returned to clients, stored, and carried out later.
type Decision struct {
	// Desired is the requested size. Active is the number of machines that count now, without leaving ones.
	Desired int `json:"desiredSize"`
	Active  int `json:"active"`
	// Victims are the machines to remove, in this order.
	Victims []Victim `json:"victims,omitempty"`
	// Skipped are the machines that cannot be removed, each with the decisive reason.
	Skipped []SkippedMachine `json:"skipped,omitempty"`
	// Unclear are contradictions between machines and nodes. If it is not empty, Victims is empty.
	Unclear []string `json:"unclear,omitempty"`
}

// Excess returns the number of machines that must be removed to reach the desired size.
func (d *Decision) Excess() int { return max(0, d.Active-d.Desired) }

// Victim is a machine that will be removed.
type Victim struct {
	Machine string `json:"machine"`
	// Node is empty for a machine without a node.
	Node string `json:"node,omitempty"`
	// Pods is the number of pods that must be rescheduled.
	Pods int     `json:"pods,omitempty"`
	Cost float64 `json:"cost,omitempty"`
}

// SkippedMachine is a machine that cannot be removed.
type SkippedMachine struct {
	Machine string `json:"machine"`
	Node    string `json:"node,omitempty"`
	// Rule is the name of the rule, for example "disruption-budget". Pod is the pod that it concerns, as namespace/name.
	Rule    string `json:"rule"`
	Pod     string `json:"pod,omitempty"`
	Message string `json:"message"`
	Remedy  string `json:"remedy,omitempty"`
}

// String returns one line that says why the machine cannot be removed.
func (p SkippedMachine) String() string {
	name := p.Node
	if name == "" {
		name = p.Machine
	}
	text := p.Message
	if p.Pod != "" {
		text = "pod " + p.Pod + " " + text
	}
	return fmt.Sprintf("%s is not a viable scale-down candidate: %s (%s)", name, text, p.Rule)
}

// Rules of this package, in addition to those of package placement.
const (
	ruleNotEvictable = "machine-not-evictable"
	ruleMayBeNode    = "machine-may-be-a-node"
	ruleUnconfirmed  = "machine-not-confirmed"
	RuleRegistering  = "machine-may-register"
	ruleRefused      = "retirement-refused"
	RuleLastWorker   = "last-worker"
	ruleMinimum      = "group-minimum" // same name as in package placement, where it counts nodes
)

// DecisionInput is the input of ChooseMachinesToRemove.
type DecisionInput struct {
	Desired int
	Pairing *Pairing
	// Leaving are the IDs of machines that are being removed. Refused maps the IDs of machines that cannot be removed to the reason.
	Leaving map[string]bool
	Refused map[string]string
	// Only, if set, limits the victims to these machine IDs.
	Only map[string]bool
	// MakesEvictable means that the request itself makes the machine evictable.
	MakesEvictable bool
	// NodeRegistrationTimeout is the time a running machine has to register its node.
	NodeRegistrationTimeout time.Duration
	Now                     time.Time
	// Policy and Rules are passed to package placement.
	Policy planner.Policy
	Rules  planner.Options
	// Nodes are all nodes of the cluster. Retiring are the names of all nodes with an unfinished NodeRetirement, of any pool.
	// APIServerNodes are the names of all nodes with an API server pod. KeepLastWorker protects the last Ready and schedulable node.
	Nodes          []*corev1.Node
	RetiringNodes  map[string]bool
	APIServerNodes map[string]bool
	KeepLastWorker bool
	// ChooseNodes chooses up to k nodes that no rule protects.
	ChooseNodes func(k int, policy planner.Policy, rules planner.Options) (*planner.VictimSelection, error)
}

// ChooseMachinesToRemove chooses the machines to remove. It prefers machines without a node, and among these the
// machines that were requested but not created yet.
func ChooseMachinesToRemove(q DecisionInput) (*Decision, error) {
	d := &Decision{Desired: q.Desired, Unclear: q.Pairing.Unclear}
	for _, m := range q.Pairing.Members {
		if m.Machine.IsActive() && !q.Leaving[m.Machine.ID] {
			d.Active++
		}
	}
	if d.Excess() == 0 || len(d.Unclear) > 0 {
		return d, nil
	}
	candidates := d.findRemovableMembers(&q)
	if reason := explainMissingNodes(q.Pairing, candidates); reason != "" {
		d.Unclear = []string{reason}
		return d, nil
	}
	d.chooseMachinesWithoutNode(candidates, q.Rules.Groups)
	if len(d.Victims) == d.Excess() {
		return d, nil
	}
	return d, d.chooseMachinesWithNode(&q, candidates)
}

// findRemovableMembers returns the active members that no rule of this package protects. It records each protected
// member in Skipped.
func (d *Decision) findRemovableMembers(q *DecisionInput) []*Member {
	var list []*Member
	for i := range q.Pairing.Members {
		m := &q.Pairing.Members[i]
		if !m.Machine.IsActive() || q.Leaving[m.Machine.ID] || q.Only != nil && !q.Only[m.Machine.ID] {
			continue
		}
		if rule, text := FindProtectingRule(m, q); rule != "" {
			d.addSkipped(m, SkippedMachine{Rule: rule, Message: text})
			continue
		}
		list = append(list, m)
	}
	return list
}

// FindProtectingRule returns the rule that forbids the removal of a machine, and a text with the reason. It considers
// only this machine. Both results are empty if the machine can be removed.
func FindProtectingRule(m *Member, q *DecisionInput) (rule, text string) {
	switch {
	case q.Refused[m.Machine.ID] != "":
		return ruleRefused, q.Refused[m.Machine.ID]
	case m.Unconfirmed != "":
		return ruleUnconfirmed, m.Unconfirmed
	case !m.Machine.IsEvictable() && !q.MakesEvictable:
		return ruleNotEvictable, "its machine's membershipStatus is not evictable"
	case m.Node != nil:
		return "", ""
	case m.Doubt != "": // also for a machine that its cloud reports as failed: it may exist and run pods
		return ruleMayBeNode, "machine " + m.Machine.ID + " has no known node, but " + m.Doubt
	case m.Machine.State == api.Rejected:
		return "", ""
	case m.Machine.State == api.Running && (m.Machine.LaunchTime == nil || q.Now.Sub(*m.Machine.LaunchTime) < q.NodeRegistrationTimeout):
		return RuleRegistering, "machine " + m.Machine.ID + " is running without a node: it may be about to register"
	case m.Machine.State != api.Requested && m.Machine.State != api.Pending && m.Machine.State != api.Running:
		return RuleRegistering, fmt.Sprintf("machine %s has the unknown state %q", m.Machine.ID, m.Machine.State)
	}
	return "", ""
}

// explainMissingNodes returns why the pool may belong to another cluster: no machine of the pool has a Node, although one
// of the candidates should have registered. The machines may then run pods. It returns "" if a machine has a Node.
func explainMissingNodes(pairing *Pairing, candidates []*Member) string {
	if slices.ContainsFunc(pairing.Members, func(m Member) bool { return m.Node != nil }) {
		return ""
	}
	i := slices.IndexFunc(candidates, func(m *Member) bool { return m.Machine.State == api.Running })
	if i < 0 {
		return ""
	}
	return fmt.Sprintf("no machine of the pool has a node in this cluster, although machine %s is running: check that the kubeconfig names the "+
		"pool's cluster; if it does, terminate the machines that register no node at the pool's server or in their cloud", candidates[i].Machine.ID)
}

func (d *Decision) addSkipped(m *Member, p SkippedMachine) {
	p.Machine = m.Machine.ID
	if m.Node != nil {
		p.Node = m.Node.Name
	}
	d.Skipped = append(d.Skipped, p)
}

// startupOrder returns the position of a machine without a node in the order of removal. A machine that is earlier in
// its startup is removed earlier.
func startupOrder(s api.MachineState) int {
	return slices.Index([]api.MachineState{api.Requested, api.Pending, api.Running}, s)
}

// chooseMachinesWithoutNode chooses machines without a node. It stops at the minimum size of their group.
func (d *Decision) chooseMachinesWithoutNode(candidates []*Member, groups []planner.Group) {
	var list []*Member
	for _, m := range candidates {
		if m.Node == nil {
			list = append(list, m)
		}
	}
	slices.SortStableFunc(list, func(a, b *Member) int {
		return cmp.Compare(startupOrder(a.Machine.State), startupOrder(b.Machine.State))
	})
	for _, m := range list[:min(len(list), d.Excess())] {
		if reason, tooFew := checkGroupMinimums(groups, d.Active-len(d.Victims)-1); tooFew {
			d.addSkipped(m, SkippedMachine{Rule: ruleMinimum, Message: reason})
			continue
		}
		d.Victims = append(d.Victims, Victim{Machine: m.Machine.ID})
	}
}

// checkGroupMinimums reports whether this number of machines is below the minimum of one of the groups. The reason
// names that group.
func checkGroupMinimums(groups []planner.Group, machines int) (reason string, tooFew bool) {
	for _, g := range groups {
		if machines < g.MinSize {
			return fmt.Sprintf("group %s would have %d machines left and has a minimum of %d", g.Name, max(0, machines), g.MinSize), true
		}
	}
	return "", false
}

// chooseMachinesWithNode chooses machines with nodes that can all be removed together.
func (d *Decision) chooseMachinesWithNode(q *DecisionInput, candidates []*Member) error {
	byNode := map[string]*Member{}
	for _, m := range candidates {
		if m.Node != nil {
			byNode[m.Node.Name] = m
		}
	}
	rules := q.Rules
	rules.ExcludedNodes = map[string]string{}
	for _, n := range q.Nodes {
		if byNode[n.Name] == nil {
			rules.ExcludedNodes[n.Name] = "is not a candidate"
		}
	}
	selection, err := chooseAmongCandidates(byNode, q, d.Excess()-len(d.Victims), rules)
	if err != nil {
		return err
	}
	for _, v := range selection.Victims {
		m := byNode[v.Node]
		if q.KeepLastWorker && WouldRemoveLastWorker(q.Nodes, q.APIServerNodes, d.leavingNodes(q, v.Node)) {
			d.addSkipped(m, SkippedMachine{Rule: RuleLastWorker, Message: LastWorkerText})
			continue
		}
		d.Victims = append(d.Victims, Victim{Machine: m.Machine.ID, Node: v.Node, Pods: len(v.Moves), Cost: v.Cost})
	}
	for _, p := range selection.Skipped {
		if m := byNode[p.Node]; m != nil && len(p.Refusals) > 0 {
			d.addSkipped(m, ToSkippedMachine(p.Refusals[0]))
		}
	}
	return nil
}

// chooseAmongCandidates chooses up to k nodes, only from the candidates. ChooseNodes may choose a node that joined the
// cluster after the nodes were read. Such a node is then excluded, and the choice is repeated.
func chooseAmongCandidates(candidates map[string]*Member, q *DecisionInput, maxNodes int, rules planner.Options) (*planner.VictimSelection, error) {
	for {
		selection, err := q.ChooseNodes(maxNodes, q.Policy, rules)
		if err != nil {
			return nil, fmt.Errorf("choosing nodes: %w", err)
		}
		retry := false
		for _, v := range selection.Victims {
			switch why, excluded := rules.ExcludedNodes[v.Node]; {
			case candidates[v.Node] != nil:
			case excluded:
				return nil, fmt.Errorf("choosing nodes: node %s was chosen, although it %s", v.Node, why)
			default:
				rules.ExcludedNodes[v.Node], retry = "joined after the pool was read", true
			}
		}
		if !retry {
			return selection, nil
		}
	}
}

// LastWorkerText is the reason why the last worker node is not removed.
const LastWorkerText = "no other schedulable nodes to evacuate to: want --remove-last-worker to allow its removal"

// leavingNodes returns the names of all nodes that are being removed, with the victims chosen so far and the node more.
func (d *Decision) leavingNodes(q *DecisionInput, additional string) map[string]bool {
	leaving := map[string]bool{additional: true}
	maps.Copy(leaving, q.RetiringNodes)
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

// WouldRemoveLastWorker reports whether no Ready and schedulable node remains without the leaving nodes. Control plane
// nodes do not count. A node in apiServerNodes may have neither label nor taint of the control plane.
func WouldRemoveLastWorker(nodes []*corev1.Node, apiServerNodes, leaving map[string]bool) bool {
	return !slices.ContainsFunc(nodes, func(n *corev1.Node) bool {
		if leaving[n.Name] || apiServerNodes[n.Name] {
			return false
		}
		facts := fromcorev1.NodeFacts(n)
		return facts.ReadyStatus == noderules.ReadyTrue && !facts.Unschedulable && !facts.Deleting && facts.ControlPlane == ""
	})
}

// ToSkippedMachine converts a refusal of package placement.
func ToSkippedMachine(r planner.Refusal) SkippedMachine {
	text := r
	text.Pod = ""
	return SkippedMachine{Rule: r.Rule, Pod: r.Pod, Message: text.String(), Remedy: r.Remedy}
}

// ExplainShortfall returns a text that says why no machine, or not enough machines, can be removed.
func (d *Decision) ExplainShortfall() string {
	if len(d.Unclear) > 0 {
		return "it is not clear which machine is which node, so nothing is removed: " + strings.Join(d.Unclear, "; ")
	}
	all := make([]string, 0, len(d.Skipped))
	for _, p := range d.Skipped {
		all = append(all, p.String())
	}
	if len(all) == 0 {
		all = append(all, "the pool has no removable machine")
	}
	return "found no viable candidates for scaling down: " + strings.Join(all, "; ")
}
