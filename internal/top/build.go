package top

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/nodegroup/acceptance"
	"github.com/slipway-dev/slipway/internal/notice/report"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/retirement"
	"github.com/slipway-dev/slipway/internal/retirement/budget"
)

// Facts are what is known of a cluster. Nothing in them is changed.
type Facts struct {
	Now         time.Time
	Groups      []v1alpha1.NodeGroup
	Nodes       []corev1.Node
	Retirements []v1alpha1.NodeRetirement
	// Idle is what a manager would decide about each node of a group; those that are missing are not known.
	Idle map[string]nodegroup.Decision
	// Loads are what the pods on each node request; those that are missing are not known.
	Loads    map[string]planner.Load
	Problems []string
}

// Build makes a State of what is known. It is pure.
func Build(f Facts) State {
	b := builder{Facts: f, claims: nodegroup.Claim(f.Groups, f.Nodes), open: map[string]*v1alpha1.NodeRetirement{}}
	b.findRetirements()
	s := State{Problems: f.Problems}
	for i := range f.Groups {
		s.Groups = append(s.Groups, b.group(&f.Groups[i]))
	}
	slices.SortFunc(s.Groups, func(a, b Group) int { return strings.Compare(a.Name, b.Name) })
	if rest := b.nodes("", nil); len(rest) > 0 {
		s.Groups = append(s.Groups, Group{Nodes: rest})
	}
	for i := range f.Nodes {
		s.Notices = append(s.Notices, noticesOf(&f.Nodes[i])...)
	}
	slices.SortStableFunc(s.Notices, func(a, b Notice) int {
		return cmp.Or(compareDue(a, b), strings.Compare(a.Node, b.Node), strings.Compare(a.ID, b.ID))
	})
	return s
}

type builder struct {
	Facts
	claims nodegroup.Claims
	// open are the retirements to be shown, by the name of their nodes.
	open map[string]*v1alpha1.NodeRetirement
}

// findRetirements finds each node's retirement that is not over. One that has failed is shown for as long as it is there
// and no other has come after it: what is left to do is for a person.
func (b *builder) findRetirements() {
	for i := range b.Retirements {
		rt := &b.Retirements[i]
		phase := rt.Status.Phase
		if phase.Finished() && phase != v1alpha1.Failed {
			continue
		}
		other := b.open[rt.Spec.NodeName]
		if other == nil || other.Status.Phase.Finished() && (!phase.Finished() || other.CreationTimestamp.Before(&rt.CreationTimestamp)) {
			b.open[rt.Spec.NodeName] = rt
		}
	}
}

func (b *builder) group(g *v1alpha1.NodeGroup) Group {
	out := Group{
		Name: g.Name, Cloud: g.Spec.Cloud.Provider + "/" + g.Spec.Cloud.Group, Minimum: g.Spec.Minimum, Maximum: g.Spec.Maximum,
		Remarks: remarks(g, b.Now), Nodes: b.nodes(g.Name, g),
	}
	var counted []budget.Node
	for i := range b.Nodes {
		if n := &b.Nodes[i]; b.claims.Owner[n.Name] == g.Name {
			rt := b.open[n.Name]
			counted = append(counted, budget.NodeOf(n, rt != nil && retirement.Leaving(rt)))
		}
	}
	out.MayLeave = budget.Room(&g.Spec, counted, v1alpha1.Requested, b.Now)
	if up := g.Status.Provisioning; up != nil {
		out.OnTheWay = up.Provisioning
	}
	return out
}

// remarks are why a group is not acted on, and what it cannot get.
func remarks(g *v1alpha1.NodeGroup, now time.Time) (all []Doing) {
	switch is := acceptance.Of(g); is.State {
	case acceptance.NotObserved:
		all = append(all, Doing{Mood: Trouble, Text: is.Message})
	case acceptance.Accepted:
	default:
		all = append(all, Doing{Mood: Trouble, Text: "is not acted on", Detail: is.Reason + ": " + is.Message})
	}
	if is := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.GroupCloudReachable); is != nil && is.Status == metav1.ConditionFalse {
		all = append(all, Doing{Mood: Trouble, Text: "its cloud cannot be read", Detail: is.Message})
	}
	if up := g.Status.Provisioning; up != nil {
		for _, back := range up.BackOffs {
			if now.Before(back.Until.Time) {
				all = append(all, Doing{
					Mood: Trouble, Text: "next try of " + back.Template, Due: back.Until.Time,
					Detail: strings.TrimSuffix(back.Reason+": "+back.Message, ": "),
				})
			}
		}
	}
	return all
}

// nodes are the lines of a group, nil for the nodes of none: its Nodes, the machines whose Nodes are deleted already, and
// those that are to come.
func (b *builder) nodes(group string, g *v1alpha1.NodeGroup) (all []Node) {
	there := map[string]bool{}
	for i := range b.Nodes {
		n := &b.Nodes[i]
		there[n.Name] = true
		if b.claims.Owner[n.Name] == group {
			all = append(all, b.node(n, g))
		}
	}
	for name, rt := range b.open {
		if !there[name] && b.groupOf(rt) == group {
			all = append(all, Node{Name: name, Doing: leaving(rt), Retirement: retirementOf(rt)})
		}
	}
	slices.SortFunc(all, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	return append(all, coming(g)...)
}

// groupOf is the group of a node that is gone; empty when there is no such group any more.
func (b *builder) groupOf(rt *v1alpha1.NodeRetirement) string {
	if rt.Status.Captured == nil {
		return ""
	}
	name := rt.Status.Captured.Group
	if !slices.ContainsFunc(b.Groups, func(g v1alpha1.NodeGroup) bool { return g.Name == name }) {
		return ""
	}
	return name
}

func (b *builder) node(n *corev1.Node, g *v1alpha1.NodeGroup) Node {
	out := Node{Name: n.Name, There: true, Doing: b.doing(n, g)}
	if load, known := b.Loads[n.Name]; known {
		out.Load = &load
	}
	if rt := b.about(n); rt != nil {
		out.Retirement = retirementOf(rt)
	}
	return out
}

// about is the retirement of this Node, and not of an earlier one of the same name.
func (b *builder) about(n *corev1.Node) *v1alpha1.NodeRetirement {
	rt := b.open[n.Name]
	if rt == nil || rt.Status.Captured != nil && rt.Status.Captured.NodeUID != "" && rt.Status.Captured.NodeUID != n.UID {
		return nil
	}
	return rt
}

func retirementOf(rt *v1alpha1.NodeRetirement) *Retirement {
	return &Retirement{
		Name: rt.Name, UID: rt.UID, Phase: cmp.Or(rt.Status.Phase, v1alpha1.Pending), Reason: rt.Spec.Reason,
		By: rt.Spec.RequestedBy, Message: rt.Status.Message, Reasons: rt.Status.Reasons,
	}
}

// coming are the machines of a group that have no Ready node yet: those that are there, and those that were only asked for.
func coming(g *v1alpha1.NodeGroup) (all []Node) {
	if g == nil || g.Status.Provisioning == nil {
		return nil
	}
	for _, l := range g.Status.Provisioning.Launches {
		if l.State == v1alpha1.LaunchReady {
			continue
		}
		for _, i := range l.Instances {
			all = append(all, Node{Name: path.Base(i.ProviderID), Doing: Doing{
				Mood: Moving, Text: "scaling up", Since: i.Since.Time, Detail: strings.TrimSpace(l.Template + " has no Node yet"),
			}})
		}
	}
	if more := int(g.Status.Provisioning.Provisioning) - len(all); more > 0 {
		all = append(all, Node{Name: fmt.Sprintf("(%d more)", more), Doing: Doing{Mood: Moving, Text: "scaling up", Detail: "on the way"}})
	}
	return all
}

// noticesOf are what the agent on a node has written on it.
func noticesOf(n *corev1.Node) (all []Notice) {
	reports, _ := report.Of(n.Annotations)
	for _, r := range reports {
		all = append(all, Notice{
			Node: n.Name, Source: r.Source, ID: r.ID, Type: string(r.Type), Due: r.Deadline, Started: r.Status == started,
			Phase: r.Phase, Description: r.Description,
		})
	}
	return all
}

func compareDue(a, b Notice) int {
	switch {
	case a.Due.IsZero() && b.Due.IsZero():
		return 0
	case a.Due.IsZero():
		return 1
	case b.Due.IsZero():
		return -1
	}
	return a.Due.Compare(b.Due)
}
