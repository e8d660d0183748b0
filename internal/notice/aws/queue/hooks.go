package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/smithy-go"

	"github.com/slipway-dev/slipway/internal/elapsed"
)

const (
	// maxHookTimeouts limits how long heartbeats can keep an instance, together with maxHookHold: 100 timeouts of the hook.
	maxHookTimeouts = 100
	// hookRequestTimeout is the timeout of one request to Auto Scaling, with the retries of the SDK.
	hookRequestTimeout = 10 * time.Second
	// hookTimeoutAge is how long the timeout of a hook is remembered.
	hookTimeoutAge = 10 * time.Minute
	// minHeartbeatInterval is the least time between two heartbeats. The shortest timeout of a hook is 30 s.
	minHeartbeatInterval = time.Second
)

// Hooks completes lifecycle hooks, and keeps them waiting by heartbeats. It is safe for concurrent use.
type Hooks struct {
	api     AutoScaling
	config  Config
	metrics *Metrics
	log     *slog.Logger

	mu       sync.Mutex
	timeouts map[[2]string]hookTimeout // by group and name
}

type hookTimeout struct {
	timeout time.Duration
	readAt  time.Time
}

// NewHooks returns Hooks.
func NewHooks(api AutoScaling, c Config, m *Metrics, log *slog.Logger) *Hooks {
	return &Hooks{api: api, config: c, metrics: m, log: log, timeouts: map[[2]string]hookTimeout{}}
}

// Timeout returns the timeout of a hook. If Auto Scaling does not tell it, it returns the default of AWS.
func (h *Hooks) Timeout(ctx context.Context, hook Hook) time.Duration {
	key := [2]string{hook.Group, hook.Name}
	h.mu.Lock()
	known, found := h.timeouts[key]
	h.mu.Unlock()
	if found && time.Since(known.readAt) < hookTimeoutAge {
		return known.timeout
	}
	ctx, cancel := context.WithTimeout(ctx, hookRequestTimeout)
	defer cancel()
	out, err := h.api.DescribeLifecycleHooks(ctx, &autoscaling.DescribeLifecycleHooksInput{
		AutoScalingGroupName: &hook.Group, LifecycleHookNames: []string{hook.Name},
	})
	timeout := defaultHookTimeout
	switch {
	case err != nil:
		h.log.Warn("cannot read the timeout of the lifecycle hook, assuming the default", "group", hook.Group, "hook", hook.Name, "timeout", timeout.String(), "err", err)
	case len(out.LifecycleHooks) > 0 && aws.ToInt32(out.LifecycleHooks[0].HeartbeatTimeout) > 0:
		timeout = time.Duration(*out.LifecycleHooks[0].HeartbeatTimeout) * time.Second
	}
	if ctx.Err() == nil {
		h.mu.Lock()
		h.timeouts[key] = hookTimeout{timeout, time.Now()}
		h.mu.Unlock()
	}
	return timeout
}

// DrainTime returns how long a drain for a hook with this timeout may take.
func (h *Hooks) DrainTime(timeout time.Duration) time.Duration {
	if h.config.HookTimeout == 0 || h.config.NoHeartbeats {
		return timeout
	}
	return min(h.config.HookTimeout, h.maxHold(timeout))
}

// maxHold returns how long heartbeats can keep an instance.
func (h *Hooks) maxHold(timeout time.Duration) time.Duration {
	most := min(maxHookHold, maxHookTimeouts*timeout)
	if h.config.HeartbeatUntil > 0 {
		most = min(most, max(timeout, h.config.HeartbeatUntil))
	}
	return most
}

// SendHeartbeats keeps a hook waiting until ctx ends, until AWS would accept no more heartbeats, or until the hook does not
// wait any more. The first heartbeat is sent at once, because the message may be old.
func (h *Hooks) SendHeartbeats(ctx context.Context, hook Hook, instance string) {
	if h.config.NoHeartbeats || !h.config.Acknowledge {
		return
	}
	timeout := h.Timeout(ctx, hook)
	interval := h.config.HeartbeatInterval
	switch {
	case interval == 0:
		interval = max(timeout/2, minHeartbeatInterval)
	case interval >= timeout:
		h.log.Warn("the heartbeat interval is not shorter than the timeout of the lifecycle hook: the instance may be terminated before a heartbeat",
			"interval", interval.String(), "timeout", timeout.String(), "group", hook.Group, "hook", hook.Name)
	}
	for end := time.Now().Add(h.maxHold(timeout)); ; {
		pause := interval
		switch err := h.sendHeartbeat(ctx, hook, instance); {
		case ctx.Err() != nil:
			return
		case isFinal(err):
			h.log.Warn("no more heartbeats for the lifecycle hook; its timeout limits the drain", "instance", instance, "hook", hook.Name, "err", err)
			return
		case err != nil:
			h.log.Warn("cannot send a heartbeat for the lifecycle hook, will retry", "instance", instance, "hook", hook.Name, "err", err)
			pause = max(pause/4, minHeartbeatInterval)
		default:
			h.metrics.Heartbeats.Inc()
			h.log.Info("sent a heartbeat for the lifecycle hook", "instance", instance, "group", hook.Group, "hook", hook.Name)
		}
		if !time.Now().Add(pause).Before(end) || !elapsed.Sleep(ctx, pause) {
			return
		}
	}
}

func (h *Hooks) sendHeartbeat(ctx context.Context, hook Hook, instance string) error {
	ctx, cancel := context.WithTimeout(ctx, hookRequestTimeout)
	defer cancel()
	_, err := h.api.RecordLifecycleActionHeartbeat(ctx, &autoscaling.RecordLifecycleActionHeartbeatInput{
		AutoScalingGroupName: &hook.Group, LifecycleHookName: &hook.Name, LifecycleActionToken: optional(hook.Token), InstanceId: &instance,
	})
	return err
}

// Complete lets the group continue. It returns nil if the hook does not wait any more: it was completed before, for example
// by a process that was killed before it deleted the message, or its time has passed.
func (h *Hooks) Complete(ctx context.Context, hook Hook, instance string) error {
	if !h.config.Acknowledge {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, hookRequestTimeout)
	defer cancel()
	_, err := h.api.CompleteLifecycleAction(ctx, &autoscaling.CompleteLifecycleActionInput{
		AutoScalingGroupName: &hook.Group, LifecycleHookName: &hook.Name, LifecycleActionToken: optional(hook.Token), InstanceId: &instance,
		LifecycleActionResult: aws.String("CONTINUE"),
	})
	switch {
	case err == nil:
		h.metrics.Completed.Inc()
		h.log.Info("completed the lifecycle hook", "instance", instance, "group", hook.Group, "hook", hook.Name)
	case isNotWaiting(err):
		h.log.Warn("the lifecycle hook does not wait any more", "instance", instance, "group", hook.Group, "hook", hook.Name, "err", err)
	default:
		return fmt.Errorf("complete the lifecycle hook %s of group %s for instance %s: %w", hook.Name, hook.Group, instance, err)
	}
	return nil
}

func optional(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// isNotWaiting reports whether no lifecycle action waits for the instance, or the group or the hook was deleted.
func isNotWaiting(err error) bool {
	var refused smithy.APIError
	return errors.As(err, &refused) && refused.ErrorCode() == "ValidationError"
}

// isFinal reports whether a retry of the request would fail too.
func isFinal(err error) bool {
	var refused smithy.APIError
	if !errors.As(err, &refused) {
		return false
	}
	switch refused.ErrorCode() {
	case "ValidationError", "AccessDenied", "AccessDeniedException", "UnauthorizedOperation":
		return true
	}
	return false
}
