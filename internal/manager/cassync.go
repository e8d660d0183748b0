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

// AzureCloud is Azure in the file of --cloud-config.
type AzureCloud struct {
	azure.Config `json:",inline"`
	// CASSync has the cluster autoscaler of AKS look again after deletions.
	CASSync *azure.CASSyncConfig `json:"casSync,omitempty"`

	// Options take the place of what Config says, but for the log.
	Options azure.Options `json:"-"`
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
	return withCASSync{p, s}, nil
}

// casSyncOf gives the synchronisation of the one cloud that may have it, or nil.
func casSyncOf(clouds map[string]cloud.Provider) *azure.CASSync {
	for _, p := range clouds {
		if p, ok := p.(withCASSync); ok {
			return p.CASSync
		}
	}
	return nil
}

// casSync tells the cluster autoscaler of machines that were deleted past it. It is a manager's Runnable, and works while
// it leads.
type casSync struct {
	sync    *azure.CASSync
	records cache.Cache
	metrics *casSyncMetrics
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
	s.sync.Observe(s.metrics.of(s.sync.Pool()))
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

// The outcomes of nudges.
const (
	nudgeDone   = "done"
	nudgeFailed = "failed"
)

// poolNotFound is the reason of a nudge by a pool that does not exist, beside the refusals of a cloud and those of scaling.
const poolNotFound = "NotFound"

// casSyncMetrics tell how the synchronisation goes. Only a manager that has led has values.
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

// of is what tells of a pool. Its counters are there from the beginning, so that an increase is seen from the first on.
func (m *casSyncMetrics) of(pool string) azure.CASSyncObserver {
	m.nudges.WithLabelValues(pool, nudgeDone, "")
	for _, reason := range []string{
		string(cloud.NoRight), string(cloud.NoQuota), string(cloud.NoCapacity), string(cloud.AtLimit), string(cloud.Protected),
		string(cloud.Invalid), launch.Throttled, launch.Unclear, poolNotFound,
	} {
		m.nudges.WithLabelValues(pool, nudgeFailed, reason)
	}
	return casSyncTold{m, pool}
}

// casSyncTold counts what becomes of the nudges by one pool.
type casSyncTold struct {
	metrics *casSyncMetrics
	pool    string
}

// Nudged implements azure.CASSyncObserver.
func (t casSyncTold) Nudged(err error) {
	switch {
	case err == nil:
		t.metrics.nudges.WithLabelValues(t.pool, nudgeDone, "").Inc()
	case cloud.IsNotFound(err):
		t.metrics.nudges.WithLabelValues(t.pool, nudgeFailed, poolNotFound).Inc()
	default:
		t.metrics.nudges.WithLabelValues(t.pool, nudgeFailed, launch.ReasonOf(err)).Inc()
	}
}

// Changed implements azure.CASSyncObserver.
func (t casSyncTold) Changed(waits bool) {
	value := 0.0
	if waits {
		value = 1
	}
	t.metrics.changed.WithLabelValues(t.pool).Set(value)
}
