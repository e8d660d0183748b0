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

// Sweeper gives back nodes that a retirement holds whose record is gone, since somebody has taken its finalizer off, and takes
// away what one that gave its node back could not, which is its conditions (I3). It is a manager's Runnable, and works while it
// leads.
type Sweeper struct {
	// Nodes reads Nodes, from caches if need be, and Records every NodeRetirement of the cluster past all caches.
	Nodes, Records client.Reader
	API            cordon.API
	Every          time.Duration
	Log            *slog.Logger
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*Sweeper) NeedLeaderElection() bool { return true }

// Start sweeps until ctx ends.
func (s *Sweeper) Start(ctx context.Context) error {
	for {
		if err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			s.Log.Warn("nodes that were left behind are not given back yet", "err", err)
		}
		if !elapsed.Sleep(ctx, s.Every) {
			return nil
		}
	}
}

// Sweep looks once. The nodes are read first: a record that a hold belongs to was there before the hold.
func (s *Sweeper) Sweep(ctx context.Context) error {
	var nodes corev1.NodeList
	if err := s.Nodes.List(ctx, &nodes); err != nil {
		return fmt.Errorf("nodes: %w", err)
	}
	held := map[string][]*corev1.Node{} // by the owner's name
	for i := range nodes.Items {
		n := &nodes.Items[i]
		records, _ := cordon.List(&kubeapi.Node{ObjectMeta: kubeapi.ObjectMeta{Annotations: n.Annotations}})
		for _, r := range records {
			if strings.HasPrefix(r.Owner, ownerPrefix) {
				held[r.Owner] = append(held[r.Owner], n)
			}
		}
	}
	if len(held) == 0 {
		return nil
	}
	var all v1alpha1.NodeRetirementList
	if err := s.Records.List(ctx, &all); err != nil {
		return fmt.Errorf("NodeRetirements: %w", err)
	}
	for i := range all.Items {
		if all.Items[i].Status.Phase != v1alpha1.Aborted {
			delete(held, Owner(&all.Items[i]))
		}
	}
	var errs []error
	for owner, nodes := range held {
		for _, n := range nodes {
			errs = append(errs, s.giveBack(ctx, owner, n))
		}
	}
	return errors.Join(errs...)
}

func (s *Sweeper) giveBack(ctx context.Context, owner string, n *corev1.Node) error {
	keeper, err := cordon.New(s.API, n.Name, string(n.UID))
	if err != nil {
		return err
	}
	_, err = keeper.Release(ctx, owner)
	if kubeapi.IsNotFound(err) || cordon.IsReplaced(err) {
		return nil
	}
	if err == nil {
		s.Log.Info("a node whose NodeRetirement is gone, or could not take all away, is given back", "node", n.Name, "owner", owner)
	}
	return err
}
