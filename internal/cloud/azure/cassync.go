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

// CASSync makes the cluster autoscaler of AKS read its node pools again. After machines were deleted past it, it may
// hold on to what it knew; a change of any pool's maximum makes AKS restart it. So the maximum of a pool that has no
// node, and is kept for this, is changed by one and put back.
//
// The change and the record of it are one request: a tag of the pool says from which maximum to which it was changed,
// and is removed by the request that puts it back. Whoever finds the tag, after a crash too, puts the maximum back
// first, unless somebody has set other bounds since.
//
// Deleted may be called at any time; Run, Nudge and Restore are for one goroutine.
type CASSync struct {
	provider *Provider
	pool     group
	every    time.Duration
	gather   time.Duration
	log      *slog.Logger
	told     CASSyncObserver
	deleted  chan struct{} // holds one: a deletion that the next nudge is for
	changed  bool          // a changed maximum was seen last, and has not been put back
}

// CASSyncObserver is told what becomes of nudges. It must not wait.
type CASSyncObserver interface {
	// Nudged is told how a nudge has ended, and of each time that what a crash left changed could not be put back.
	Nudged(err error)
	// Changed is told whether a changed maximum waits to be put back, each time that the pool says so.
	Changed(waits bool)
}

// nobody is a CASSyncObserver that does nothing.
type nobody struct{}

func (nobody) Nudged(error) {}

func (nobody) Changed(bool) {}

// CASSyncConfig names the pool whose maximum is changed.
type CASSyncConfig struct {
	// ResourceGroup is the managed cluster's.
	ResourceGroup string `json:"resourceGroup"`
	// Cluster is the managed cluster.
	Cluster string `json:"cluster"`
	// AgentPool is one of Cluster that has the cluster autoscaler turned on, and no node.
	AgentPool string `json:"agentPool"`
	// Every is the time between two changes that no deletion calls for, 1m to 24h; 0 is none.
	Every cloud.Duration `json:"every,omitempty"`
	// Gather is how long deletions are gathered before a change, as each restarts the cluster autoscaler: 1s to 10m; 0 is
	// 30s.
	Gather cloud.Duration `json:"gather,omitempty"`
}

// Validate reports everything that is wrong, each with field, value and what is allowed.
func (c *CASSyncConfig) Validate() error {
	var v problems
	v.check(resourceGroupName.MatchString(c.ResourceGroup), "casSync.resourceGroup", c.ResourceGroup,
		"the managed cluster's resource group")
	v.check(resourceName.MatchString(c.Cluster), "casSync.cluster", c.Cluster, "the name of a managed cluster")
	v.check(agentPoolName.MatchString(c.AgentPool), "casSync.agentPool", c.AgentPool, "the name of an agent pool")
	if every := time.Duration(c.Every); every != 0 && (every < time.Minute || every > 24*time.Hour) {
		v.add("casSync.every", every, "1m to 24h, or 0s for deletions alone")
	}
	if gather := time.Duration(c.Gather); gather != 0 && (gather < time.Second || gather > 10*time.Minute) {
		v.add("casSync.gather", gather, "1s to 10m")
	}
	return errors.Join(v...)
}

// NewCASSync checks the configuration. It asks nothing of Azure yet.
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
		provider: p, pool: pool, every: time.Duration(c.Every), gather: gather, log: p.log.With("agentPool", c.AgentPool),
		told: nobody{}, deleted: make(chan struct{}, 1),
	}, nil
}

// Pool is the name of the pool whose maximum is changed.
func (s *CASSync) Pool() string { return s.pool.pool }

// Observe has told hear of what Run does. It is to be called before that.
func (s *CASSync) Observe(told CASSyncObserver) { s.told = told }

// Deleted says that a machine was deleted past the cluster autoscaler. It never waits.
func (s *CASSync) Deleted() {
	select {
	case s.deleted <- struct{}{}:
	default: // the next nudge is for this one too
	}
}

// The pauses of Run.
const (
	// defaultGather is how long deletions are gathered.
	defaultGather = 30 * time.Second
	// casRetry is how long after a failure the next try is.
	casRetry = time.Minute
)

// Run puts back what a crash left changed, and nudges after deletions and on schedule until ctx ends. Where a change
// was begun it is put back before Run returns, if that takes no longer than stopTime; otherwise whoever runs next does it.
func (s *CASSync) Run(ctx context.Context) {
	s.persist(ctx, s.Restore)
	for s.due(ctx) {
		s.persist(ctx, s.nudgeForAll)
	}
}

// due waits until there is something to nudge for; it is false when ctx has ended.
func (s *CASSync) due(ctx context.Context) bool {
	var scheduled <-chan time.Time
	if s.every > 0 {
		timer := time.NewTimer(s.every)
		defer timer.Stop()
		scheduled = timer.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-scheduled:
		return true
	case <-s.deleted:
		return pause(ctx, s.gather) == nil
	}
}

// persist tries until it is done or ctx ends, and no sooner than Azure wants. Deletions wait meanwhile.
func (s *CASSync) persist(ctx context.Context, try func(context.Context) error) {
	for ctx.Err() == nil {
		err := try(ctx)
		if err == nil {
			return
		}
		// That a stop came before anything was begun is nothing to tell of.
		if ctx.Err() == nil || s.changed || !errors.Is(err, context.Canceled) {
			s.log.Error("the cluster autoscaler was not made to look again", "err", err, "maximumChanged", s.changed)
			s.told.Nudged(err)
		}
		_ = pause(ctx, max(cloud.PauseOf(err), casRetry)) // ctx is asked next
	}
}

// nudgeForAll nudges for all deletions that there were before.
func (s *CASSync) nudgeForAll(ctx context.Context) error {
	select {
	case <-s.deleted:
	default:
	}
	err := s.Nudge(ctx)
	if err == nil {
		s.told.Nudged(nil)
	}
	return err
}

// pause waits for d. It is an error when ctx ends before that, at once where it is known that it will.
func pause(ctx context.Context, d time.Duration) error {
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

// nudgeTag is the tag that records a change; its value is "MAXIMUM to MAXIMUM".
const nudgeTag = "slipway-cas-sync"

var nudgeForm = regexp.MustCompile(`^([0-9]{1,4}) to ([0-9]{1,4})$`)

// nudge is a change of a pool's maximum.
type nudge struct{ from, to int32 }

func (n nudge) String() string { return fmt.Sprintf("%d to %d", n.from, n.to) }

func parseNudge(text string) (nudge, bool) {
	found := nudgeForm.FindStringSubmatch(text)
	if found == nil {
		return nudge{}, false
	}
	from, _ := strconv.ParseInt(found[1], 10, 32) // four digits
	to, _ := strconv.ParseInt(found[2], 10, 32)
	return nudge{int32(from), int32(to)}, true
}

// maxPoolCount is the most that AKS lets a pool's maximum be.
const maxPoolCount = 1000

// Nudge changes the maximum and puts it back, and returns when both changes are done. A pool with nodes, or without the
// cluster autoscaler, is refused.
func (s *CASSync) Nudge(ctx context.Context) error {
	if err := s.Restore(ctx); err != nil {
		return err
	}
	pool, err := s.provider.getPool(ctx, s.pool)
	if err != nil {
		return err
	}
	properties := pool.Properties
	switch {
	case ofSingleVMs(pool):
		return s.refuse("it is of type VirtualMachines, whose maximum AKS keeps by size; want VirtualMachineScaleSets")
	case !value(properties.EnableAutoScaling) || properties.MaxCount == nil:
		return s.refuse("the cluster autoscaler is not turned on for it")
	case *properties.Count != 0:
		return s.refuse(fmt.Sprintf("it has %d nodes; want a pool without any", *properties.Count))
	}
	change := nudge{from: *properties.MaxCount, to: *properties.MaxCount + 1}
	if change.to > maxPoolCount {
		change.to = change.from - 1
	}
	properties.MaxCount = to.Ptr(change.to)
	properties.Tags = withTag(properties.Tags, change.String())
	return s.changeAndPutBack(ctx, pool)
}

// changeAndPutBack goes on for stopTime when ctx ends, since what is begun here should not be left to the next process.
func (s *CASSync) changeAndPutBack(ctx context.Context, pool armcontainerservice.AgentPool) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	work, end := beyond(ctx, stopTime)
	defer end()
	changing, cancel := context.WithTimeout(work, operationTime)
	defer cancel()
	failed := s.put(changing, pool, "changing the maximum of")
	restoring, cancel := context.WithTimeout(work, restoreTime)
	defer cancel()
	return s.putBack(restoring, failed)
}

const (
	// operationTime is how long an operation of AKS is followed.
	operationTime = 5 * time.Minute
	// restoreTime is how long putting a maximum back may take, all tries together.
	restoreTime = 5 * time.Minute
	// restoreRetry is the time between two tries of that, unless Azure wants another.
	restoreRetry = 10 * time.Second
	// stopTime is how long a process that is told to stop goes on with what it has begun: it is given 30s in a cluster, by
	// whoever waits for it and by its Runnables' manager, and the next one waits until it has gone.
	stopTime = 20 * time.Second
)

// putBack looks after a change whether there is something to put back, and does so. failed is what came of the change, which
// may have been made all the same: its answer may be lost, and AKS keeps what a failed operation was to do.
func (s *CASSync) putBack(ctx context.Context, failed error) error {
	var err error
	for before := failed; ; before = err {
		if before != nil && !isNo(before) && pause(ctx, max(cloud.PauseOf(before), restoreRetry)) != nil {
			return errors.Join(failed, err)
		}
		if err = s.Restore(ctx); err == nil {
			return failed
		}
		if isNo(err) {
			return errors.Join(failed, err)
		}
	}
}

// isNo reports an answer that does not change when the question is asked again soon.
func isNo(err error) bool { return cloud.RefusalOf(err) != "" || cloud.IsNotFound(err) }

// beyond is a context that ends d after ctx does.
func beyond(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	work, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		_ = pause(work, d)
		end()
	})
	return work, func() {
		stop()
		end()
	}
}

func (s *CASSync) refuse(why string) error {
	return &cloud.RefusedError{Reason: cloud.Invalid, Err: fmt.Errorf("cluster autoscaler synchronisation by %s: %s", s.pool, why)}
}

// Restore puts back a maximum that was changed and is still as it was changed, and removes the record.
func (s *CASSync) Restore(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, restoreTime)
	defer cancel()
	pool, err := s.provider.getPool(ctx, s.pool)
	if cloud.IsNotFound(err) {
		s.know(false)
	}
	if err != nil {
		return err
	}
	properties := pool.Properties
	record, found := properties.Tags[nudgeTag]
	s.know(found)
	if !found {
		return nil
	}
	change, ok := parseNudge(value(record))
	if ok && value(properties.MaxCount) == change.to && value(properties.MinCount) <= change.from {
		properties.MaxCount = to.Ptr(change.from)
	} else {
		s.log.Warn("the maximum is left as it is, as somebody has set other bounds since", "record", cloud.Printable(value(record), maxCode),
			"minimum", value(properties.MinCount), "maximum", value(properties.MaxCount))
	}
	properties.Tags = withTag(properties.Tags, "")
	return s.put(ctx, pool, "putting back the maximum of")
}

// know takes in whether a changed maximum waits to be put back.
func (s *CASSync) know(changed bool) {
	s.changed = changed
	s.told.Changed(changed)
}

// withTag gives the tags with the record, or without it when it is empty.
func withTag(tags map[string]*string, record string) map[string]*string {
	tags = maps.Clone(tags)
	if tags == nil {
		tags = map[string]*string{}
	}
	delete(tags, nudgeTag)
	if record != "" {
		tags[nudgeTag] = &record
	}
	return tags
}

// put writes the pool and follows the operation to its end.
func (s *CASSync) put(ctx context.Context, pool armcontainerservice.AgentPool, doing string) error {
	_, changed := pool.Properties.Tags[nudgeTag]
	started := time.Now().UTC()
	url, err := s.provider.putPool(ctx, s.pool, pool, doing)
	if err != nil {
		return err
	}
	if changed {
		s.know(true) // whatever becomes of the operation
	}
	if err := s.follow(ctx, operation{URL: url}.encode(started)); err != nil {
		return fmt.Errorf("%s %s: %w", doing, s.pool, err)
	}
	s.know(changed)
	return nil
}

// follow waits for the end of an operation.
func (s *CASSync) follow(ctx context.Context, op cloud.Operation) error {
	for {
		status, err := s.provider.Status(ctx, op)
		switch {
		case cloud.IsThrottled(err):
			status.After = cloud.PauseOf(err)
		case err != nil:
			return err
		case status.Done:
			return status.Err
		}
		if err := pause(ctx, status.Pause(askPause)); err != nil {
			return err
		}
	}
}

// askPause is the shortest time between two questions about an operation.
const askPause = time.Second
