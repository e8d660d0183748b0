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

// announce has Azure announce an event, from which the account's seconds count, and tells of it. Nothing is announced
// any more once ctx has ended.
func (s *stage) announce(ctx context.Context, a *account, what azure.Announcement, say string, args ...any) (azure.Record, error) {
	if ctx.Err() != nil {
		return azure.Record{}, context.Cause(ctx)
	}
	r, err := s.Azure.Announce(what) //nolint:contextcheck // an event outlives whoever announces it
	if err != nil {
		return r, err
	}
	a.began = r.VisibleAt
	a.say(r.VisibleAt, say, args...)
	return r, nil
}

// owner is the name under which the agents hold a node on account of an event.
func owner(r azure.Record) string { return "azure-" + r.EventID }

func ourPrefix(key string) bool {
	return strings.HasPrefix(key, "cordon.slipway.dev/") || strings.HasPrefix(key, "notice.slipway.dev/")
}

// leftovers lists what Slipway left on a node that it does not hold.
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

// cordoned waits until a node is held on account of an event.
func (s *stage) cordoned(ctx context.Context, m machine, r azure.Record) (time.Time, error) {
	_, err := s.AwaitNode(ctx, m.node(), "cordoned by its agent", func(n *corev1.Node) bool {
		return n.Spec.Unschedulable && n.Annotations[cordon.AnnotationKey(owner(r))] != ""
	})
	return time.Now(), err
}

// givenBack waits until a node takes pods again and nothing of Slipway is left on it.
func (s *stage) givenBack(ctx context.Context, m machine) (time.Time, error) {
	_, err := s.AwaitNode(ctx, m.node(), "uncordoned, with nothing of Slipway's left on it", func(n *corev1.Node) bool {
		return !n.Spec.Unschedulable && len(leftovers(n)) == 0
	})
	return time.Now(), err
}

// approved waits until an event is told to begin early.
func (s *stage) approved(ctx context.Context, r azure.Record) (azure.Record, error) {
	return s.AwaitNotice(ctx, r.EventID, "acknowledged", func(r azure.Record) bool { return len(r.Approvals) > 0 })
}

// over waits until an event has vanished.
func (s *stage) over(ctx context.Context, r azure.Record) (azure.Record, error) {
	return s.AwaitNotice(ctx, r.EventID, "over", func(r azure.Record) bool { return !r.Listed() })
}

// switched waits until an event has switched all its machines off, or on, and says when the last was.
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

// on lists the pods that run on a machine and have to leave it before it goes.
func (s *stage) on(m machine) []azure.Pod {
	return slices.DeleteFunc(s.Pods.Pods(), func(p azure.Pod) bool {
		return p.Node != m.node() || p.Stays != "" || !p.EndedAt.IsZero()
	})
}

// of selects the pods of an app.
func of(app workload.App, pods []azure.Pod) []azure.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(p azure.Pod) bool { return !isOf(app, p.Name) })
}

// isOf reports whether a pod of that name is one of an app's.
func isOf(app workload.App, pod string) bool { return strings.HasPrefix(pod, app.Name+"-") }

// now gives the same pods as they are now.
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

// last is the latest of the pods' times.
func last(pods []azure.Pod, of func(azure.Pod) time.Time) time.Time {
	var at time.Time
	for _, p := range pods {
		if of(p).After(at) {
			at = of(p)
		}
	}
	return at
}

// await waits until so many of the pods are as wanted, and gives all of them as they are then.
func (s *stage) await(ctx context.Context, pods []azure.Pod, n int, what string, is func(azure.Pod) bool) ([]azure.Pod, error) {
	err := testbed.Poll(ctx, fmt.Sprintf("%d of %d pods %s", n, len(pods), what), func() bool {
		pods = s.now(pods)
		return count(pods, is) >= n
	})
	if err != nil {
		return pods, fmt.Errorf("%w; %d are", err, count(pods, is))
	}
	return pods, nil
}

// running counts the ready pods of some apps on other machines than one, and those machines.
func (s *stage) running(ctx context.Context, except machine, apps ...workload.App) (pods, nodes int, err error) {
	list, err := s.Client().CoreV1().Pods(shop).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, 0, fmt.Errorf("which pods run elsewhere: %w", err)
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

// replaced waits until as many pods of the apps run on other machines as ran on this one.
func (s *stage) replaced(ctx context.Context, m machine, n int, apps ...workload.App) error {
	var pods int
	var err error
	waiting := testbed.Poll(ctx, fmt.Sprintf("%d pods run on other machines", n), func() bool {
		pods, _, err = s.running(ctx, m, apps...)
		return err == nil && pods == n
	})
	if waiting != nil {
		return fmt.Errorf("%w (%d do; %w)", waiting, pods, err)
	}
	return nil
}

// bookTime is for how long the ledger may lag behind the machines' end: it hears of pods through a watch. Waiting makes
// nothing better than it was, as it judges by the times at which things happened.
const bookTime = 2 * time.Minute

// fates waits until the ledger of an event says what became of each pod as expected, and of no other pods.
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
		expect(len(l.CutWithTimeLeft(testbed.CutTolerance)) == 0, "no pod cut short while time remained", "%v",
			l.CutWithTimeLeft(testbed.CutTolerance)),
	)
}

// worst names the pods that did not end well.
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

// early says by how much an event was begun before its time.
func early(r azure.Record) string {
	return r.NotBefore.Sub(r.Approvals[0].At).Round(time.Second).String()
}
