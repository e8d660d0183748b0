package retirement

import (
	"context"
	"fmt"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/observe"
)

// outOfServiceTaint tells the control plane that the instance is gone for good. It then deletes the pods without their
// kubelet and detaches the volumes at once
// (https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/#non-graceful-node-shutdown).
var outOfServiceTaint = cordon.Taint{Key: "node.kubernetes.io/out-of-service", Value: "nodeshutdown", Effect: "NoExecute"}

// conditionReason is the reason of our lifecycle conditions.
const conditionReason = "Slipway"

// cordonNode cordons the node, and repairs the cordon if another client has removed it. If the instance is gone, it also
// sets the taint that deletes every pod regardless of PDBs (I2). Before it sets this taint, it checks again that the
// instance is gone, because an earlier process may have found that long ago (I7).
func (p *retirementScope) cordonNode(ctx context.Context) error {
	if p.hasReached(v1alpha1.NodeDeleted) {
		return nil
	}
	if p.node != nil && !p.hasCompleteCordonClaim() {
		if p.rt.Status.InstanceGone {
			if err := p.recheckInstanceGone(ctx); err != nil {
				return err
			}
			if err := p.confirmRetirementUnchanged(ctx); err != nil {
				return err
			}
		}
		keeper, err := p.newKeeper()
		if err != nil {
			return err
		}
		keeper.ObserveNode(p.node)
		out, err := keeper.WriteClaim(ctx, CordonOwner(p.rt), p.newCordonClaimSpec())
		if kubeapi.IsNotFound(err) || cordon.IsReplacedError(err) {
			return newWait(requeueSoon, "the Node was just deleted")
		}
		if err != nil {
			return err
		}
		for _, problem := range out.UnreadableRecords {
			p.log.Warn("invalid annotation on the node", "err", problem)
		}
		p.node, p.isNodeLive = out.Node, true
	}
	if p.hasReached(v1alpha1.Cordoned) {
		return nil
	}
	p.setPhase(v1alpha1.Cordoned, &p.rt.Status.Times.Cordoned, "", "cordoned", nil)
	return nil
}

// hasCompleteCordonClaim reports whether our cordon claim is complete on the node.
func (p *retirementScope) hasCompleteCordonClaim() bool {
	if !p.node.Spec.Unschedulable {
		return false
	}
	records, _ := cordon.ListRecords(p.node)
	for _, r := range records {
		if r.Owner == CordonOwner(p.rt) {
			return !p.rt.Status.InstanceGone || hasOutOfServiceTaint(p.node)
		}
	}
	return false
}

func hasOutOfServiceTaint(n *kubeapi.Node) bool {
	for _, t := range n.Spec.Taints {
		if t.Key == outOfServiceTaint.Key {
			return true
		}
	}
	return false
}

func (p *retirementScope) newCordonClaimSpec() cordon.ClaimSpec {
	r := cordon.ClaimSpec{
		Reason:        observe.ClipChars(fmt.Sprintf("NodeRetirement %s (%s)", p.rt.Name, p.rt.Spec.Reason), 512),
		Unschedulable: true,
		Phase:         cordon.Draining,
	}
	if p.rt.Status.InstanceGone {
		r.Taints = []cordon.Taint{outOfServiceTaint}
		return r
	}
	r.Conditions = []cordon.Condition{{Type: cordon.DrainInProgress, Reason: conditionReason, Message: r.Reason}}
	return r
}
