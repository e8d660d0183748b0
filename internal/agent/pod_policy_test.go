package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/internal/drain"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/request"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestPodLabelSetsItsNoticePolicy(t *testing.T) {
	for _, tt := range []struct {
		label, value string
		kind         notice.Type
		live, want   bool
	}{
		{EvictOnLabel, "freeze", notice.Freeze, false, true},
		{EvictOnLabel, "freeze", notice.Freeze, true, true},
		{EvictOnLabel, "Freeze.Reboot", notice.Reboot, false, true},
		{EvictOnLabel, "live-migration", notice.Freeze, true, true},
		{EvictOnLabel, "live-migration", notice.Freeze, false, false},
		{EvictOnLabel, "reboot", notice.Freeze, false, false},
		{EvictOnLabel, "any", notice.Condition, false, true},
		{EvictOnLabel, "", notice.Freeze, false, false},
		{"example.com/other", "freeze", notice.Freeze, false, false},
		{aksFreezeLabel, "true", notice.Freeze, true, true},
		{aksFreezeLabel, "", notice.Freeze, false, true},
		{aksFreezeLabel, "false", notice.Freeze, false, false},
		{aksFreezeLabel, "true", notice.Reboot, false, false},
	} {
		p := &kubeapi.Pod{ObjectMeta: kubeapi.ObjectMeta{Labels: map[string]string{tt.label: tt.value}}}
		check.Is(t, tt.want, isMarkedForEviction(p, tt.kind, tt.live), tt.label, tt.value, tt.kind, tt.live)
	}
}

func TestPodGetsPolicyOfMostSevereNotice(t *testing.T) {
	plain := kubeapi.Pod{}
	mindful := kubeapi.Pod{ObjectMeta: kubeapi.ObjectMeta{Labels: map[string]string{EvictOnLabel: "reboot"}}}
	freeze, reboot := demand{noticeType: notice.Freeze}, demand{noticeType: notice.Reboot, markedOnly: true}
	for name, tt := range map[string]struct {
		demands        []demand
		plain, mindful podrules.Action // of a pod with an emptyDir
	}{
		"a Freeze for all":         {[]demand{freeze}, podrules.Skip, podrules.Skip},
		"a Reboot for marked pods": {[]demand{reboot}, podrules.Skip, podrules.Evict},
		"both":                     {[]demand{freeze, reboot}, podrules.Skip, podrules.Evict},
		"a Preempt on top":         {[]demand{freeze, reboot, {noticeType: notice.Preempt}}, podrules.Evict, podrules.Evict},
		"a condition is more severe than a Freeze": {[]demand{freeze, {noticeType: notice.Condition}}, podrules.Evict, podrules.Evict},
	} {
		o := drainSpec{demands: tt.demands}
		got := func(p kubeapi.Pod) podrules.Action {
			if !o.matchesPod(p) {
				return podrules.Skip
			}
			return o.podPolicy(p).ActionFor(podrules.RuleLocalStorage)
		}
		if got(plain) != tt.plain || got(mindful) != tt.mindful {
			t.Errorf("%s: a plain pod gets %s, want %s; a marked pod gets %s, want %s", name, got(plain), tt.plain,
				got(mindful), tt.mindful)
		}
	}
}

// A container runtime splits lines of more than 16 KiB.
func TestLogLineStaysShortForManyPods(t *testing.T) {
	var log bytes.Buffer
	a := New(Options{
		Node: "n", Metrics: NewMetrics(observe.NewRegistry()), Log: slog.New(slog.NewJSONHandler(&log, nil)),
	})
	receipt := drain.Report{Outcome: drain.TimedOut}
	progress := drain.Progress{Listed: true}
	for i := range 250 {
		p := drain.PodReport{
			Namespace: "shop", Name: fmt.Sprintf("%s-%d", strings.Repeat("x", 200), i), Action: podrules.Evict, End: drain.Stopped,
		}
		if i%2 == 0 {
			p.End = drain.Killed
		}
		receipt.Pods = append(receipt.Pods, p)
		progress.RemainingPods = append(progress.RemainingPods, drain.BlockedPod{Pod: p.Name, Reason: drain.ObstaclePDB, Detail: strings.Repeat("y", 200)})
	}
	run := &drainRun{cancel: func(error) {}}
	a.drain = run
	a.recordFailedDrain(run, receipt, errors.New(strings.Repeat("z", 100_000)))
	a.newProgressHandler(run)(progress)
	lines, reported := 0, 0
	for line := range strings.Lines(log.String()) {
		var l struct {
			Msg    string
			Report drain.Report
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		if lines++; l.Msg == drain.LogMessage {
			lines--
			reported += len(l.Report.Pods)
		}
		if len(line) > 16<<10 {
			t.Errorf("a line of %d bytes: %.200s", len(line), line)
		}
	}
	if !strings.Contains(log.String(), `"more pods were killed, force-deleted or left behind","pods":105`) || lines > maxLoggedPods+5 || reported != 250 {
		t.Errorf("%d lines, and %d pods in drain reports", lines, reported)
	}
}

// A condition would keep the pod on the node, because it is unmanaged and protected by an annotation.
func TestRequestedPreemptDrainEmptiesTheNode(t *testing.T) {
	withTestNode(t, 10*time.Second, func(t *testing.T, m *testNode) {
		m.pod.OwnerReferences = nil
		m.pod.Annotations = map[string]string{"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
		asked, to := request.NewSource(notice.Preempt), &fakeNotifier{}
		m.startAgent(t, 0, func(o *Options) {
			o.Sources = append(o.Sources, asked)
			o.Policy.ActionByCondition = map[string]Action{request.NoticeID: Drain}
			o.ConditionDrainTimeout = 2 * time.Minute
			o.Notifier = to
		})
		asked.RequestDrain()
		if err := m.agent.AwaitDrained(t.Context(), request.SourceName, request.NoticeID); err != nil || !m.isEmpty() {
			t.Errorf("error %v, node empty: %t", err, m.isEmpty())
		}
		asked.CancelDrain()
		time.Sleep(time.Minute)
		if n := m.currentNode(); n.Spec.Unschedulable {
			t.Errorf("after the cancellation the node is %+v", n.Spec)
		}
		m.crashAgent()
		for _, message := range to.all {
			check.Is(t, "Preempt", message.Event.EventType, message.Summary)
		}
	})
}

func TestI6RequestedDrainNamesTheOtherTool(t *testing.T) {
	withTestNode(t, 10*time.Second, func(t *testing.T, m *testNode) {
		_, _ = m.updateNode("", func(n *kubeapi.Node) {
			n.Spec.Taints = []kubeapi.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: "NoSchedule"}}
		})
		asked := request.NewSource(notice.Preempt)
		m.startAgent(t, 0, func(o *Options) {
			o.Sources = append(o.Sources, asked)
			o.Policy.ActionByCondition = map[string]Action{request.NoticeID: Drain}
		})
		asked.RequestDrain()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := m.agent.AwaitDrained(ctx, request.SourceName, request.NoticeID)
		check.ErrorContains(t, err, "cluster-autoscaler (taint ToBeDeletedByClusterAutoscaler:NoSchedule)")
		if !m.evictionTime().IsZero() {
			t.Error("pods were evicted beside the other tool")
		}
		_, _ = m.updateNode("", func(n *kubeapi.Node) { n.Spec.Taints = nil })
		time.Sleep(time.Minute)
		if !m.isEmpty() {
			t.Error("the drain has not started after the removal of the taint")
		}
	})
}

func TestRequestsOfAnEarlierAgentContinue(t *testing.T) {
	for name, tt := range map[string]struct {
		say  func(*request.Source) // to the restarted agent
		want bool
	}{
		"no new request":  {func(*request.Source) {}, true},
		"requested again": {(*request.Source).RequestDrain, true},
		"cancelled":       {(*request.Source).CancelDrain, false},
	} {
		t.Run(name, testNodeTest(10*time.Second, func(t *testing.T, m *testNode) {
			begin := func() *request.Source {
				asked := request.NewSource(notice.Preempt)
				m.startAgent(t, 0, func(o *Options) {
					o.Sources = append(o.Sources, asked)
					o.Policy.ActionByCondition = map[string]Action{request.NoticeID: Drain}
				})
				return asked
			}
			m.denyEvictions("web")
			begin().RequestDrain()
			time.Sleep(10 * time.Second)
			m.crashAgent()
			m.denyEvictions("")
			asked := begin()
			tt.say(asked)
			time.Sleep(time.Minute)
			if m.isEmpty() != tt.want || m.isRestored() == tt.want {
				t.Errorf("empty: %t, want %t; the node is %+v", m.isEmpty(), tt.want, m.currentNode().Spec)
			}
			asked.CancelDrain()
			time.Sleep(time.Minute)
			if !m.isRestored() {
				t.Errorf("after the cancellation the node is %+v", m.currentNode())
			}
		}))
	}
}

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestImpactDecidesByTypeDurationAndLiveMigration(t *testing.T) {
	custom := DefaultNoticePolicy()
	custom.ActionByType[notice.Reboot] = Cordon
	custom.LiveMigrationAction = Drain
	byUser := DefaultNoticePolicy()
	byUser.UserInitiatedByType = map[notice.Type]Action{notice.Reboot: Acknowledge, notice.Freeze: Cordon}
	hasty := DefaultNoticePolicy()
	hasty.AcknowledgeFreezeUnder = 9 * time.Second
	marked := DefaultNoticePolicy()
	marked.ActionByType[notice.Freeze], marked.LiveMigrationAction = DrainMarked, DrainMarked
	sick := DefaultNoticePolicy()
	sick.ActionByCondition = map[string]Action{"KernelDeadlock": Drain, "RebootScheduled": Cordon}
	for name, tt := range map[string]struct {
		impact NoticePolicy
		notice notice.Notice
		action Action
		forced bool
		reason string
	}{
		"a Spot eviction drains":          {DefaultNoticePolicy(), notice.Notice{Type: notice.Preempt}, Drain, true, "Preempt asks for drain"},
		"a reboot drains":                 {DefaultNoticePolicy(), notice.Notice{Type: notice.Reboot}, Drain, true, "Reboot asks for drain"},
		"a reboot with the action cordon": {custom, notice.Notice{Type: notice.Reboot}, Cordon, true, "Reboot asks for cordon"},
		"a live migration is ignored": {
			DefaultNoticePolicy(), notice.Notice{Type: notice.Freeze, LiveMigration: true, Duration: time.Minute}, Ignore, false, "live migration",
		},
		"a live migration with the action drain": {
			custom, notice.Notice{Type: notice.Freeze, LiveMigration: true}, Drain, false, "live migration asks for drain",
		},
		"a short pause is ignored": {
			DefaultNoticePolicy(), notice.Notice{Type: notice.Freeze, Duration: 9 * time.Second}, Ignore, false, "within the tolerance of 10s",
		},
		"a pause without impact is ignored": {DefaultNoticePolicy(), notice.Notice{Type: notice.Freeze}, Ignore, false, "within"},
		"a long pause drains, without force": {
			DefaultNoticePolicy(), notice.Notice{Type: notice.Freeze, Duration: time.Minute}, Drain, false, "Freeze of 1m0s asks for drain",
		},
		"a pause of unknown length only cordons": {
			DefaultNoticePolicy(), notice.Notice{Type: notice.Freeze, Duration: -time.Second}, Cordon, false, "unknown duration",
		},
		"a reboot by a user has its own action": {
			byUser, notice.Notice{Type: notice.Reboot, UserInitiated: true}, Acknowledge, true, "user-initiated Reboot asks for acknowledge",
		},
		"a reboot by the platform has the usual action": {byUser, notice.Notice{Type: notice.Reboot}, Drain, true, "Reboot asks for drain"},
		"a long pause by a user has its own action": {
			byUser, notice.Notice{Type: notice.Freeze, UserInitiated: true, Duration: time.Minute}, Cordon, false, "user-initiated Freeze of 1m0s asks for cordon",
		},
		"a short pause is approved at once": {
			hasty, notice.Notice{Type: notice.Freeze, Duration: 8 * time.Second}, Acknowledge, false, "tolerance of 10s, and is approved at once because it is under 9s",
		},
		"a pause as long as the limit is not approved": {
			hasty, notice.Notice{Type: notice.Freeze, Duration: 9 * time.Second}, Ignore, false, "within the tolerance",
		},
		"a short live migration is approved at once": {
			hasty, notice.Notice{Type: notice.Freeze, LiveMigration: true, Duration: 5 * time.Second}, Acknowledge, false, "live migration asks for ignore, and is approved",
		},
		"a pause of unknown length is not approved": {
			hasty, notice.Notice{Type: notice.Freeze, LiveMigration: true, Duration: -time.Second}, Ignore, false, "live migration",
		},
		"marked pods are evicted for a short pause": {
			marked, notice.Notice{Type: notice.Freeze, Duration: 5 * time.Second}, DrainMarked, false, "Freeze asks for drain-marked",
		},
		"marked pods are evicted for a pause of unknown length": {
			marked, notice.Notice{Type: notice.Freeze, Duration: -time.Second}, DrainMarked, false, "drain-marked",
		},
		"marked pods stay for a pause without impact": {marked, notice.Notice{Type: notice.Freeze}, Ignore, false, "within the tolerance"},
		"marked pods are evicted for a live migration": {
			marked, notice.Notice{Type: notice.Freeze, LiveMigration: true}, DrainMarked, false, "live migration asks for drain-marked",
		},
		"a rebalance recommendation cordons": {
			DefaultNoticePolicy(), notice.Notice{Type: notice.Rebalance, NotBefore: epoch}, Cordon, false, "Rebalance asks for cordon, without a deadline",
		},
		"the period of a notice replaces its type's": {
			DefaultNoticePolicy(), notice.Notice{Type: notice.Terminate, NoticePeriod: time.Hour}, Drain, true, "minimum notice of Terminate applies: 1h0m0s",
		},
		"a condition has the action of its rule": {
			sick, notice.Notice{Type: notice.Condition, ID: "KernelDeadlock"}, Drain, false, "condition KernelDeadlock asks for drain, without a deadline",
		},
		"a condition without a rule is ignored": {
			sick, notice.Notice{Type: notice.Condition, ID: "Ready"}, Ignore, false, "no action is configured for condition Ready",
		},
		"an unconfirmed hint is not a reboot": {
			sick, notice.Notice{Type: notice.Condition, ID: "RebootScheduled"}, Cordon, false, "condition RebootScheduled asks for cordon",
		},
		"a type without an action is ignored": {NoticePolicy{}, notice.Notice{Type: notice.Reboot}, Ignore, true, "no action is configured"},
	} {
		t.Run(name, func(t *testing.T) {
			d := tt.impact.Decide(tt.notice, SeenTimes{First: epoch})
			if d.Action != tt.action || d.Forced != tt.forced || !strings.Contains(d.Reason, tt.reason) {
				t.Errorf("decided %+v, want %s, forced %t, because of %q", d, tt.action, tt.forced, tt.reason)
			}
		})
	}
}

func TestDeadlineComesFromNotBeforeOrMinimumNotice(t *testing.T) {
	s := SeenTimes{First: epoch, Started: epoch.Add(time.Minute)}
	for name, tt := range map[string]struct {
		notice notice.Notice
		want   time.Time
	}{
		"NotBefore gives the deadline":          {notice.Notice{Type: notice.Preempt, NotBefore: epoch.Add(25 * time.Second)}, epoch.Add(25 * time.Second)},
		"no NotBefore, so the type's minimum":   {notice.Notice{Type: notice.Preempt}, epoch.Add(30 * time.Second)},
		"no NotBefore on a redeploy":            {notice.Notice{Type: notice.Redeploy}, epoch.Add(10 * time.Minute)},
		"NotBefore in the past, so the minimum": {notice.Notice{Type: notice.Reboot, NotBefore: epoch.Add(-time.Hour)}, epoch.Add(15 * time.Minute)},
		"a clock that is ahead": {
			notice.Notice{Type: notice.Preempt, NotBefore: epoch.Add(-575 * time.Second), ClockAhead: 10 * time.Minute}, epoch.Add(25 * time.Second),
		},
		"a clock that is behind": {
			notice.Notice{Type: notice.Preempt, NotBefore: epoch.Add(625 * time.Second), ClockAhead: -10 * time.Minute}, epoch.Add(25 * time.Second),
		},
		"begun early":                 {notice.Notice{Type: notice.Redeploy, NotBefore: epoch.Add(2 * time.Hour), HasBegun: true}, epoch.Add(11 * time.Minute)},
		"begun just before NotBefore": {notice.Notice{Type: notice.Redeploy, NotBefore: epoch.Add(5 * time.Minute), HasBegun: true}, epoch.Add(5 * time.Minute)},
		"started, counted from when first seen as started": {notice.Notice{Type: notice.Reboot, Status: notice.Started}, epoch.Add(time.Minute + startedDrainTime)},
	} {
		t.Run(name, func(t *testing.T) {
			if d := DefaultNoticePolicy().Decide(tt.notice, s); !d.Deadline.Equal(tt.want) {
				t.Errorf("deadline %s (%s), want %s", d.Deadline, d.Reason, tt.want)
			}
		})
	}
}

// A restarted agent decides again from the recorded notice, and must reach the same decision (I8).
func TestI8DecidingTwiceGivesTheSameAnswer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := notice.Notice{
			Type:          rapid.SampledFrom(notice.Interruptions()).Draw(t, "type"),
			Status:        rapid.SampledFrom([]notice.Status{notice.Scheduled, notice.Started}).Draw(t, "status"),
			Duration:      time.Duration(rapid.IntRange(-1, 100).Draw(t, "seconds")) * time.Second,
			LiveMigration: rapid.Bool().Draw(t, "live"),
		}
		if rapid.Bool().Draw(t, "has NotBefore") {
			n.NotBefore = epoch.Add(time.Duration(rapid.IntRange(-600, 600).Draw(t, "notBefore")) * time.Second)
		}
		s := SeenTimes{First: epoch, Started: epoch.Add(time.Second)}
		a, b := DefaultNoticePolicy().Decide(n, s), DefaultNoticePolicy().Decide(n, s)
		must.Not(t, a != b, "%+v, then %+v", a, b)
		must.Not(t, a.Deadline.IsZero() || a.Reason == "", "no deadline or no reason: %+v", a)
		must.Not(t, a.Deadline.Before(s.First), "deadline %s before the notice was seen", a.Deadline)
	})
}

// After a reboot or a pause the kubelet restarts the pods it finds. So a pod without a controller must not be
// deleted, because nothing would replace it. An instance that is deleted takes the pod with it, so there the pod must
// be evicted.
func TestUnmanagedPodsStayWhereTheInstanceReturns(t *testing.T) {
	for kind, want := range map[notice.Type]podrules.Action{
		notice.Freeze: podrules.Skip, notice.Reboot: podrules.Skip, notice.Condition: podrules.Skip,
		notice.Redeploy: podrules.Evict, notice.Preempt: podrules.Evict, notice.Terminate: podrules.Evict,
	} {
		check.Is(t, want, policyForType(kind).ActionFor(podrules.RuleUnmanaged), kind)
		check.Is(t, podrules.Skip, policyForType(kind).ActionFor(podrules.RuleDaemonSet), kind)
	}
}

// After the deadline a drain is repeated every 10 s while pods are left.
func TestUnchangedRetryAfterTheDeadlineIsNotReported(t *testing.T) {
	var log bytes.Buffer
	registry := observe.NewRegistry()
	a := New(Options{
		Node: "n", Metrics: NewMetrics(registry), Log: slog.New(slog.NewJSONHandler(&log, nil)),
	})
	endDrain := func(deadline time.Time, end drain.PodEnd) int {
		log.Reset()
		a.drain = &drainRun{cancel: func(error) {}, spec: drainSpec{terms: drain.TimeLimits{Deadline: deadline}}}
		a.recordFailedDrain(a.drain, drain.Report{
			Outcome: drain.DeadlinePassed, Pods: []drain.PodReport{{UID: "u", Action: podrules.Evict, Removal: drain.Evicted, End: end}},
		}, errors.New("1 pod left"))
		return strings.Count(log.String(), "\n")
	}
	const reported = 3 // lines: the end of the drain, its report, and the pod
	check.Is(t, reported, endDrain(time.Now(), drain.StillPresent), "at the deadline")
	check.Is(t, 0, endDrain(a.extension.until, drain.StillPresent), "a retry")
	check.Is(t, 0, endDrain(a.extension.until, drain.StillPresent), "another retry")
	check.Is(t, reported, endDrain(a.extension.until, drain.Killed), "a retry in which a pod was killed")
	check.Is(t, 0, endDrain(a.extension.until, drain.Killed), "the next retry")
	check.Is(t, reported, endDrain(time.Now().Add(time.Hour), drain.Killed), "the deadline of another notice")
	check.Not(t, !strings.Contains(scrape(t, registry), `slipway_drains_total{outcome="deadline-passed"} 3`+"\n"), "want 3 drains in the metrics")
}

// The instance outlives its deadline, and the agent may not delete the pod.
func TestRetriesAfterTheDeadlineRepeatNoEvent(t *testing.T) {
	withTestNode(t, time.Second, func(t *testing.T, m *testNode) {
		m.denyEvictions("web")
		m.faults.set(fault{code: 403}, "delete pods")
		m.startAgent(t, 0, nil)
		m.source.setNotices(newNotice(notice.Reboot, "r", 20*time.Minute))
		time.Sleep(25 * time.Minute)
		failed, blocked := m.countEvents(DrainFailed), m.countEvents(DrainBlocked)
		check.Not(t, failed == 0 || blocked == 0, "%d Events DrainFailed, %d DrainBlocked; want both", failed, blocked)
		time.Sleep(time.Hour)
		check.Is(t, failed, m.countEvents(DrainFailed), "an hour later")
		check.Is(t, blocked, m.countEvents(DrainBlocked), "an hour later")
		check.Not(t, !strings.Contains(m.drainConditionMessage(), "0 of 1 gone"), "the condition is %q", m.drainConditionMessage())
	})
}

// A surge lets the pod wait for something else in between.
func TestPodBlockedAgainIsReportedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := New(Options{Node: "n", Metrics: NewMetrics(observe.NewRegistry()), Log: slog.New(slog.DiscardHandler)})
		run := &drainRun{}
		report := a.newProgressHandler(run)
		for range 2 {
			report(drain.Progress{Listed: true, RemainingPods: []drain.BlockedPod{{Pod: "web", Reason: drain.ObstaclePDB, PDB: "shop/web"}}})
			check.Not(t, run.blocked.Load() == nil, "the pod is blocked")
			time.Sleep(time.Minute)
			report(drain.Progress{Listed: true, RemainingPods: []drain.BlockedPod{{Pod: "web", Reason: drain.ObstacleSurge}}})
			check.Not(t, run.blocked.Load() != nil, "the pod only waits for its successor")
			time.Sleep(time.Minute)
		}
	})
}
