package retirement

import (
	"context"
	"fmt"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/observe"
)

// outOfService tells the control plane that the machine is gone for good: its pods are deleted without their kubelet's
// word, and its volumes are detached at once
// (https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/#non-graceful-node-shutdown).
var outOfService = cordon.Taint{Key: "node.kubernetes.io/out-of-service", Value: "nodeshutdown", Effect: "NoExecute"}

// conditionReason is how our lifecycle conditions name their cause.
const conditionReason = "Slipway"

// hold takes the node out of scheduling. It mends a hold that somebody has taken off. That the machine is gone may have been
// found long ago, by another process: it is asked again before the taint is set which deletes every pod, past all budgets
// (I2, I7).
func (p *passage) hold(ctx context.Context) error {
	if p.reached(v1alpha1.NodeDeleted) {
		return nil
	}
	if p.node != nil && !p.held() {
		if p.rt.Status.MachineGone {
			if err := p.stillGone(ctx); err != nil {
				return err
			}
			if err := p.confirmRecord(ctx); err != nil {
				return err
			}
		}
		keeper, err := p.keeper()
		if err != nil {
			return err
		}
		keeper.See(p.node)
		out, err := keeper.Hold(ctx, Owner(p.rt), p.request())
		if kubeapi.IsNotFound(err) || cordon.IsReplaced(err) {
			return wait(freshLook, "the Node has just gone")
		}
		if err != nil {
			return err
		}
		for _, problem := range out.Problems {
			p.log.Warn("annotation on the node cannot be understood", "err", problem)
		}
		p.node, p.isNodeLive = out.Node, true
	}
	if p.reached(v1alpha1.Cordoned) {
		return nil
	}
	p.advance(v1alpha1.Cordoned, &p.rt.Status.Times.Cordoned, "", "cordoned", nil)
	return nil
}

// held reports that the hold stands on the node as it should.
func (p *passage) held() bool {
	if !p.node.Spec.Unschedulable {
		return false
	}
	records, _ := cordon.List(p.node)
	for _, r := range records {
		if r.Owner == Owner(p.rt) {
			return !p.rt.Status.MachineGone || isOutOfService(p.node)
		}
	}
	return false
}

func isOutOfService(n *kubeapi.Node) bool {
	for _, t := range n.Spec.Taints {
		if t.Key == outOfService.Key {
			return true
		}
	}
	return false
}

func (p *passage) request() cordon.Request {
	r := cordon.Request{
		Reason:        observe.Cut(fmt.Sprintf("NodeRetirement %s (%s)", p.rt.Name, p.rt.Spec.Reason), 512),
		Unschedulable: true,
		Phase:         cordon.Draining,
	}
	if p.rt.Status.MachineGone {
		r.Taints = []cordon.Taint{outOfService}
		return r
	}
	r.Conditions = []cordon.Condition{{Type: cordon.DrainInProgress, Reason: conditionReason, Message: r.Reason}}
	return r
}
