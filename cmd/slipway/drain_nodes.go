package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// maxConcurrentCordons limits how many nodes are read or cordoned at the same time.
const maxConcurrentCordons = 16

// checkNodesExist returns an error if any of the nodes does not exist. It is called before any node is changed, because
// a misspelt name may mean another node.
func checkNodesExist(ctx context.Context, drains []*nodeDrain) error {
	errs := make([]error, len(drains))
	var group errgroup.Group
	group.SetLimit(maxConcurrentCordons)
	for i, d := range drains {
		group.Go(func() error {
			_, errs[i] = d.api.GetNode(ctx, d.options.Node)
			return nil
		})
	}
	_ = group.Wait() // errors are in errs
	return errors.Join(errs...)
}

// cordonNodes cordons all nodes before the first eviction. So no evicted pod is scheduled on a node that is drained
// next. It stores each error in cordonError of the drain. A timeout other than 0 limits the whole call. A request that
// hangs must not use up the time before the deadline.
func cordonNodes(ctx context.Context, drains []*nodeDrain, timeout time.Duration) {
	if timeout > 0 {
		bounded, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		ctx = bounded
	}
	var group errgroup.Group
	group.SetLimit(maxConcurrentCordons)
	for _, d := range drains {
		group.Go(func() error {
			d.cordonError = d.cordonNode(ctx)
			return nil
		})
	}
	_ = group.Wait() // errors are in the drains
	for _, d := range drains {
		if d.cordonedNode != nil && d.cordonError == nil {
			fmt.Fprintf(d.errOut, "%s: cordoned\n", d.options.Node)
		}
	}
}

// runSequentially calls do for one node after another and returns all errors.
func runSequentially(drains []*nodeDrain, do func(*nodeDrain) error) []error {
	errs := make([]error, len(drains))
	for i, d := range drains {
		errs[i] = do(d)
	}
	return errs
}

// drainConcurrently drains all nodes at the same time, because they share one deadline. On a terminal it shows them in one
// view. It prints the drain reports in the order of the nodes.
func drainConcurrently(ctx context.Context, drains []*nodeDrain, out, stderr io.Writer) []error {
	var mu sync.Mutex
	var view *drainView
	errOut, reportOut := io.Writer(&syncWriter{&mu, stderr}), io.Writer(&syncWriter{&mu, out})
	if supportsScreen(stderr) {
		view = newDrainView(stderr)
		defer view.close()
		errOut, reportOut = view, out
		if supportsScreen(out) {
			reportOut = view.above(out)
		}
	}
	errs, reports, done := make([]error, len(drains)), make([]bytes.Buffer, len(drains)), make([]chan struct{}, len(drains))
	for i, d := range drains {
		d.out, d.errOut, d.view, d.concurrentDrains = &reports[i], errOut, view, len(drains)
		done[i] = make(chan struct{})
		go func() {
			defer close(done[i])
			errs[i] = d.drainCordonedNode(ctx)
		}()
	}
	for i := range drains {
		<-done[i]
		_, _ = reports[i].WriteTo(reportOut) // a closed output cannot be reported
	}
	return errs
}

// syncWriter is a writer that several drains can use at the same time.
type syncWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (w *syncWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.w.Write(p)
}
