package agent

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// awaitEvery is the pause between two looks at how far a notice is.
const awaitEvery = 100 * time.Millisecond

// Await waits until the node is drained on account of a notice, which may yet be read, and then returns nil. A drain of
// it that was given up before is tried again; one that is given up now is an error. In a dry run there is nothing to wait
// for once the notice is read. What is under way goes on when ctx ends. It may be called from any goroutine while Run
// runs.
func (a *Agent) Await(ctx context.Context, source, id string) error {
	ticker := time.NewTicker(awaitEvery)
	defer ticker.Stop()
	again := true
	for {
		answer := make(chan outcome, 1)
		a.tell(ctx, func(context.Context) { answer <- a.outcomeOf(source, id, again) })
		select {
		case <-ctx.Done():
			return ctx.Err()
		case o := <-answer:
			if o.ended {
				return o.err
			}
			again = again && !o.known
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// outcome is how far a notice is.
type outcome struct {
	known, ended bool
	err          error
}

// outcomeOf looks at a notice; again has a drain that was given up tried once more.
func (a *Agent) outcomeOf(source, id string, again bool) outcome {
	h := a.handled[owner(source, id)]
	if h == nil || h.Notice.Source != source || h.Decision.Reason == "" {
		return outcome{}
	}
	switch {
	case h.Phase.isDrained() && h.claim.isCurrent():
		return outcome{known: true, ended: true}
	case a.o.DryRun:
		return outcome{known: true, ended: true}
	case h.Phase == NotDrained && again:
		a.take(h, inputAwaited, time.Now())
	case h.Phase == NotDrained:
		err := errors.New("time is over")
		if h.account.receipt != nil {
			err = errors.New(h.account.receipt.Summary())
		}
		return outcome{known: true, ended: true, err: fmt.Errorf("node %s is not drained: %w", a.o.Node, err)}
	case !h.Decision.Action.drains():
		return outcome{known: true, ended: true, err: fmt.Errorf("node %s is not drained: %s", a.o.Node, h.Decision.Reason)}
	}
	return outcome{known: true}
}
