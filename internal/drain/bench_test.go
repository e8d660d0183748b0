package drain

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// hangingAPI is an API that never answers.
type hangingAPI struct{}

func (hangingAPI) WatchPodsOnNode(ctx context.Context, _ string, _ kubeapi.Handler[kubeapi.Pod]) error {
	<-ctx.Done()
	return ctx.Err()
}

func (hangingAPI) ListPodsOnNode(ctx context.Context, _ string) ([]kubeapi.Pod, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (hangingAPI) EvictPod(ctx context.Context, _ kubeapi.PodRemoval) error {
	<-ctx.Done()
	return ctx.Err()
}

func (hangingAPI) DeletePod(ctx context.Context, _ kubeapi.PodRemoval) error {
	<-ctx.Done()
	return ctx.Err()
}

func (hangingAPI) SetDisruptionTarget(ctx context.Context, _ kubeapi.PodDisruption) error {
	<-ctx.Done()
	return ctx.Err()
}

func (hangingAPI) WatchPodDisruptionBudgets(
	ctx context.Context, _ string, _ kubeapi.Handler[kubeapi.PodDisruptionBudget],
) error {
	<-ctx.Done()
	return ctx.Err()
}

func (hangingAPI) GetPodGroup(ctx context.Context, _, _ string) (*kubeapi.PodGroup, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// BenchmarkWatchEvent measures what one watch event costs the engine while many pods are terminating: record it,
// decide, and report the progress.
func BenchmarkWatchEvent(b *testing.B) {
	for _, n := range []int{250, 1000} {
		for _, told := range []bool{false, true} {
			b.Run(fmt.Sprintf("pods=%d/progress=%t", n, told), func(b *testing.B) {
				s := newSim()
				o := Options{Node: node, TimeLimits: TimeLimits{Deadline: time.Now().Add(time.Hour)}}
				if told {
					o.OnProgress = func(Progress) {}
				}
				d := New(hangingAPI{}, o)
				ctx := b.Context()
				now := time.Now()
				d.startedAt, d.deadlineSince = now, now
				var pods []kubeapi.Pod
				for i := range n {
					p := s.addPod(fmt.Sprintf("web-%d", i), inNamespace(fmt.Sprintf("team-%d", i%20)), withGrace(time.Duration(i%7)*time.Minute), withOwnerUID(fmt.Sprint(i)))
					pods = append(pods, p.Pod)
				}
				d.replacePods(pods, now)
				d.advanceRemovals(ctx, now)
				for i, p := range d.remaining {
					if i%2 == 0 {
						p.removal, p.removalAt = Evicted, now
					}
				}
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					d.addOrUpdatePod(pods[i%n], now)
					d.applyDueTimers(now)
					if _, over := d.checkOutcome(now); over {
						b.Fatal("over")
					}
					d.advanceRemovals(ctx, now)
					d.reportProgress()
					i++
				}
				if len(d.pods) != n || d.evictions.inFlight != initialConcurrency {
					b.Fatalf("%d pods, %d requests in flight", len(d.pods), d.evictions.inFlight)
				}
			})
		}
	}
}
