// Package queueagents drains nodes for the notices of an SQS queue. It runs an agent for each node with a notice, in this
// process. The agents are those of package agent, and the record on each Node is the only state that outlives the process.
//
// One goroutine owns all state. A change of a message or a Node triggers a reconcile of its instance. The reconcile
// derives everything from the messages, the Nodes and their records: the notices, the agents that run, and which messages
// are handled. So the order of messages does not matter, and a restarted process continues.
package queueagents

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/cloud/aws/providerid"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/aws/queue"
	"github.com/slipway-dev/slipway/internal/notice/poll"
	"github.com/slipway-dev/slipway/internal/notice/report"
	"github.com/slipway-dev/slipway/internal/observe"
)

const (
	// reconcileInterval is the pause between two reconciles of an instance that has not changed.
	reconcileInterval = time.Second
	// retryInterval is the pause after a failed request.
	retryInterval = 5 * time.Second
	// requestTimeout is the timeout of a request to the API server.
	requestTimeout = 30 * time.Second
)

// API lists the requests to the API server. *kubeapi.Client implements it.
type API interface {
	ListNodes(ctx context.Context, labelSelector string) ([]kubeapi.Node, error)
	PatchNode(ctx context.Context, name string, patch []byte) (*kubeapi.Node, error)
}

// Agent drains one node. *agent.Agent implements it.
type Agent interface {
	Run(ctx context.Context) error
	AwaitDrained(ctx context.Context, source, id string) error
}

// Options configures a [Controller]. All fields are required, unless their comment says something else.
type Options struct {
	API API
	// WatchNodes lists and watches all Nodes until ctx ends.
	WatchNodes func(ctx context.Context, h kubeapi.Handler[kubeapi.Node])
	// NewAgent returns the agent of a Node. The agent reads its notices from source, and approves them there.
	NewAgent func(node *kubeapi.Node, instance string, source *queue.Source, slots agent.DrainSlots) (Agent, error)
	Clients  queue.Clients
	Config   queue.Config
	// Policy is the policy of the agents, and Leads are how early they act on scheduled events.
	Policy agent.NoticePolicy
	Leads  poll.Leads
	// Acknowledges is true if the agents complete lifecycle hooks.
	Acknowledges bool
	// DryRun changes nothing in the cluster, in the queue and in AWS.
	DryRun  bool
	Metrics *queue.Metrics
	Log     *slog.Logger
	// OnUnreadable, Beat and OnReceive are as in [queue.InboxOptions], and OnHookRefused is as in [queue.NewHooks]; each may be nil.
	OnUnreadable    func(m queue.Message, err error)
	Beat, OnReceive func()
	OnHookRefused   func(err error)
	// Wall is as in [queue.InboxOptions]; it may be nil.
	Wall func(t time.Time) time.Time
}

// Controller handles one queue. Run may be called once.
type Controller struct {
	options Options
	log     *slog.Logger
	inbox   *queue.Inbox
	hooks   *queue.Hooks
	slots   *slotPool
	updates chan func()
	group   sync.WaitGroup // of all goroutines but Run

	// The fields below belong to the goroutine of Run.
	ctx         context.Context //nolint:containedctx // of Run
	nodesListed bool
	nodes       map[string]*node           // by name
	names       map[string]map[string]bool // of the Nodes of each instance, by instance ID
	ending      map[string]*run            // agents that were stopped and have not ended, by the name of their Node
	instances   map[string]*instance
	messages    map[string]*message // not handled yet, by message ID
	isListing   bool                // a request that looks for Nodes of instances without one is running
	isLookingUp bool                // a request to EC2 is running
	nextLookup  time.Time
	nextList    time.Time
}

// node is a Node with what its annotations say.
type node struct {
	*kubeapi.Node

	instance string // empty if it is not known
	reports  []report.Report
	planned  []notice.Notice
	run      *run // nil while no agent runs
	// isPatching is true while a request that changes the planned notices runs. nextPatch is when a failed one is repeated.
	isPatching bool
	nextPatch  time.Time
}

// New returns a controller.
func New(o Options) *Controller {
	if o.DryRun {
		o.Config.Acknowledge = false
	}
	o.Acknowledges = o.Acknowledges && o.Config.Acknowledge
	return &Controller{
		options: o, log: o.Log, hooks: queue.NewHooks(o.Clients.AutoScaling, o.Config, o.Metrics, o.Log, o.OnHookRefused), slots: newSlotPool(o.Config.Workers),
		inbox: queue.NewInbox(queue.InboxOptions{
			SQS: o.Clients.SQS, Config: o.Config, Metrics: o.Metrics, Log: o.Log, ReadOnly: o.DryRun, OnUnreadable: o.OnUnreadable, Beat: o.Beat, OnReceive: o.OnReceive,
			Wall: o.Wall,
		}),
		updates: make(chan func(), 64), nodes: map[string]*node{}, names: map[string]map[string]bool{}, ending: map[string]*run{}, instances: map[string]*instance{}, messages: map[string]*message{},
	}
}

// Run handles the queue until ctx ends. Then it waits for the agents to end, and returns the messages that are not handled to
// the queue.
func (c *Controller) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer c.group.Wait()
	defer stop()
	defer c.resetMetrics()
	c.ctx = ctx
	c.group.Go(func() { c.options.WatchNodes(ctx, c.nodeHandler()) })
	c.group.Go(func() {
		c.inbox.Run(ctx, func(m queue.Message, e queue.Event) { c.enqueue(func() { c.addMessage(m, e) }) })
	})
	ticker := time.NewTicker(reconcileInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case update := <-c.updates:
			update()
		case <-ticker.C:
			c.reconcileAll()
		}
	}
}

// enqueue passes an update to the goroutine of Run. If ctx ends first, the update is not run.
func (c *Controller) enqueue(update func()) {
	select {
	case c.updates <- update:
	case <-c.ctx.Done():
	}
}

func (c *Controller) nodeHandler() kubeapi.Handler[kubeapi.Node] {
	return kubeapi.Handler[kubeapi.Node]{
		Replaced: func(all []kubeapi.Node) { c.enqueue(func() { c.replaceNodes(all) }) },
		Changed:  func(n kubeapi.Node) { c.enqueue(func() { c.updateNode(&n) }) },
		Deleted:  func(n kubeapi.Node) { c.enqueue(func() { c.removeNode(n.Name) }) },
		Failed:   func(err error) { c.log.Warn("cannot watch the nodes, will retry", "err", err) },
	}
}

func (c *Controller) replaceNodes(all []kubeapi.Node) {
	listed := map[string]bool{}
	for i := range all {
		listed[all[i].Name] = true
	}
	for _, name := range slices.Collect(maps.Keys(c.nodes)) {
		if !listed[name] {
			c.removeNode(name)
		}
	}
	c.nodesListed = true
	for i := range all {
		c.updateNode(&all[i])
	}
	c.reconcileAll()
}

// updateNode stores a newer state of a Node, and reconciles its instance. A Node with another UID is another Node: its
// predecessor's agent ends.
func (c *Controller) updateNode(n *kubeapi.Node) {
	was := c.nodes[n.Name]
	if was != nil && was.UID != n.UID {
		c.removeNode(n.Name)
		was = nil
	}
	now := &node{Node: n, planned: readPlanned(n)}
	reports, problems := report.ReadReports(n.Annotations)
	for _, r := range reports {
		if r.Source == queue.SourceName {
			now.reports = append(now.reports, r)
		}
	}
	if was != nil {
		now.run, now.isPatching, now.nextPatch = was.run, was.isPatching, was.nextPatch
	} else if len(problems) > 0 {
		c.log.Warn("cannot parse an annotation of the node; it stays", "node", n.Name, "err", problems[0])
	}
	now.instance = c.instanceOf(now)
	c.nodes[n.Name] = now
	if was != nil && was.instance != now.instance {
		c.stopRun(now)
		c.removeFromIndex(was)
	}
	if now.instance == "" {
		return
	}
	if c.names[now.instance] == nil {
		c.names[now.instance] = map[string]bool{}
	}
	c.names[now.instance][n.Name] = true
	if c.instances[now.instance] == nil && (len(now.reports) > 0 || len(now.planned) > 0) {
		c.addInstance(now.instance)
	}
	c.reconcile(now.instance)
}

// instanceOf returns the ID of a Node's instance. It is the last part of the provider ID. A Node without one may have been
// found by the name of the instance, which its records then tell.
func (c *Controller) instanceOf(n *node) string {
	if id, err := providerid.InstanceID(n.Spec.ProviderID); err == nil {
		return id
	}
	if n.Spec.ProviderID != "" {
		return ""
	}
	for _, r := range n.reports {
		if len(r.Resources) > 0 {
			return r.Resources[0]
		}
	}
	for _, p := range n.planned {
		if len(p.Resources) > 0 {
			return p.Resources[0]
		}
	}
	for _, i := range c.instances {
		if i.dnsName != "" && strings.EqualFold(i.dnsName, n.Name) {
			return i.id
		}
	}
	return ""
}

func (c *Controller) removeNode(name string) {
	n := c.nodes[name]
	if n == nil {
		return
	}
	c.stopRun(n)
	delete(c.nodes, name)
	c.removeFromIndex(n)
}

func (c *Controller) removeFromIndex(n *node) {
	if n.instance == "" {
		return
	}
	delete(c.names[n.instance], n.Name)
	if len(c.names[n.instance]) == 0 {
		delete(c.names, n.instance)
	}
	c.reconcile(n.instance)
}

// nodesOf returns the Nodes of an instance. There are two for a short time if an instance registers under another name.
func (c *Controller) nodesOf(instanceID string) []*node {
	var all []*node
	for _, name := range slices.Sorted(maps.Keys(c.names[instanceID])) {
		all = append(all, c.nodes[name])
	}
	return all
}

func (c *Controller) reconcileAll() {
	for _, id := range slices.Collect(maps.Keys(c.instances)) {
		c.reconcile(id)
	}
	c.lookUpInstances()
	isFull := c.inbox.IsFull()
	c.deleteMessagesWithoutNode(isFull)
	if isFull {
		c.parkMessagesWithoutNode()
	}
	c.updateMetrics()
}

// resetMetrics sets the metrics to those of a process that handles no queue. A process without the Lease goes on, and its old values
// would raise an alert.
func (c *Controller) resetMetrics() {
	m := c.options.Metrics
	for _, g := range []*observe.Gauge{m.OldestUnhandled, m.Unhandled, m.UnhandledNodes, m.Agents} {
		g.Set(0)
	}
}

func (c *Controller) updateMetrics() {
	m := c.options.Metrics
	sent, count := c.inbox.Oldest()
	age := 0.0
	if !sent.IsZero() {
		age = max(0, c.toClockOfAWS(time.Now()).Sub(sent).Seconds())
	}
	m.OldestUnhandled.Set(age)
	m.Unhandled.Set(float64(count))
	agents, unhandled := 0, 0
	for _, n := range c.nodes {
		if n.run != nil {
			agents++
		}
		if i := c.instances[n.instance]; i != nil && len(i.messages) > 0 {
			unhandled++
		}
	}
	m.Agents.Set(float64(agents))
	m.UnhandledNodes.Set(float64(unhandled))
}
