package plan

import (
	"fmt"
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
)

// launchLimit is a limit, named after its rule, with the sentence that tells of it.
type launchLimit struct {
	planner.Allowance
	message string
}

func newInstanceLimit(rule string, left int, format string, a ...any) *launchLimit {
	left = max(0, left)
	return &launchLimit{planner.Allowance{Name: rule, Machines: &left}, fmt.Sprintf(format, a...)}
}

// Unreadiness is how many nodes may be not Ready before no instances are launched: such a cluster has lost its network or its control plane,
// and its pods are unschedulable for that. The zero value sets no limit.
type Unreadiness struct {
	// Percent of the nodes may be not Ready, and AtLeast nodes in any case; 0 percent sets no limit.
	Percent, AtLeast int
}

// checkUnready says that too many nodes are not Ready; nil when they are not.
func (u Unreadiness) checkUnready(unready, nodes int) *Reason {
	most := max(u.AtLeast, nodes*u.Percent/100)
	if u.Percent <= 0 || unready <= most {
		return nil
	}
	return &Reason{Rule: TooManyUnready, Message: fmt.Sprintf("%d of %d nodes are not Ready, and instances are launched while at most %d are", unready,
		nodes, most)}
}

// Braked says that no instances are launched since too many nodes are not Ready; nil when they are.
func (w *World) Braked() *Reason { return w.Unreadiness.checkUnready(w.Unready, w.Nodes) }

// maxInstances is how many machines of a kind are within the limit.
func (a *launchLimit) maxInstances(k *groupTemplate) int {
	n := math.MaxInt
	if a.Machines != nil {
		n = *a.Machines
	}
	for name := range a.Resources {
		if each := toBaseUnits(name, k.Node.Status.Capacity); each > 0 {
			n = min(n, int(toBaseUnits(name, a.Resources)/each))
		}
	}
	return max(0, n)
}

// toBaseUnits is a quantity in millicores of cpu, or units of anything else.
func toBaseUnits(name corev1.ResourceName, list corev1.ResourceList) int64 {
	quantity := list[name]
	if name == corev1.ResourceCPU {
		return quantity.MilliValue()
	}
	return quantity.Value()
}

// groupSize is how many machines a group has or is to have.
func (p *scaleUp) groupSize(g *Group) int {
	return max(g.Size, len(g.Nodes)+len(g.provisioningInstances())) - p.countRemoved(g) + p.launchedByGroup[g.name()]
}

// groupLimits are what is left of a group's own limits.
func (p *scaleUp) groupLimits(g *Group) []*launchLimit {
	var list []*launchLimit
	size := p.groupSize(g)
	for _, room := range launch.Rooms(g.Group, size, g.Most) {
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
		most, has := toBaseUnits(name, corev1.ResourceList{name: *limit}), p.groupCapacity(g, name)
		left := corev1.ResourceList{name: fromBaseUnits(name, max(0, most-has))}
		list = append(list, &launchLimit{
			planner.Allowance{Name: AtLimit, Resources: left},
			fmt.Sprintf("the machines that the group %s has or awaits have %s of %s, and may have %s", g.name(), formatAmount(name, has), name,
				limit),
		})
	}
	return list
}

// groupCapacity is how much of a resource the machines of a group have, those on their way and those ordered included.
func (p *scaleUp) groupCapacity(g *Group, name corev1.ResourceName) (sum int64) {
	for i := range g.Nodes {
		sum += toBaseUnits(name, g.Nodes[i].Object.Status.Capacity)
	}
	for _, m := range g.provisioningInstances() {
		if k := p.findTemplate(g, m.Kind); k != nil && k.Node != nil {
			sum += toBaseUnits(name, k.Node.Status.Capacity)
		}
	}
	for _, k := range p.templates {
		if o := p.launchByFlavour[k.flavour]; o != nil && k.group == g {
			sum += int64(o.Count) * toBaseUnits(name, k.Node.Status.Capacity)
		}
	}
	return sum
}

// clusterLimits is what is left of the cluster's maximum.
func (p *scaleUp) clusterLimits() []*launchLimit {
	if p.Maximum == nil {
		return nil
	}
	has := p.Nodes - p.removedNodes
	for i := range p.Groups {
		has += len(p.Groups[i].Awaited) // the Nodes of those that are Launched count as such
	}
	for _, n := range p.launchedByGroup {
		has += n
	}
	return []*launchLimit{newInstanceLimit(AtClusterMaximum, *p.Maximum-has, "the cluster has or awaits %d nodes and a maximum of %d", has,
		*p.Maximum)}
}

func (p *scaleUp) allLimits(g *Group) []*launchLimit {
	return append(p.groupLimits(g), p.clusterLimits()...)
}

// limitMessage tells of the limit of a rule that stands in a group's way.
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

// formatAmount is an amount as people write it.
func formatAmount(name corev1.ResourceName, value int64) string {
	q := fromBaseUnits(name, value)
	return q.String()
}
