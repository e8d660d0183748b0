package retirement_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// records are the NodeRetirements as a watch of all of them, which the package's tests share, has last seen them.
type records struct {
	mu      sync.Mutex
	known   map[string]*v1alpha1.NodeRetirement
	changed map[string]chan struct{} // closed at the next change of the one
}

// get gives a NodeRetirement, nil when none is known, and a channel that is closed when that changes.
func (r *records) get(name string) (*v1alpha1.NodeRetirement, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changed[name] == nil {
		r.changed[name] = make(chan struct{})
	}
	return r.known[name], r.changed[name]
}

func (r *records) learn(e watch.Event) {
	rt, ok := e.Object.(*v1alpha1.NodeRetirement)
	if !ok {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known[rt.Name] = rt
	if e.Type == watch.Deleted {
		delete(r.known, rt.Name)
	}
	if changed := r.changed[rt.Name]; changed != nil {
		close(changed)
		delete(r.changed, rt.Name)
	}
}

// follow watches until ctx ends. A new watch begins with all there are.
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
			r.learn(e)
		}
	}
}

// shared is what all tests read and write with, as the administrator.
var shared struct {
	sync.Once
	client  client.WithWatch
	records *records
	err     error
}

func (b bed) share(t testing.TB) {
	t.Helper()
	shared.Do(func() {
		scheme := runtime.NewScheme()
		if shared.err = errors.Join(corev1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); shared.err != nil {
			return
		}
		shared.client, shared.err = client.NewWithWatch(b.RESTConfig(), client.Options{Scheme: scheme})
		shared.records = &records{known: map[string]*v1alpha1.NodeRetirement{}, changed: map[string]chan struct{}{}}
		if shared.err == nil {
			go shared.records.follow(b.Background(), shared.client)
		}
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
}

// objects reads and writes Slipway's objects.
func (f *fixture) objects() client.Client {
	f.share(f.t)
	return shared.client
}

func (f *fixture) followed() *records {
	f.share(f.t)
	return shared.records
}
