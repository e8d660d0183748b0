package retirement

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// StaleCordonCleaner restores nodes with a cordon claim of a NodeRetirement that no longer exists, because a user has
// removed its finalizer. It also removes conditions that an earlier restore could not remove (invariant I3). The
// manager runs it while it leads.
type StaleCordonCleaner struct {
	// Nodes reads Nodes, possibly from caches. Retirements reads every NodeRetirement from the API server.
	Nodes, Retirements client.Reader
	API                cordon.API
	Interval           time.Duration
	Log                *slog.Logger
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*StaleCordonCleaner) NeedLeaderElection() bool { return true }

// Start restores nodes periodically until ctx ends.
func (s *StaleCordonCleaner) Start(ctx context.Context) error {
	for {
		if err := s.RestoreNodes(ctx); err != nil && ctx.Err() == nil {
			s.Log.Warn("cannot restore all nodes of deleted NodeRetirements, will retry", "err", err)
		}
		if !elapsed.Sleep(ctx, s.Interval) {
			return nil
		}
	}
}

// RestoreNodes restores all such nodes once. It reads the Nodes before the NodeRetirements. A NodeRetirement is
// created before its cordon claim, so a claim without a NodeRetirement is stale.
func (s *StaleCordonCleaner) RestoreNodes(ctx context.Context) error {
	var nodes corev1.NodeList
	if err := s.Nodes.List(ctx, &nodes); err != nil {
		return fmt.Errorf("nodes: %w", err)
	}
	claimed := map[string][]*corev1.Node{} // by the claim's owner
	for i := range nodes.Items {
		n := &nodes.Items[i]
		records, _ := cordon.ListRecords(&kubeapi.Node{ObjectMeta: kubeapi.ObjectMeta{Annotations: n.Annotations}})
		for _, r := range records {
			if strings.HasPrefix(r.Owner, ownerPrefix) {
				claimed[r.Owner] = append(claimed[r.Owner], n)
			}
		}
	}
	if len(claimed) == 0 {
		return nil
	}
	var all v1alpha1.NodeRetirementList
	if err := s.Retirements.List(ctx, &all); err != nil {
		return fmt.Errorf("NodeRetirements: %w", err)
	}
	for i := range all.Items {
		if all.Items[i].Status.Phase != v1alpha1.Aborted {
			delete(claimed, CordonOwner(&all.Items[i]))
		}
	}
	var errs []error
	for owner, nodes := range claimed {
		for _, n := range nodes {
			errs = append(errs, s.removeClaim(ctx, owner, n))
		}
	}
	return errors.Join(errs...)
}

func (s *StaleCordonCleaner) removeClaim(ctx context.Context, owner string, n *corev1.Node) error {
	keeper, err := cordon.NewClaimWriter(s.API, n.Name, string(n.UID))
	if err != nil {
		return err
	}
	_, err = keeper.RemoveClaim(ctx, owner)
	if kubeapi.IsNotFound(err) || cordon.IsReplacedError(err) {
		return nil
	}
	if err == nil {
		s.Log.Info("restored a node after its NodeRetirement is gone, or could not restore it completely", "node", n.Name, "owner", owner)
	}
	return err
}
