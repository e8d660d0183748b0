package provisioning

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/instances"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
	"github.com/slipway-dev/slipway/internal/retirement/request"
)

// grow places the orders, all at the same time, and waits a little for the answers. One that the cloud has not answered by
// then is counted as on its way, and holds up no look: pods that come next need not wait for it.
func (a *Controller) grow(ctx context.Context, groups []*known, d *plan.Decision, waiting map[placement.PodKey]waitingPod) error {
	var errs []error
	for _, g := range groups {
		var orders []plan.Order
		for _, o := range d.Orders {
			if o.Group == g.name() {
				orders = append(orders, o)
			}
		}
		if len(orders) > 0 {
			errs = append(errs, a.orderAll(ctx, g, orders, waiting))
		}
	}
	if len(d.Orders) > 0 {
		a.await(ctx, groups, func(m *memory) bool { return m.open == 0 })
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// orderAll places a group's orders, once they are written down.
func (a *Controller) orderAll(ctx context.Context, g *known, orders []plan.Order, waiting map[placement.PodKey]waitingPod) error {
	began := time.Now()
	ids := make([]string, len(orders))
	for i, o := range orders {
		ids[i] = g.memory.expect(o, began)
	}
	reserved, err := a.reserve(ctx, g, ids)
	if err != nil {
		for _, id := range ids {
			g.memory.withdraw(id)
		}
		return fmt.Errorf("no machines are ordered: %w", err)
	}
	for i, o := range orders {
		a.order(ctx, g, o, reserved[i], began, waiting)
	}
	return nil
}

func (a *Controller) order(ctx context.Context, g *known, o plan.Order, l launch.Reservation, began time.Time, waiting map[placement.PodKey]waitingPod) {
	for _, key := range o.Pods {
		a.o.Metrics.waited(time.Since(waiting[key].since))
	}
	provider, group := a.o.Clouds[g.Group.Spec.Cloud.Provider], g.Group.Spec.Cloud.Group
	order := cloud.Order{Count: o.Count, Template: o.Template, Unmade: min(o.Count, g.memory.survey.Unmade)}
	g.memory.survey.Unmade -= order.Unmade
	a.work.Go(func() {
		within, cancel := context.WithTimeout(ctx, launch.Timeout(o.Count))
		defer cancel()
		op, err := l.Request(within, provider, group, order)
		a.o.Metrics.ordered(o, err, time.Since(began))
		a.answer(g, err != nil, func(g *known) { a.answered(g, o, l.ID, op, err) })
		if err == nil {
			a.follow(ctx, g, o, l.ID, provider, op)
		}
	})
}

// answered takes in what the cloud says to an order. Its refusal is no failure of the look: the kind is left alone, and the
// next look takes another.
func (a *Controller) answered(g *known, o plan.Order, id string, op cloud.Operation, err error) {
	log := a.o.Log.With("group", o.Group, "template", o.Template, "machines", o.Count, "pods", len(o.Pods), "reasons", o.Reasons)
	if err == nil {
		log.Info("machines are ordered")
		g.memory.replied(id, launch.Accepted, op.Machines, time.Now())
		g.memory.runs(id, op.ID)
		a.orderPlaced(g, o)
		return
	}
	log.Error("the cloud did not take the order", "err", err, "made", len(op.Machines))
	answer := launch.Refused
	if launch.ReasonOf(err) == launch.Unclear {
		answer = launch.Lost
	}
	a.backedOff(g, g.memory.refuse(o.Template, err, time.Now()))
	g.memory.replied(id, answer, op.Machines, time.Now())
}

// again has the next look begin soon.
func (a *Controller) again() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// mostGivenUp is how many machines of a group are given up at the same time. Others come in one of the next looks.
const mostGivenUp = 10

// giveUp begins to delete machines of ours that will never be nodes. As with orders, no look waits for a cloud's answer. None is
// given up twice at once.
func (a *Controller) giveUp(ctx context.Context, s *sources, groups []*known) {
	for _, g := range groups {
		m := g.memory
		for _, dead := range m.survey.Dead {
			if id := dead.Instance.ProviderID; !m.leaving[id] && len(m.leaving) < mostGivenUp {
				m.leaving[id] = true
				a.letGo(ctx, s, g, dead)
			}
		}
		m.survey.Dead = nil // the next survey tells anew
	}
}

func (a *Controller) letGo(ctx context.Context, s *sources, g *known, dead launch.FailedInstance) {
	a.work.Go(func() {
		within, cancel := context.WithTimeout(ctx, cloudTimeout)
		defer cancel()
		gone, err := a.delete(within, s, g, dead)
		a.answer(g, gone, func(g *known) {
			delete(g.memory.leaving, dead.Instance.ProviderID)
			switch {
			case gone:
				a.machineGivenUp(g, dead)
			case err != nil && ctx.Err() == nil:
				g.memory.leaveAlone(err, time.Now())
				a.o.Log.Error("a machine that has had no Node cannot be given up, and that is tried again", "err", err)
			}
		})
	})
}

// delete deletes a machine once the API server and the cloud have said once more that it is not a node (I4, I7). It reports
// whether the cloud was asked to.
func (a *Controller) delete(ctx context.Context, s *sources, g *known, dead launch.FailedInstance) (asked bool, err error) {
	provider := a.o.Clouds[g.Group.Spec.Cloud.Provider]
	id := dead.Instance.ProviderID
	// One that has moved on since is judged anew by the next look.
	asked, err = instances.DeleteWithoutNode(ctx, provider, s.hosts.Read, id, func(i cloud.Instance) bool {
		return i.State == dead.Instance.State && i.State != cloud.Unknown
	})
	switch {
	case err != nil:
		return false, fmt.Errorf("NodeGroup %s: %w", g.name(), err)
	case !asked:
		return false, nil
	}
	a.o.Log.Warn("a machine that has had no Node is deleted", "group", g.name(), "providerID", id, "reason", dead.Reason, "message", dead.Message)
	a.o.Metrics.gaveUp(g.name(), dead.Reason)
	return true, nil
}

// retire writes down since when nodes could go, asks for the retirement of those that are due, and calls off what waits
// and is not wanted any more. A node that is not asked about any more loses its mark (I3), unless that is another manager's to
// take.
func (a *Controller) retire(ctx context.Context, cluster *nodegroup.Cluster, groups []*known, down []plan.NodeDecision) error {
	if down == nil {
		return nil // it was not decided
	}
	var errs []error
	marked := map[string]bool{}
	for i := range down {
		d := &down[i]
		marked[d.Node] = true
		errs = append(errs, a.mark(ctx, d.Subject.Object, d.Since))
		g := groupNamed(groups, d.Group)
		switch {
		case d.CallOff != "":
			errs = append(errs, a.callOff(ctx, d))
		case d.Verdict == nodegroup.Leaves:
			errs = append(errs, a.askRetirement(ctx, g, d))
		}
		a.tellNode(g, d)
	}
	for i := range cluster.Nodes {
		if n := &cluster.Nodes[i]; !marked[n.Name] && cluster.Answers(n, a.o.Selector) {
			errs = append(errs, a.mark(ctx, n, time.Time{}))
		}
	}
	return errors.Join(errs...)
}

func groupNamed(groups []*known, name string) *known {
	for _, g := range groups {
		if g.name() == name {
			return g
		}
	}
	return nil
}

// mark writes since when a Node could go, unless that is written already. It holds for the Node as it was read alone.
func (a *Controller) mark(ctx context.Context, n *corev1.Node, since time.Time) error {
	var value any
	if !since.IsZero() {
		value = since.UTC().Format(time.RFC3339)
	}
	annotations := map[string]any{plan.SinceAnnotation: value}
	_, isRenamed := n.Annotations[plan.OldSinceAnnotation]
	if isRenamed {
		annotations[plan.OldSinceAnnotation] = nil
	}
	if old, there := n.Annotations[plan.SinceAnnotation]; !isRenamed && (value == nil && !there || value == old) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"annotations": annotations, "uid": n.UID, "resourceVersion": n.ResourceVersion,
	}})
	if err != nil {
		return err
	}
	target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
	err = a.o.Client.Patch(ctx, target, client.RawPatch(types.MergePatchType, patch))
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) { // the next look sees it as it is
		return fmt.Errorf("annotation of node %s: %w", n.Name, err)
	}
	return nil
}

func (a *Controller) callOff(ctx context.Context, d *plan.NodeDecision) error {
	rt := d.Subject.Open()
	err := a.o.Client.Delete(ctx, rt, client.Preconditions{UID: &rt.UID, ResourceVersion: &rt.ResourceVersion})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("calling off NodeRetirement %s: %w", rt.Name, err)
	}
	a.o.Log.Info("the retirement is called off", "retirement", rt.Name, "node", d.Node, "why", nodegroup.Sentence(d.Reasons))
	return nil
}

// askRetirement asks for the retirement of an underused node.
func (a *Controller) askRetirement(ctx context.Context, g *known, d *plan.NodeDecision) error {
	n, before := d.Subject.Object, ""
	if last := d.Subject.LastFailure(); last != nil {
		before = string(last.UID)
	}
	rt := request.New(request.Request{
		Name: request.Name(n.Name, "underused", n.UID, d.Since.Unix(), before), Labels: g.Group.Labels,
		Spec: v1alpha1.NodeRetirementSpec{
			NodeName: n.Name, NodeUID: n.UID, Reason: v1alpha1.Underused, RequestedBy: plan.RequestedBy, Group: d.Group,
		},
	})
	if err := a.o.Client.Create(ctx, rt); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("NodeRetirement %s: %w", rt.Name, err)
	}
	a.o.Metrics.retired(d.Group)
	return nil
}
