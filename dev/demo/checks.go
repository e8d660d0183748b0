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

// announce announces an event and prints it. The account's seconds count from then. After ctx has ended it announces
// nothing.
func (s *stage) announce(ctx context.Context, a *account, announcement azure.Announcement, say string, args ...any) (azure.Record, error) {
	if ctx.Err() != nil {
		return azure.Record{}, context.Cause(ctx)
	}
	r, err := s.Azure.Announce(announcement) //nolint:contextcheck // an event outlives its announcer
	if err != nil {
		return r, err
	}
	a.began = r.VisibleAt
	a.say(r.VisibleAt, say, args...)
	return r, nil
}

// owner returns the owner of the agents' cordon claim for an event.
func owner(r azure.Record) string { return "azure-" + r.EventID }

func ourPrefix(key string) bool {
	return strings.HasPrefix(key, "cordon.slipway.dev/") || strings.HasPrefix(key, "notice.slipway.dev/")
}

// leftovers lists what Slipway set on a node apart from the cordon.
func leftovers(n *corev1.Node) []string {
	var left []string
	for _, keys := range []map[string]string{n.Annotations, n.Labels} {
		left = append(left, slices.DeleteFunc(slices.Sorted(maps.Keys(keys)), func(k string) bool { return !ourPrefix(k) })...)
	}
	for _, c := range n.Status.Conditions {
		if c.Reason == "Slipway" {
			left = append(left, "condition "+string(c.Type))
		}
	}
	return left
}

// cordoned waits until a node is cordoned for an event.
func (s *stage) cordoned(ctx context.Context, m machine, r azure.Record) (time.Time, error) {
	_, err := s.AwaitNode(ctx, m.node(), "cordoned by its agent", func(n *corev1.Node) bool {
		return n.Spec.Unschedulable && n.Annotations[cordon.AnnotationKey(owner(r))] != ""
	})
	return time.Now(), err
}

// givenBack waits until a node is schedulable and has no marks of Slipway.
func (s *stage) givenBack(ctx context.Context, m machine) (time.Time, error) {
	_, err := s.AwaitNode(ctx, m.node(), "uncordoned and without marks of Slipway", func(n *corev1.Node) bool {
		return !n.Spec.Unschedulable && len(leftovers(n)) == 0
	})
	return time.Now(), err
}

// approved waits until an event is approved.
func (s *stage) approved(ctx context.Context, r azure.Record) (azure.Record, error) {
	return s.AwaitNotice(ctx, r.EventID, "acknowledged", func(r azure.Record) bool { return len(r.Approvals) > 0 })
}

// over waits until an event has vanished.
func (s *stage) over(ctx context.Context, r azure.Record) (azure.Record, error) {
	return s.AwaitNotice(ctx, r.EventID, "over", func(r azure.Record) bool { return !r.Listed() })
}

// switched waits until an event has switched all its machines off, or on, and returns the time of the last change.
func (s *stage) switched(ctx context.Context, r azure.Record, on bool) (time.Time, error) {
	var last time.Time
	_, err := s.AwaitNotice(ctx, r.EventID, "in effect", func(r azure.Record) bool {
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

// on lists the running pods on a machine that must be evicted.
func (s *stage) on(m machine) []azure.Pod {
	return slices.DeleteFunc(s.Pods.Pods(), func(p azure.Pod) bool {
		return p.Node != m.node() || p.Stays != "" || !p.EndedAt.IsZero()
	})
}

// of returns the pods of an app.
func of(app workload.App, pods []azure.Pod) []azure.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(p azure.Pod) bool { return !isOf(app, p.Name) })
}

// isOf reports whether a pod belongs to an app, by its name.
func isOf(app workload.App, pod string) bool { return strings.HasPrefix(pod, app.Name+"-") }

// now returns the current records of the same pods.
func (s *stage) now(pods []azure.Pod) []azure.Pod {
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

func asked(p azure.Pod) bool { return !p.AskedSeenAt.IsZero() }
func ended(p azure.Pod) bool { return !p.EndedAt.IsZero() }

func endedAt(p azure.Pod) time.Time { return p.EndedAt }

func count(pods []azure.Pod, is func(azure.Pod) bool) int {
	n := 0
	for _, p := range pods {
		if is(p) {
			n++
		}
	}
	return n
}

// last returns the latest of the pods' times.
func last(pods []azure.Pod, timeOf func(azure.Pod) time.Time) time.Time {
	var at time.Time
	for _, p := range pods {
		if timeOf(p).After(at) {
			at = timeOf(p)
		}
	}
	return at
}

// await waits until n of the pods match, and returns the current records of all.
func (s *stage) await(ctx context.Context, pods []azure.Pod, n int, state string, matches func(azure.Pod) bool) ([]azure.Pod, error) {
	err := testbed.Poll(ctx, fmt.Sprintf("%d of %d pods %s", n, len(pods), state), func() bool {
		pods = s.now(pods)
		return count(pods, matches) >= n
	})
	if err != nil {
		return pods, fmt.Errorf("%w; %d so far", err, count(pods, matches))
	}
	return pods, nil
}

// running counts the Ready pods of some apps on all machines except one, and these machines.
func (s *stage) running(ctx context.Context, except machine, apps ...workload.App) (pods, nodes int, err error) {
	list, err := s.Client().CoreV1().Pods(shop).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, 0, fmt.Errorf("list the pods on other machines: %w", err)
	}
	on := map[string]bool{}
	for _, p := range list.Items {
		mine := slices.ContainsFunc(apps, func(a workload.App) bool { return p.Labels[workload.AppLabel] == a.Name })
		if mine && p.DeletionTimestamp == nil && p.Spec.NodeName != except.node() && ready(&p) {
			pods++
			on[p.Spec.NodeName] = true
		}
	}
	return pods, len(on), nil
}

func ready(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// replaced waits until n pods of the apps run on other machines.
func (s *stage) replaced(ctx context.Context, m machine, n int, apps ...workload.App) error {
	var pods int
	var err error
	waiting := testbed.Poll(ctx, fmt.Sprintf("%d pods run on other machines", n), func() bool {
		pods, _, err = s.running(ctx, m, apps...)
		return err == nil && pods == n
	})
	if waiting != nil {
		return fmt.Errorf("%w (%d so far; %w)", waiting, pods, err)
	}
	return nil
}

// bookTime is the maximum lag of the ledger, which learns of pods through a watch. The wait does not change the result,
// because the ledger uses the times of the events.
const bookTime = 2 * time.Minute

// fates waits until the ledger of an event has the expected outcome for each pod and no other pods.
func (s *stage) fates(ctx context.Context, r azure.Record, expected map[azure.Outcome]int) error {
	var l azure.EventLedger
	found := func() map[azure.Outcome]int {
		counts := map[azure.Outcome]int{}
		l, _ = s.Azure.Ledger().Event(r.EventID)
		for _, e := range l.Pods {
			counts[e.Outcome]++
		}
		return counts
	}
	ctx, cancel := context.WithTimeout(ctx, bookTime)
	defer cancel()
	_ = testbed.Poll(ctx, "the ledger is settled", func() bool { return maps.Equal(found(), expected) })
	return all(
		expect(maps.Equal(found(), expected), fmt.Sprintf("in the ledger: %v", expected), "%s%s", l.Summary(testbed.CutTolerance), worst(l)),
		expect(len(l.CutWithTimeLeft(testbed.CutTolerance)) == 0, "no pod cut short with time left", "%v",
			l.CutWithTimeLeft(testbed.CutTolerance)),
	)
}

// worst lists the pods with a bad outcome.
func worst(l azure.EventLedger) string {
	var b strings.Builder
	for _, e := range l.Pods {
		if e.Outcome != azure.OutcomeFinished && e.Outcome != azure.OutcomeStayed {
			fmt.Fprintf(&b, "; %s was %s", e.Name, e.Outcome)
		}
	}
	return b.String()
}

func clock(t time.Time) string { return t.Local().Format(time.TimeOnly) }

// early returns how early an event was approved.
func early(r azure.Record) string {
	return r.NotBefore.Sub(r.Approvals[0].At).Round(time.Second).String()
}
