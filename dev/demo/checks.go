package demo

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
	"github.com/slipway-dev/slipway/internal/cordon"
)

// announce announces an interruption of a machine, and prints what the cloud has announced and the text say. The seconds
// in the step's output count from this time. If ctx has ended, announce announces nothing.
func (s *stage) announce(ctx context.Context, a *stepOutput, what interruption, m machine, say string, args ...any) (azure.EventRecord, error) {
	return a.printAnnouncement(ctx, func() (azure.EventRecord, string, error) {
		r, text, err := s.cloud.announce(what, m)
		return r, text + ". " + fmt.Sprintf(say, args...), err
	})
}

// announceEvent announces an event of Azure, as announce does.
func (s *stage) announceEvent(ctx context.Context, a *stepOutput, announcement azure.Announcement, say string, args ...any) (azure.EventRecord, error) {
	return a.printAnnouncement(ctx, func() (azure.EventRecord, string, error) { //nolint:contextcheck // an event outlives its announcer
		r, err := s.Azure.Announce(announcement)
		return r, fmt.Sprintf(say, args...), err
	})
}

func (a *stepOutput) printAnnouncement(ctx context.Context, announce func() (azure.EventRecord, string, error)) (azure.EventRecord, error) {
	if ctx.Err() != nil {
		return azure.EventRecord{}, context.Cause(ctx)
	}
	r, text, err := announce()
	if err != nil {
		return r, err
	}
	a.startTime = r.VisibleAt
	a.print(r.VisibleAt, "%s", text)
	return r, nil
}

// cordonOwner returns the owner name in the agents' cordon claim for an event of Azure.
func cordonOwner(r azure.EventRecord) string { return "azure-" + r.EventID }

func isSlipwayKey(key string) bool {
	return strings.HasPrefix(key, "cordon.slipway.dev/") || strings.HasPrefix(key, "notice.slipway.dev/")
}

// slipwayMarks lists the annotations, labels and conditions that Slipway has set on a node. It does not include the
// cordon.
func slipwayMarks(n *corev1.Node) []string {
	var left []string
	for _, keys := range []map[string]string{n.Annotations, n.Labels} {
		left = append(left, slices.DeleteFunc(slices.Sorted(maps.Keys(keys)), func(k string) bool { return !isSlipwayKey(k) })...)
	}
	for _, c := range n.Status.Conditions {
		if c.Reason == "Slipway" {
			left = append(left, "condition "+string(c.Type))
		}
	}
	return left
}

// awaitCordon waits until the agent has cordoned a node for an event, and returns the time.
func (s *stage) awaitCordon(ctx context.Context, m machine, r azure.EventRecord) (time.Time, error) {
	claim := cordon.AnnotationKey(s.cloud.claimOwner(r))
	_, err := s.AwaitNode(ctx, m.node(), "cordoned by its agent", func(n *corev1.Node) bool {
		return n.Spec.Unschedulable && slices.ContainsFunc(slices.Collect(maps.Keys(n.Annotations)), func(key string) bool {
			return strings.HasPrefix(key, claim)
		})
	})
	return time.Now(), err
}

// awaitNodeRestored waits until a node is schedulable and slipwayMarks finds nothing on it. It returns the time.
func (s *stage) awaitNodeRestored(ctx context.Context, m machine) (time.Time, error) {
	_, err := s.AwaitNode(ctx, m.node(), "uncordoned and without marks of Slipway", func(n *corev1.Node) bool {
		return !n.Spec.Unschedulable && len(slipwayMarks(n)) == 0
	})
	return time.Now(), err
}

// reportDrained waits until the agent of a machine has finished the drain, and prints what it does then. It returns the
// event.
func (s *stage) reportDrained(ctx context.Context, a *stepOutput, m machine, r azure.EventRecord) (azure.EventRecord, error) {
	does := s.cloud.approval(r)
	if does == "" {
		// The Event stays. The condition on the Node ends with the notice.
		if _, err := s.AwaitEvent(ctx, m.node(), "Drained"); err != nil {
			return r, err
		}
		at := time.Now()
		a.print(at, "the node is drained %s before the announced time", formatEarliness(r, at))
		return r, nil
	}
	r, err := s.awaitApproval(ctx, r)
	if err != nil {
		return r, err
	}
	a.print(r.Approvals[0].At, "the node is drained, and the agent %s %s early", does, formatEarliness(r, r.Approvals[0].At))
	return r, nil
}

// awaitApproval waits until an agent has approved an event, and returns the event.
func (s *stage) awaitApproval(ctx context.Context, r azure.EventRecord) (azure.EventRecord, error) {
	return s.cloud.await(ctx, r, "acknowledged", func(r azure.EventRecord) bool { return len(r.Approvals) > 0 })
}

// awaitEventVanished waits until an event has vanished from the document, and returns the event.
func (s *stage) awaitEventVanished(ctx context.Context, r azure.EventRecord) (azure.EventRecord, error) {
	return s.cloud.await(ctx, r, "over", func(r azure.EventRecord) bool { return !r.IsListed() })
}

// awaitPowerChange waits until an event has switched all its machines off, or on if the argument on is true. It
// returns the time of the last change.
func (s *stage) awaitPowerChange(ctx context.Context, r azure.EventRecord, on bool) (time.Time, error) {
	var last time.Time
	_, err := s.cloud.await(ctx, r, "in effect", func(r azure.EventRecord) bool {
		switched := 0
		for _, p := range r.Power {
			if p.On == on && p.Error == "" {
				switched, last = switched+1, p.At
			}
		}
		return switched == len(r.Resources)
	})
	return last, err
}

// podsOn lists the running pods on a machine, except the pods that a drain does not evict.
func (s *stage) podsOn(m machine) []azure.Pod {
	return slices.DeleteFunc(s.Pods.Pods(), func(p azure.Pod) bool {
		return p.Node != m.node() || p.StayReason != "" || !p.EndedAt.IsZero()
	})
}

// podsOfApp returns the pods that belong to an app.
func podsOfApp(app workload.App, pods []azure.Pod) []azure.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(p azure.Pod) bool { return !isPodOfApp(app, p.Name) })
}

// isPodOfApp reports whether the name of a pod begins with the name of an app.
func isPodOfApp(app workload.App, pod string) bool { return strings.HasPrefix(pod, app.Name+"-") }

// currentPods returns the current records of the given pods.
func (s *stage) currentPods(pods []azure.Pod) []azure.Pod {
	there := map[types.UID]azure.Pod{}
	for _, p := range s.Pods.Pods() {
		there[p.UID] = p
	}
	current := make([]azure.Pod, len(pods))
	for i, p := range pods {
		current[i] = there[p.UID]
	}
	return current
}

func wasDeleted(p azure.Pod) bool { return !p.DeletionSeenAt.IsZero() }
func hasEnded(p azure.Pod) bool   { return !p.EndedAt.IsZero() }

func endTime(p azure.Pod) time.Time { return p.EndedAt }

func countPods(pods []azure.Pod, matches func(azure.Pod) bool) int {
	n := 0
	for _, p := range pods {
		if matches(p) {
			n++
		}
	}
	return n
}

// latestTime returns the latest of the times that timeOf returns for the pods.
func latestTime(pods []azure.Pod, timeOf func(azure.Pod) time.Time) time.Time {
	var at time.Time
	for _, p := range pods {
		if timeOf(p).After(at) {
			at = timeOf(p)
		}
	}
	return at
}

// awaitPods waits until matches returns true for n of the pods. It returns the current records of all given pods.
func (s *stage) awaitPods(ctx context.Context, pods []azure.Pod, n int, state string, matches func(azure.Pod) bool) ([]azure.Pod, error) {
	err := testbed.PollUntil(ctx, fmt.Sprintf("%d of %d pods %s", n, len(pods), state), func() bool {
		pods = s.currentPods(pods)
		return countPods(pods, matches) >= n
	})
	if err != nil {
		return pods, fmt.Errorf("%w; %d so far", err, countPods(pods, matches))
	}
	return pods, nil
}

// countReadyPods returns the number of Ready pods of some apps, and the number of nodes with these pods. It does not
// count pods on the machine given as except.
func (s *stage) countReadyPods(ctx context.Context, except machine, apps ...workload.App) (pods, nodes int, err error) {
	list, err := s.Client().CoreV1().Pods(shop).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, 0, fmt.Errorf("list the pods on other machines: %w", err)
	}
	on := map[string]bool{}
	for _, p := range list.Items {
		mine := slices.ContainsFunc(apps, func(a workload.App) bool { return p.Labels[workload.AppLabel] == a.Name })
		if mine && p.DeletionTimestamp == nil && p.Spec.NodeName != except.node() && isReady(&p) {
			pods++
			on[p.Spec.NodeName] = true
		}
	}
	return pods, len(on), nil
}

func isReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// awaitReplacements waits until n Ready pods of the apps are on other machines than m.
func (s *stage) awaitReplacements(ctx context.Context, m machine, n int, apps ...workload.App) error {
	var pods int
	var err error
	waiting := testbed.PollUntil(ctx, fmt.Sprintf("%d pods run on other machines", n), func() bool {
		pods, _, err = s.countReadyPods(ctx, m, apps...)
		return err == nil && pods == n
	})
	if waiting != nil {
		return fmt.Errorf("%w (%d so far; %w)", waiting, pods, err)
	}
	return nil
}

// ledgerTimeout is how long a step waits for the ledger, which learns of pods with a delay through a watch. The wait
// does not change the outcomes, because the ledger uses the times of the events.
const ledgerTimeout = 2 * time.Minute

// checkOutcomes waits until the ledger of an event has exactly the expected number of pods with each outcome. If
// this takes too long, it returns an error.
func (s *stage) checkOutcomes(ctx context.Context, r azure.EventRecord, expected map[azure.Outcome]int) error {
	var l azure.EventLedger
	found := func() map[azure.Outcome]int {
		counts := map[azure.Outcome]int{}
		l = s.cloud.ledger(r)
		for _, e := range l.Pods {
			counts[e.Outcome]++
		}
		return counts
	}
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	_ = testbed.PollUntil(ctx, "the ledger is settled", func() bool { return maps.Equal(found(), expected) })
	return firstError(
		checkExpectation(maps.Equal(found(), expected), fmt.Sprintf("in the ledger: %v", expected), "%s%s", l.Summary(testbed.CutTolerance), badOutcomes(l)),
		checkExpectation(len(l.PodsKilledWithTimeLeft(testbed.CutTolerance)) == 0, "no pod cut short with time left", "%v",
			l.PodsKilledWithTimeLeft(testbed.CutTolerance)),
	)
}

// badOutcomes returns text that lists the pods with a bad outcome.
func badOutcomes(l azure.EventLedger) string {
	var b strings.Builder
	for _, e := range l.Pods {
		if e.Outcome != azure.OutcomeFinished && e.Outcome != azure.OutcomeStayed {
			fmt.Fprintf(&b, "; %s was %s", e.Name, e.Outcome)
		}
	}
	return b.String()
}

func formatTime(t time.Time) string { return t.Local().Format(time.TimeOnly) }

// formatEarliness returns how long the time at is before an event's NotBefore.
func formatEarliness(r azure.EventRecord, at time.Time) string {
	return r.NotBefore.Sub(at).Round(time.Second).String()
}
