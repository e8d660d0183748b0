package manager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/azure"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
)

// AzureCloud is the section azure of the file of --cloud-config.
type AzureCloud struct {
	azure.Config `json:",inline"`
	// CASSync makes the cluster autoscaler of AKS re-read its pools after deletions.
	CASSync *azure.CASSyncConfig `json:"casSync,omitempty"`

	// Options replace the settings of Config, except the log.
	Options azure.Options `json:"-"`
}

// casSyncProvider is a provider with deletions that the cluster autoscaler must notice.
type casSyncProvider struct {
	*azure.Provider
	*azure.CASSync
}

var (
	_ cloud.PermissionChecker = casSyncProvider{}
	_ cloud.DeletionVerifier  = casSyncProvider{}
)

func (c *AzureCloud) newProvider(log *slog.Logger) (cloud.Provider, error) {
	o := c.Options
	o.Log = log
	p, err := azure.New(c.Config, o)
	if err != nil || c.CASSync == nil {
		return p, err
	}
	s, err := p.NewCASSync(*c.CASSync)
	if err != nil {
		return nil, err
	}
	return casSyncProvider{p, s}, nil
}

// findCASSync returns the synchronization of the cloud that has it, or nil.
func findCASSync(clouds map[string]cloud.Provider) *azure.CASSync {
	for _, p := range clouds {
		if p, ok := p.(casSyncProvider); ok {
			return p.CASSync
		}
	}
	return nil
}

// casSyncRunner notifies the cluster autoscaler of instances that were deleted without it. It is a Runnable of the
// manager and runs while that leads.
type casSyncRunner struct {
	sync    *azure.CASSync
	records cache.Cache
	metrics *casSyncMetrics
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (casSyncRunner) NeedLeaderElection() bool { return true }

// Start runs until ctx ends, and reverts changes that it has begun.
func (s casSyncRunner) Start(ctx context.Context) error {
	informer, err := s.records.GetInformer(ctx, &v1alpha1.NodeRetirement{})
	if err != nil {
		return fmt.Errorf("NodeRetirements: %w", err)
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: s.restartForRecentDeletion, UpdateFunc: s.restartOnInstanceDeletion}); err != nil {
		return fmt.Errorf("NodeRetirements: %w", err)
	}
	s.sync.SetObserver(s.metrics.newObserver(s.sync.Pool()))
	s.sync.Run(ctx)
	return nil
}

// recentDeletion is the maximum age of a deletion that a new leader still handles: the previous leader may have ended
// while it collected deletions.
const recentDeletion = 10 * time.Minute

// restartForRecentDeletion handles the records that exist at the start.
func (s casSyncRunner) restartForRecentDeletion(o any) {
	if rt, ok := o.(*v1alpha1.NodeRetirement); ok && isAzureInstanceDeleted(rt) && rt.Status.Times.InstanceDeleted != nil &&
		time.Since(rt.Status.Times.InstanceDeleted.Time) < recentDeletion {
		s.sync.RequestRestart()
	}
}

func (s casSyncRunner) restartOnInstanceDeletion(before, after any) {
	was, ok := before.(*v1alpha1.NodeRetirement)
	is, also := after.(*v1alpha1.NodeRetirement)
	if ok && also && isAzureInstanceDeleted(is) && !isAzureInstanceDeleted(was) {
		s.sync.RequestRestart()
	}
}

func isAzureInstanceDeleted(rt *v1alpha1.NodeRetirement) bool {
	return rt.Status.Captured != nil && rt.Status.Captured.Provider == azure.Name &&
		meta.IsStatusConditionTrue(rt.Status.Conditions, v1alpha1.RetirementInstanceDeleted)
}

// The outcomes of nudges.
const (
	nudgeDone   = "done"
	nudgeFailed = "failed"
)

// poolNotFound is the reason of a nudge for a missing pool, in addition to the refusals of clouds and launches.
const poolNotFound = "NotFound"

// casSyncMetrics has values only in a manager that has led.
type casSyncMetrics struct {
	nudges  *prometheus.CounterVec
	changed *prometheus.GaugeVec
}

func newCASSyncMetrics(r prometheus.Registerer) (*casSyncMetrics, error) {
	m := &casSyncMetrics{
		nudges: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "slipway_cas_sync_nudges_total",
			Help: "Changes of a pool's maximum by which AKS's cluster autoscaler looks again, put back when done; failed ones with a reason, and tried again.",
		}, []string{"pool", "outcome", "reason"}),
		changed: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "slipway_cas_sync_max_size_changed",
			Help: "1 while the maximum of the pool is changed and waits to be put back, as far as is known; 0 when it is not.",
		}, []string{"pool"}),
	}
	return m, errors.Join(r.Register(m.nudges), r.Register(m.changed))
}

// newObserver returns the observer for a pool. Its counters exist from the start, so that the first increase is
// visible.
func (m *casSyncMetrics) newObserver(pool string) azure.CASSyncObserver {
	m.nudges.WithLabelValues(pool, nudgeDone, "")
	for _, reason := range []string{
		string(cloud.NoRight), string(cloud.NoQuota), string(cloud.NoCapacity), string(cloud.AtLimit), string(cloud.Protected),
		string(cloud.Invalid), launch.Throttled, launch.Unclear, poolNotFound,
	} {
		m.nudges.WithLabelValues(pool, nudgeFailed, reason)
	}
	return casSyncObserver{m, pool}
}

// casSyncObserver counts the results of the nudges for one pool.
type casSyncObserver struct {
	metrics *casSyncMetrics
	pool    string
}

func (t casSyncObserver) RestartFinished(err error) {
	switch {
	case err == nil:
		t.metrics.nudges.WithLabelValues(t.pool, nudgeDone, "").Inc()
	case cloud.IsNotFound(err):
		t.metrics.nudges.WithLabelValues(t.pool, nudgeFailed, poolNotFound).Inc()
	default:
		t.metrics.nudges.WithLabelValues(t.pool, nudgeFailed, launch.BackOffReason(err)).Inc()
	}
}

func (t casSyncObserver) MaximumChanged(waits bool) {
	value := 0.0
	if waits {
		value = 1
	}
	t.metrics.changed.WithLabelValues(t.pool).Set(value)
}
