package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/smithy-go"

	"github.com/slipway-dev/slipway/internal/elapsed"
	noticeaws "github.com/slipway-dev/slipway/internal/notice/aws"
)

const (
	// hookRequestTimeout is the timeout of one request to Auto Scaling, with the retries of the SDK.
	hookRequestTimeout = 10 * time.Second
	// hookTimeoutAge is how long the timeout of a hook is remembered, and AssumedTimeoutAge how long the assumed one is after a
	// failed request. maxHookTimeoutsRead is how many are remembered.
	hookTimeoutAge      = 10 * time.Minute
	AssumedTimeoutAge   = 15 * time.Second
	maxHookTimeoutsRead = 1000
	// unknownTimeoutInterval is the longest time between two heartbeats while the timeout is unknown after a failed request.
	unknownTimeoutInterval = 15 * time.Second
	// hookWarningInterval is the least time between two warnings that the timeout of a hook cannot be read. Its request is repeated
	// every AssumedTimeoutAge, for example without the right.
	hookWarningInterval = time.Hour
)

// Hooks completes lifecycle hooks, and keeps them waiting by heartbeats. It is safe for concurrent use.
type Hooks struct {
	api       AutoScaling
	config    Config
	metrics   *Metrics
	log       *slog.Logger
	onRefused func(err error)

	mu       sync.Mutex
	timeouts map[[2]string]hookTimeout   // by group and name
	reading  map[[2]string]chan struct{} // of the running requests; each is closed at its end
}

type hookTimeout struct {
	timeout time.Duration
	readAt  time.Time
	// isAssumed is true if the request failed. The real timeout may be shorter.
	isAssumed bool
	warnedAt  time.Time // of the last warning about it
}

func (t hookTimeout) isFresh() bool {
	if t.isAssumed {
		return time.Since(t.readAt) < AssumedTimeoutAge
	}
	return time.Since(t.readAt) < hookTimeoutAge
}

// NewHooks returns Hooks. onRefused is called for each heartbeat or completion that AWS has refused; nil is not called. It
// may be called from any goroutine.
func NewHooks(api AutoScaling, c Config, m *Metrics, log *slog.Logger, onRefused func(err error)) *Hooks {
	return &Hooks{
		api: api, config: c, metrics: m, log: log, onRefused: onRefused, timeouts: map[[2]string]hookTimeout{}, reading: map[[2]string]chan struct{}{},
	}
}

// Timeout returns the timeout of a hook. If the request fails, it returns the default of AWS and isAssumed. The request is then
// worth repeating after AssumedTimeoutAge.
func (h *Hooks) Timeout(ctx context.Context, hook Hook) (timeout time.Duration, isAssumed bool) {
	read := h.readTimeout(ctx, hook)
	return read.timeout, read.isAssumed
}

// readTimeout returns the timeout of a hook. Only one request for a hook runs at a time: many instances of a group may
// wait at once.
func (h *Hooks) readTimeout(ctx context.Context, hook Hook) hookTimeout {
	key := [2]string{hook.Group, hook.Name}
	for {
		h.mu.Lock()
		known, running := h.timeouts[key], h.reading[key]
		if known.isFresh() {
			h.mu.Unlock()
			return known
		}
		if running == nil {
			h.reading[key] = make(chan struct{})
			h.mu.Unlock()
			return h.requestTimeout(ctx, hook, key)
		}
		h.mu.Unlock()
		select {
		case <-running:
		case <-ctx.Done():
			return hookTimeout{timeout: noticeaws.DefaultHookTimeout, isAssumed: true}
		}
	}
}

// requestTimeout sends the request for the timeout of a hook, and remembers the result.
func (h *Hooks) requestTimeout(ctx context.Context, hook Hook, key [2]string) hookTimeout {
	limited, cancel := context.WithTimeout(ctx, hookRequestTimeout)
	defer cancel()
	out, err := h.api.DescribeLifecycleHooks(limited, &autoscaling.DescribeLifecycleHooksInput{
		AutoScalingGroupName: &hook.Group, LifecycleHookNames: []string{hook.Name},
	})
	read := hookTimeout{timeout: noticeaws.DefaultHookTimeout, readAt: time.Now(), isAssumed: err != nil}
	if err == nil && len(out.LifecycleHooks) > 0 && aws.ToInt32(out.LifecycleHooks[0].HeartbeatTimeout) > 0 {
		read.timeout = time.Duration(*out.LifecycleHooks[0].HeartbeatTimeout) * time.Second
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.reading[key])
	delete(h.reading, key)
	if read.isAssumed {
		read.warnedAt = h.timeouts[key].warnedAt
	}
	if read.isAssumed && time.Since(read.warnedAt) >= hookWarningInterval {
		read.warnedAt = read.readAt
		h.log.Warn("cannot read the timeout of the lifecycle hook, assuming the default", "group", hook.Group, "hook", hook.Name, "timeout", read.timeout.String(), "err", err)
	}
	if ctx.Err() == nil {
		maps.DeleteFunc(h.timeouts, func([2]string, hookTimeout) bool { return len(h.timeouts) >= maxHookTimeoutsRead })
		h.timeouts[key] = read
	}
	return read
}

// DrainTime returns how long a drain for a hook with this timeout may take.
func (h *Hooks) DrainTime(timeout time.Duration) time.Duration {
	if h.config.HookTimeout == 0 || !h.KeepsWaiting() {
		return timeout
	}
	return min(h.config.HookTimeout, h.maxHold(timeout))
}

// KeepsWaiting reports whether heartbeats are sent. Otherwise a drain ends with the timeout of the hook, which began when its
// message was sent.
func (h *Hooks) KeepsWaiting() bool { return !h.config.NoHeartbeats && h.config.Acknowledge }

// maxHold returns how long heartbeats can keep an instance.
func (h *Hooks) maxHold(timeout time.Duration) time.Duration {
	most := noticeaws.MaxHold(timeout)
	if h.config.HeartbeatUntil > 0 {
		most = min(most, max(timeout, h.config.HeartbeatUntil))
	}
	return most
}

// SendHeartbeats keeps a hook waiting until ctx ends, until AWS would accept no more heartbeats, or until the hook does not
// wait any more. The first heartbeat is sent at once, because the message may be old. A failed one is retried, also if AWS has
// refused it: someone may add the right that is missing.
func (h *Hooks) SendHeartbeats(ctx context.Context, hook Hook, instance string) {
	if !h.KeepsWaiting() {
		return
	}
	read := h.readTimeout(ctx, hook)
	if interval := h.config.HeartbeatInterval; interval >= read.timeout {
		h.log.Warn("the heartbeat interval is not shorter than the timeout of the lifecycle hook: the instance may be terminated before a heartbeat",
			"interval", interval.String(), "timeout", read.timeout.String(), "group", hook.Group, "hook", hook.Name)
	}
	for began := time.Now(); ; {
		if read.isAssumed {
			read = h.readTimeout(ctx, hook)
		}
		pause := cmp.Or(h.config.HeartbeatInterval, max(read.timeout/2, noticeaws.MinHeartbeatInterval))
		switch err := h.sendHeartbeat(ctx, hook, instance); {
		case ctx.Err() != nil:
			return
		case isNotWaiting(err):
			h.log.Warn("no more heartbeats for the lifecycle hook, because it does not wait any more", "instance", instance, "hook", hook.Name, "err", err)
			return
		case err != nil:
			h.log.Warn("cannot send a heartbeat for the lifecycle hook, will retry", "instance", instance, "hook", hook.Name, "err", err)
			pause = max(pause/4, noticeaws.MinHeartbeatInterval)
		default:
			h.metrics.Heartbeats.Inc()
			h.log.Info("sent a heartbeat for the lifecycle hook", "instance", instance, "group", hook.Group, "hook", hook.Name)
		}
		if read.isAssumed {
			pause = min(pause, unknownTimeoutInterval)
		}
		if end := began.Add(h.maxHold(read.timeout)); !time.Now().Add(pause).Before(end) || !elapsed.Sleep(ctx, pause) {
			return
		}
	}
}

func (h *Hooks) sendHeartbeat(ctx context.Context, hook Hook, instance string) error {
	limited, cancel := context.WithTimeout(ctx, hookRequestTimeout)
	defer cancel()
	_, err := h.api.RecordLifecycleActionHeartbeat(limited, &autoscaling.RecordLifecycleActionHeartbeatInput{
		AutoScalingGroupName: &hook.Group, LifecycleHookName: &hook.Name, LifecycleActionToken: optional(hook.Token), InstanceId: &instance,
	})
	return h.recordFailure(ctx, heartbeatRequest, hook, instance, err)
}

// Complete lets the group continue. It returns nil if the hook does not wait any more: it was completed before, for example
// by a process that was killed before it deleted the message, or its time has passed.
func (h *Hooks) Complete(ctx context.Context, hook Hook, instance string) error {
	if !h.config.Acknowledge {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, hookRequestTimeout)
	defer cancel()
	_, err := h.api.CompleteLifecycleAction(limited, &autoscaling.CompleteLifecycleActionInput{
		AutoScalingGroupName: &hook.Group, LifecycleHookName: &hook.Name, LifecycleActionToken: optional(hook.Token), InstanceId: &instance,
		LifecycleActionResult: aws.String("CONTINUE"),
	})
	err = h.recordFailure(ctx, completionRequest, hook, instance, err)
	switch {
	case err == nil:
		h.metrics.Completed.Inc()
		h.log.Info("completed the lifecycle hook", "instance", instance, "group", hook.Group, "hook", hook.Name)
	case isNotWaiting(err):
		h.log.Warn("the lifecycle hook does not wait any more", "instance", instance, "group", hook.Group, "hook", hook.Name, "err", err)
	default:
		return err
	}
	return nil
}

// recordFailure counts and reports a failed request, and returns its error with the names. It ignores the answer that the hook
// does not wait any more, and requests that ended with ctx.
func (h *Hooks) recordFailure(ctx context.Context, request string, hook Hook, instance string, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%s of the lifecycle hook %s of group %s for instance %s: %w", request, hook.Name, hook.Group, instance, err)
	if ctx.Err() != nil || isNotWaiting(err) {
		return err
	}
	h.metrics.HookFailures.With(request).Inc()
	if isFinal(err) && h.onRefused != nil {
		h.onRefused(err)
	}
	return err
}

func optional(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// isNotWaiting reports whether no lifecycle action waits for the instance.
func isNotWaiting(err error) bool {
	var refused smithy.APIError
	return errors.As(err, &refused) && noticeaws.IsNotWaiting(refused.ErrorCode(), refused.ErrorMessage())
}

// isFinal reports whether AWS will refuse the request again until a person changes something: a right is missing, or the region
// or a name is wrong.
func isFinal(err error) bool {
	var refused smithy.APIError
	return errors.As(err, &refused) && (refused.ErrorCode() == "ValidationError" || noticeaws.IsDenied(refused.ErrorCode()))
}
