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
// first, unless somebody has set another one since.
type CASSync struct {
	provider *Provider
	pool     group
	every    time.Duration
	gather   time.Duration
	log      *slog.Logger
	deleted  chan struct{} // holds one: a deletion that the next nudge is for
}

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
		deleted: make(chan struct{}, 1),
	}, nil
}

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
// was begun it is put back before Run returns, as long as the process is given the time.
func (s *CASSync) Run(ctx context.Context) {
	again := func(err error, d time.Duration) time.Duration {
		if err == nil || ctx.Err() != nil {
			return d
		}
		s.log.Error("the cluster autoscaler was not made to look again", "err", err)
		var throttled *cloud.ThrottledError
		if errors.As(err, &throttled) {
			return max(throttled.After, casRetry)
		}
		return casRetry
	}
	wait := again(s.Restore(ctx), s.every)
	for {
		var due <-chan time.Time
		if wait > 0 {
			timer := time.NewTimer(wait)
			defer timer.Stop()
			due = timer.C
		}
		select {
		case <-ctx.Done():
			return
		case <-due:
		case <-s.deleted:
			select {
			case <-ctx.Done():
				return
			case <-time.After(s.gather):
			}
		}
		wait = again(s.Nudge(ctx), s.every)
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
	if err := s.put(ctx, pool, "changing the maximum of"); err != nil {
		return err
	}
	// What was begun is put back even when the process is told to stop.
	back, cancel := context.WithTimeout(context.WithoutCancel(ctx), restoreTime)
	defer cancel()
	return s.Restore(back)
}

// restoreTime is how long putting a maximum back may take, the operation at AKS included.
const restoreTime = 5 * time.Minute

func (s *CASSync) refuse(why string) error {
	return &cloud.RefusedError{Reason: cloud.Invalid, Err: fmt.Errorf("cluster autoscaler synchronisation by %s: %s", s.pool, why)}
}

// Restore puts back a maximum that was changed and is still as it was changed, and removes the record.
func (s *CASSync) Restore(ctx context.Context) error {
	pool, err := s.provider.getPool(ctx, s.pool)
	if err != nil {
		return err
	}
	properties := pool.Properties
	record, found := properties.Tags[nudgeTag]
	if !found {
		return nil
	}
	if change, ok := parseNudge(value(record)); ok && value(properties.MaxCount) == change.to {
		properties.MaxCount = to.Ptr(change.from)
	} else {
		s.log.Warn("the maximum is left as it is, as somebody has set it since", "record", cloud.Printable(value(record), maxCode),
			"maximum", value(properties.MaxCount))
	}
	properties.Tags = withTag(properties.Tags, "")
	return s.put(ctx, pool, "putting back the maximum of")
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
	started := time.Now().UTC()
	url, err := s.provider.putPool(ctx, s.pool, pool, doing)
	if err != nil {
		return err
	}
	op := operation{URL: url}.encode(started)
	for {
		status, err := s.provider.Status(ctx, op)
		var throttled *cloud.ThrottledError
		switch {
		case errors.As(err, &throttled):
			status.After = throttled.After
		case err != nil:
			return fmt.Errorf("%s %s: %w", doing, s.pool, err)
		case status.Done && status.Err != nil:
			return fmt.Errorf("%s %s: %w", doing, s.pool, status.Err)
		case status.Done:
			return nil
		}
		select {
		case <-time.After(max(status.After, askPause)):
		case <-ctx.Done():
			return fmt.Errorf("%s %s: %w", doing, s.pool, context.Cause(ctx))
		}
	}
}

// askPause is the shortest time between two questions about an operation.
const askPause = time.Second
