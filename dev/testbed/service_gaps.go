package testbed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// ServiceGaps measures for how long the Services of a namespace have no ready endpoint, from a watch of their
// EndpointSlices. The times are those at which the watch gets the events.
type ServiceGaps struct {
	stop context.CancelFunc
	done sync.WaitGroup

	mu      sync.Mutex
	ready   map[string]map[string]int // ready endpoints by Service and EndpointSlice
	since   map[string]time.Time      // start of the present gap of each Service without ready endpoint
	total   map[string]time.Duration
	changed chan struct{} // closed at the next event
	err     error
}

// watchTime is longer than any test or benchmark watches. Without it, the API server ends a watch after 30 to 60 minutes.
const watchTime = 6 * time.Hour

// WatchServiceGaps begins to watch the EndpointSlices of a namespace. It ends with ctx or Stop.
func (t *Testbed) WatchServiceGaps(ctx context.Context, namespace string) (*ServiceGaps, error) {
	ctx, stop := context.WithCancel(ctx)
	seconds := int64(watchTime / time.Second)
	events, err := t.Client().DiscoveryV1().EndpointSlices(namespace).Watch(ctx, metav1.ListOptions{TimeoutSeconds: &seconds})
	if err != nil {
		stop()
		return nil, fmt.Errorf("watching the EndpointSlices of %s: %w", namespace, err)
	}
	g := &ServiceGaps{
		stop: stop, ready: map[string]map[string]int{}, since: map[string]time.Time{}, total: map[string]time.Duration{},
		changed: make(chan struct{}),
	}
	g.done.Go(func() {
		for e := range events.ResultChan() {
			if ctx.Err() == nil { // a cancelled watch may end with an error
				g.record(e, time.Now())
			}
		}
		if ctx.Err() == nil {
			g.fail(errors.New("the watch ended"))
		}
	})
	return g, nil
}

func (g *ServiceGaps) fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err = errors.Join(g.err, err)
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *ServiceGaps) record(e watch.Event, now time.Time) {
	slice, ok := e.Object.(*discoveryv1.EndpointSlice)
	if !ok {
		if e.Type == watch.Error {
			g.fail(fmt.Errorf("the watch failed: %v", e.Object))
		}
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	service := slice.Labels[discoveryv1.LabelServiceName]
	if g.ready[service] == nil {
		g.ready[service] = map[string]int{}
	}
	n := 0
	for _, endpoint := range slice.Endpoints {
		if ready := endpoint.Conditions.Ready; ready == nil || *ready {
			n++
		}
	}
	if g.ready[service][slice.Name] = n; e.Type == watch.Deleted {
		delete(g.ready[service], slice.Name)
	}
	since, gap := g.since[service]
	switch served := g.countReady(service) > 0; {
	case served && gap:
		g.total[service] += now.Sub(since)
		delete(g.since, service)
	case !served && !gap:
		g.since[service] = now
	}
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *ServiceGaps) countReady(service string) (n int) {
	for _, ready := range g.ready[service] {
		n += ready
	}
	return n
}

// AwaitServed waits until n Services have a ready endpoint, and all others of the namespace have none.
func (g *ServiceGaps) AwaitServed(ctx context.Context, n int) error {
	return g.await(ctx, func() error {
		served := 0
		for service := range g.ready {
			if g.countReady(service) > 0 {
				served++
			}
		}
		if served != n {
			return fmt.Errorf("%d Services have a ready endpoint, want %d", served, n)
		}
		return nil
	})
}

// AwaitEndpoints waits until a Service has n ready endpoints.
func (g *ServiceGaps) AwaitEndpoints(ctx context.Context, service string, n int) error {
	return g.await(ctx, func() error {
		if ready := g.countReady(service); ready != n {
			return fmt.Errorf("service %s has %d ready endpoints, want %d", service, ready, n)
		}
		return nil
	})
}

// await waits until check returns nil. It calls check with the lock held.
func (g *ServiceGaps) await(ctx context.Context, check func() error) error {
	for {
		g.mu.Lock()
		differs, changed, err := check(), g.changed, g.err
		g.mu.Unlock()
		if differs == nil || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", differs, context.Cause(ctx))
		}
	}
}

// Reset forgets all gaps so far. A Service without ready endpoint begins a new gap.
func (g *ServiceGaps) Reset() {
	g.mu.Lock()
	defer g.mu.Unlock()
	clear(g.total)
	for service := range g.since {
		g.since[service] = time.Now()
	}
}

// Gaps returns the Services that had no ready endpoint since the last Reset, and for how long in sum.
func (g *ServiceGaps) Gaps() (map[string]time.Duration, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := maps.Clone(g.total)
	for service, since := range g.since {
		all[service] += time.Since(since)
	}
	return all, g.err
}

// Sum returns the sum of the gaps of the Services with the given names, or of all Services if there are none.
func (g *ServiceGaps) Sum(services ...string) (sum time.Duration, err error) {
	gaps, err := g.Gaps()
	for service, gap := range gaps {
		if len(services) == 0 || slices.Contains(services, service) {
			sum += gap
		}
	}
	return sum, err
}

// Stop ends the watch.
func (g *ServiceGaps) Stop() {
	g.stop()
	g.done.Wait()
}
