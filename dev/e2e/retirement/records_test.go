package retirement_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// records holds the last state of all NodeRetirements, from a watch that the package's tests share.
type records struct {
	mu      sync.Mutex
	known   map[string]*v1alpha1.NodeRetirement
	seen    map[string][]*v1alpha1.NodeRetirement // all states of each, in order
	changed map[string]chan struct{}              // closed at the next change of that retirement
}

// get returns a NodeRetirement, or nil if it is unknown. It also returns a channel that closes at the next change.
func (r *records) get(name string) (*v1alpha1.NodeRetirement, <-chan struct{}) {
	_, known, changed := r.history(name)
	return known, changed
}

// history returns the same as get, and all states seen so far.
func (r *records) history(name string) ([]*v1alpha1.NodeRetirement, *v1alpha1.NodeRetirement, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changed[name] == nil {
		r.changed[name] = make(chan struct{})
	}
	return slices.Clone(r.seen[name]), r.known[name], r.changed[name]
}

func (r *records) apply(e watch.Event) {
	rt, ok := e.Object.(*v1alpha1.NodeRetirement)
	if !ok {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known[rt.Name] = rt
	r.seen[rt.Name] = append(r.seen[rt.Name], rt)
	if e.Type == watch.Deleted {
		delete(r.known, rt.Name)
	}
	if changed := r.changed[rt.Name]; changed != nil {
		close(changed)
		delete(r.changed, rt.Name)
	}
}

// follow watches until ctx ends. A new watch begins with all existing objects.
func (r *records) follow(ctx context.Context, from client.WithWatch) {
	for ctx.Err() == nil {
		w, err := from.Watch(ctx, &v1alpha1.NodeRetirementList{})
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
			continue
		}
		for e := range w.ResultChan() {
			r.apply(e)
		}
	}
}

// access is the administrator's access of the tests to Slipway's objects.
type access struct {
	client  client.WithWatch
	records *records
}

// newAccess watches the NodeRetirements until ctx ends.
func newAccess(ctx context.Context, config *rest.Config) (*access, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	a := &access{records: &records{
		known: map[string]*v1alpha1.NodeRetirement{}, seen: map[string][]*v1alpha1.NodeRetirement{}, changed: map[string]chan struct{}{},
	}}
	var err error
	if a.client, err = client.NewWithWatch(config, client.Options{Scheme: scheme}); err != nil {
		return nil, err
	}
	go a.records.follow(ctx, a.client)
	return a, nil
}

// objects returns a client for Slipway's objects.
func (f *fixture) objects() client.Client { return f.access.client }

func (f *fixture) records() *records { return f.access.records }
