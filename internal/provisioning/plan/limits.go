package plan

import (
	"fmt"
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
)

// allowance is a limit, named after its rule, with the sentence that tells of it.
type allowance struct {
	planner.Allowance
	message string
}

func machinesLeft(rule string, left int, format string, a ...any) *allowance {
	left = max(0, left)
	return &allowance{planner.Allowance{Name: rule, Machines: &left}, fmt.Sprintf(format, a...)}
}

// Unreadiness is how many nodes may be not Ready before no instances are launched: such a cluster has lost its network or its control plane,
// and its pods are unschedulable for that. The zero value sets no limit.
type Unreadiness struct {
	// Percent of the nodes may be not Ready, and AtLeast nodes in any case; 0 percent sets no limit.
	Percent, AtLeast int
}

// tooMany says that too many nodes are not Ready; nil when they are not.
func (u Unreadiness) tooMany(unready, nodes int) *Reason {
	most := max(u.AtLeast, nodes*u.Percent/100)
	if u.Percent <= 0 || unready <= most {
		return nil
	}
	return &Reason{Rule: TooManyUnready, Message: fmt.Sprintf("%d of %d nodes are not Ready, and instances are launched while at most %d are", unready,
		nodes, most)}
}

// Braked says that no instances are launched since too many nodes are not Ready; nil when they are.
func (w *World) Braked() *Reason { return w.Unreadiness.tooMany(w.Unready, w.Nodes) }

// affordable is how many machines of a kind are within the limit.
func (a *allowance) affordable(k *kind) int {
	n := math.MaxInt
	if a.Machines != nil {
		n = *a.Machines
	}
	for name := range a.Resources {
		if each := value(name, k.Node.Status.Capacity); each > 0 {
			n = min(n, int(value(name, a.Resources)/each))
		}
	}
	return max(0, n)
}

// value is a quantity in millicores of cpu, or units of anything else.
func value(name corev1.ResourceName, list corev1.ResourceList) int64 {
	quantity := list[name]
	if name == corev1.ResourceCPU {
		return quantity.MilliValue()
	}
	return quantity.Value()
}

// size is how many machines a group has or is to have.
func (p *plan) size(g *Group) int {
	return max(g.Size, len(g.Nodes)+len(g.provisioning())) - p.lost(g) + p.count[g.name()]
}

// groupAllowances are what is left of a group's own limits.
func (p *plan) groupAllowances(g *Group) []*allowance {
	var list []*allowance
	size := p.size(g)
	for _, room := range launch.Rooms(g.Group, size, g.Most) {
		list = append(list, machinesLeft(AtMaximum, room.Left, "%s", room.Message))
	}
	up := g.scaleUp()
	if up == nil {
		return list
	}
	for name, limit := range map[corev1.ResourceName]*resource.Quantity{
		corev1.ResourceCPU: up.Limits.CPU, corev1.ResourceMemory: up.Limits.Memory,
	} {
		if limit == nil {
			continue
		}
		most, has := value(name, corev1.ResourceList{name: *limit}), p.capacity(g, name)
		left := corev1.ResourceList{name: quantityOf(name, max(0, most-has))}
		list = append(list, &allowance{
			planner.Allowance{Name: AtLimit, Resources: left},
			fmt.Sprintf("the machines that the group %s has or awaits have %s of %s, and may have %s", g.name(), text(name, has), name,
				limit),
		})
	}
	return list
}

// capacity is how much of a resource the machines of a group have, those on their way and those ordered included.
func (p *plan) capacity(g *Group, name corev1.ResourceName) (sum int64) {
	for i := range g.Nodes {
		sum += value(name, g.Nodes[i].Object.Status.Capacity)
	}
	for _, m := range g.provisioning() {
		if k := p.kindOf(g, m.Kind); k != nil && k.Node != nil {
			sum += value(name, k.Node.Status.Capacity)
		}
	}
	for _, k := range p.order {
		if o := p.ordered[k.flavour]; o != nil && k.group == g {
			sum += int64(o.Count) * value(name, k.Node.Status.Capacity)
		}
	}
	return sum
}

// clusterAllowance is what is left of the cluster's maximum.
func (p *plan) clusterAllowance() []*allowance {
	if p.Maximum == nil {
		return nil
	}
	has := p.Nodes - p.gone
	for i := range p.Groups {
		has += len(p.Groups[i].Awaited) // the Nodes of those that are Launched count as such
	}
	for _, n := range p.count {
		has += n
	}
	return []*allowance{machinesLeft(AtClusterMaximum, *p.Maximum-has, "the cluster has or awaits %d nodes and a maximum of %d", has,
		*p.Maximum)}
}

func (p *plan) allowances(g *Group) []*allowance {
	return append(p.groupAllowances(g), p.clusterAllowance()...)
}

// limit tells of the limit of a rule that stands in a group's way.
func (p *plan) limit(g *Group, rule string) string {
	for _, a := range p.allowances(g) {
		if a.Name == rule {
			return a.message
		}
	}
	return rule
}

func quantityOf(name corev1.ResourceName, value int64) resource.Quantity {
	if name == corev1.ResourceCPU {
		return *resource.NewMilliQuantity(value, resource.DecimalSI)
	}
	return *resource.NewQuantity(value, resource.BinarySI)
}

// text is an amount as people write it.
func text(name corev1.ResourceName, value int64) string {
	q := quantityOf(name, value)
	return q.String()
}
