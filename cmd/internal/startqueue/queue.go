// Package startqueue runs the AWS queue mode. It is apart from package start, so that slipway-agent does not link the AWS
// SDK.
package startqueue

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slipway-dev/slipway/cmd/internal/start"
	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice/aws/queue"
	"github.com/slipway-dev/slipway/internal/notice/poll"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/queueagents"
	"github.com/slipway-dev/slipway/internal/semaphore"
)

const (
	// stuckTimeout is how long the receiver may go without a request for messages before it counts as stuck. A request
	// takes at most a minute.
	stuckTimeout = 5 * time.Minute
	// eventTimeout is the timeout of the request that creates an Event.
	eventTimeout = 10 * time.Second
	// leasePurpose names the Lease that lets only one process of several handle the queue.
	leasePurpose = "aws-queue"
)

// AWS is the destination of requests to AWS that start.AgentOptions.WrapTransport receives.
const AWS = "aws"

// Queue runs the queue mode. NewQueue creates it.
type Queue struct {
	agents  *start.NodeAgents
	config  config.Agent
	queue   queue.Config
	clients queue.Clients
	metrics *queue.Metrics
	alive   *observe.Heartbeat
	read    atomic.Bool // SQS has answered a request for messages

	mu        sync.Mutex
	nextEvent map[eventReason]time.Time // when an Event with the reason may be created again
}

// RunQueue runs the queue mode alone until ctx ends: one agent for each node with a notice in the queue. c has the
// policy, the taint, the labels and the notifications of all agents; its NodeName is empty. It returns the error of a
// failed start.
func RunQueue(ctx context.Context, c config.Agent, q queue.Config, x start.AgentOptions, stderr io.Writer) error {
	start.SetMemoryLimits()
	all, err := NewQueue(ctx, c, q, x, stderr)
	if err != nil {
		return err
	}
	defer all.Close()
	return all.agents.Run(ctx, all.alive.Check, all.checkReady, all.runWhileLeading)
}

// NewQueue validates the configurations and creates the clients. The caller calls Close at the end.
func NewQueue(ctx context.Context, c config.Agent, q queue.Config, x start.AgentOptions, stderr io.Writer) (*Queue, error) {
	q.HookTimeout = cmp.Or(q.HookTimeout, c.ASG.HookTimeout)
	if err := q.Validate(); err != nil {
		return nil, err
	}
	agents, err := start.NewNodeAgents(ctx, c, x, stderr)
	if err != nil {
		return nil, err
	}
	var wrap func(http.RoundTripper) http.RoundTripper
	if x.WrapTransport != nil {
		wrap = func(next http.RoundTripper) http.RoundTripper { return x.WrapTransport(AWS, next) }
	}
	clients, err := queue.NewClients(ctx, q, wrap)
	if err != nil {
		return nil, err
	}
	return &Queue{
		agents: agents, config: c, queue: q, clients: clients, metrics: queue.NewMetrics(agents.Registry), alive: observe.NewHeartbeat("queue", stuckTimeout),
		nextEvent: map[eventReason]time.Time{},
	}, nil
}

// Registry returns the metrics of the queue mode and of its agents.
func (q *Queue) Registry() *observe.Registry { return q.agents.Registry }

// Close sends the remaining spans.
func (q *Queue) Close() { q.agents.Close() }

func (q *Queue) checkReady() error {
	if q.read.Load() {
		return nil
	}
	return fmt.Errorf("queue %s: SQS has not answered a request for messages yet", q.queue.URL)
}

// Start handles the queue until ctx ends, and sends the notifications of the agents.
func (q *Queue) Start(ctx context.Context) error {
	err := q.agents.RunNotified(ctx, q.run)
	if ctx.Err() != nil {
		return nil // a normal shutdown
	}
	return err
}

func (q *Queue) run(ctx context.Context) error {
	c := q.config
	controller := queueagents.New(queueagents.Options{
		API: q.agents.API, Clients: q.clients, Config: q.queue, Metrics: q.metrics, Log: q.agents.Log,
		WatchNodes: queueagents.NewNodeWatcher(q.agents.API), NewAgent: q.newAgent,
		Policy: q.agents.Policy(), Leads: poll.Leads{Retirement: c.RetirementLead, Maintenance: c.MaintenanceLead},
		Acknowledges: c.Acknowledge, DryRun: c.DryRun,
		OnUnreadable: func(m queue.Message, err error) {
			q.createEvent(ctx, messageUnreadable, fmt.Sprintf("message %s of queue %s is left to the redrive policy of the queue: %v", m.ID, q.queue.URL, err))
		},
		OnHookRefused: func(err error) {
			q.createEvent(ctx, hookRefused, "check the rights of the role and --aws-queue-region: AWS refused the "+err.Error())
		},
		Beat: q.alive.Beat, OnReceive: func() { q.read.Store(true) },
	})
	q.agents.Log.Info("handling the queue", "version", start.Version(), "queue", q.queue.URL, "workers", q.queue.Workers, "dryRun", c.DryRun)
	return controller.Run(ctx)
}

func (q *Queue) newAgent(node *kubeapi.Node, instance string, source *queue.Source, slots agent.DrainSlots) (queueagents.Agent, error) {
	return q.agents.New(node, instance, source, func(o *agent.Options) {
		queueagents.SetAgentOptions(o, source, slots, q.config.Acknowledge && q.queue.Acknowledge && !q.config.DryRun)
	})
}

// runWhileLeading handles the queue while this process holds the Lease, or always without a namespace for the Lease.
func (q *Queue) runWhileLeading(ctx context.Context) error {
	if q.queue.LeaseNamespace == "" {
		return q.run(ctx)
	}
	hostname, err := os.Hostname()
	if err != nil {
		return err
	}
	identity := leaseIdentity(cmp.Or(os.Getenv("POD_NAME"), hostname), q.queue.URL) // with hostNetwork, two pods may have one host name
	holder, err := semaphore.NewHolder(semaphore.Options{
		API: q.agents.API, Namespace: q.queue.LeaseNamespace, Identity: identity, Limit: 1, Purpose: leasePurpose, Log: q.agents.Log,
	})
	if err != nil {
		return err
	}
	reported := ""
	onWait := func() { // a process that waits for another one of its queue is ready too
		other := findOtherQueue(holder.Holders(), identity)
		if other == "" {
			q.read.Store(true)
		} else if other != reported {
			q.agents.Log.Error("a process that handles another queue holds the Lease, so the messages of this queue wait; use one queue for a cluster",
				"queue", q.queue.URL, "namespace", q.queue.LeaseNamespace, "holder", other)
		}
		reported = other
	}
	return runWhileHeld(ctx, holder, q.alive.Beat, onWait, q.run)
}

// leaseIdentity returns the name of a process in its Lease. It ends with a hash of the queue's URL.
func leaseIdentity(host, queueURL string) string {
	hash := sha256.Sum256([]byte(queueURL))
	return fmt.Sprintf("%s/%x", host, hash[:4])
}

// findOtherQueue returns the first holder of the Lease that handles another queue; empty if there is none.
func findOtherQueue(holders []string, identity string) string {
	_, own, _ := strings.Cut(identity, "/")
	for _, holder := range holders {
		if _, hash, found := strings.Cut(holder, "/"); found && hash != own {
			return holder
		}
	}
	return ""
}

// leaseHolder is what runWhileHeld needs of a *semaphore.Holder.
type leaseHolder interface {
	SetWanted(wanted bool, until time.Time)
	IsHeld() bool
	IsReleased() bool
	Run(ctx context.Context, changed func())
}

const (
	// waitInterval is the pause between two checks of the Lease.
	waitInterval = time.Second
	// releaseTimeout limits how long the end of the process waits for the release of the Lease.
	releaseTimeout = 2 * time.Second
)

// runWhileHeld runs part whenever the Lease is held, until ctx ends. It calls beat and onWait while it waits.
func runWhileHeld(ctx context.Context, holder leaseHolder, beat, onWait func(), part func(context.Context) error) error {
	waiting, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	defer func() { // release the Lease after part has ended, so that the next process need not wait until it expires
		holder.SetWanted(false, time.Time{})
		for end := time.Now().Add(releaseTimeout); !holder.IsReleased() && time.Now().Before(end); {
			time.Sleep(releaseTimeout / 50)
		}
		stop()
		<-ended
	}()
	holder.SetWanted(true, time.Time{})
	go func() {
		defer close(ended)
		holder.Run(waiting, func() {})
	}()
	ticker := time.NewTicker(waitInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !holder.IsHeld() {
			beat()
			onWait()
			continue
		}
		held, lost := context.WithCancel(ctx)
		go func() {
			defer lost()
			for holder.IsHeld() {
				select {
				case <-held.Done():
					return
				case <-time.After(waitInterval):
				}
			}
		}()
		err := part(held)
		lost()
		if err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
	}
}

// eventReason is the reason of an Event.
type eventReason string

// The reasons.
const (
	// messageUnreadable is Warning, on Pod: a message of the queue cannot be read, and is left to the redrive policy of the
	// queue.
	messageUnreadable eventReason = "QueueMessageUnreadable"
	// hookRefused is Warning, on Pod: AWS refuses a heartbeat or the completion of a lifecycle hook, because a right is missing
	// or a name is wrong. It is tried again.
	hookRefused eventReason = "QueueHookRefused"
)

// eventInterval is the pause between two Events with one reason. A sender to the queue could otherwise fill the storage of the
// API server. All of them are in the log and the metrics.
const eventInterval = 10 * time.Second

// createEvent creates an Event on this process's own pod. Outside a pod there is none.
func (q *Queue) createEvent(ctx context.Context, reason eventReason, message string) {
	namespace, pod := q.config.Namespace, os.Getenv("POD_NAME")
	if namespace == "" || pod == "" || q.config.DryRun {
		return
	}
	now := time.Now()
	q.mu.Lock()
	isDue := !now.Before(q.nextEvent[reason])
	if isDue {
		q.nextEvent[reason] = now.Add(eventInterval)
	}
	q.mu.Unlock()
	if !isDue {
		return
	}
	e := kubeapi.Event{
		Metadata:       kubeapi.ObjectMeta{Name: fmt.Sprintf("%s.%x", pod, now.UnixNano()), Namespace: namespace},
		InvolvedObject: kubeapi.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: pod, UID: os.Getenv("POD_UID")},
		Type:           "Warning", Reason: string(reason), Count: 1, FirstTimestamp: now, LastTimestamp: now, Message: observe.ClipBytes(message, maxEventBytes),
	}
	e.Source.Component = "slipway"
	go func() {
		ctx, cancel := context.WithTimeout(ctx, eventTimeout)
		defer cancel()
		if err := q.agents.API.CreateEvent(ctx, e); err != nil {
			q.agents.Log.Warn("cannot create an Event", "namespace", namespace, "pod", pod, "err", err)
		}
	}()
}

// maxEventBytes is the largest message of an Event that the API server accepts.
const maxEventBytes = 1000
