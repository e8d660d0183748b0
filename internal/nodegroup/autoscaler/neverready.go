package autoscaler

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/nodegroup/scaling"
	"github.com/slipway-dev/slipway/internal/retirement"
	"github.com/slipway-dev/slipway/internal/retirement/budget"
)

// neverReadyRequester is who asks for the retirements of nodes that have never been Ready.
const neverReadyRequester = "slipway manager, never ready"

// retireNeverReady asks for the retirement of the nodes of machines of ours that have not been Ready in time: there may be
// pods on them, so that they leave with the care that every node does. A machine that was asked about is not awaited any
// more, as its NodeRetirement is the record of it.
func (a *Autoscaler) retireNeverReady(ctx context.Context, groups []*known) error {
	var errs []error
	for _, g := range groups {
		for _, dead := range g.memory.survey.NeverReady {
			if err := a.retireMachine(ctx, g, dead); err != nil {
				errs = append(errs, err)
				continue
			}
			g.memory.record = slices.DeleteFunc(slices.Clone(g.memory.record), func(r v1alpha1.AwaitedMachine) bool {
				return r.ProviderID == dead.Instance.ProviderID
			})
		}
		g.memory.survey.NeverReady = nil // the next survey tells anew
	}
	return errors.Join(errs...)
}

// retireMachine asks for the retirement of a machine's node, unless it has begun to leave or to work.
func (a *Autoscaler) retireMachine(ctx context.Context, g *known, dead scaling.DeadMachine) error {
	log := a.o.Log.With("group", g.name(), "providerID", dead.Instance.ProviderID, "reason", dead.Reason, "message", dead.Message)
	n := nodeOn(a.o.Clouds[g.Group.Spec.Cloud.Provider], g.Nodes, dead.Instance)
	switch {
	case n == nil:
		log.Warn("a machine's Node has never been Ready, and is not one of the group with the machine's provider ID; it is left alone")
		return nil
	case budget.Ready(n.Object) || n.Open() != nil || len(budget.Others(n.Object)) > 0: // I6
		return nil
	}
	node := n.Object
	rt := &v1alpha1.NodeRetirement{
		ObjectMeta: metav1.ObjectMeta{Name: retirement.Name(node.Name, "never-ready", node.UID), Labels: g.Group.Labels},
		Spec: v1alpha1.NodeRetirementSpec{
			NodeName: node.Name, NodeUID: node.UID, Reason: v1alpha1.NeverReady, RequestedBy: neverReadyRequester, Group: g.name(),
		},
	}
	if err := a.o.Client.Create(ctx, rt); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("NodeRetirement %s: %w", rt.Name, err)
	}
	log.Warn("a machine's Node has never been Ready, and its retirement is asked for", "node", node.Name)
	a.o.Metrics.gaveUp(g.name(), dead.Reason)
	return nil
}

// nodeOn finds the node of a group that says by its provider ID that it is on a machine: a name alone is not enough (I4).
func nodeOn(provider cloud.Provider, nodes []nodegroup.Node, i cloud.Instance) *nodegroup.Node {
	for k := range nodes {
		id := nodes[k].Object.Spec.ProviderID
		if id == "" {
			continue
		}
		if normal, err := provider.Normalize(id); err == nil && normal == i.ProviderID {
			return &nodes[k]
		}
	}
	return nil
}
