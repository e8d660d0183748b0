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

// maxConcurrentCordons limits the nodes that are read or cordoned at the same time.
const maxConcurrentCordons = 16

// checkNodesExist checks that all nodes exist before any of them is changed. A misspelt name may mean another node.
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

// cordonNodes cordons all nodes before the first eviction, so that no evicted pod is scheduled on a node that will be
// drained next. Errors are stored in cordonError. If timeout is not 0, it limits the whole call: with a deadline, a hanging
// request must not use up the time of all pods.
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

// runSequentially calls do for one node after another and returns the errors.
func runSequentially(drains []*nodeDrain, do func(*nodeDrain) error) []error {
	errs := make([]error, len(drains))
	for i, d := range drains {
		errs[i] = do(d)
	}
	return errs
}

// drainConcurrently drains all nodes at the same time, because they share one deadline. It prints progress line by line,
// also on a terminal, and the drain reports in the order of the nodes.
func drainConcurrently(ctx context.Context, drains []*nodeDrain, out, stderr io.Writer) []error {
	var mu sync.Mutex
	errs, reports, done := make([]error, len(drains)), make([]bytes.Buffer, len(drains)), make([]chan struct{}, len(drains))
	for i, d := range drains {
		d.out, d.errOut, d.concurrentDrains = &reports[i], &syncWriter{&mu, stderr}, len(drains)
		done[i] = make(chan struct{})
		go func() {
			defer close(done[i])
			errs[i] = d.drainCordonedNode(ctx)
		}()
	}
	for i := range drains {
		<-done[i]
		_, _ = reports[i].WriteTo(&syncWriter{&mu, out}) // a closed output cannot be reported
	}
	return errs
}

// syncWriter serializes the writes of several drains.
type syncWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (w *syncWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.w.Write(p)
}
