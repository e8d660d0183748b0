package plan

import (
	"fmt"
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
)

// launchLimit is how much a limit still allows to launch. The name of the limit is a rule.
type launchLimit struct {
	planner.LaunchLimit
	message string
}

func newInstanceLimit(rule string, left int, format string, a ...any) *launchLimit {
	left = max(0, left)
	return &launchLimit{planner.LaunchLimit{Name: rule, Instances: &left}, fmt.Sprintf(format, a...)}
}

// UnreadyLimit limits how many nodes may be not Ready while instances are launched. If more nodes are not Ready, the
// cluster has probably lost its network or control plane, and the pods are unschedulable for that reason. The zero value
// sets no limit.
type UnreadyLimit struct {
	// Percent of the nodes may be not Ready, but at least AtLeast nodes. 0 percent sets no limit.
	Percent, AtLeast int
}

// checkUnready returns a reason if too many nodes are not Ready. Otherwise it returns nil.
func (u UnreadyLimit) checkUnready(unready, nodes int) *Reason {
	most := max(u.AtLeast, nodes*u.Percent/100)
	if u.Percent <= 0 || unready <= most {
		return nil
	}
	return &Reason{Rule: TooManyUnready, Message: fmt.Sprintf("%d of %d nodes are not Ready: instances are launched while at most %d are not Ready", unready,
		nodes, most)}
}

// CheckUnreadyLimit returns why nothing is launched if too many nodes are not Ready. Otherwise it returns nil.
func (w *Input) CheckUnreadyLimit() *Reason {
	return w.UnreadyLimit.checkUnready(w.UnreadyNodes, w.NodeCount)
}

// maxInstances returns how many instances of a template are within the limit.
func (a *launchLimit) maxInstances(k *groupTemplate) int {
	n := math.MaxInt
	if a.Instances != nil {
		n = *a.Instances
	}
	for name := range a.Resources {
		if each := toBaseUnits(name, k.Node.Status.Capacity); each > 0 {
			n = min(n, int(toBaseUnits(name, a.Resources)/each))
		}
	}
	return max(0, n)
}

// toBaseUnits returns the quantity in millicores of CPU, or in units of another resource.
func toBaseUnits(name corev1.ResourceName, list corev1.ResourceList) int64 {
	quantity := list[name]
	if name == corev1.ResourceCPU {
		return quantity.MilliValue()
	}
	return quantity.Value()
}

// groupSize returns how many instances the group has, including provisioning and planned ones.
func (p *scaleUp) groupSize(g *Group) int {
	return max(g.Size, len(g.Nodes)+len(g.provisioningInstances())) - p.countRemovedNodes(g) + p.launchedByGroup[g.name()]
}

// remainingGroupLimits returns how much the limits of the group still allow to launch.
func (p *scaleUp) remainingGroupLimits(g *Group) []*launchLimit {
	var list []*launchLimit
	size := p.groupSize(g)
	for _, room := range launch.SizeLimits(g.Group, size, g.CloudMaxSize) {
		list = append(list, newInstanceLimit(AtMaximum, room.Left, "%s", room.Message))
	}
	up := g.scaleUpSpec()
	if up == nil {
		return list
	}
	for name, limit := range map[corev1.ResourceName]*resource.Quantity{
		corev1.ResourceCPU: up.Limits.CPU, corev1.ResourceMemory: up.Limits.Memory,
	} {
		if limit == nil {
			continue
		}
		most, has := toBaseUnits(name, corev1.ResourceList{name: *limit}), p.sumGroupCapacity(g, name)
		left := corev1.ResourceList{name: fromBaseUnits(name, max(0, most-has))}
		list = append(list, &launchLimit{
			planner.LaunchLimit{Name: AtLimit, Resources: left},
			fmt.Sprintf("the instances of the group %s, including provisioning ones, have %s of %s; the limit is %s", g.name(), formatAmount(name, has), name,
				limit),
		})
	}
	return list
}

// sumGroupCapacity returns the capacity of the group's instances, including provisioning and planned ones.
func (p *scaleUp) sumGroupCapacity(g *Group, name corev1.ResourceName) (sum int64) {
	for i := range g.Nodes {
		sum += toBaseUnits(name, g.Nodes[i].Object.Status.Capacity)
	}
	for _, m := range g.provisioningInstances() {
		if k := p.findTemplate(g, m.Template); k != nil && k.Node != nil {
			sum += toBaseUnits(name, k.Node.Status.Capacity)
		}
	}
	for _, k := range p.templates {
		if o := p.launchByTemplate[k.id]; o != nil && k.group == g {
			sum += int64(o.Count) * toBaseUnits(name, k.Node.Status.Capacity)
		}
	}
	return sum
}

// remainingClusterLimits returns how much the limit of the cluster still allows to launch.
func (p *scaleUp) remainingClusterLimits() []*launchLimit {
	if p.MaxNodes == nil {
		return nil
	}
	has := p.NodeCount - p.removedNodes
	for i := range p.Groups {
		has += len(p.Groups[i].Provisioning) // launched instances count as Nodes
	}
	for _, n := range p.launchedByGroup {
		has += n
	}
	return []*launchLimit{newInstanceLimit(AtClusterMaximum, *p.MaxNodes-has, "the cluster has %d nodes, including provisioning ones; the maximum is %d", has,
		*p.MaxNodes)}
}

func (p *scaleUp) allLimits(g *Group) []*launchLimit {
	return append(p.remainingGroupLimits(g), p.remainingClusterLimits()...)
}

// limitMessage returns the message of the group's limit with this rule.
func (p *scaleUp) limitMessage(g *Group, rule string) string {
	for _, a := range p.allLimits(g) {
		if a.Name == rule {
			return a.message
		}
	}
	return rule
}

func fromBaseUnits(name corev1.ResourceName, value int64) resource.Quantity {
	if name == corev1.ResourceCPU {
		return *resource.NewMilliQuantity(value, resource.DecimalSI)
	}
	return *resource.NewQuantity(value, resource.BinarySI)
}

func formatAmount(name corev1.ResourceName, value int64) string {
	q := fromBaseUnits(name, value)
	return q.String()
}
