package drain

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// still is an API that never answers.
type still struct{}

func (still) FollowPodsOn(ctx context.Context, _ string, _ kubeapi.Handler[kubeapi.Pod]) error {
	<-ctx.Done()
	return ctx.Err()
}

func (still) ListPodsOn(ctx context.Context, _ string) ([]kubeapi.Pod, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (still) Evict(ctx context.Context, _ kubeapi.Removal) error { <-ctx.Done(); return ctx.Err() }

func (still) DeletePod(ctx context.Context, _ kubeapi.Removal) error { <-ctx.Done(); return ctx.Err() }

func (still) SetDisruptionTarget(ctx context.Context, _ kubeapi.Disruption) error {
	<-ctx.Done()
	return ctx.Err()
}

func (still) FollowBudgets(
	ctx context.Context, _ string, _ kubeapi.Handler[kubeapi.PodDisruptionBudget],
) error {
	<-ctx.Done()
	return ctx.Err()
}

// BenchmarkEvent is what one event of the watch costs the engine while so many pods are on their way out: taking it
// in, deciding, and telling the progress to somebody.
func BenchmarkEvent(b *testing.B) {
	for _, n := range []int{250, 1000} {
		for _, told := range []bool{false, true} {
			b.Run(fmt.Sprintf("pods=%d/progress=%t", n, told), func(b *testing.B) {
				s := newSim()
				o := Options{Node: node, Terms: Terms{Deadline: time.Now().Add(time.Hour)}}
				if told {
					o.OnProgress = func(Progress) {}
				}
				d := New(still{}, o)
				ctx := b.Context()
				now := time.Now()
				d.began, d.since = now, now
				var pods []kubeapi.Pod
				for i := range n {
					p := s.pod(fmt.Sprintf("web-%d", i), in(fmt.Sprintf("team-%d", i%20)), grace(time.Duration(i%7)*time.Minute))
					pods = append(pods, p.Pod)
				}
				d.replace(pods, now)
				d.step(ctx, now)
				for i, p := range d.order {
					if i%2 == 0 {
						p.asked, p.askedAt = Evicted, now
					}
				}
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					d.see(pods[i%n], now)
					d.review(now)
					if _, over := d.outcome(now); over {
						b.Fatal("over")
					}
					d.step(ctx, now)
					d.report()
					i++
				}
				if len(d.pods) != n || d.evictions.inFlight != 32 {
					b.Fatalf("%d pods, %d requests in flight", len(d.pods), d.evictions.inFlight)
				}
			})
		}
	}
}
