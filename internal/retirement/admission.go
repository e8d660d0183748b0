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
	"github.com/slipway-dev/slipway/internal/retirement/disruptionbudget"
)

// awaitAdmission waits until the group's minimum size and disruption budgets permit the retirement (invariant I5), and
// until the cloud permits the deletion. If the node is protected, it ends the retirement before anything is changed. If
// the instance is gone, it does not wait, because the cleanup disrupts no pod.
func (p *retirementScope) awaitAdmission(ctx context.Context) error {
	if p.isAdmitted() {
		return nil
	}
	if err := p.checkInstanceWhileWaiting(ctx); err != nil {
		return err
	}
	if p.rt.Status.InstanceGone {
		return p.recordAdmission(ctx, "the instance is already gone")
	}
	if err := p.checkReasonStillHolds(); err != nil {
		return err
	}
	if err := p.checkNodeNotProtected(); err != nil {
		return err
	}
	if err := p.awaitGroupAccepted(); err != nil {
		return err
	}
	isNew, err := p.reserveAdmission(ctx)
	if err != nil {
		return err
	}
	if err := p.checkAdmissionLive(ctx); err != nil {
		if isNew { // otherwise an earlier write may have succeeded without an answer
			p.controller.expectations.removeAdmission(p.rt)
		}
		return err
	}
	return p.recordAdmission(ctx, "within the group's limits")
}

// reserveAdmission counts the retirement as admitted if the limits permit it. It reports whether the retirement was not
// counted before. While checkAdmissionLive runs, this reservation prevents that other retirements of this process use
// the same disruption budget. The limits are checked with cached objects, which are recent enough to refuse an
// admission.
func (p *retirementScope) reserveAdmission(ctx context.Context) (isNew bool, err error) {
	var cached v1alpha1.NodeRetirementList
	if err := p.controller.options.Client.List(ctx, &cached, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("listing NodeRetirements: %w", err)
	}
	p.controller.admissionLock.Lock()
	defer p.controller.admissionLock.Unlock()
	if err := p.checkGroupLimits(ctx, cached.Items); err != nil {
		return false, err
	}
	return p.controller.expectations.addAdmission(p.rt), nil
}

// checkAdmissionLive makes the checks of an admission that need requests. They concern the pods, the credential's
// rights in the cloud, and the limits with uncached NodeRetirements.
func (p *retirementScope) checkAdmissionLive(ctx context.Context) error {
	if p.node != nil {
		pods, err := p.listAndClassifyPods(ctx)
		if err != nil {
			return err
		}
		if len(pods.protected) > 0 {
			return &endError{pods.protected}
		}
	}
	if err := p.checkDeletePermissions(ctx); err != nil {
		return err
	}
	all, err := p.listRetirementsLive(ctx)
	if err != nil {
		return err
	}
	if err := p.checkGroupLimits(ctx, all); err != nil {
		return err
	}
	return p.recheckReasonLive(ctx)
}

// checkInstanceWhileWaiting checks the instance of a retirement that waits for admission, if its Node is not Ready or
// is gone.
//
// If the instance is gone, the cleanup may start without admission. If another client has deleted the Node and the
// instance still runs, the retirement ends: the kubelet may register the Node again, and no limit has permitted the
// deletion of the instance (invariant I5). While the Node exists, the cloud is asked once in each
// instanceCheckInterval, because many retirements may wait, as in a zone outage.
func (p *retirementScope) checkInstanceWhileWaiting(ctx context.Context) error {
	if isReady(p.node) || p.rt.Status.Captured.NodeUID == "" || p.rt.Status.InstanceGone {
		return nil
	}
	if p.capturedInstance == nil && (p.node == nil || p.controller.expectations.isInstanceCheckDue(p.rt)) { // this reconcile has not read it
		if err := p.awaitGroupAccepted(); err != nil {
			return err
		}
		if gone, err := p.confirmInstanceGone(ctx); err != nil || gone {
			return err
		}
		p.controller.expectations.recordInstanceSeen(p.rt)
	}
	if p.node != nil {
		return nil
	}
	return newEnd(BeingRemoved, "another client has deleted the Node, and its instance still runs: to retire an instance without a "+
		"Node, set spec.providerID and no spec.nodeUID")
}

func (p *retirementScope) isAdmitted() bool {
	return meta.IsStatusConditionTrue(p.rt.Status.Conditions, v1alpha1.RetirementAdmitted)
}

func (p *retirementScope) recordAdmission(ctx context.Context, message string) error {
	p.setCondition(v1alpha1.RetirementAdmitted, metav1.ConditionTrue, admittedReason, message)
	p.recordWaitState("", "admitted: "+message, nil)
	p.controller.expectations.addAdmission(p.rt) // before the write, because its answer may get lost
	return p.saveStatusIfChanged(ctx)
}

// checkGroupLimits returns an error if the minimum size or a disruption budget of the group forbids the retirement. The
// nodes of the given retirements count as unavailable.
func (p *retirementScope) checkGroupLimits(ctx context.Context, retirements []v1alpha1.NodeRetirement) error {
	decision, err := p.evaluateDisruptionBudget(ctx, retirements)
	if err != nil || decision.IsAllowed() {
		return err
	}
	p.setCondition(v1alpha1.RetirementAdmitted, metav1.ConditionFalse, string(decision.Code), decision.Message)
	return newBlocked(p.controller.options.Intervals.Poll, newReason(string(decision.Code), "", "%s", decision.Message))
}

func (p *retirementScope) evaluateDisruptionBudget(ctx context.Context, retirements []v1alpha1.NodeRetirement) (disruptionbudget.Decision, error) {
	retiring, past := map[string]bool{}, map[types.UID]bool{}
	leaving := p.controller.expectations.otherAdmissions(p.rt)
	for i := range retirements {
		o := &retirements[i]
		past[o.UID] = isNodeGonePhase(o.Status.Phase)
		if o.UID != p.rt.UID && WillRemoveNode(o) {
			retiring[o.Spec.NodeName] = true
		}
		if o.UID != p.rt.UID && IsInFlight(o) && o.Status.Captured != nil {
			leaving = append(leaving, admission{o.UID, o.Spec.NodeName, o.Status.Captured.Group})
		}
	}
	ungrouped := ""
	for _, l := range leaving {
		retiring[l.node] = true
		// A deleted Node disrupts nothing any more, even if its cloud still deletes the instance.
		if l.group == "" && !past[l.retirementUID] {
			ungrouped = l.node
		}
	}
	if p.group == nil {
		if ungrouped != "" {
			return disruptionbudget.Decision{
				Code: disruptionbudget.DisruptionBudgetReached, Limit: 1, Unavailable: 1,
				Message: "nodes without a NodeGroup are retired one at a time, and " + ungrouped + " is being retired",
			}, nil
		}
		return disruptionbudget.Decision{}, nil
	}
	isRetiring := func(n *corev1.Node) bool { return retiring[n.Name] }
	nodes, err := listBudgetNodes(ctx, p.controller.options.Client, p.group, isRetiring, p.controller.expectations.deletedNodeUIDs(retirements))
	if err != nil {
		return disruptionbudget.Decision{}, err
	}
	return disruptionbudget.CheckDisruption(disruptionbudget.Query{
		Group: &p.group.Spec, CloudMinSize: p.group.Status.CloudMinSize, Nodes: nodes, Target: p.rt.Spec.NodeName,
		TargetNotInGroup: p.node == nil || !SelectsNode(p.group, p.node.Labels), Reason: p.rt.Spec.Reason, Now: time.Now(),
	}), nil
}

// IsInFlight reports whether the retirement is admitted and not finished. Its node counts as unavailable then.
func IsInFlight(rt *v1alpha1.NodeRetirement) bool {
	return !rt.Status.Phase.IsFinal() && meta.IsStatusConditionTrue(rt.Status.Conditions, v1alpha1.RetirementAdmitted)
}

// WillRemoveNode reports whether the retirement will remove its node. It will if it is in flight, or if it is for a
// notice that the cloud takes the instance away.
func WillRemoveNode(rt *v1alpha1.NodeRetirement) bool {
	ref := rt.Spec.Notice
	taken := ref != nil && (ref.Type == string(notice.Preempt) || ref.Type == string(notice.Terminate))
	return IsInFlight(rt) || taken && !rt.Status.Phase.IsFinal()
}

// ListBudgetNodes returns the nodes of a group as its disruption budgets count them. isRetiring reports whether a
// retirement removes a node.
func ListBudgetNodes(ctx context.Context, reader client.Reader, g *v1alpha1.NodeGroup, isRetiring func(*corev1.Node) bool) ([]disruptionbudget.Node, error) {
	return listBudgetNodes(ctx, reader, g, isRetiring, nil)
}

// listBudgetNodes returns the same as ListBudgetNodes, but without the Nodes in gone, which this process knows to be
// deleted. The cache may still contain such a Node, and the group would then seem larger than it is.
func listBudgetNodes(ctx context.Context, reader client.Reader, g *v1alpha1.NodeGroup, isRetiring func(*corev1.Node) bool, deletedUIDs map[types.UID]bool) (
	[]disruptionbudget.Node, error,
) {
	selector, err := metav1.LabelSelectorAsSelector(&g.Spec.NodeSelector)
	if err != nil {
		return nil, fmt.Errorf("NodeGroup %s: spec.nodeSelector: %w", g.Name, err)
	}
	var list corev1.NodeList
	if err := reader.List(ctx, &list, client.MatchingLabelsSelector{Selector: selector}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("nodes of NodeGroup %s: %w", g.Name, err)
	}
	nodes := make([]disruptionbudget.Node, 0, len(list.Items))
	for i := range list.Items {
		if n := &list.Items[i]; !deletedUIDs[n.UID] {
			nodes = append(nodes, disruptionbudget.NewNode(n, isRetiring(n)))
		}
	}
	return nodes, nil
}
