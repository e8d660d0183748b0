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

// cordonAtOnce bounds the nodes that are read or cordoned at the same time.
const cordonAtOnce = 16

// findAll looks whether all nodes are there, before anything is done to any of them: a name that is misspelt may mean another.
func findAll(ctx context.Context, drains []*nodeDrain) error {
	errs := make([]error, len(drains))
	var group errgroup.Group
	group.SetLimit(cordonAtOnce)
	for i, d := range drains {
		group.Go(func() error {
			_, errs[i] = d.api.GetNode(ctx, d.o.Node)
			return nil
		})
	}
	_ = group.Wait() // each has its own
	return errors.Join(errs...)
}

// cordonAll takes all nodes out of scheduling before the first pod is asked to go, so that none lands on the next of
// them. A node for which that fails is not drained; see nodeDrain.run. It takes at most so long; 0 is no limit: with a
// deadline a request that hangs must not cost the pods of all nodes their time.
func cordonAll(ctx context.Context, drains []*nodeDrain, within time.Duration) {
	if within > 0 {
		bounded, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		ctx = bounded
	}
	var group errgroup.Group
	group.SetLimit(cordonAtOnce)
	for _, d := range drains {
		group.Go(func() error {
			d.failed = d.cordon(ctx)
			return nil
		})
	}
	_ = group.Wait() // each keeps its own
	for _, d := range drains {
		if d.cordoned != nil && d.failed == nil {
			fmt.Fprintf(d.err, "%s: cordoned\n", d.o.Node)
		}
	}
}

// inTurn does the same with one node after another.
func inTurn(drains []*nodeDrain, do func(*nodeDrain) error) []error {
	errs := make([]error, len(drains))
	for i, d := range drains {
		errs[i] = do(d)
	}
	return errs
}

// sideBySide drains all nodes at the same time, as they have one deadline. Their progress comes line by line, also on a
// terminal, and their receipts in the order of the nodes.
func sideBySide(ctx context.Context, drains []*nodeDrain, out, stderr io.Writer) []error {
	var one sync.Mutex
	errs, receipts, done := make([]error, len(drains)), make([]bytes.Buffer, len(drains)), make([]chan struct{}, len(drains))
	for i, d := range drains {
		d.out, d.err, d.beside = &receipts[i], &wholeWrites{&one, stderr}, len(drains)
		done[i] = make(chan struct{})
		go func() {
			defer close(done[i])
			errs[i] = d.run(ctx)
		}()
	}
	for i := range drains {
		<-done[i]
		_, _ = receipts[i].WriteTo(&wholeWrites{&one, out}) // there is nobody to tell that nobody listens
	}
	return errs
}

// wholeWrites lets no write of one node's come into that of another's.
type wholeWrites struct {
	one *sync.Mutex
	w   io.Writer
}

func (w *wholeWrites) Write(p []byte) (int, error) {
	w.one.Lock()
	defer w.one.Unlock()
	return w.w.Write(p)
}
