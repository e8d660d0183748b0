package queueagents

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/aws/queue"
	"github.com/slipway-dev/slipway/internal/notice/poll"
	"github.com/slipway-dev/slipway/internal/notice/report"
)

// instance is what is known of one EC2 instance that has a message or a notice.
type instance struct {
	id       string
	notices  map[string]*instanceNotice // that have not ended, by notice ID
	ended    map[string]time.Time       // when a message has ended a notice, by notice ID
	messages map[string]*message        // not handled yet, by message ID
	planner  *poll.Planner
	// missingSince is since when the instance has no Node; zero if it has one.
	missingSince time.Time
	// hadNode is true once this process has seen a Node of the instance.
	hadNode bool
	// isLookedUp is true once EC2 has told the tags and the name. isForeign is true if the instance has no managed tag.
	isLookedUp, isForeign bool
	dnsName               string
	// nextLookup is when an instance that EC2 did not list is looked up again.
	nextLookup time.Time
}

// instanceNotice is a notice of an instance.
type instanceNotice struct {
	notice.Notice

	// due is when the interruption is due, by the clock of AWS; zero is unknown.
	due time.Time
	// announced is the time of the event by the clock of AWS, or else when it was first read.
	announced time.Time
	// changedAt is the time of the event that says when the interruption is due. Events come in any order.
	changedAt time.Time
	// hasHookTimeout is true if Auto Scaling has told the timeout of the hook. Otherwise the notice period is on record or assumed.
	hasHookTimeout bool
	// approval completes the lifecycle hook; nil if the notice has none, or if its message was not received yet.
	approval       *approval
	stopHeartbeats context.CancelFunc // nil while none are sent
	// nextRetry is when a drain that gave up is tried again.
	nextRetry time.Time
}

// message is a message with instances that are not handled yet.
type message struct {
	queue.Message

	event   queue.Event
	waiting map[string]bool // the instances that are not handled yet, by ID
	// hookTimeout is the timeout of the lifecycle hook; 0 until it is known or assumed.
	hookTimeout      time.Duration
	isTimeoutAssumed bool
	// completion is the progress of a hook that this process completes without a drain.
	completion completionState
	nextTry    time.Time
}

type completionState int

const (
	notCompleted completionState = iota
	completing
	completed
)

func (c *Controller) addInstance(id string) *instance {
	i := c.instances[id]
	if i == nil {
		i = &instance{
			id: id, notices: map[string]*instanceNotice{}, ended: map[string]time.Time{}, messages: map[string]*message{}, planner: poll.NewPlanner(c.options.Leads),
		}
		c.instances[id] = i
	}
	return i
}

// addMessage stores a new message and reconciles its instances.
func (c *Controller) addMessage(received queue.Message, e queue.Event) {
	if c.messages[received.ID] != nil {
		return
	}
	m := &message{Message: received, event: e, waiting: map[string]bool{}}
	c.messages[m.ID] = m
	for _, id := range e.Instances {
		m.waiting[id] = true
		c.addInstance(id).messages[m.ID] = m
	}
	if e.Hook.Name == "" {
		c.reconcileMessage(m)
		return
	}
	c.readHookTimeout(m, 0)
}

// readHookTimeout reads the timeout of the lifecycle hook of a message after a pause, and reconciles its instances. It repeats this
// until Auto Scaling has told the timeout, or until the message is handled.
func (c *Controller) readHookTimeout(m *message, pause time.Duration) {
	c.group.Go(func() {
		if !elapsed.Sleep(c.ctx, pause) {
			return
		}
		timeout, isAssumed := c.hooks.Timeout(c.ctx, m.event.Hook)
		c.enqueue(func() {
			if c.messages[m.ID] != m {
				return
			}
			m.hookTimeout, m.isTimeoutAssumed = timeout, isAssumed
			c.reconcileMessage(m)
			if isAssumed {
				c.readHookTimeout(m, queue.AssumedTimeoutAge)
			}
		})
	})
}

func (c *Controller) reconcileMessage(m *message) {
	for _, id := range slices.Collect(maps.Keys(m.waiting)) {
		c.reconcile(id)
	}
}

// reconcile brings the agents of one instance in line with its notices, and deletes its handled messages.
func (c *Controller) reconcile(id string) {
	i := c.instances[id]
	if i == nil || !c.nodesListed {
		return
	}
	now := time.Now()
	nodes := c.nodesOf(id)
	if len(nodes) > 0 {
		i.missingSince, i.hadNode = time.Time{}, true
	} else if i.missingSince.IsZero() {
		i.missingSince = now
	}
	if c.needsLookup(i, nodes) {
		c.lookUpInstances() // now, because a notice may give two minutes
		return
	}
	if i.isForeign {
		c.resolveAll(i, "the instance does not exist or has no tag "+c.options.Config.ManagedTag)
		i.notices = map[string]*instanceNotice{}
	}
	c.readRecords(i, nodes) // before the messages, whose hooks may have an assumed timeout
	c.applyMessages(i, now)
	awsNow := c.toClockOfAWS(now)
	if c.inbox.KnowsClock() {
		for _, n := range i.notices { // another process may have recorded it, or the clock was set since
			n.ClockAhead = c.inbox.ClockAhead()
		}
		c.dropEndedNotices(i, nodes, awsNow)
	} else { // the node list comes before the first answer of SQS: the clock may be as wrong as an earlier process has found it
		awsNow = awsNow.Add(-i.recordedClockAhead())
	}
	due, planned, later := i.split(awsNow)
	for _, n := range nodes {
		c.syncAgent(i, n, due, planned)
		c.syncPlanned(n, i, later, now)
	}
	for _, m := range slices.Collect(maps.Values(i.messages)) {
		if c.isHandled(i, m, nodes, later, now) {
			c.resolve(i, m)
		}
	}
	c.syncHeartbeats(i, nodes, due)
	if len(i.messages) > 0 || len(i.ended) > 0 {
		return
	}
	if len(nodes) == 0 && now.Sub(i.missingSince) > c.options.Config.UnknownNodeGrace {
		i.removeNoticesOfLostNode(later)
	}
	if len(i.notices) == 0 {
		c.forget(i, nodes)
	}
}

// removeNoticesOfLostNode removes the notices of an instance without a Node. If the instance registers again, it was not
// interrupted. Only scheduled events that are not due yet stay, for the new Node: AWS may announce them only once.
func (i *instance) removeNoticesOfLostNode(later []notice.Notice) {
	for id := range i.notices {
		isLater := slices.ContainsFunc(later, func(n notice.Notice) bool { return n.ID == id })
		if !isLater || !i.hadNode {
			i.removeNotice(id)
		}
	}
}

// toClockOfAWS returns a time of time.Now by the clock of AWS, which the times of events, messages and notices have. So a wrong
// clock of this process, or one that is set, changes nothing.
func (c *Controller) toClockOfAWS(t time.Time) time.Time { return c.inbox.ToClockOfSQS(t) }

func (c *Controller) forget(i *instance, nodes []*node) {
	for _, n := range i.notices {
		n.endHeartbeats()
	}
	if !slices.ContainsFunc(nodes, func(n *node) bool { return n.run != nil || len(n.reports) > 0 }) {
		delete(c.instances, i.id)
	}
}

// applyMessages adds the notices of new messages, and ends those that a message ends.
func (c *Controller) applyMessages(i *instance, now time.Time) {
	for _, m := range i.messages {
		e := &m.event
		switch {
		case e.Kind == queue.ASGLaunch, e.Hook.Name != "" && m.hookTimeout == 0:
		case e.IsInterruption(i.id):
			c.applyInterruption(i, m, now)
		default:
			for _, id := range i.endedBy(e) {
				if e.Time.After(i.ended[id]) || i.ended[id].IsZero() {
					i.ended[id] = e.Time
					i.removeNotice(id)
				}
			}
		}
	}
}

// endedBy returns the IDs of the notices that an event ends or has ended. An instance that runs again was not interrupted, or
// has been.
func (i *instance) endedBy(e *queue.Event) []string {
	if e.Kind == queue.ScheduledEvent {
		id := e.NoticeID()
		if n := i.notices[id]; n != nil && !e.Time.IsZero() && e.Time.Before(n.changedAt) {
			return nil // it was open again since
		}
		return []string{id}
	}
	if e.Kind != queue.StateChange || e.State != "running" || e.Time.IsZero() {
		return nil
	}
	var all []string
	for id, n := range i.notices {
		switch queue.KindOfNotice(id) {
		case queue.StateChange, queue.SpotInterruption, queue.CapacityReservation:
			if !n.due.IsZero() && e.Time.After(n.due) {
				all = append(all, id)
			}
		case queue.ASGTerminate, queue.Rebalance: // an instance of a warm pool, or a stopped one, runs again
			if !n.announced.IsZero() && e.Time.After(n.announced) {
				all = append(all, id)
			}
		}
	}
	for id, end := range i.ended { // its record may still be on the Node
		if end.Equal(e.Time) {
			all = append(all, id)
		}
	}
	return all
}

func (i *instance) removeNotice(id string) {
	if n := i.notices[id]; n != nil {
		n.endHeartbeats()
		delete(i.notices, id)
	}
}

// applyInterruption adds the notice of a message, unless it has expired or a newer message has ended it. A repeated message
// changes nothing.
func (c *Controller) applyInterruption(i *instance, m *message, now time.Time) {
	e := &m.event
	id := e.NoticeID()
	if e.IsExpired(c.toClockOfAWS(now)) {
		return
	}
	if end, isEnded := i.ended[id]; isEnded {
		if !e.Time.After(end) {
			return
		}
		delete(i.ended, id)
	}
	known := i.notices[id]
	// A start that is missing or malformed now keeps the known one: the event would be due at once.
	hasMoved := known != nil && e.Kind == queue.ScheduledEvent && !e.Starts.IsZero() && !known.NotBefore.Equal(e.Starts) && e.Time.After(known.changedAt)
	if known == nil || hasMoved {
		known = &instanceNotice{Notice: e.NewNotice(i.id), changedAt: e.Time, announced: e.Time}
		if known.announced.IsZero() {
			known.announced = c.toClockOfAWS(now)
		}
		known.ClockAhead = c.inbox.ClockAhead()
		known.due = dueTime(known.Notice, c.toClockOfAWS(now))
		known.NotApprovable = known.NotApprovable || !c.options.Acknowledges
		i.notices[id] = known
	}
	if e.Kind == queue.ASGTerminate {
		c.applyHook(i, known, m)
	}
}

// applyHook sets the approval of a notice and its time, as the hook of its message tells. An assumed timeout replaces no time
// that is on record: the drain would get a deadline that does not exist.
func (c *Controller) applyHook(i *instance, known *instanceNotice, m *message) {
	if known.approval == nil {
		known.approval = &approval{hooks: c.hooks, hook: m.event.Hook, instance: i.id, delay: c.options.Config.CompletionDelay}
		known.NotApprovable = !c.options.Acknowledges
	}
	if known.hasHookTimeout || m.isTimeoutAssumed && known.NoticePeriod > 0 {
		return
	}
	known.hasHookTimeout = !m.isTimeoutAssumed
	period := c.hooks.DrainTime(m.hookTimeout)
	if !known.due.IsZero() {
		known.due = known.due.Add(period - known.NoticePeriod)
	}
	known.NoticePeriod = period
	if !c.hooks.KeepsWaiting() && !m.event.Time.IsZero() {
		known.NotBefore = m.event.Time.Add(period)
		known.due = known.NotBefore
	}
}

// dueTime returns when the interruption of a notice that is first read now is due. Both times are by the clock of AWS.
func dueTime(n notice.Notice, now time.Time) time.Time {
	switch {
	case n.Type == notice.Rebalance:
		return time.Time{}
	case !n.NotBefore.IsZero():
		return n.NotBefore
	}
	return now.Add(n.NoticePeriod)
}

// readRecords adds the notices that the Nodes have on record: those that an earlier process was handling, and planned ones.
func (c *Controller) readRecords(i *instance, nodes []*node) {
	add := func(n notice.Notice, due, announced time.Time) bool {
		_, isEnded := i.ended[n.ID]
		if i.notices[n.ID] != nil || isEnded || queue.KindOfNotice(n.ID) == "" || len(n.Resources) > 0 && !slices.Contains(n.Resources, i.id) {
			return false // it may be of an earlier instance with the name
		}
		n.NotApprovable = true // until its message has told the hook
		if n.Type != notice.Rebalance && due.IsZero() && !n.NotBefore.IsZero() {
			due = n.NotBefore
		}
		i.notices[n.ID] = &instanceNotice{Notice: n, due: due, announced: announced}
		return true
	}
	for _, n := range nodes {
		var resumed []notice.Notice
		for _, r := range n.reports {
			due := r.Deadline
			switch {
			case r.Type.HasDeadline() && !r.NotBefore.IsZero():
				due = r.NotBefore // the deadline of a started notice is its first read
			case !due.IsZero():
				due = due.Add(-r.ClockAhead)
			}
			announced := r.Seen.Add(-r.ClockAhead)
			if r.Type == notice.Rebalance && !r.NotBefore.IsZero() {
				announced = r.NotBefore
			}
			if add(r.Notice, due, announced) {
				resumed = append(resumed, r.Notice)
			}
		}
		if len(resumed) > 0 {
			i.planner.Resume(resumed)
		}
		for _, p := range n.planned {
			add(p, time.Time{}, time.Time{})
		}
	}
}

// recordedClockAhead returns how far the clock of an earlier process was ahead; 0 is unknown. If the notices differ, the latest
// event is not drained early.
func (i *instance) recordedClockAhead() time.Duration {
	var all []time.Duration
	for _, n := range i.notices {
		all = append(all, n.ClockAhead)
	}
	if len(all) == 0 {
		return 0
	}
	return slices.Max(all)
}

// dropEndedNotices drops the notices that have ended although their instance still has a Node. now is by the clock of AWS.
func (c *Controller) dropEndedNotices(i *instance, nodes []*node, now time.Time) {
	// The clock of a node may be right, or as wrong as this one: the earlier time counts.
	ahead := max(0, c.inbox.ClockAhead())
	for id, n := range i.notices {
		if c.mayHookWait(i, n, nodes, now) {
			continue // until the hook ends, its instance is going to be terminated
		}
		if slices.ContainsFunc(nodes, func(node *node) bool {
			ready := readySince(node.Node)
			return !ready.IsZero() && queue.HasEnded(n.Notice, n.due, ready.Add(-ahead), now)
		}) {
			c.log.Info("the notice has ended: the node is Ready after the interruption was due", "instance", i.id, "id", id, "due", n.due)
			i.ended[id] = now
			i.removeNotice(id)
		}
	}
	for id := range i.ended { // until its last message and record are gone
		if !slices.ContainsFunc(nodes, func(n *node) bool { return n.hasRecord(id) }) && !i.hasMessageFor(id) {
			delete(i.ended, id)
		}
	}
}

// mayHookWait reports whether heartbeats keep the lifecycle hook of a notice waiting: AWS may have refused each completion for
// hours. now is by the clock of AWS.
func (c *Controller) mayHookWait(i *instance, n *instanceNotice, nodes []*node, now time.Time) bool {
	switch {
	case queue.KindOfNotice(n.ID) != queue.ASGTerminate, !c.options.Acknowledges, !c.hooks.KeepsWaiting(), queue.IsHookExpired(n.announced, now):
		return false
	case n.approval != nil:
		return !n.approval.isCompleted() && i.hasMessageFor(n.ID)
	}
	// The notice is on record, and its message was not received again yet. If it only cordons, its hook may be completed.
	return slices.ContainsFunc(nodes, func(node *node) bool {
		r := node.reportOf(n.ID)
		return r != nil && r.Phase != string(agent.Cordoned) && r.Phase != string(agent.Acknowledged)
	})
}

func (n *node) hasRecord(id string) bool {
	return n.reportOf(id) != nil || slices.ContainsFunc(n.planned, func(p notice.Notice) bool { return p.ID == id })
}

func (n *node) reportOf(id string) *report.Report {
	if at := slices.IndexFunc(n.reports, func(r report.Report) bool { return r.ID == id }); at >= 0 {
		return &n.reports[at]
	}
	return nil
}

func (i *instance) hasMessageFor(id string) bool {
	for _, m := range i.messages {
		if m.event.IsInterruption(i.id) && m.event.NoticeID() == id || slices.Contains(i.endedBy(&m.event), id) {
			return true
		}
	}
	return false
}

// readySince returns since when a Node is Ready; zero if it is not.
func readySince(n *kubeapi.Node) time.Time {
	for _, condition := range n.Status.Conditions {
		if condition.Type == "Ready" && condition.Status == "True" {
			return condition.LastTransitionTime
		}
	}
	return time.Time{}
}

// split returns the notices that the agent acts on now, and the scheduled events that it acts on later. planned lacks an
// event that has moved to a later time, because the agent has to restore the node.
func (i *instance) split(now time.Time) (due, planned, later []notice.Notice) {
	var scheduled []notice.Notice
	for _, id := range slices.Sorted(maps.Keys(i.notices)) {
		if n := i.notices[id]; queue.KindOfNotice(id) == queue.ScheduledEvent {
			scheduled = append(scheduled, n.Notice)
		} else {
			due = append(due, n.Notice)
		}
	}
	begun, planned, _ := i.planner.Split(scheduled, now)
	for _, n := range scheduled {
		if !slices.ContainsFunc(begun, func(b notice.Notice) bool { return b.ID == n.ID }) {
			later = append(later, n)
		}
	}
	return append(due, begun...), planned, later
}

// actionFor returns the action of the policy for a notice.
func (c *Controller) actionFor(n notice.Notice) agent.Action {
	return c.options.Policy.Decide(n, agent.SeenTimes{First: time.Now(), Started: time.Now()}).Action
}

// syncHeartbeats sends heartbeats for the hooks of an instance with a Node, until the hooks are completed and their messages
// are handled. An instance that is only cordoned waits too, for Config.CompletionDelay.
func (c *Controller) syncHeartbeats(i *instance, nodes []*node, due []notice.Notice) {
	for _, d := range due {
		n := i.notices[d.ID]
		switch {
		case n.approval == nil:
		case len(nodes) == 0:
			n.endHeartbeats()
			n.stopHeartbeats = nil // the Node may register again
		case n.approval.isCompleted(), !i.hasMessageFor(d.ID), !c.options.Acknowledges:
			n.endHeartbeats()
		case n.stopHeartbeats == nil && c.actionFor(d) != agent.Ignore:
			var ctx context.Context
			ctx, n.stopHeartbeats = context.WithCancel(c.ctx)
			a := n.approval
			c.group.Go(func() { c.hooks.SendHeartbeats(ctx, a.hook, a.instance) })
		}
	}
}

func (n *instanceNotice) endHeartbeats() {
	if n.stopHeartbeats != nil {
		n.stopHeartbeats()
		n.stopHeartbeats = func() {} // once is enough: a completed hook does not wait again
	}
}
