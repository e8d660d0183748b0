package azure

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"strconv"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/containerservice/armcontainerservice/v6"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// CASSync restarts the AKS cluster autoscaler, so that the autoscaler reads its node pools again. The autoscaler can
// keep stale data if instances were deleted without it. AKS restarts the autoscaler when the maximum of any pool
// changes. So CASSync changes the maximum of an empty pool by one and then restores this maximum.
//
// The request that changes the maximum also sets a tag with the old and the new maximum. The request that restores the
// maximum removes the tag. If a process finds the tag, for example after a crash, it restores the maximum first. It
// does not restore the maximum if a user has changed the limits.
//
// RequestRestart is safe for concurrent use. Run, RestartAutoscaler and RestoreMaximum are for one goroutine.
type CASSync struct {
	provider       *Provider
	pool           group
	interval       time.Duration
	gather         time.Duration
	log            *slog.Logger
	observer       CASSyncObserver
	deleted        chan struct{} // buffered: one deletion that the next restart covers
	maximumChanged bool          // whether the maximum was changed and not restored, as of the last read
}

// CASSyncObserver receives the result of each autoscaler restart. Its methods must not block.
type CASSyncObserver interface {
	// RestartFinished reports the result of a restart, and each failure to restore a maximum after a crash.
	RestartFinished(err error)
	// MaximumChanged reports whether a changed maximum waits to be restored, on every read of the pool.
	MaximumChanged(waits bool)
}

type noopObserver struct{}

func (noopObserver) RestartFinished(error) {}

func (noopObserver) MaximumChanged(bool) {}

// CASSyncConfig selects the pool with the changed maximum.
type CASSyncConfig struct {
	// ResourceGroup is the resource group of the managed cluster.
	ResourceGroup string `json:"resourceGroup"`
	// Cluster is the name of the managed cluster.
	Cluster string `json:"cluster"`
	// AgentPool is an empty pool of the cluster with the cluster autoscaler enabled.
	AgentPool string `json:"agentPool"`
	// Every is the interval of restarts without a deletion, 1m to 24h. 0 disables them.
	Every cloud.Duration `json:"every,omitempty"`
	// Gather is how long deletions are collected before a restart, 1s to 10m. 0 is 30s.
	Gather cloud.Duration `json:"gather,omitempty"`
}

// Validate returns all errors, each with field, value and allowed values.
func (c *CASSyncConfig) Validate() error {
	var v configErrors
	v.check(resourceGroupPattern.MatchString(c.ResourceGroup), "casSync.resourceGroup", c.ResourceGroup,
		"the managed cluster's resource group")
	v.check(resourceNamePattern.MatchString(c.Cluster), "casSync.cluster", c.Cluster, "the name of a managed cluster")
	v.check(agentPoolPattern.MatchString(c.AgentPool), "casSync.agentPool", c.AgentPool, "the name of an agent pool")
	if every := time.Duration(c.Every); every != 0 && (every < time.Minute || every > 24*time.Hour) {
		v.add("casSync.every", every, "1m to 24h, or 0s to restart only after deletions")
	}
	if gather := time.Duration(c.Gather); gather != 0 && (gather < time.Second || gather > 10*time.Minute) {
		v.add("casSync.gather", gather, "1s to 10m")
	}
	return errors.Join(v...)
}

// NewCASSync validates the configuration. It makes no request.
func (p *Provider) NewCASSync(c CASSyncConfig) (*CASSync, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	pool := group{name: c.AgentPool, resourceGroup: c.ResourceGroup, cluster: c.Cluster, pool: c.AgentPool}
	gather := time.Duration(c.Gather)
	if gather == 0 {
		gather = defaultGather
	}
	return &CASSync{
		provider: p, pool: pool, interval: time.Duration(c.Every), gather: gather, log: p.log.With("agentPool", c.AgentPool),
		observer: noopObserver{}, deleted: make(chan struct{}, 1),
	}, nil
}

// Pool returns the name of the agent pool whose maximum CASSync changes.
func (s *CASSync) Pool() string { return s.pool.pool }

// SetObserver sets the observer. Call it before Run.
func (s *CASSync) SetObserver(told CASSyncObserver) { s.observer = told }

// RequestRestart requests a restart of the cluster autoscaler, because an instance was deleted without the autoscaler.
// It does not block.
func (s *CASSync) RequestRestart() {
	select {
	case s.deleted <- struct{}{}:
	default: // the next restart covers this deletion too
	}
}

const (
	// defaultGather is the default of CASSyncConfig.Gather.
	defaultGather = 30 * time.Second
	// casRetryDelay is the retry delay after a failure.
	casRetryDelay = time.Minute
)

// Run restarts the cluster autoscaler after deletions and at intervals until ctx ends. First it restores a maximum that
// an earlier process changed and did not restore. When ctx ends during a change, Run restores the maximum for at most
// stopTimeout. If that is too short, the next Run restores the maximum.
func (s *CASSync) Run(ctx context.Context) {
	s.retryUntilDone(ctx, s.RestoreMaximum)
	for s.waitUntilRestartDue(ctx) {
		s.retryUntilDone(ctx, s.restartForPendingDeletions)
	}
}

// waitUntilRestartDue waits until the next restart of the autoscaler is due. It returns false if ctx ends first.
func (s *CASSync) waitUntilRestartDue(ctx context.Context) (due bool) {
	var scheduled <-chan time.Time
	if s.interval > 0 {
		timer := time.NewTimer(s.interval)
		defer timer.Stop()
		scheduled = timer.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-scheduled:
		return true
	case <-s.deleted:
		return sleepWithinDeadline(ctx, s.gather) == nil
	}
}

// retryUntilDone calls try until try succeeds or ctx ends. Between two calls it waits for the delay that Azure asks
// for, but at least casRetryDelay.
func (s *CASSync) retryUntilDone(ctx context.Context, try func(context.Context) error) {
	for ctx.Err() == nil {
		err := try(ctx)
		if err == nil {
			return
		}
		// A stop before the first change is not an error.
		if ctx.Err() == nil || s.maximumChanged || !errors.Is(err, context.Canceled) {
			s.log.Error("restarting the cluster autoscaler failed; retrying", "err", err, "maximumChanged", s.maximumChanged)
			s.observer.RestartFinished(err)
		}
		_ = sleepWithinDeadline(ctx, max(cloud.RetryDelay(err), casRetryDelay)) // the loop checks ctx
	}
}

// restartForPendingDeletions restarts the cluster autoscaler once for all deletions that were requested until now.
func (s *CASSync) restartForPendingDeletions(ctx context.Context) error {
	select {
	case <-s.deleted:
	default:
	}
	err := s.RestartAutoscaler(ctx)
	if err == nil {
		s.observer.RestartFinished(nil)
	}
	return err
}

// sleepWithinDeadline waits for d and returns nil. It returns an error when ctx ends first. If the deadline of ctx is
// sooner than d, it returns an error immediately.
func sleepWithinDeadline(ctx context.Context, d time.Duration) error {
	if end, ok := ctx.Deadline(); ok && time.Until(end) < d {
		return context.DeadlineExceeded
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// maximumChangeTag is the key of the tag that records a changed maximum. The tag's value is "OLD to NEW".
const maximumChangeTag = "slipway-cas-sync"

var maximumChangePattern = regexp.MustCompile(`^([0-9]{1,4}) to ([0-9]{1,4})$`)

// maximumChange holds the old and the new maximum of a pool.
type maximumChange struct{ from, to int32 }

func (n maximumChange) String() string { return fmt.Sprintf("%d to %d", n.from, n.to) }

func parseMaximumChange(text string) (change maximumChange, ok bool) {
	found := maximumChangePattern.FindStringSubmatch(text)
	if found == nil {
		return maximumChange{}, false
	}
	from, _ := strconv.ParseInt(found[1], 10, 32) // four digits
	to, _ := strconv.ParseInt(found[2], 10, 32)
	return maximumChange{int32(from), int32(to)}, true
}

// maxPoolMaximum is the highest maximum that AKS allows for a pool.
const maxPoolMaximum = 1000

// RestartAutoscaler changes the pool's maximum and restores it, which restarts the cluster autoscaler. It returns when
// both changes are complete. It refuses a pool with nodes, without the cluster autoscaler, or of type VirtualMachines.
func (s *CASSync) RestartAutoscaler(ctx context.Context) error {
	if err := s.RestoreMaximum(ctx); err != nil {
		return err
	}
	pool, err := s.provider.getPool(ctx, s.pool)
	if err != nil {
		return err
	}
	properties := pool.Properties
	switch {
	case isSingleVMPool(pool):
		return s.refusedError("it is of type VirtualMachines, which has no single maximum: want VirtualMachineScaleSets")
	case !deref(properties.EnableAutoScaling) || properties.MaxCount == nil:
		return s.refusedError("its cluster autoscaler is disabled: want it enabled")
	case *properties.Count != 0:
		return s.refusedError(fmt.Sprintf("it has %d nodes: want an empty pool", *properties.Count))
	}
	change := maximumChange{from: *properties.MaxCount, to: *properties.MaxCount + 1}
	if change.to > maxPoolMaximum {
		change.to = change.from - 1
	}
	properties.MaxCount = to.Ptr(change.to)
	properties.Tags = withMaximumChangeTag(properties.Tags, change.String())
	return s.changeAndRestoreMaximum(ctx, pool)
}

// changeAndRestoreMaximum changes the pool's maximum and restores it. After ctx ends it continues for at most
// stopTimeout, so that the next process need not restore the maximum.
func (s *CASSync) changeAndRestoreMaximum(ctx context.Context, pool armcontainerservice.AgentPool) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	work, end := extendContext(ctx, stopTimeout)
	defer end()
	changing, cancel := context.WithTimeout(work, operationTimeout)
	defer cancel()
	failed := s.writePoolAndWait(changing, pool, "changing the maximum of")
	restoring, cancel := context.WithTimeout(work, restoreTimeout)
	defer cancel()
	return s.restoreMaximumAfterChange(restoring, failed)
}

const (
	// operationTimeout limits how long an operation of AKS is followed.
	operationTimeout = 5 * time.Minute
	// restoreTimeout limits restoring a maximum, including all retries.
	restoreTimeout = 5 * time.Minute
	// restoreRetryDelay is the retry delay for restoring, unless Azure asks for another.
	restoreRetryDelay = 10 * time.Second
	// stopTimeout limits the work after a stop request. In a cluster a process has 30s to stop, and the next one starts
	// when it has stopped.
	stopTimeout = 20 * time.Second
)

// restoreMaximumAfterChange restores the maximum and retries until it succeeds, the error is permanent, or ctx ends.
// changeErr is the error of the change. A failed change may have taken effect too. The response can be lost, and AKS
// keeps the target of a failed operation.
func (s *CASSync) restoreMaximumAfterChange(ctx context.Context, changeErr error) error {
	var err error
	for before := changeErr; ; before = err {
		if before != nil && !isPermanent(before) && sleepWithinDeadline(ctx, max(cloud.RetryDelay(before), restoreRetryDelay)) != nil {
			return errors.Join(changeErr, err)
		}
		if err = s.RestoreMaximum(ctx); err == nil {
			return changeErr
		}
		if isPermanent(err) {
			return errors.Join(changeErr, err)
		}
	}
}

// isPermanent reports whether err is a refusal or a [cloud.NotFoundError], so that a retry fails again.
func isPermanent(err error) bool { return cloud.RefusalOf(err) != "" || cloud.IsNotFound(err) }

// extendContext returns a context that ends a duration d later than ctx.
func extendContext(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	work, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		_ = sleepWithinDeadline(work, d)
		end()
	})
	return work, func() {
		stop()
		end()
	}
}

func (s *CASSync) refusedError(why string) error {
	return &cloud.RefusedError{Reason: cloud.Invalid, Err: fmt.Errorf("restarting the cluster autoscaler with %s: %s", s.pool, why)}
}

// RestoreMaximum restores a maximum that CASSync changed, and removes the tag that records the change. If a user has
// changed the pool's limits since, it only removes the tag.
func (s *CASSync) RestoreMaximum(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, restoreTimeout)
	defer cancel()
	pool, err := s.provider.getPool(ctx, s.pool)
	if cloud.IsNotFound(err) {
		s.setMaximumChanged(false)
	}
	if err != nil {
		return err
	}
	properties := pool.Properties
	record, found := properties.Tags[maximumChangeTag]
	s.setMaximumChanged(found)
	if !found {
		return nil
	}
	change, ok := parseMaximumChange(deref(record))
	if ok && deref(properties.MaxCount) == change.to && deref(properties.MinCount) <= change.from {
		properties.MaxCount = to.Ptr(change.from)
	} else {
		s.log.Warn("the maximum of the pool is not restored, because its limits have changed", "record", cloud.SanitizeText(deref(record), maxCodeLength),
			"minimum", deref(properties.MinCount), "maximum", deref(properties.MaxCount))
	}
	properties.Tags = withMaximumChangeTag(properties.Tags, "")
	return s.writePoolAndWait(ctx, pool, "restoring the maximum of")
}

// setMaximumChanged stores whether the pool's changed maximum still has to be restored, and tells the observer.
func (s *CASSync) setMaximumChanged(changed bool) {
	s.maximumChanged = changed
	s.observer.MaximumChanged(changed)
}

// withMaximumChangeTag returns a copy of tags with the record of a changed maximum. An empty record removes the tag.
func withMaximumChangeTag(tags map[string]*string, record string) map[string]*string {
	tags = maps.Clone(tags)
	if tags == nil {
		tags = map[string]*string{}
	}
	delete(tags, maximumChangeTag)
	if record != "" {
		tags[maximumChangeTag] = &record
	}
	return tags
}

// writePoolAndWait writes the agent pool and waits for the AKS operation to finish.
func (s *CASSync) writePoolAndWait(ctx context.Context, pool armcontainerservice.AgentPool, doing string) error {
	_, changed := pool.Properties.Tags[maximumChangeTag]
	started := time.Now().UTC()
	url, err := s.provider.putPoolIfUnchanged(ctx, s.pool, pool, doing)
	if err != nil {
		return err
	}
	if changed {
		s.setMaximumChanged(true) // even if the operation fails
	}
	if err := s.waitForOperation(ctx, operation{URL: url}.toCloudOperation(started)); err != nil {
		return fmt.Errorf("%s %s: %w", doing, s.pool, err)
	}
	s.setMaximumChanged(changed)
	return nil
}

// waitForOperation waits until a change of the agent pool has finished. A preempted change has failed.
func (s *CASSync) waitForOperation(ctx context.Context, op cloud.Operation) error {
	for {
		_, status, err := s.provider.readOperation(ctx, op)
		switch {
		case cloud.IsThrottled(err):
			status.RetryAfter = cloud.RetryDelay(err)
		case err != nil:
			return err
		case status.Done:
			return status.Err
		}
		if err := sleepWithinDeadline(ctx, status.RetryDelay(statusPollInterval)); err != nil {
			return err
		}
	}
}

// statusPollInterval is the minimum interval between two status requests.
const statusPollInterval = time.Second
