package agent

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/drain"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notify"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
	"github.com/slipway-dev/slipway/internal/testing/virtual"
)

// fakeNotifier stores the messages.
type fakeNotifier struct {
	mu   sync.Mutex
	all  []notify.Message
	busy bool
}

func (t *fakeNotifier) Enqueue(m notify.Message) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, m)
}

func (t *fakeNotifier) IsIdle() bool { return !t.busy }

func (t *fakeNotifier) moments() []notify.Moment {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []notify.Moment
	for _, m := range t.all {
		all = append(all, m.Moment)
	}
	return all
}

// slowLookupAPI answers the requests of a notification after a delay.
type slowLookupAPI struct {
	API

	delay time.Duration
	fail  error
}

func (l slowLookupAPI) wait(ctx context.Context) error {
	select {
	case <-time.After(l.delay):
		return l.fail
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l slowLookupAPI) GetNode(ctx context.Context, name string) (*kubeapi.Node, error) {
	n := &kubeapi.Node{ObjectMeta: kubeapi.ObjectMeta{Name: name, Labels: map[string]string{
		"kubernetes.azure.com/cluster": "MC_a", "topology.kubernetes.io/zone": "eu-1",
	}}}
	return n, l.wait(ctx)
}

func (l slowLookupAPI) ListPodsOnNode(ctx context.Context, _ string) ([]kubeapi.Pod, error) {
	yes := true
	pod := func(name, kind string) kubeapi.Pod {
		return kubeapi.Pod{ObjectMeta: kubeapi.ObjectMeta{
			Namespace: "shop", Name: name, OwnerReferences: []kubeapi.OwnerReference{{Kind: kind, Name: "owner", Controller: &yes}},
		}}
	}
	return []kubeapi.Pod{pod("web", "ReplicaSet"), pod("logs", "DaemonSet"), pod("db", "StatefulSet")}, l.wait(ctx)
}

// newNotifyingAgent returns an agent with a Notifier, and a notice of 30 s that it handles.
func newNotifyingAgent(api API, to Notifier) (*Agent, *noticeState) {
	a := New(Options{
		Node: "node", ResourceName: "vmss_0", API: api, Notifier: to, Metrics: NewMetrics(observe.NewRegistry()),
		Log: slog.New(slog.DiscardHandler),
	})
	h := &noticeState{
		Notice: notice.Notice{
			ID: "id", Source: "azure", Type: notice.Preempt, Status: notice.Scheduled, Resources: []string{"vmss_0"},
			NotBefore: time.Now().Add(30 * time.Second), Duration: -1, Description: "why",
		},
		Decision: Decision{Action: Drain, Forced: true, Deadline: time.Now().Add(30 * time.Second), Reason: "because"},
	}
	h.listed, h.claim.state = true, claimWritten
	a.notices["id"] = h
	return a, h
}

func TestEachMomentIsNotifiedOnceAcrossRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var to fakeNotifier
		a, h := newNotifyingAgent(slowLookupAPI{}, &to)
		ctx, stop := context.WithCancel(t.Context())
		go a.notifications.run(ctx)
		turn := func() {
			a.queueNotifications(time.Now())
			a.queueNotifications(time.Now())
			synctest.Wait()
		}
		turn()
		h.Phase, a.drain = Draining, &drainRun{}
		a.setBlocked(a.drain, &drain.Progress{RemainingPods: []drain.BlockedPod{{Namespace: "shop", Pod: "db", Reason: drain.ObstaclePDB, PDB: "shop/db"}}})
		turn()
		a.storeDrainResult(drain.Report{Outcome: drain.DeadlinePassed}, &drain.UnfinishedError{Blocked: []drain.BlockedPod{{Pod: "db"}}})
		turn()
		a.storeDrainResult(drain.Report{Outcome: drain.Drained, Pods: []drain.PodReport{
			{Namespace: "shop", Name: "db", Owner: "StatefulSet/db", Action: podrules.Evict, End: drain.Stopped}, {Name: "logs", Action: podrules.Skip},
		}}, nil)
		h.applyTransition(inputEmptied, guard{}, time.Now())
		turn()
		want := []notify.Moment{notify.Detected, notify.Blocked, notify.DeadlinePassed, notify.Drained}
		if got := to.moments(); !slices.Equal(got, want) {
			t.Fatalf("sent %v, want %v", got, want)
		}
		if got := to.all[1].Blocked; len(got) != 1 || got[0].Budget != "shop/db" {
			t.Errorf("blocked: %+v", got)
		}
		if got := to.all[3].Pods; len(got) != 1 || got[0] != (notify.Pod{Namespace: "shop", Name: "db", Owner: "StatefulSet/db", State: "gone"}) {
			t.Errorf("pods of a node that was drained: %+v", got)
		}
		check.Is(t, claimOutdated, h.claim.state)

		record, err := json.Marshal(h)
		must.NoError(t, err)
		var again noticeState
		must.NoError(t, json.Unmarshal(record, &again))
		restarted, _ := newNotifyingAgent(slowLookupAPI{}, &to)
		again.listed = true
		restarted.notices["id"] = &again
		go restarted.notifications.run(ctx)
		restarted.queueNotifications(time.Now())
		restarted.queueEndNotification(&again)
		synctest.Wait()
		if got := to.moments(); !slices.Equal(got, append(want, notify.Ended)) {
			t.Errorf("after the restart %v were sent, want %v and over", got, want)
		}
		stop()
	})
}

func TestIgnoredNoticeIsNotNotified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var to fakeNotifier
		a, h := newNotifyingAgent(slowLookupAPI{}, &to)
		ctx, stop := context.WithCancel(t.Context())
		go a.notifications.run(ctx)
		h.Decision.Action = Ignore
		a.queueNotifications(time.Now())
		a.queueEndNotification(h)
		synctest.Wait()
		if len(to.all) != 0 {
			t.Errorf("sent %v", to.moments())
		}
		stop()
	})
}

func TestMessageHasAllTemplateFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var to fakeNotifier
		a, _ := newNotifyingAgent(slowLookupAPI{}, &to)
		ctx, stop := context.WithCancel(t.Context())
		go a.notifications.run(ctx)
		a.queueNotifications(time.Now())
		synctest.Wait()
		stop()
		m := to.all[0]
		if e := m.Event; e.EventId != "id" || e.EventType != "Preempt" || e.EventStatus != "Scheduled" ||
			e.NotBefore != "Sat, 01 Jan 2000 00:00:30 GMT" || e.DurationInSeconds != -1 || e.EventSource != "Platform" ||
			e.ResourceType != "VirtualMachine" || e.Resources[0] != "vmss_0" || e.Description != "why" {
			t.Errorf("%+v", e)
		}
		if m.NodeName != "node" || m.ClusterName != "MC_a" || m.NodeZone != "eu-1" || m.SecondsLeft != 30 || m.Action != "drain" || !m.Forced {
			t.Errorf("%+v", m)
		}
		check.Not(t, !slices.Equal(m.NodePods, []string{"db", "web"}) || m.Pods[1].Owner != "ReplicaSet/owner", "pods %v, %+v", m.NodePods, m.Pods)
	})
}

func TestSummarySaysThatANoticeHasNoDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, h := newNotifyingAgent(slowLookupAPI{}, &fakeNotifier{})
		blocked := drain.BlockedPod{Namespace: "shop", Pod: "db", Reason: drain.ObstaclePDB, PDB: "shop/db"}
		h.drainResult.blocked = []drain.BlockedPod{blocked}
		for _, c := range []struct {
			kind   notice.Type
			due    time.Time
			moment notify.Moment
			want   string
		}{
			{notice.Rebalance, time.Time{}, notify.Detected, "node node: Rebalance (id) has no deadline: drain"},
			{notice.Condition, time.Time{}, notify.Blocked, "node node: Condition (id) has no deadline, and 1 pods cannot be evicted: " + blocked.String()},
			{notice.Condition, time.Time{}, notify.DeadlinePassed, "node node: Condition (id): the drain has timed out, and the node is not drained"},
			{notice.Reboot, time.Now(), notify.Blocked, "node node: Reboot (id) is due in 0 s, and 1 pods cannot be evicted: " + blocked.String()},
			{notice.Reboot, time.Now(), notify.DeadlinePassed, "node node: Reboot (id): the deadline has passed, and the node is not drained"},
		} {
			h.Notice.Type, h.Decision.Deadline = c.kind, c.due
			check.Is(t, c.want, newMessage("node", c.moment, h, time.Now()).Summary)
		}
	})
}

func TestW12NotificationsAreSentWithoutTheAPIServer(t *testing.T) {
	for _, c := range []struct {
		name string
		api  slowLookupAPI
		ends time.Duration
	}{
		{"it answers nothing", slowLookupAPI{delay: time.Hour}, time.Hour},
		{"it answers errors", slowLookupAPI{fail: errors.New("away")}, time.Hour},
		{"the agent ends meanwhile", slowLookupAPI{delay: time.Hour}, time.Second},
	} {
		t.Run(c.name, virtual.InVirtualTime(func(t *testing.T) {
			var to fakeNotifier
			a, h := newNotifyingAgent(c.api, &to)
			began := time.Now()
			a.queueNotifications(began)
			h.Phase = Drained
			a.queueNotifications(began)
			check.Is(t, 0, time.Since(began))
			ctx, cancel := context.WithTimeout(t.Context(), c.ends)
			defer cancel()
			go a.notifications.run(ctx)
			time.Sleep(2 * lookupTimeout)
			synctest.Wait()
			if got := to.moments(); !slices.Equal(got, []notify.Moment{notify.Detected, notify.Drained}) {
				t.Errorf("sent %v", got)
			}
			check.Contains(t, to.all[0].Summary, "is due in 30 s: drain")
		}))
	}
}

func TestBlockedDrainNotificationsDelayNoDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := newNotifyingAgent(slowLookupAPI{}, &fakeNotifier{})
		began := time.Now()
		run := &drainRun{}
		for range 10 * cap(a.updates) {
			a.setBlocked(run, &drain.Progress{})
		}
		check.Is(t, 0, time.Since(began))
	})
}

func TestApprovalWaitsForUnsentNotification(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &fakeNotifier{busy: true}
		a, h := newNotifyingAgent(slowLookupAPI{}, to)
		check.Not(t, a.checkFlushFinished(h, time.Now()) == 0, "approved before the notification was sent")
		check.Is(t, 0, a.checkFlushFinished(h, time.Now().Add(flushTimeout)), flushTimeout)
		to.busy = false
		check.Is(t, 0, a.checkFlushFinished(h, time.Now()))
	})
}
