package manager

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/azure"
)

// AzureCloud is Azure in the file of --cloud-config.
type AzureCloud struct {
	azure.Config `json:",inline"`
	// CASSync has the cluster autoscaler of AKS look again after deletions.
	CASSync *azure.CASSyncConfig `json:"casSync,omitempty"`
}

// withCASSync is a provider whose deletions the cluster autoscaler has to hear of.
type withCASSync struct {
	*azure.Provider
	*azure.CASSync
}

var (
	_ cloud.RightsChecker = withCASSync{}
	_ cloud.GoneProver    = withCASSync{}
)

func (c *AzureCloud) provider(log *slog.Logger) (cloud.Provider, error) {
	p, err := azure.New(c.Config, azure.Options{Log: log})
	if err != nil || c.CASSync == nil {
		return p, err
	}
	s, err := p.NewCASSync(*c.CASSync)
	if err != nil {
		return nil, err
	}
	return withCASSync{p, s}, nil
}

// casSync tells the cluster autoscaler of machines that were deleted past it. It is a manager's Runnable, and works while
// it leads.
type casSync struct {
	sync    *azure.CASSync
	records cache.Cache
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (casSync) NeedLeaderElection() bool { return true }

// Start works until ctx ends, and puts back what it has begun to change.
func (s casSync) Start(ctx context.Context) error {
	informer, err := s.records.GetInformer(ctx, &v1alpha1.NodeRetirement{})
	if err != nil {
		return fmt.Errorf("NodeRetirements: %w", err)
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: s.found, UpdateFunc: s.changed}); err != nil {
		return fmt.Errorf("NodeRetirements: %w", err)
	}
	s.sync.Run(ctx)
	return nil
}

// recently is how old a deletion may be that nobody is known to have told of, when a manager begins to lead: the one before
// may have ended while it gathered deletions.
const recently = 10 * time.Minute

// found is told of the records that there are at the start.
func (s casSync) found(o any) {
	if rt, ok := o.(*v1alpha1.NodeRetirement); ok && deleted(rt) && rt.Status.Times.InstanceDeleted != nil &&
		time.Since(rt.Status.Times.InstanceDeleted.Time) < recently {
		s.sync.Deleted()
	}
}

func (s casSync) changed(before, after any) {
	was, ok := before.(*v1alpha1.NodeRetirement)
	is, also := after.(*v1alpha1.NodeRetirement)
	if ok && also && deleted(is) && !deleted(was) {
		s.sync.Deleted()
	}
}

func deleted(rt *v1alpha1.NodeRetirement) bool {
	return rt.Status.Captured != nil && rt.Status.Captured.Provider == azure.Name &&
		meta.IsStatusConditionTrue(rt.Status.Conditions, v1alpha1.RetirementInstanceDeleted)
}
