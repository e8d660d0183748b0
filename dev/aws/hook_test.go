package aws_test

import (
	"net/http"
	"testing"
	"time"

	emulator "github.com/slipway-dev/slipway/dev/aws"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/aws"
	"github.com/slipway-dev/slipway/internal/notice/poll"
)

// watchHook starts an API with a group, and a source that completes its hook.
func watchHook(t *testing.T, options aws.HookOptions, hooks ...emulator.LifecycleHook) (*emulator.Instance, *emulator.AutoScaling, *watcher) {
	t.Helper()
	i := startInstance(t)
	group := emulator.StartAutoScaling("workers & co", hooks...)
	t.Cleanup(group.Close)
	group.Join(i)
	w := watch(t, i, func(o *aws.SourceOptions) {
		options.Instance, options.Endpoint, options.Metadata, options.Log = instanceID, group.URL(), o.Client, o.Log
		o.Hook = aws.NewHook(options)
	})
	return i, group, w
}

func (w *watcher) awaitCalls(group *emulator.AutoScaling, action string, n int) []emulator.Call {
	w.t.Helper()
	w.await(action, func(notice.Snapshot, map[poll.Class]int) bool { return len(group.Calls(action)) >= n })
	return group.Calls(action)
}

func TestHookIsFoundHeldByHeartbeatsAndCompleted(t *testing.T) {
	t.Parallel()
	i, group, w := watchHook(t, aws.HookOptions{}, emulator.LifecycleHook{Name: "launch", Timeout: time.Second, Transition: "autoscaling:EC2_INSTANCE_LAUNCHING"},
		emulator.LifecycleHook{Name: "drain", Timeout: 4 * time.Second})
	w.awaitTypes()
	if len(group.Calls("DescribeAutoScalingInstances")) != 0 {
		t.Error("the API was called before the group terminates the instance")
	}
	group.Terminate(i)
	n := w.await("the timeout of the hook", func(s notice.Snapshot, _ map[poll.Class]int) bool {
		return len(s.Notices) == 1 && s.Notices[0].NoticePeriod == 4*time.Second
	}).Notices[0]
	if n.NotApprovable {
		t.Error("the notice is not approvable")
	}
	beats := w.awaitCalls(group, "RecordLifecycleActionHeartbeat", 2)
	if gap := beats[1].At.Sub(beats[0].At); gap < 1900*time.Millisecond || gap > 3*time.Second {
		t.Errorf("heartbeats %s apart, want half of the timeout of 4 s", gap)
	}
	if err := w.source.Approve(t.Context(), "spot-1"); err != nil || len(group.Calls("CompleteLifecycleAction")) != 0 {
		t.Errorf("the approval of another notice: %v, %v", err, group.Calls("CompleteLifecycleAction"))
	}
	for range 2 { // the second one finds it completed
		if err := w.source.Approve(t.Context(), n.ID); err != nil {
			t.Fatal(err)
		}
	}
	if got := group.Result(instanceID); got != "CONTINUE" || len(group.Calls("CompleteLifecycleAction")) != 1 {
		t.Errorf("result %q, calls %v", got, group.Calls("CompleteLifecycleAction"))
	}
}

func TestHookWithNamesNeedsNoLookupPermission(t *testing.T) {
	t.Parallel()
	i, group, w := watchHook(t, aws.HookOptions{Group: "workers & co", Hook: "drain"}, emulator.LifecycleHook{Name: "drain", Timeout: time.Minute})
	group.Deny("DescribeAutoScalingInstances")
	group.Deny("DescribeLifecycleHooks")
	group.Terminate(i)
	w.awaitCalls(group, "RecordLifecycleActionHeartbeat", 1)
	n := w.awaitTypes(notice.Terminate).Notices[0]
	if err := w.source.Approve(t.Context(), n.ID); err != nil || group.Result(instanceID) != "CONTINUE" {
		t.Errorf("%v, result %q", err, group.Result(instanceID))
	}
}

func TestHookThatCannotBeFoundIsLeftAlone(t *testing.T) {
	t.Parallel()
	drain := emulator.LifecycleHook{Name: "drain", Timeout: time.Minute}
	for name, tt := range map[string]struct {
		hooks   []emulator.LifecycleHook
		prepare func(*emulator.Instance, *emulator.AutoScaling)
		period  time.Duration
	}{
		"no permission": {[]emulator.LifecycleHook{drain}, func(_ *emulator.Instance, a *emulator.AutoScaling) { a.Deny("DescribeAutoScalingInstances") }, time.Hour},
		"no hook":       {nil, nil, 30 * time.Second}, // the group does not wait
		"two hooks":     {[]emulator.LifecycleHook{drain, {Name: "other", Timeout: time.Minute}}, nil, time.Hour},
		"no role": {[]emulator.LifecycleHook{drain}, func(i *emulator.Instance, _ *emulator.AutoScaling) {
			i.Set("/latest/meta-data/iam/security-credentials/", "")
		}, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i, group, w := watchHook(t, aws.HookOptions{}, tt.hooks...)
			if tt.prepare != nil {
				tt.prepare(i, group)
			}
			group.Terminate(i)
			w.await("the notice cannot be approved", func(s notice.Snapshot, _ map[poll.Class]int) bool {
				return len(s.Notices) == 1 && s.Notices[0].NotApprovable && s.Notices[0].NoticePeriod == tt.period
			})
			if len(group.Calls("RecordLifecycleActionHeartbeat")) != 0 {
				t.Error("a heartbeat was sent")
			}
		})
	}
}

func TestHookSurvivesAnOutageOfTheAPI(t *testing.T) {
	t.Parallel()
	i, group, w := watchHook(t, aws.HookOptions{}, emulator.LifecycleHook{Name: "drain", Timeout: time.Minute})
	group.SetFault(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) })
	group.Terminate(i)
	n := w.awaitTypes(notice.Terminate).Notices[0]
	if err := w.source.Approve(t.Context(), n.ID); err == nil || n.NotApprovable {
		t.Errorf("an unknown hook was approved: %v, %+v", err, n)
	}
	group.SetFault(nil)
	w.awaitCalls(group, "RecordLifecycleActionHeartbeat", 1)
	if err := w.source.Approve(t.Context(), n.ID); err != nil || group.Result(instanceID) != "CONTINUE" {
		t.Errorf("%v, result %q", err, group.Result(instanceID))
	}
}
