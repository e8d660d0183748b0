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

// announceEvent announces an event and prints it. The account's seconds count from then. After ctx has ended it announces
// nothing.
func (s *stage) announceEvent(ctx context.Context, a *stepOutput, announcement azure.Announcement, say string, args ...any) (azure.EventRecord, error) {
	if ctx.Err() != nil {
		return azure.EventRecord{}, context.Cause(ctx)
	}
	r, err := s.Azure.Announce(announcement) //nolint:contextcheck // an event outlives its announcer
	if err != nil {
		return r, err
	}
	a.startTime = r.VisibleAt
	a.print(r.VisibleAt, say, args...)
	return r, nil
}

// cordonOwner returns the owner of the agents' cordon claim for an event.
func cordonOwner(r azure.EventRecord) string { return "azure-" + r.EventID }

func isSlipwayKey(key string) bool {
	return strings.HasPrefix(key, "cordon.slipway.dev/") || strings.HasPrefix(key, "notice.slipway.dev/")
}

// slipwayMarks lists what Slipway set on a node apart from the cordon.
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

// awaitCordon waits until a node is cordoned for an event.
func (s *stage) awaitCordon(ctx context.Context, m machine, r azure.EventRecord) (time.Time, error) {
	_, err := s.AwaitNode(ctx, m.node(), "cordoned by its agent", func(n *corev1.Node) bool {
		return n.Spec.Unschedulable && n.Annotations[cordon.AnnotationKey(cordonOwner(r))] != ""
	})
	return time.Now(), err
}

// awaitNodeRestored waits until a node is schedulable and has no marks of Slipway.
func (s *stage) awaitNodeRestored(ctx context.Context, m machine) (time.Time, error) {
	_, err := s.AwaitNode(ctx, m.node(), "uncordoned and without marks of Slipway", func(n *corev1.Node) bool {
		return !n.Spec.Unschedulable && len(slipwayMarks(n)) == 0
	})
	return time.Now(), err
}

// awaitApproval waits until an event is approved.
func (s *stage) awaitApproval(ctx context.Context, r azure.EventRecord) (azure.EventRecord, error) {
	return s.AwaitNotice(ctx, r.EventID, "acknowledged", func(r azure.EventRecord) bool { return len(r.Approvals) > 0 })
}

// awaitEventVanished waits until an event has vanished.
func (s *stage) awaitEventVanished(ctx context.Context, r azure.EventRecord) (azure.EventRecord, error) {
	return s.AwaitNotice(ctx, r.EventID, "over", func(r azure.EventRecord) bool { return !r.IsListed() })
}

// awaitPowerChange waits until an event has switched all its machines off, or on, and returns the time of the last change.
func (s *stage) awaitPowerChange(ctx context.Context, r azure.EventRecord, on bool) (time.Time, error) {
	var last time.Time
	_, err := s.AwaitNotice(ctx, r.EventID, "in effect", func(r azure.EventRecord) bool {
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

// podsOn lists the running pods on a machine that must be evicted.
func (s *stage) podsOn(m machine) []azure.Pod {
	return slices.DeleteFunc(s.Pods.Pods(), func(p azure.Pod) bool {
		return p.Node != m.node() || p.StayReason != "" || !p.EndedAt.IsZero()
	})
}

// podsOfApp returns the pods of an app.
func podsOfApp(app workload.App, pods []azure.Pod) []azure.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(p azure.Pod) bool { return !isPodOfApp(app, p.Name) })
}

// isPodOfApp reports whether a pod belongs to an app, by its name.
func isPodOfApp(app workload.App, pod string) bool { return strings.HasPrefix(pod, app.Name+"-") }

// currentPods returns the current records of the same pods.
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

// latestTime returns the latest of the pods' times.
func latestTime(pods []azure.Pod, timeOf func(azure.Pod) time.Time) time.Time {
	var at time.Time
	for _, p := range pods {
		if timeOf(p).After(at) {
			at = timeOf(p)
		}
	}
	return at
}

// awaitPods waits until n of the pods match, and returns the current records of all.
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

// countReadyPods counts the Ready pods of some apps on all machines except one, and these machines.
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

// awaitReplacements waits until n pods of the apps run on other machines.
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

// ledgerTimeout is the maximum lag of the ledger, which learns of pods through a watch. The wait does not change the result,
// because the ledger uses the times of the events.
const ledgerTimeout = 2 * time.Minute

// checkOutcomes waits until the ledger of an event has the expected outcome for each pod and no other pods.
func (s *stage) checkOutcomes(ctx context.Context, r azure.EventRecord, expected map[azure.Outcome]int) error {
	var l azure.EventLedger
	found := func() map[azure.Outcome]int {
		counts := map[azure.Outcome]int{}
		l, _ = s.Azure.Ledger().Event(r.EventID)
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

// badOutcomes lists the pods with a bad outcome.
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

// formatEarliness returns how early an event was approved.
func formatEarliness(r azure.EventRecord) string {
	return r.NotBefore.Sub(r.Approvals[0].At).Round(time.Second).String()
}
