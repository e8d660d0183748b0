package queueagents

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/cloud/aws/providerid"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/aws/queue"
)

// resolve marks a message as handled for one instance. If it is handled for all, it is deleted.
func (c *Controller) resolve(i *instance, m *message) {
	delete(i.messages, m.ID)
	delete(m.waiting, i.id)
	if len(m.waiting) == 0 {
		delete(c.messages, m.ID)
		c.inbox.Delete(m.ID)
	}
}

func (c *Controller) resolveAll(i *instance, reason string) {
	for _, m := range i.messages {
		c.log.Info("a message needs no action", "message", m.ID, "kind", m.event.Kind, "instance", i.id, "reason", reason)
		c.resolve(i, m)
	}
}

// isHandled reports whether a message needs nothing more for an instance that has a Node: every Node has it on record, as
// far as the policy requires.
func (c *Controller) isHandled(i *instance, m *message, nodes []*node, planned []notice.Notice, now time.Time) bool {
	e := &m.event
	known := i.notices[e.NoticeID()]
	switch {
	case e.IsExpired(c.toClockOfAWS(now)):
		return true // AWS does not wait any more, even if it has refused each completion of the hook
	case len(nodes) == 0 && e.Kind == queue.StateChange && !e.IsInterruption(i.id):
		return true // an instance that starts has no notice to end
	case len(nodes) == 0:
		// The Node may be gone before its agent has recorded the completion. For all others see deleteMessagesWithoutNode.
		return known != nil && known.approval != nil && known.approval.isCompleted()
	case e.Kind == queue.ASGLaunch:
		return c.completeLaunch(m, nodes, now)
	case e.Hook.Name != "" && m.hookTimeout == 0:
		return false
	case !e.IsInterruption(i.id):
		return !slices.ContainsFunc(i.endedBy(e), func(id string) bool {
			return slices.ContainsFunc(nodes, func(n *node) bool { return n.hasRecord(id) })
		})
	}
	if known == nil {
		return true // it has ended
	}
	for _, n := range nodes {
		if !c.isOnRecord(m, known, n, slices.ContainsFunc(planned, func(p notice.Notice) bool { return p.ID == known.ID }), now) {
			return false
		}
	}
	return true
}

// isOnRecord reports whether a Node has all on record that the policy requires for a notice.
func (c *Controller) isOnRecord(m *message, known *instanceNotice, n *node, isPlanned bool, now time.Time) bool {
	action, r := c.actionFor(known.Notice), n.reportOf(known.ID)
	switch {
	case action == agent.Ignore:
		return true
	case c.options.DryRun:
		return n.run != nil || isPlanned
	case isPlanned:
		return slices.ContainsFunc(n.planned, func(p notice.Notice) bool { return p.ID == known.ID && p.NotBefore.Equal(known.NotBefore) })
	case r == nil:
		return false
	case r.Phase == string(agent.NotDrained):
		c.retryDrain(known, n, now)
		return false
	case action == agent.Cordon:
		// The policy asks for no drain, so the hook has nothing to wait for.
		return r.Phase == string(agent.Cordoned) && (m.event.Hook.Name == "" || c.completeHook(m, c.options.Config.CompletionDelay, now))
	case action == agent.Acknowledge && known.NotApprovable:
		return true
	case known.NotApprovable:
		return slices.Contains([]string{string(agent.Drained), string(agent.Acknowledged)}, r.Phase)
	}
	return r.Phase == string(agent.Acknowledged)
}

// retryDrain tries a drain again that gave up. Its message stays in the queue.
func (c *Controller) retryDrain(known *instanceNotice, n *node, now time.Time) {
	if now.Before(known.nextRetry) || n.run == nil {
		return
	}
	isFirst := known.nextRetry.IsZero()
	known.nextRetry = now.Add(c.options.Config.ParkedVisibility)
	if isFirst {
		return
	}
	c.log.Info("trying the drain again", "node", n.Name, "id", known.ID)
	drained := n.run.agent
	c.group.Go(func() {
		ctx, cancel := context.WithTimeout(c.ctx, retryInterval)
		defer cancel()
		_ = drained.AwaitDrained(ctx, queue.SourceName, known.ID) // the record shows the result
	})
}

// completeLaunch completes the hook of a launched instance once its Node is Ready.
func (c *Controller) completeLaunch(m *message, nodes []*node, now time.Time) bool {
	isReady := slices.ContainsFunc(nodes, func(n *node) bool { return !readySince(n.Node).IsZero() })
	if !isReady {
		return m.hookTimeout > 0 && !m.Sent.IsZero() && c.toClockOfAWS(now).Sub(m.Sent) > m.hookTimeout+c.options.Config.UnknownNodeGrace
	}
	return c.completeHook(m, 0, now)
}

// hasLostNode reports whether a hook waits for the drain of a Node that is gone, and its pods with it. No other process can
// know that the hook has nothing to wait for. The hook of an instance that never had a Node here may be of another cluster.
func (c *Controller) hasLostNode(i *instance, m *message) bool {
	return m.event.Kind == queue.ASGTerminate && i.hadNode && !c.options.Config.DeleteIfNodeNotFound
}

// hasHookEnded reports whether the hook of a lost Node cannot wait any more: without a Node no heartbeats are sent.
func (c *Controller) hasHookEnded(i *instance, m *message) bool {
	return time.Since(i.missingSince) > m.hookTimeout+c.options.Config.CompletionDelay+c.options.Config.UnknownNodeGrace
}

// completeHook completes the hook of a message after a delay, and returns true once it is completed.
func (c *Controller) completeHook(m *message, delay time.Duration, now time.Time) bool {
	if c.options.DryRun || !c.options.Acknowledges {
		return true
	}
	if m.nextTry.IsZero() {
		m.nextTry = now.Add(delay)
	}
	if m.completion == notCompleted && !now.Before(m.nextTry) {
		m.completion = completing
		id := m.event.Instances[0]
		c.group.Go(func() {
			err := c.hooks.Complete(c.ctx, m.event.Hook, id)
			c.enqueue(func() {
				m.completion = completed
				if err != nil {
					m.completion, m.nextTry = notCompleted, time.Now().Add(retryInterval)
					c.log.Error("cannot complete a lifecycle hook, will retry", "message", m.ID, "err", err)
				}
				c.reconcile(id)
			})
		})
	}
	return m.completion == completed
}

// graceOf returns how long the instance of a message has to have no Node before the message is deleted. An instance that is
// just launched may join until its hook ends it.
func (c *Controller) graceOf(m *message) time.Duration {
	switch {
	case m.event.Kind == queue.ASGLaunch:
		return max(c.options.Config.UnknownNodeGrace, m.hookTimeout)
	case c.options.Config.DeleteIfNodeNotFound:
		return 0
	}
	return c.options.Config.UnknownNodeGrace
}

// restartGrace is how long an instance has to have no Node after a restart, if its message is older than the grace time.
const restartGrace = 30 * time.Second

// isPastGrace reports whether a message is older than its grace.
func (c *Controller) isPastGrace(m *message) bool {
	return !m.Sent.IsZero() && c.toClockOfAWS(time.Now()).Sub(m.Sent) >= c.graceOf(m)
}

func (c *Controller) areMessagesPastGrace(i *instance) bool {
	for _, m := range i.messages {
		if !c.isPastGrace(m) {
			return false
		}
	}
	return true
}

// remainingGrace returns how long this process has to see no Node for the instance of a message. The time since the message
// was sent counts, unless this process has seen a Node. Otherwise a process that restarts again and again would never delete
// the message, and the redrive policy would take it for poison. In a full inbox an old message makes room at once.
func (c *Controller) remainingGrace(i *instance, m *message, isFull bool) time.Duration {
	grace := c.graceOf(m)
	switch {
	case i.hadNode || !c.isPastGrace(m):
		return grace
	case isFull:
		return 0
	}
	return min(grace, restartGrace)
}

// parkMessagesWithoutNode makes room in a full inbox: it parks the messages of instances that never had a Node here. SQS delivers
// them again later. So the messages of other clusters cannot hold back a notice of this one. A message that is past its grace
// is deleted instead, see deleteMessagesWithoutNode.
func (c *Controller) parkMessagesWithoutNode() {
	parked := 0
	for _, m := range c.messages {
		if c.isPastGrace(m) || m.completion != notCompleted || slices.ContainsFunc(slices.Collect(maps.Keys(m.waiting)), c.mayHaveNode) {
			continue
		}
		parked++
		for id := range m.waiting {
			i := c.instances[id]
			if delete(i.messages, m.ID); len(i.messages) == 0 {
				c.forget(i, nil)
			}
		}
		delete(c.messages, m.ID)
		c.inbox.Park(m.ID, c.maxParked(m))
	}
	if parked > 0 {
		c.log.Warn("too many messages at once: those of instances without a node are put back into the queue for a while", "messages", parked, "left", len(c.messages))
	}
}

// maxParked returns how long a message may be parked at most; 0 is any time. At the timeout of a launch hook, AWS terminates the
// instance although its Node may be Ready. So the message comes again several times before. It may not come often, because the
// redrive policy limits the deliveries.
func (c *Controller) maxParked(m *message) time.Duration {
	hasEnded := m.hookTimeout > 0 && c.toClockOfAWS(time.Now()).Sub(m.Sent) > m.hookTimeout
	if m.event.Kind != queue.ASGLaunch || hasEnded {
		return 0
	}
	return max(m.hookTimeout/8, c.options.Config.Visibility)
}

// mayHaveNode reports whether an instance has or had a Node. While EC2 has not told the name of its Node, it may have one.
func (c *Controller) mayHaveNode(instanceID string) bool {
	i := c.instances[instanceID]
	return i.hadNode || i.missingSince.IsZero() || c.needsLookup(i, nil)
}

// listInterval is the pause between two lists of all Nodes. An account with many other instances sends messages about them
// all the time.
const listInterval = 10 * time.Second

// deleteMessagesWithoutNode deletes the messages of instances that had no Node for the grace time. It does so only if a
// current list of the API server, and not only the watch, has no Node of the instance.
func (c *Controller) deleteMessagesWithoutNode(isFull bool) {
	if c.isListing || !c.nodesListed || time.Now().Before(c.nextList) {
		return
	}
	isDue := func(i *instance, m *message) bool {
		if c.needsLookup(i, nil) {
			return false // EC2 may tell the name of its Node
		}
		return !i.missingSince.IsZero() && time.Since(i.missingSince) >= c.remainingGrace(i, m, isFull) && (m.event.Hook.Name == "" || m.hookTimeout > 0)
	}
	var candidates []*instance
	for _, i := range c.instances {
		for _, m := range i.messages {
			if isDue(i, m) {
				candidates = append(candidates, i)
				break
			}
		}
	}
	if len(candidates) == 0 {
		return
	}
	c.isListing, c.nextList = true, time.Now().Add(listInterval)
	c.group.Go(func() {
		ctx, cancel := context.WithTimeout(c.ctx, requestTimeout)
		defer cancel()
		all, err := c.options.API.ListNodes(ctx, "")
		c.enqueue(func() {
			c.isListing = false
			if err != nil {
				c.log.Warn("cannot list the nodes to find those of messages, will retry", "err", err)
				return
			}
			listed := map[string]bool{}
			for _, n := range all {
				listed[n.Name] = true
				if id, err := providerid.InstanceID(n.Spec.ProviderID); err == nil {
					listed[id] = true
				}
			}
			for _, i := range candidates {
				if c.instances[i.id] != i || len(c.nodesOf(i.id)) > 0 || listed[i.id] || i.dnsName != "" && listed[i.dnsName] {
					continue
				}
				for _, m := range i.messages {
					if isDue(i, m) && (!c.hasLostNode(i, m) || c.hasHookEnded(i, m) || c.completeHook(m, c.options.Config.CompletionDelay, time.Now())) {
						c.log.Info("a message is of no node of this cluster", "message", m.ID, "kind", m.event.Kind, "instance", i.id, "since", i.missingSince)
						c.resolve(i, m)
					}
				}
				if isFull && !i.hadNode && len(i.messages) == 0 { // its notices would take the memory
					c.forget(i, nil)
				}
			}
		})
	})
}
