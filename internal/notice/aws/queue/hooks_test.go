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

	"github.com/slipway-dev/slipway/internal/observe"
)

// slowGroups is Auto Scaling with hooks of 100 s that answers after a second, or fails.
type slowGroups struct {
	AutoScaling

	mu         sync.Mutex
	requests   int
	heartbeats int
	err        error
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
	return &autoscaling.RecordLifecycleActionHeartbeatOutput{}, nil
}

func newTestHooks(s *slowGroups) *Hooks {
	return NewHooks(s, NewDefaultConfig(), NewMetrics(observe.NewRegistry()), slog.New(slog.DiscardHandler))
}

func TestManyMessagesOfOneHookReadItsTimeoutOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s slowGroups
		h := newTestHooks(&s)
		var group sync.WaitGroup
		for range 1000 {
			group.Go(func() {
				if timeout := h.Timeout(t.Context(), Hook{Group: "workers", Name: "drain"}); timeout != 100*time.Second {
					t.Errorf("timeout %v", timeout)
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
	synctest.Test(t, func(t *testing.T) {
		s := slowGroups{err: errors.New("throttled")}
		h := newTestHooks(&s)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go h.SendHeartbeats(ctx, Hook{Group: "workers", Name: "drain"}, "i-0a")
		time.Sleep(2 * time.Minute)
		s.mu.Lock()
		if s.heartbeats < 6 {
			t.Errorf("%d heartbeats in 2m", s.heartbeats)
		}
		s.heartbeats, s.err = 0, nil
		s.mu.Unlock()
		time.Sleep(10 * time.Minute)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.heartbeats < 11 || s.heartbeats > 13 {
			t.Errorf("%d heartbeats in 10m with a timeout of 100s", s.heartbeats)
		}
	})
}
