package provisioning

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/instances"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/retirement"
	"github.com/slipway-dev/slipway/internal/retirement/budget"
	"github.com/slipway-dev/slipway/internal/retirement/request"
)

// neverReadyRequester is who asks for the retirements of nodes that have never been Ready.
const neverReadyRequester = "slipway manager, never ready"

// retireNeverReady asks for the retirement of the nodes of machines of ours that have not been Ready in time: there may be
// pods on them, so that they leave with the care that every node does. A machine stays on record until its retirement cannot
// be given up any more, so that one that fails is followed by another.
func (a *Controller) retireNeverReady(ctx context.Context, groups []*known) error {
	var errs []error
	for _, g := range groups {
		for _, dead := range g.memory.survey.NeverReady {
			settled, err := a.retireMachine(ctx, g, dead)
			if err != nil {
				errs = append(errs, err)
			}
			if settled {
				g.memory.record = slices.DeleteFunc(slices.Clone(g.memory.record), func(r launch.Instance) bool {
					return r.ProviderID == dead.Instance.ProviderID
				})
			}
		}
		g.memory.survey.NeverReady = nil // the next survey tells anew
	}
	return errors.Join(errs...)
}

// retireMachine asks for the retirement of a machine's node, unless it is leaving already, or has failed to a moment ago. It
// reports whether the machine need not be looked at again: its node has begun to work, or is not ours to retire.
func (a *Controller) retireMachine(ctx context.Context, g *known, dead launch.FailedInstance) (settled bool, err error) {
	log := a.o.Log.With("group", g.name(), "providerID", dead.Instance.ProviderID, "reason", dead.Reason, "message", dead.Message)
	n := nodeOn(a.o.Clouds[g.Group.Spec.Cloud.Provider], g.Nodes, dead.Instance)
	switch {
	case n == nil:
		log.Warn("a machine's Node has never been Ready, and is not one of the group with the machine's provider ID; it is left alone")
		return false, nil
	case budget.Ready(n.Object) || len(budget.Others(n.Object)) > 0: // I6
		return true, nil
	case n.Open() != nil:
		return false, nil
	}
	before := ""
	if last := n.LastFailure(); last != nil {
		if retirement.EndedBy(last) == retirement.NodeReady {
			return true, nil
		}
		if g.Now.Before(g.AfterFailure(n)) {
			return false, nil
		}
		before = string(last.UID)
	}
	node := n.Object
	rt := request.New(request.Request{
		Name: request.Name(node.Name, "never-ready", node.UID, before), Labels: g.Group.Labels,
		Spec: v1alpha1.NodeRetirementSpec{
			NodeName: node.Name, NodeUID: node.UID, Reason: v1alpha1.NeverReady, RequestedBy: neverReadyRequester, Group: g.name(),
		},
	})
	switch err := a.o.Client.Create(ctx, rt); {
	case apierrors.IsAlreadyExists(err): // the caches will tell of it
		return false, nil
	case err != nil:
		return false, fmt.Errorf("NodeRetirement %s: %w", rt.Name, err)
	}
	log.Warn("a machine's Node has never been Ready, and its retirement is asked for", "node", node.Name)
	if !wasAskedFor(n) {
		a.o.Metrics.gaveUp(g.name(), dead.Reason)
	}
	return false, nil
}

// wasAskedFor reports a node whose retirement was asked for already since it had never been Ready: that is one failure of its
// kind of machine, however long it takes to leave.
func wasAskedFor(n *nodegroup.Node) bool {
	return slices.ContainsFunc(n.Retirements, func(rt v1alpha1.NodeRetirement) bool {
		return rt.Spec.RequestedBy == neverReadyRequester && rt.Spec.NodeUID == n.Object.UID
	})
}

// departure is how far the retirement of a machine's node is.
type departure int

const (
	leaving  departure = iota + 1 // it may still be given up
	departed                      // the Node is gone, and the retirement deletes the machine
)

// departures are the machines of a group that are being retired, by provider ID.
func departures(g *v1alpha1.NodeGroup, provider cloud.Provider, retirements []v1alpha1.NodeRetirement) map[string]departure {
	found := map[string]departure{}
	for i := range retirements {
		rt := &retirements[i]
		if rt.Status.Captured == nil || rt.Status.Captured.Group != g.Name || provider == nil {
			continue
		}
		id, err := provider.Normalize(rt.Status.Captured.ProviderID)
		if err != nil {
			continue
		}
		switch rt.Status.Phase {
		case v1alpha1.NodeDeleted, v1alpha1.InstanceDeleted, v1alpha1.Succeeded, v1alpha1.Failed:
			found[id] = departed
		case v1alpha1.Refused, v1alpha1.Aborted:
		default:
			found[id] = max(found[id], leaving)
		}
	}
	return found
}

// unreplaced are the retirements of a group for which a replacement may still be launched, by the provider ID of the lost instance.
func unreplaced(g *v1alpha1.NodeGroup, provider cloud.Provider, retirements []v1alpha1.NodeRetirement) map[string]types.UID {
	found := map[string]types.UID{}
	for i := range retirements {
		rt := &retirements[i]
		if provider == nil || rt.Spec.Group != g.Name || g.Spec.Replacement == v1alpha1.ReplaceNever || !retirement.IsUnreplaced(rt, retirements) {
			continue
		}
		if id, err := provider.Normalize(rt.Spec.ProviderID); err == nil {
			found[id] = rt.UID
		}
	}
	return found
}

// countUnreplaced counts the instances that are gone after a notice, and whose replacement is in no launch yet.
func (g *known) countUnreplaced() (n int) {
	launched := map[types.UID]bool{}
	for _, l := range g.memory.launches {
		if l.IsForRetirement() {
			launched[l.For.UID] = true
		}
	}
	for id, uid := range g.unreplaced {
		if !launched[uid] && !slices.ContainsFunc(g.memory.instances, func(i cloud.Instance) bool { return i.ProviderID == id }) {
			n++
		}
	}
	return n
}

// leaveToRetirements takes out of a survey what retirements see to: a machine whose Node they have deleted is no machine that
// never had one.
func (g *known) leaveToRetirements(s *launch.Tracking) {
	s.Dead = slices.DeleteFunc(s.Dead, func(d launch.FailedInstance) bool { return g.departures[d.Instance.ProviderID] > 0 })
	s.Record = slices.DeleteFunc(s.Record, func(r launch.Instance) bool { return g.departures[r.ProviderID] == departed })
}

// newlyDead are the machines of a survey that are a failure of their kind that has not been counted.
func (g *known) newlyDead(provider cloud.Provider, s *launch.Tracking) []launch.FailedInstance {
	return append(slices.Concat(s.Dead, s.NeverUsable), slices.DeleteFunc(slices.Clone(s.NeverReady), func(d launch.FailedInstance) bool {
		n := nodeOn(provider, g.Nodes, d.Instance)
		return n != nil && wasAskedFor(n)
	})...)
}

// nodeOn finds the node of a group that says by its provider ID, or without one by its system's UUID, that it is on a machine: a name
// alone is not enough (I4).
func nodeOn(provider cloud.Provider, nodes []nodegroup.Node, i cloud.Instance) *nodegroup.Node {
	for k := range nodes {
		id := cloud.IDOfHost(provider, instances.HostOf(nodes[k].Object))
		if id == "" {
			continue
		}
		if normal, err := provider.Normalize(id); err == nil && normal == i.ProviderID {
			return &nodes[k]
		}
	}
	return nil
}
