package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"github.com/aws/smithy-go"

	"github.com/slipway-dev/slipway/internal/observe"
)

// slowGroups is Auto Scaling with hooks of 100 s that answers after a second, or fails.
type slowGroups struct {
	AutoScaling

	mu         sync.Mutex
	requests   int
	heartbeats int
	err        error
	refusal    error // of heartbeats and completions
	reported   int
}

func (s *slowGroups) CompleteLifecycleAction(context.Context, *autoscaling.CompleteLifecycleActionInput, ...func(*autoscaling.Options)) (*autoscaling.CompleteLifecycleActionOutput, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &autoscaling.CompleteLifecycleActionOutput{}, s.refusal
}

func (s *slowGroups) DescribeLifecycleHooks(context.Context, *autoscaling.DescribeLifecycleHooksInput, ...func(*autoscaling.Options)) (*autoscaling.DescribeLifecycleHooksOutput, error) {
	time.Sleep(time.Second)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests++
	return &autoscaling.DescribeLifecycleHooksOutput{LifecycleHooks: []types.LifecycleHook{{HeartbeatTimeout: aws.Int32(100)}}}, s.err
}

func (s *slowGroups) RecordLifecycleActionHeartbeat(context.Context, *autoscaling.RecordLifecycleActionHeartbeatInput, ...func(*autoscaling.Options)) (*autoscaling.RecordLifecycleActionHeartbeatOutput, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heartbeats++
	return &autoscaling.RecordLifecycleActionHeartbeatOutput{}, s.refusal
}

func newTestHooks(s *slowGroups) *Hooks {
	return NewHooks(s, NewDefaultConfig(), NewMetrics(observe.NewRegistry()), slog.New(slog.DiscardHandler), func(error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.reported++
	})
}

func TestManyMessagesOfOneHookReadItsTimeoutOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s slowGroups
		h := newTestHooks(&s)
		var group sync.WaitGroup
		for range 1000 {
			group.Go(func() {
				if timeout, isAssumed := h.Timeout(t.Context(), Hook{Group: "workers", Name: "drain"}); timeout != 100*time.Second || isAssumed {
					t.Errorf("timeout %v, assumed: %v", timeout, isAssumed)
				}
			})
		}
		group.Wait()
		if s.requests != 1 {
			t.Errorf("%d requests", s.requests)
		}
		for i := range maxHookTimeoutsRead + 10 {
			h.Timeout(t.Context(), Hook{Group: fmt.Sprint(i), Name: "drain"})
		}
		if n := len(h.timeouts); n > maxHookTimeoutsRead {
			t.Errorf("remembers %d timeouts", n)
		}
	})
}

func TestHookStaysWaitingWhileItsTimeoutCannotBeRead(t *testing.T) {
	for _, failure := range []error{errors.New("throttled"), &smithy.GenericAPIError{Code: "AccessDenied"}, &smithy.GenericAPIError{Code: "ValidationError"}} {
		synctest.Test(t, func(t *testing.T) {
			s := slowGroups{err: failure}
			h := newTestHooks(&s)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			go h.SendHeartbeats(ctx, Hook{Group: "workers", Name: "drain"}, "i-0a")
			time.Sleep(2 * time.Minute)
			s.mu.Lock()
			if s.heartbeats < 6 {
				t.Errorf("%v: %d heartbeats in 2m", failure, s.heartbeats)
			}
			s.heartbeats, s.err = 0, nil
			s.mu.Unlock()
			time.Sleep(10 * time.Minute)
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.heartbeats < 11 || s.heartbeats > 13 {
				t.Errorf("%v: %d heartbeats in 10m with a timeout of 100s", failure, s.heartbeats)
			}
		})
	}
}

func TestOnlyAMissingActionEndsAHook(t *testing.T) {
	hook := Hook{Group: "workers", Name: "drain", Token: "token"}
	for name, c := range map[string]struct {
		refusal         error
		completed       bool
		minBeats, beats int // in 10 minutes, with a timeout of 100 s
		isReported      bool
	}{
		"completed before":  {&smithy.GenericAPIError{Code: "ValidationError", Message: "No active Lifecycle Action found with token token"}, true, 1, 1, false},
		"unknown group":     {&smithy.GenericAPIError{Code: "ValidationError", Message: "AutoScalingGroup name not found - AutoScalingGroup workers not found"}, false, 40, 60, true},
		"no right":          {&smithy.GenericAPIError{Code: "AccessDenied", Message: "not authorized"}, false, 40, 60, true},
		"throttled":         {&smithy.GenericAPIError{Code: "Throttling", Message: "Rate exceeded"}, false, 40, 60, false},
		"accepted":          {nil, true, 11, 13, false},
		"connection failed": {errors.New("reset"), false, 40, 60, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := slowGroups{refusal: c.refusal}
			h := newTestHooks(&s)
			if err := h.Complete(t.Context(), hook, "i-0a"); (err == nil) != c.completed || err != nil && !errors.Is(err, c.refusal) {
				t.Errorf("%s: completion: %v", name, err)
			}
			ctx, stop := context.WithTimeout(t.Context(), 10*time.Minute)
			defer stop()
			h.SendHeartbeats(ctx, hook, "i-0a")
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.heartbeats < c.minBeats || s.heartbeats > c.beats || (s.reported > 0) != c.isReported {
				t.Errorf("%s: %d heartbeats, %d reports", name, s.heartbeats, s.reported)
			}
		})
	}
}
