package retirement

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/retirement/budget"
)

// admit waits until the group's minimum and budgets allow the node to leave (I5) and the cloud allows its machine to be
// deleted, and refuses what policy protects, before anything is done to the node. To clean up after a machine that is
// gone already disrupts nothing.
func (p *passage) admit(ctx context.Context) error {
	if p.admitted() {
		return nil
	}
	if err := p.stillThere(ctx); err != nil {
		return err
	}
	if p.rt.Status.MachineGone {
		return p.admitNow(ctx, "the machine is gone already")
	}
	if err := p.stillDue(); err != nil {
		return err
	}
	if err := p.leftAlone(); err != nil {
		return err
	}
	if err := p.accepted(); err != nil {
		return err
	}
	isNew, err := p.reserve(ctx)
	if err != nil {
		return err
	}
	if err := p.mayAdmit(ctx); err != nil {
		if isNew { // else an earlier write may have got through, whose answer was lost
			p.c.known.refuse(p.rt)
		}
		return err
	}
	return p.admitNow(ctx, "within the group's bounds")
}

// reserve counts the retirement as admitted, if the bounds allow it. The caches are good enough to say no, and the reservation
// keeps others of this process from taking the same room while the rest is asked. It reports whether the reservation is new.
func (p *passage) reserve(ctx context.Context) (bool, error) {
	var cached v1alpha1.NodeRetirementList
	if err := p.c.o.Client.List(ctx, &cached, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("other retirements: %w", err)
	}
	p.c.admission.Lock()
	defer p.c.admission.Unlock()
	if err := p.allowed(ctx, cached.Items); err != nil {
		return false, err
	}
	return p.c.known.admit(p.rt), nil
}

// mayAdmit asks what takes requests: the pods, the cloud, and the bounds once more with the NodeRetirements past the caches.
func (p *passage) mayAdmit(ctx context.Context) error {
	if p.node != nil {
		pods, err := p.pods(ctx)
		if err != nil {
			return err
		}
		if len(pods.kept) > 0 {
			return &ending{pods.kept}
		}
	}
	if err := p.permitted(ctx); err != nil {
		return err
	}
	all, err := p.allRecords(ctx)
	if err != nil {
		return err
	}
	if err := p.allowed(ctx, all); err != nil {
		return err
	}
	return p.stillDueNow(ctx)
}

// stillThere finds out a machine that goes while its retirement waits: to clean up after it is due at once, and whoever else
// would do so leaves it to the retirement. One whose Node somebody has deleted meanwhile, and which is there, is left to them:
// they may want the kubelet to register it anew, and no bound has let the machine go (I5). Where many wait, as when a zone is
// out, their cloud is not asked at each of their turns.
func (p *passage) stillThere(ctx context.Context) error {
	if ready(p.node) || p.rt.Status.Captured.NodeUID == "" || p.rt.Status.MachineGone {
		return nil
	}
	if p.captured == nil && (p.node == nil || p.c.known.lookDue(p.rt)) { // this walk has not read it
		if err := p.accepted(); err != nil {
			return err
		}
		if gone, err := p.machineGone(ctx); err != nil || gone {
			return err
		}
		p.c.known.look(p.rt)
	}
	if p.node != nil {
		return nil
	}
	return end(BeingRemoved, "somebody else has deleted the Node, and its machine, which is there, is left to them: one without a Node "+
		"is retired by giving its providerID and no nodeUID")
}

func (p *passage) admitted() bool {
	return meta.IsStatusConditionTrue(p.rt.Status.Conditions, v1alpha1.RetirementAdmitted)
}

func (p *passage) admitNow(ctx context.Context, message string) error {
	p.condition(v1alpha1.RetirementAdmitted, metav1.ConditionTrue, admitted, message)
	p.note("", "admitted: "+message, nil)
	p.c.known.admit(p.rt) // before, since the answer may get lost
	return p.save(ctx)
}

// allowed asks the bounds, with these retirements.
func (p *passage) allowed(ctx context.Context, retirements []v1alpha1.NodeRetirement) error {
	verdict, err := p.verdict(ctx, retirements)
	if err != nil || verdict.Allowed() {
		return err
	}
	p.condition(v1alpha1.RetirementAdmitted, metav1.ConditionFalse, string(verdict.Code), verdict.Message)
	return blocked(p.c.o.Pace.Poll, reason(string(verdict.Code), "", "%s", verdict.Message))
}

func (p *passage) verdict(ctx context.Context, retirements []v1alpha1.NodeRetirement) (budget.Verdict, error) {
	retiring, past := map[string]bool{}, map[types.UID]bool{}
	leaving := p.c.known.leaving(p.rt)
	for i := range retirements {
		o := &retirements[i]
		past[o.UID] = pastReturn(o.Status.Phase)
		if o.UID != p.rt.UID && Leaving(o) {
			retiring[o.Spec.NodeName] = true
		}
		if o.UID != p.rt.UID && InFlight(o) && o.Status.Captured != nil {
			leaving = append(leaving, admission{o.UID, o.Spec.NodeName, o.Status.Captured.Group})
		}
	}
	ungrouped := ""
	for _, l := range leaving {
		retiring[l.node] = true
		// One whose Node is deleted disrupts nothing any more, however long its cloud takes to delete the machine.
		if l.group == "" && !past[l.record] {
			ungrouped = l.node
		}
	}
	if p.group == nil {
		if ungrouped != "" {
			return budget.Verdict{
				Code: budget.Disruption, Limit: 1, Unavailable: 1,
				Message: "of the nodes that belong to no NodeGroup one leaves at a time, and " + ungrouped + " does",
			}, nil
		}
		return budget.Verdict{}, nil
	}
	nodes, err := nodesOf(ctx, p.c.o.Client, p.group, retiring, p.c.known.gone(retirements))
	if err != nil {
		return budget.Verdict{}, err
	}
	return budget.Evaluate(budget.Question{
		Group: &p.group.Spec, CloudMinimum: p.group.Status.CloudMinimum, Nodes: nodes, Target: p.rt.Spec.NodeName,
		Outside: p.node == nil || !Selects(p.group, p.node.Labels), Reason: p.rt.Spec.Reason, Now: time.Now(),
	}), nil
}

// InFlight reports a retirement whose node counts as unavailable: admitted, and not over.
func InFlight(rt *v1alpha1.NodeRetirement) bool {
	return !rt.Status.Phase.Finished() && meta.IsStatusConditionTrue(rt.Status.Conditions, v1alpha1.RetirementAdmitted)
}

// Leaving reports a retirement whose node does not stay: it is in flight, or the node's cloud has said that it takes the machine
// away, with which the node will be gone before anybody is asked.
func Leaving(rt *v1alpha1.NodeRetirement) bool {
	of := rt.Spec.Notice
	taken := of != nil && (of.Type == string(notice.Preempt) || of.Type == string(notice.Terminate))
	return InFlight(rt) || taken && !rt.Status.Phase.Finished()
}

// NodesOf lists a group's nodes as its budgets count them. Retiring are the names of those that do not stay; see [Leaving].
func NodesOf(ctx context.Context, reader client.Reader, g *v1alpha1.NodeGroup, retiring map[string]bool) ([]budget.Node, error) {
	return nodesOf(ctx, reader, g, retiring, nil)
}

// nodesOf leaves out the Nodes that are known to be gone, which a cache may still have: a group would seem to be larger
// than it is.
func nodesOf(ctx context.Context, reader client.Reader, g *v1alpha1.NodeGroup, retiring map[string]bool, gone map[types.UID]bool) (
	[]budget.Node, error,
) {
	selector, err := metav1.LabelSelectorAsSelector(&g.Spec.NodeSelector)
	if err != nil {
		return nil, fmt.Errorf("NodeGroup %s: spec.nodeSelector: %w", g.Name, err)
	}
	var list corev1.NodeList
	if err := reader.List(ctx, &list, client.MatchingLabelsSelector{Selector: selector}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("nodes of NodeGroup %s: %w", g.Name, err)
	}
	nodes := make([]budget.Node, 0, len(list.Items))
	for i := range list.Items {
		if n := &list.Items[i]; !gone[n.UID] {
			nodes = append(nodes, budget.NodeOf(n, retiring[n.Name]))
		}
	}
	return nodes, nil
}
