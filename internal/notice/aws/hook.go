package aws

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/notice"
)

// HookOptions configures a [Hook]. Instance and Metadata are required.
type HookOptions struct {
	// Instance is the ID of the instance.
	Instance string
	// Group and Hook are the names of the Auto Scaling group and of its lifecycle hook; each is looked up if empty.
	Group, Hook string
	// Endpoint is the URL of the Auto Scaling API; empty is the public one of the region.
	Endpoint string
	Metadata *Client
	Log      *slog.Logger // may be nil
}

// Hook is the lifecycle hook that an Auto Scaling group runs before it terminates the instance. While the node is
// drained, heartbeats keep the instance. When it is drained, the hook is completed. All methods are safe for concurrent
// use.
type Hook struct {
	options HookOptions
	api     *autoScaling
	log     *slog.Logger
	changed chan struct{} // has a value if terminating has changed

	mu          sync.Mutex
	current     hookState
	terminating bool
	completed   bool
	// accepted is true once AWS has accepted a heartbeat, so that the instance waits for the hook. Before, the group may
	// still deregister the instance from a load balancer.
	accepted    bool
	group, name string
}

// hookState is what is known of a hook.
type hookState struct {
	// off is true if the hook cannot be completed: there is none, there are several, or a permission is missing.
	off bool
	// missing is true if the group has no hook for terminations, or has removed the instance. Then it does not wait for the drain.
	missing bool
	// timeout is the heartbeat timeout of the hook; 0 is not known yet.
	timeout time.Duration
}

// What AWS allows for lifecycle hooks.
const (
	// DefaultHookTimeout is the timeout that AWS gives a lifecycle hook, and MinHookTimeout the shortest one that a hook can have.
	DefaultHookTimeout = time.Hour
	MinHookTimeout     = 30 * time.Second
	// MaxHookHold is the longest time that heartbeats can keep an instance.
	MaxHookHold = 48 * time.Hour
	// maxHookTimeouts is how many timeouts of the hook heartbeats can keep an instance.
	maxHookTimeouts = 100
)

// MinHeartbeatInterval is the least time between two heartbeats.
const MinHeartbeatInterval = time.Second

const (
	minHookRetry = 2 * time.Second
	maxHookRetry = time.Minute

	terminatingTransition = "autoscaling:EC2_INSTANCE_TERMINATING"
)

// NewHook returns a hook.
func NewHook(o HookOptions) *Hook {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Hook{options: o, api: newAutoScaling(o.Endpoint, o.Metadata), log: o.Log, changed: make(chan struct{}, 1)}
}

// MaxHold returns how long heartbeats can keep an instance if its hook has this timeout.
func MaxHold(timeout time.Duration) time.Duration { return min(MaxHookHold, maxHookTimeouts*timeout) }

func (h *Hook) state() hookState {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.current
}

// setTerminating passes whether the group terminates the instance.
func (h *Hook) setTerminating(terminating bool) {
	h.mu.Lock()
	had := h.terminating
	h.terminating = terminating
	h.mu.Unlock()
	if had != terminating {
		select {
		case h.changed <- struct{}{}:
		default:
		}
	}
}

func (h *Hook) needsHeartbeat() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.terminating && !h.completed && !h.current.off
}

// run finds the hook and sends heartbeats while the group terminates the instance, until ctx ends. drainTime is how long
// the drain may take; 0 is the timeout of the hook. run calls onFound when the state of the hook has changed.
func (h *Hook) run(ctx context.Context, drainTime time.Duration, onFound func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.changed:
		}
		if h.needsHeartbeat() && h.findWithRetries(ctx, onFound) {
			h.sendHeartbeats(ctx, drainTime)
		}
	}
}

// findWithRetries finds the names and the timeout of the hook. It returns false if the hook cannot be completed.
func (h *Hook) findWithRetries(ctx context.Context, onFound func()) (found bool) {
	began := time.Now()
	for pause := minHookRetry; ; pause = min(2*pause, maxHookRetry) {
		err := h.find(ctx)
		if ctx.Err() != nil || err == nil {
			onFound()
			return err == nil
		}
		if reason := (*hookOffError)(nil); errors.As(err, &reason) {
			h.log.Warn("the lifecycle hook of the Auto Scaling group will not be completed; its own timeout ends it", "reason", err)
			h.mu.Lock()
			h.current.off, h.current.missing = true, reason.missing
			h.mu.Unlock()
			onFound()
			return false
		}
		h.log.Warn("cannot find the lifecycle hook of the Auto Scaling group, will retry", "err", err, "since", began)
		if !elapsed.Sleep(ctx, pause) {
			return false
		}
	}
}

// hookOffError says why the hook cannot be completed. A retry would not help.
type hookOffError struct {
	reason  string
	missing bool // as in hookState
}

func (e *hookOffError) Error() string { return e.reason }

// find looks up what the options do not say.
func (h *Hook) find(ctx context.Context) error {
	group, name := h.options.Group, h.options.Hook
	if group == "" {
		answer, err := h.api.call(ctx, "DescribeAutoScalingInstances", url.Values{"InstanceIds.member.1": {h.options.Instance}})
		if err != nil {
			return explainLookup(err, "--asg-name")
		}
		if group = findElement(answer, "AutoScalingGroupName"); group == "" {
			return &hookOffError{reason: "the instance is in no Auto Scaling group any more, so the group does not wait for the drain", missing: true}
		}
	}
	parameters := url.Values{"AutoScalingGroupName": {group}}
	if name != "" {
		parameters.Set("LifecycleHookNames.member.1", name)
	}
	timeout := time.Duration(0)
	answer, err := h.api.call(ctx, "DescribeLifecycleHooks", parameters)
	switch {
	case err == nil:
		if name, timeout, err = selectHook(group, answer); err != nil {
			return h.explainMissing(ctx, group, err)
		}
	case name == "" || !isDenied(err):
		return explainLookup(err, "--asg-hook")
	default: // the names are enough
		h.log.Warn("cannot read the timeout of the lifecycle hook, assuming the default", "hook", name, "err", err, "timeout", DefaultHookTimeout.String())
	}
	if timeout <= 0 {
		timeout = DefaultHookTimeout
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.group, h.name, h.current.timeout = group, name, timeout
	h.log.Info("found the lifecycle hook of the Auto Scaling group", "group", group, "hook", name, "timeout", timeout.String())
	return nil
}

// explainMissing returns an error that says whether the group has other hooks, if it has none of the configured name.
func (h *Hook) explainMissing(ctx context.Context, group string, missing error) error {
	if h.options.Hook == "" {
		return missing
	}
	answer, err := h.api.call(ctx, "DescribeLifecycleHooks", url.Values{"AutoScalingGroupName": {group}})
	if err != nil {
		return err
	}
	_, _, err = selectHook(group, answer)
	if reason := (*hookOffError)(nil); errors.As(err, &reason) && reason.missing {
		return err
	}
	return &hookOffError{reason: fmt.Sprintf("the Auto Scaling group %s has other lifecycle hooks for terminations than %s: correct --asg-hook", group, h.options.Hook)}
}

// selectHook returns the hook for terminations in a response of DescribeLifecycleHooks.
func selectHook(group, answer string) (name string, timeout time.Duration, err error) {
	for _, member := range findElements(answer, "member") {
		if findElement(member, "LifecycleTransition") != terminatingTransition {
			continue
		}
		if name != "" {
			return "", 0, &hookOffError{reason: fmt.Sprintf("the Auto Scaling group %s has more than one lifecycle hook for terminations: set --asg-hook", group)}
		}
		name = findElement(member, "LifecycleHookName")
		seconds, _ := strconv.Atoi(findElement(member, "HeartbeatTimeout")) // 0 is unknown
		timeout = time.Duration(seconds) * time.Second
	}
	if name == "" {
		return "", 0, &hookOffError{
			reason:  fmt.Sprintf("the Auto Scaling group %s has no lifecycle hook for terminations, so it does not wait for the drain", group),
			missing: true,
		}
	}
	return name, timeout, nil
}

func isDenied(err error) bool {
	refused := (*apiError)(nil)
	return errors.As(err, &refused) && refused.isDenied()
}

// explainLookup turns a denied lookup into a hookOffError, because the option replaces the lookup.
func explainLookup(err error, option string) error {
	if isDenied(err) {
		return &hookOffError{reason: fmt.Sprintf("%v: allow the action in the IAM role, or set %s", err, option)}
	}
	if errors.Is(err, errNoRole) {
		return &hookOffError{reason: err.Error()}
	}
	return err
}

// sendHeartbeats sends a heartbeat now and at every half of the timeout. It ends when the hook is completed, when the
// time for the drain has passed, or when AWS would accept no more.
func (h *Hook) sendHeartbeats(ctx context.Context, drainTime time.Duration) {
	timeout := h.state().timeout
	if drainTime == 0 {
		drainTime = timeout
	}
	end := time.Now().Add(min(drainTime, MaxHold(timeout)))
	for h.needsHeartbeat() {
		pause := max(timeout/2, MinHeartbeatInterval)
		_, err := h.api.call(ctx, "RecordLifecycleActionHeartbeat", h.actionParameters())
		refused := (*apiError)(nil)
		switch {
		case ctx.Err() != nil:
			return
		case errors.As(err, &refused) && (refused.isDenied() || refused.isNotWaiting() && h.isAccepted()):
			h.log.Warn("no more heartbeats for the lifecycle hook; its timeout limits the drain", "err", err)
			return
		case err != nil:
			h.log.Warn("cannot send a heartbeat for the lifecycle hook, will retry", "err", err)
			pause = min(pause/4, maxHookRetry)
		default:
			h.log.Info("sent a heartbeat for the lifecycle hook", "hook", h.name, "timeout", timeout.String())
			h.setAccepted()
		}
		if !time.Now().Add(pause).Before(end) {
			return
		}
		if !h.awaitChange(ctx, pause) {
			return
		}
	}
}

func (h *Hook) isAccepted() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.accepted
}

func (h *Hook) setAccepted() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.accepted = true
}

// awaitChange waits for the pause, or until the group's decision has changed. It returns false if ctx has ended.
func (h *Hook) awaitChange(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	case <-h.changed:
		return true
	}
}

func (h *Hook) actionParameters() url.Values {
	h.mu.Lock()
	defer h.mu.Unlock()
	return url.Values{"AutoScalingGroupName": {h.group}, "LifecycleHookName": {h.name}, "InstanceId": {h.options.Instance}}
}

// complete lets the group terminate the instance. If the hook was completed before, or its time has passed, it returns
// nil. If the instance does not wait for the hook yet, it returns [notice.ErrApprovedTooEarly].
func (h *Hook) complete(ctx context.Context) error {
	h.mu.Lock()
	known, off, done := h.name != "", h.current.off, h.completed
	h.mu.Unlock()
	switch {
	case done || off:
		return nil
	case !known:
		return errors.New("the lifecycle hook of the Auto Scaling group is not known yet")
	}
	parameters := h.actionParameters()
	parameters.Set("LifecycleActionResult", "CONTINUE")
	_, err := h.api.call(ctx, "CompleteLifecycleAction", parameters)
	if refused := (*apiError)(nil); errors.As(err, &refused) && refused.isNotWaiting() {
		if !h.isAccepted() {
			return fmt.Errorf("%w: %w", notice.ErrApprovedTooEarly, err)
		}
		h.log.Warn("the lifecycle hook does not wait any more", "hook", h.name, "err", err)
		err = nil
	}
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.completed = true
	h.mu.Unlock()
	return nil
}
