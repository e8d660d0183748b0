package queueagents

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/aws/queue"
)

// run is the running agent of one Node.
type run struct {
	agent  Agent
	source *queue.Source
	cancel context.CancelFunc
	// due and planned are the notices that the agent has.
	due, planned []notice.Notice
}

// syncAgent starts the agent of a Node if the Node has a notice to act on, or a record of one. It passes the notices to the
// agent. The agent removes the records of ended notices. Then syncAgent stops it.
func (c *Controller) syncAgent(i *instance, n *node, due, planned []notice.Notice) {
	isNeeded := len(n.reports) > 0 || slices.ContainsFunc(due, func(d notice.Notice) bool { return c.actionFor(d) != agent.Ignore })
	switch {
	case !isNeeded:
		c.stopRun(n)
		return
	case n.run == nil && !c.startRun(i, n):
		return
	case reflect.DeepEqual(due, n.run.due) && reflect.DeepEqual(planned, n.run.planned) && !n.run.source.LastRead().IsZero():
		return
	}
	n.run.due, n.run.planned = due, planned
	n.run.source.SetNotices(due, planned)
}

// startRun starts the agent of a Node. It returns false if the earlier agent of a Node with this name has not ended yet,
// or if the agent cannot be created.
func (c *Controller) startRun(i *instance, n *node) (started bool) {
	if c.ending[n.Name] != nil {
		return false
	}
	source := queue.NewSource(func(ctx context.Context, id string) error { return c.approve(ctx, i.id, id) })
	created, err := c.options.NewAgent(n.Node, i.id, source, c.slots.newSlot(n.Name))
	if err != nil {
		c.log.Error("cannot create the agent of a node", "node", n.Name, "instance", i.id, "err", err)
		return false
	}
	ctx, cancel := context.WithCancel(c.ctx)
	r := &run{agent: created, source: source, cancel: cancel}
	n.run = r
	name := n.Name
	c.log.Info("handling the notices of a node", "node", name, "instance", i.id)
	c.group.Go(func() {
		err := r.agent.Run(ctx)
		c.enqueue(func() { c.recordRunEnd(name, r, err) })
	})
	return true
}

// stopRun stops the agent of a Node. A new agent of a Node with this name starts after its end.
func (c *Controller) stopRun(n *node) {
	if n.run == nil {
		return
	}
	c.log.Info("no more notices of a node", "node", n.Name, "instance", n.instance)
	n.run.cancel()
	c.ending[n.Name], n.run = n.run, nil
}

func (c *Controller) recordRunEnd(name string, r *run, err error) {
	r.cancel()
	if c.ending[name] == r {
		delete(c.ending, name)
	}
	n := c.nodes[name]
	if n == nil {
		return
	}
	if n.run == r {
		c.log.Error("the agent of a node has ended, will start another", "node", name, "err", err)
		n.run = nil
	}
	c.reconcile(n.instance)
}

// approval completes the lifecycle hook of one notice. It is safe for concurrent use.
type approval struct {
	hooks    *queue.Hooks
	hook     queue.Hook
	instance string
	delay    time.Duration

	mu        sync.Mutex
	begins    time.Time // when the delay has passed; zero before the first call
	completed bool
}

func (a *approval) isCompleted() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.completed
}

// complete completes the hook after the delay. If ctx ends first, the next call waits for the rest of the delay.
func (a *approval) complete(ctx context.Context) error {
	a.mu.Lock()
	if a.begins.IsZero() {
		a.begins = time.Now().Add(a.delay)
	}
	wait, completed := time.Until(a.begins), a.completed
	a.mu.Unlock()
	if completed {
		return nil
	}
	if !elapsed.Sleep(ctx, wait) {
		return ctx.Err()
	}
	if err := a.hooks.Complete(ctx, a.hook, a.instance); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.completed = true
	return nil
}

// approve tells AWS that the interruption of a notice may begin. An agent calls it.
func (c *Controller) approve(ctx context.Context, instanceID, noticeID string) error {
	found := make(chan *instanceNotice, 1)
	select {
	case c.updates <- func() {
		var n *instanceNotice
		if i := c.instances[instanceID]; i != nil && i.notices[noticeID] != nil {
			n = &instanceNotice{approval: i.notices[noticeID].approval}
		}
		found <- n
	}:
	case <-ctx.Done():
		return ctx.Err()
	case <-c.ctx.Done():
		return c.ctx.Err()
	}
	select {
	case n := <-found:
		switch {
		case n == nil:
			return nil // it has ended
		case n.approval == nil: // its record would otherwise say that the hook is completed, and its message would be deleted
			return fmt.Errorf("notice %s: the message with its lifecycle hook was not received yet", noticeID)
		}
		return n.approval.complete(ctx)
	case <-ctx.Done():
		return ctx.Err()
	case <-c.ctx.Done():
		return c.ctx.Err()
	}
}
