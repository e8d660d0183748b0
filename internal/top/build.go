package top

import (
	"cmp"
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/nodegroup/acceptance"
	"github.com/slipway-dev/slipway/internal/notice/report"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/retirement"
	"github.com/slipway-dev/slipway/internal/retirement/disruptionbudget"
)

// Facts holds the objects of a cluster from which a [State] is built. It must not be changed.
type Facts struct {
	Now         time.Time
	Groups      []v1alpha1.NodeGroup
	Nodes       []corev1.Node
	Retirements []v1alpha1.NodeRetirement
	// Decisions is the manager's decision for each node of a group. A missing entry is unknown.
	Decisions map[string]nodegroup.Decision
	// Loads are the requests of the pods on each node. A missing entry is unknown.
	Loads    map[string]planner.Utilization
	Problems []string
}

// BuildState returns the State for the facts. It does no I/O.
func BuildState(f Facts) State {
	b := builder{Facts: f, cluster: nodegroup.NewCluster(nil, f.Groups, f.Nodes, f.Retirements, f.Now)}
	b.selectRetirements()
	s := State{Problems: f.Problems}
	for i := range f.Groups {
		s.Groups = append(s.Groups, b.buildGroup(&f.Groups[i]))
	}
	slices.SortFunc(s.Groups, func(a, b Group) int { return strings.Compare(a.Name, b.Name) })
	if rest := b.buildGroupNodes("", nil); len(rest) > 0 {
		s.Groups = append(s.Groups, Group{Nodes: rest})
	}
	for i := range f.Nodes {
		s.Notices = append(s.Notices, readNodeNotices(&f.Nodes[i])...)
	}
	slices.SortStableFunc(s.Notices, func(a, b Notice) int {
		return cmp.Or(compareDue(a, b), strings.Compare(a.Node, b.Node), strings.Compare(a.ID, b.ID))
	})
	return s
}

type builder struct {
	Facts
	cluster *nodegroup.Cluster
	// retirementByNode holds the retirement to show for each node name.
	retirementByNode map[string]*v1alpha1.NodeRetirement
	// retiring has the names of the nodes that a retirement will remove.
	retiring map[string]bool
}

// selectRetirements decides which retirements count for each node name. It ignores a retirement of an earlier Node if there is a
// new Node with the same name.
func (b *builder) selectRetirements() {
	b.retirementByNode, b.retiring = map[string]*v1alpha1.NodeRetirement{}, map[string]bool{}
	uids := map[string]types.UID{}
	for i := range b.Nodes {
		uids[b.Nodes[i].Name] = b.Nodes[i].UID
	}
	for i := range b.Retirements {
		rt := &b.Retirements[i]
		node, phase := rt.Spec.NodeName, rt.Status.Phase
		if !retirement.MayTargetNode(rt, uids[node]) || phase.IsFinal() && phase != v1alpha1.Failed {
			continue
		}
		b.retiring[node] = b.retiring[node] || retirement.WillRemoveNode(rt)
		if other := b.retirementByNode[node]; other == nil || isShownInsteadOf(rt, other) {
			b.retirementByNode[node] = rt
		}
	}
}

// isShownInsteadOf reports whether a is shown, and not b. An unfinished retirement is shown before a failed one, which is shown
// because a person has to act on it. Of failed ones, the newest is shown. Of unfinished ones, one without a notice is shown,
// because one for a notice may only wait until the cloud takes the instance, and then the oldest. A cache lists in random
// order, and the shown retirement must not change with it.
func isShownInsteadOf(a, b *v1alpha1.NodeRetirement) bool {
	age := cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	switch {
	case a.Status.Phase.IsFinal() != b.Status.Phase.IsFinal():
		return b.Status.Phase.IsFinal()
	case a.Status.Phase.IsFinal():
		return age > 0
	case (a.Spec.Notice == nil) != (b.Spec.Notice == nil):
		return a.Spec.Notice == nil
	}
	return age < 0
}

func (b *builder) buildGroup(g *v1alpha1.NodeGroup) Group {
	w := b.cluster.NewGroupSnapshot(g, b.cluster.WhyNotAccepted(g))
	out := Group{
		Name: g.Name, Cloud: g.Spec.Cloud.Provider + "/" + g.Spec.Cloud.Group, MinSize: w.MinSize(), MaxSize: g.Spec.MaxSize,
		Remarks: listGroupProblems(g, b.Now), Nodes: b.buildGroupNodes(g.Name, g),
	}
	var counted []disruptionbudget.Node
	for i := range b.Nodes {
		if n := &b.Nodes[i]; b.cluster.Assignment.OwnerByNode[n.Name] == g.Name {
			counted = append(counted, disruptionbudget.NewNode(n, b.retiring[n.Name]))
		}
	}
	out.AllowedDisruptions = w.CountAllowedDisruptions(counted)
	if up := g.Status.Provisioning; up != nil {
		out.Provisioning = up.Provisioning
	}
	return out
}

// listGroupProblems returns the reasons why the manager does not act on a group, and the launches that fail.
func listGroupProblems(g *v1alpha1.NodeGroup, now time.Time) (all []Activity) {
	switch is := acceptance.FromGroup(g); is.State {
	case acceptance.NotObserved:
		all = append(all, Activity{Severity: Trouble, Text: is.Message})
	case acceptance.Accepted:
	default:
		all = append(all, Activity{Severity: Trouble, Text: "the manager does not act on it", Detail: is.Reason + ": " + is.Message})
	}
	if is := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.GroupCloudReachable); is != nil && is.Status == metav1.ConditionFalse {
		all = append(all, Activity{Severity: Trouble, Text: "its cloud cannot be read", Detail: is.Message})
	}
	if up := g.Status.Provisioning; up != nil {
		for _, back := range up.BackOffs {
			if now.Before(back.Until.Time) {
				all = append(all, Activity{
					Severity: Trouble, Text: "next launch of " + back.Template, Due: back.Until.Time,
					Detail: strings.TrimSuffix(back.Reason+": "+back.Message, ": "),
				})
			}
		}
	}
	return all
}

// buildGroupNodes returns the lines of a group. If g is nil, it returns the lines of the nodes without a group. The
// lines show the group's Nodes, instances with a deleted Node, and instances without a Node yet.
func (b *builder) buildGroupNodes(group string, g *v1alpha1.NodeGroup) (all []Node) {
	there := map[string]bool{}
	for i := range b.Nodes {
		n := &b.Nodes[i]
		there[n.Name] = true
		if b.cluster.Assignment.OwnerByNode[n.Name] == group {
			all = append(all, b.buildNode(n, g))
		}
	}
	for name, rt := range b.retirementByNode {
		if !there[name] && b.findGroupOfRetirement(rt) == group {
			all = append(all, Node{Name: name, Activity: describeRetirement(rt), Retirement: toRetirement(rt)})
		}
	}
	slices.SortFunc(all, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	return append(all, buildProvisioningNodes(g)...)
}

// findGroupOfRetirement returns the name of the group that the deleted node belonged to. It returns "" if this group no
// longer exists.
func (b *builder) findGroupOfRetirement(rt *v1alpha1.NodeRetirement) string {
	if rt.Status.Captured == nil {
		return ""
	}
	name := rt.Status.Captured.Group
	if !slices.ContainsFunc(b.Groups, func(g v1alpha1.NodeGroup) bool { return g.Name == name }) {
		return ""
	}
	return name
}

func (b *builder) buildNode(n *corev1.Node, g *v1alpha1.NodeGroup) Node {
	out := Node{
		Name: n.Name, HasNode: true, Activity: b.describeNode(n, g), CreatedAt: n.CreationTimestamp.Time,
		InstanceType: n.Labels[corev1.LabelInstanceTypeStable], Zone: n.Labels[corev1.LabelTopologyZone], Price: FindPrice(n, g),
	}
	if load, known := b.Loads[n.Name]; known {
		out.Load = &load
	}
	if rt := b.retirementByNode[n.Name]; rt != nil {
		out.Retirement = toRetirement(rt)
	}
	return out
}

// priceLabel is the label that eks-node-viewer reads and some providers of Karpenter set. Its value is the price of one hour.
const priceLabel = "eks-node-viewer/instance-price"

// FindPrice returns the price of a Node's instance for one hour. It is the value of the Node's label, or else the cost that
// the manager has recorded for the instance type. If it has recorded none under the name in the Node's label, it is the cost
// that all types of the group have. It returns 0 if the price is unknown.
func FindPrice(n *corev1.Node, g *v1alpha1.NodeGroup) float64 {
	if price := parsePrice(n.Labels[priceLabel]); price > 0 {
		return price
	}
	if g == nil || g.Status.Provisioning == nil {
		return 0
	}
	var common float64
	for i, l := range g.Status.Provisioning.Learned {
		price := parsePrice(l.Cost)
		switch {
		case launch.IsSameTemplate(l.Name, n.Labels[corev1.LabelInstanceTypeStable]):
			return price
		case i == 0:
			common = price
		case common != price:
			common = 0
		}
	}
	return common
}

// parsePrice returns the value of a price, or 0 if it is not a positive number.
func parsePrice(s string) float64 {
	price, err := strconv.ParseFloat(s, 64)
	if err != nil || !(price > 0) || math.IsInf(price, 0) {
		return 0
	}
	return price
}

func toRetirement(rt *v1alpha1.NodeRetirement) *Retirement {
	return &Retirement{
		Name: rt.Name, UID: rt.UID, Phase: cmp.Or(rt.Status.Phase, v1alpha1.Pending), Reason: rt.Spec.Reason,
		RequestedBy: rt.Spec.RequestedBy, Message: rt.Status.Message, Reasons: rt.Status.Reasons,
	}
}

// buildProvisioningNodes returns lines for the instances of a group that have no Ready node yet. Instances that were
// requested and do not exist yet share one line.
func buildProvisioningNodes(g *v1alpha1.NodeGroup) (all []Node) {
	if g == nil || g.Status.Provisioning == nil {
		return nil
	}
	for _, l := range g.Status.Provisioning.Launches {
		if l.State == v1alpha1.LaunchReady {
			continue
		}
		for _, i := range l.Instances {
			all = append(all, Node{Name: path.Base(i.ProviderID), Activity: Activity{
				Severity: Changing, Text: "scaling up", Since: i.Since.Time, Detail: strings.TrimSpace(l.Template + " has no Node yet"),
			}})
		}
	}
	if more := int(g.Status.Provisioning.Provisioning) - len(all); more > 0 {
		all = append(all, Node{Name: fmt.Sprintf("(%d more)", more), Activity: Activity{Severity: Changing, Text: "scaling up", Detail: "no instance yet"}})
	}
	return all
}

// readNodeNotices returns the notices that the agent has recorded on its Node.
func readNodeNotices(n *corev1.Node) (all []Notice) {
	reports, _ := report.ReadReports(n.Annotations)
	for _, r := range reports {
		all = append(all, Notice{
			Node: n.Name, Source: r.Source, ID: r.ID, Type: string(r.Type), Due: r.Deadline, Started: r.Status == started,
			Phase: r.Phase, WaitsFor: r.DrainWaitsFor, Description: r.Description,
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
