package autoscaler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/nodegroup/scaling"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// grow places the orders, those of different groups at the same time. A cloud's refusal is no failure of the look: the
// kind is left alone, and the next look takes another.
func (a *Autoscaler) grow(ctx context.Context, groups []*known, d *scaling.Decision, waiting map[placement.PodKey]waitingPod) error {
	orders := map[string][]scaling.Order{}
	for _, o := range d.Orders {
		orders[o.Group] = append(orders[o.Group], o)
	}
	var all sync.WaitGroup
	for _, g := range groups {
		if len(orders[g.name()]) == 0 {
			continue
		}
		all.Go(func() {
			for _, o := range orders[g.name()] {
				a.order(ctx, g, o, waiting)
			}
		})
	}
	all.Wait()
	return ctx.Err()
}

func (a *Autoscaler) order(ctx context.Context, g *known, o scaling.Order, waiting map[placement.PodKey]waitingPod) {
	ctx, cancel := context.WithTimeout(ctx, cloudTimeout)
	defer cancel()
	log := a.o.Log.With("group", o.Group, "template", o.Template, "machines", o.Count, "pods", len(o.Pods), "reasons", o.Reasons)
	for _, key := range o.Pods {
		a.o.Metrics.waited(time.Since(waiting[key].since))
	}
	began := time.Now()
	_, err := a.o.Clouds[g.Group.Spec.Cloud.Provider].Grow(ctx, g.Group.Spec.Cloud.Group, cloud.Order{Count: o.Count, Template: o.Template})
	a.o.Metrics.ordered(o, err, time.Since(began))
	if err != nil {
		log.Error("the cloud did not take the order", "err", err)
		reason := scaling.ReasonOf(err)
		a.backedOff(g, g.memory.fail(o.Template, reason, err.Error(), began))
		g.refused = true
		if reason == scaling.Unclear { // what comes of it is ours; what does not is no loss
			g.memory.asked = append(g.memory.asked, scaling.Asked{Kind: o.Template, Count: o.Count, At: began})
		}
		a.again()
		return
	}
	log.Info("machines are ordered")
	g.memory.expect(o, began)
	a.orderPlaced(g, o)
}

// expect counts what was ordered as on its way, until the cloud has been asked again.
func (m *memory) expect(o scaling.Order, at time.Time) {
	m.asked = append(m.asked, scaling.Asked{Kind: o.Template, Count: o.Count, At: at})
	m.cloud.Size += o.Count
	for range o.Count {
		m.survey.Awaited = append(m.survey.Awaited, scaling.Machine{ID: fmt.Sprintf("asked-%d", len(m.survey.Awaited)), Kind: o.Template})
	}
}

// again has the next look begin soon.
func (a *Autoscaler) again() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// giveUp deletes machines of ours that will never be nodes, once the API server and the cloud have said once more that
// they are not (I4, I7).
func (a *Autoscaler) giveUp(ctx context.Context, s *sources, groups []*known) error {
	var errs []error
	for _, g := range groups {
		for _, dead := range g.memory.survey.Dead {
			errs = append(errs, a.delete(ctx, s, g, dead))
		}
		g.memory.survey.Dead = nil // the next survey tells anew
	}
	return errors.Join(errs...)
}

func (a *Autoscaler) delete(ctx context.Context, s *sources, g *known, dead scaling.DeadMachine) error {
	ctx, cancel := context.WithTimeout(ctx, cloudTimeout)
	defer cancel()
	provider := a.o.Clouds[g.Group.Spec.Cloud.Provider]
	id := dead.Instance.ProviderID
	instance, err := provider.Instance(ctx, id)
	switch {
	case cloud.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("machine %s of NodeGroup %s: %w", id, g.name(), err)
	case instance.State != dead.Instance.State || instance.State == cloud.Unknown:
		return nil // it has moved on since: the next look judges it anew
	}
	is, err := a.isNode(ctx, s, provider, instance)
	if err != nil || is {
		return err
	}
	if _, err := provider.Delete(ctx, id); err != nil && !cloud.IsNotFound(err) {
		return fmt.Errorf("deleting machine %s of NodeGroup %s, which has had no Node: %w", id, g.name(), err)
	}
	a.o.Log.Warn("a machine that has had no Node is deleted", "group", g.name(), "providerID", id, "reason", dead.Reason, "message", dead.Message)
	a.o.Metrics.gaveUp(g.name(), dead.Reason)
	a.again()
	a.machineGivenUp(g, dead)
	return nil
}

// isNode asks the API server itself whether a machine has a Node, by its names, and the cache by its provider ID.
func (a *Autoscaler) isNode(ctx context.Context, s *sources, provider cloud.Provider, i cloud.Instance) (bool, error) {
	for _, name := range []string{i.ComputerName, i.Name} {
		if name == "" {
			continue
		}
		_, err := a.o.Kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			return true, nil
		}
		if !apierrors.IsNotFound(err) && !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
			return true, fmt.Errorf("node %s: %w", name, err)
		}
	}
	nodes, err := s.nodes.List(labels.Everything())
	if err != nil {
		return true, err
	}
	has, _ := joined(provider, []cloud.Instance{i}, nodes)
	return has[i.ProviderID], nil
}

// retire writes down since when nodes could go, asks for the retirement of those that are due, and calls off what waits
// and is not wanted any more. A node that is not asked about any more loses its mark (I3).
func (a *Autoscaler) retire(ctx context.Context, cluster *nodegroup.Cluster, groups []*known, down []scaling.NodeDecision) error {
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
		if n := &cluster.Nodes[i]; !marked[n.Name] {
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
func (a *Autoscaler) mark(ctx context.Context, n *corev1.Node, since time.Time) error {
	var value any
	if !since.IsZero() {
		value = since.UTC().Format(time.RFC3339)
	}
	if old, there := n.Annotations[scaling.SinceAnnotation]; value == nil && !there || value == old {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"annotations": map[string]any{scaling.SinceAnnotation: value}, "uid": n.UID, "resourceVersion": n.ResourceVersion,
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

func (a *Autoscaler) callOff(ctx context.Context, d *scaling.NodeDecision) error {
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
func (a *Autoscaler) askRetirement(ctx context.Context, g *known, d *scaling.NodeDecision) error {
	n, before := d.Subject.Object, ""
	if last := d.Subject.LastFailure(); last != nil {
		before = string(last.UID)
	}
	rt := &v1alpha1.NodeRetirement{
		ObjectMeta: metav1.ObjectMeta{Name: retirement.Name(n.Name, "underused", n.UID, d.Since.Unix(), before), Labels: g.Group.Labels},
		Spec: v1alpha1.NodeRetirementSpec{
			NodeName: n.Name, NodeUID: n.UID, Reason: v1alpha1.Underused, RequestedBy: scaling.RequestedBy, Group: d.Group,
		},
	}
	if err := a.o.Client.Create(ctx, rt); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("NodeRetirement %s: %w", rt.Name, err)
	}
	a.o.Metrics.retired(d.Group)
	return nil
}
