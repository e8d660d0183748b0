package provisioning

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/instances"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/retirement"
	"github.com/slipway-dev/slipway/internal/retirement/disruptionbudget"
	"github.com/slipway-dev/slipway/internal/retirement/request"
)

// neverReadyRequester is the requester of retirements of nodes that were never Ready.
const neverReadyRequester = "slipway manager, never ready"

// retireNeverReady requests the retirement of nodes that were not Ready in time. The nodes are drained, because pods
// may run on them. The instance of such a node stays in the launch record until its retirement cannot be cancelled. So
// if a retirement fails, another one follows.
func (a *Controller) retireNeverReady(ctx context.Context, groups []*managedGroup) error {
	var errs []error
	for _, g := range groups {
		for _, failed := range g.state.tracking.NeverReady {
			settled, err := a.retireNeverReadyNode(ctx, g, failed)
			if err != nil {
				errs = append(errs, err)
			}
			if settled {
				g.state.unjoined = slices.DeleteFunc(slices.Clone(g.state.unjoined), func(r launch.Instance) bool {
					return r.ProviderID == failed.Instance.ProviderID
				})
			}
		}
		g.state.tracking.NeverReady = nil // the next cloud read finds the rest
	}
	return errors.Join(errs...)
}

// retireNeverReadyNode requests the retirement of an instance's node, unless the node is being retired or a retirement has just
// failed. It returns true if nothing is left to do, because the node has become Ready or another tool removes it.
func (a *Controller) retireNeverReadyNode(ctx context.Context, g *managedGroup, failed launch.FailedInstance) (isSettled bool, err error) {
	log := a.options.Log.With("group", g.name(), "providerID", failed.Instance.ProviderID, "reason", failed.Reason, "message", failed.Message)
	n := findNodeOfInstance(a.options.Clouds[g.Group.Spec.Cloud.Provider], g.Nodes, failed.Instance)
	switch {
	case n == nil:
		log.Warn("an instance's Node was never Ready, and no Node of the group has its provider ID; it is kept")
		return false, nil
	case disruptionbudget.IsReady(n.Object) || len(disruptionbudget.FindRemovingTools(n.Object)) > 0: // I6
		return true, nil
	case n.OpenRetirement() != nil:
		return false, nil
	}
	before := ""
	if last := n.LastFailedRetirement(); last != nil {
		if retirement.EarlyEndCode(last) == retirement.NodeReady {
			return true, nil
		}
		if g.Now.Before(g.FailureCooldownEnd(n)) {
			return false, nil
		}
		before = string(last.UID)
	}
	node := n.Object
	rt := request.New(request.Request{
		Name: request.NewName(node.Name, "never-ready", node.UID, before), Labels: g.Group.Labels,
		Spec: v1alpha1.NodeRetirementSpec{
			NodeName: node.Name, NodeUID: node.UID, Reason: v1alpha1.NeverReady, RequestedBy: neverReadyRequester, Group: g.name(),
		},
	})
	switch err := a.options.Client.Create(ctx, rt); {
	case apierrors.IsAlreadyExists(err): // the caches are behind
		return false, nil
	case err != nil:
		return false, fmt.Errorf("NodeRetirement %s: %w", rt.Name, err)
	}
	log.Warn("a Node was never Ready; its retirement is requested", "node", node.Name)
	if !hasNeverReadyRetirement(n) {
		a.options.Metrics.countDeletion(g.name(), failed.Reason)
	}
	return false, nil
}

// hasNeverReadyRetirement reports whether the node already has a retirement because it was never Ready. If so, its
// failure was counted for the template, and must not be counted again.
func hasNeverReadyRetirement(n *nodegroup.Node) bool {
	return slices.ContainsFunc(n.Retirements, func(rt v1alpha1.NodeRetirement) bool {
		return rt.Spec.RequestedBy == neverReadyRequester && rt.Spec.NodeUID == n.Object.UID
	})
}

// retirementProgress says how far the retirement of an instance's node has come.
type retirementProgress int

const (
	retirementCancellable retirementProgress = iota + 1 // it may still be cancelled
	retirementFinal                                     // the Node is deleted, and the retirement deletes the instance
)

// retirementState says what the retirements of one provider ID have done.
type retirementState struct {
	unfinished retirementProgress
	// finishedAt is when a retirement of the ID last finished after it had deleted the Node. It is zero if none has.
	finishedAt time.Time
}

// progress returns the progress for an instance that was first seen at the given time. A cloud may give the ID of a
// retired instance to a new one, which a finished retirement does not concern.
func (s retirementState) progress(firstSeen time.Time) retirementProgress {
	if !s.finishedAt.IsZero() && !firstSeen.After(s.finishedAt) {
		return retirementFinal
	}
	return s.unfinished
}

// findRetirementStates returns the states of a group's retirements, by provider ID.
func findRetirementStates(g *v1alpha1.NodeGroup, provider cloud.Provider, retirements []v1alpha1.NodeRetirement) map[string]retirementState {
	found := map[string]retirementState{}
	for i := range retirements {
		rt := &retirements[i]
		if rt.Status.Captured == nil || rt.Status.Captured.Group != g.Name || provider == nil {
			continue
		}
		id, err := provider.Normalize(rt.Status.Captured.ProviderID)
		if err != nil {
			continue
		}
		s, finished := found[id], rt.Status.Times.Finished
		switch rt.Status.Phase {
		case v1alpha1.NodeDeleted, v1alpha1.InstanceDeleted:
			s.unfinished = retirementFinal
		case v1alpha1.Succeeded, v1alpha1.Failed:
			if finished != nil && finished.After(s.finishedAt) {
				s.finishedAt = finished.Time
			}
		case v1alpha1.Refused, v1alpha1.Aborted:
		default:
			s.unfinished = max(s.unfinished, retirementCancellable)
		}
		found[id] = s
	}
	return found
}

// findUnreplacedRetirements returns a group's retirements that may still launch a replacement. The key is the provider ID of the lost
// instance.
func findUnreplacedRetirements(g *v1alpha1.NodeGroup, provider cloud.Provider, retirements []v1alpha1.NodeRetirement) map[string]types.UID {
	found := map[string]types.UID{}
	for i := range retirements {
		rt := &retirements[i]
		if provider == nil || rt.Spec.Group != g.Name || g.Spec.Replacement == v1alpha1.ReplaceNever || !retirement.CanLaunchReplacement(rt, retirements) {
			continue
		}
		if id, err := provider.Normalize(rt.Spec.ProviderID); err == nil {
			found[id] = rt.UID
		}
	}
	return found
}

// countUnreplacedInstances counts the instances that are gone after a notice and have no launch of a replacement yet.
func (g *managedGroup) countUnreplacedInstances() (n int) {
	launched := map[types.UID]bool{}
	for _, l := range g.state.launches {
		if l.IsForRetirement() {
			launched[l.For.UID] = true
		}
	}
	for id, uid := range g.unreplaced {
		if !launched[uid] && !slices.ContainsFunc(g.state.instances, func(i cloud.Instance) bool { return i.ProviderID == id }) {
			n++
		}
	}
	return n
}

// excludeRetired removes instances that are being retired from the tracking. Such an instance may have lost its Node,
// and would look like an instance that never joined.
func (g *managedGroup) excludeRetired(s *launch.Tracking) {
	progress := map[string]retirementProgress{} // of the recorded instances, which include the failed ones
	for _, r := range s.Unjoined {
		progress[r.ProviderID] = g.retirements[r.ProviderID].progress(r.Since.Time)
	}
	s.FailedWithoutNode = slices.DeleteFunc(s.FailedWithoutNode, func(d launch.FailedInstance) bool { return progress[d.Instance.ProviderID] > 0 })
	s.Unjoined = slices.DeleteFunc(s.Unjoined, func(r launch.Instance) bool { return progress[r.ProviderID] == retirementFinal })
}

// listUncountedFailures returns the failed instances that do not count as a failure of their template yet.
func (g *managedGroup) listUncountedFailures(provider cloud.Provider, s *launch.Tracking) []launch.FailedInstance {
	return append(slices.Concat(s.FailedWithoutNode, s.NeverUsable), slices.DeleteFunc(slices.Clone(s.NeverReady), func(d launch.FailedInstance) bool {
		n := findNodeOfInstance(provider, g.Nodes, d.Instance)
		return n != nil && hasNeverReadyRetirement(n)
	})...)
}

// findNodeOfInstance returns the node with the instance's provider ID. A node without a provider ID is found by its
// system UUID. An equal name does not prove it (invariant I4).
func findNodeOfInstance(provider cloud.Provider, nodes []nodegroup.Node, i cloud.Instance) *nodegroup.Node {
	for k := range nodes {
		id := cloud.ProviderIDOfNode(provider, instances.NodeIdentityOf(nodes[k].Object))
		if id == "" {
			continue
		}
		if normal, err := provider.Normalize(id); err == nil && normal == i.ProviderID {
			return &nodes[k]
		}
	}
	return nil
}
