package queueagents

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	astypes "github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/aws/queue"
	"github.com/slipway-dev/slipway/internal/notice/poll"
	"github.com/slipway-dev/slipway/internal/notice/report"
	"github.com/slipway-dev/slipway/internal/observe"
)

// world is a queue, a cluster and Auto Scaling in memory. Processes come and go in it.
type world struct {
	t      *testing.T
	config queue.Config
	policy agent.NoticePolicy
	// drainTime is how long each drain takes.
	drainTime time.Duration
	// hookTimeout is the timeout of each lifecycle hook.
	hookTimeout time.Duration
	// nodesDelay is how long the first list of the Nodes takes.
	nodesDelay time.Duration
	// clockAhead is how far the clock of the process is ahead of the clock of AWS, in nanoseconds. AWS has the clock of the test.
	clockAhead atomic.Int64

	metrics *observe.Registry // of the last process

	mu       sync.Mutex
	process  int // the running one; an older one changes nothing any more
	watch    *kubeapi.Handler[kubeapi.Node]
	nodes    map[string]*kubeapi.Node
	version  int
	messages map[string]*queued
	sent     int
	handles  int
	// drains counts the drains that began, by node UID. fails holds the error of requests by name, for as long as it is not nil.
	drains     map[string]int
	notices    map[string]map[string]notice.Notice // that the agents have, by Node and ID
	fails      map[string]error
	hooks      map[string]bool // waiting, by token
	heartbeats int
	tags       map[string][]string // of EC2 instances
	dnsNames   map[string]string
	unreadable int
	refused    int // requests about hooks
	lists      int // of all Nodes
}

// queued is a message in the queue.
type queued struct {
	id, body  string
	sent      time.Time
	visibleAt time.Time
	handle    string
	receives  int
}

func newWorld(t *testing.T) *world {
	w := &world{
		t: t, config: queue.NewDefaultConfig(), policy: agent.DefaultNoticePolicy(), drainTime: 5 * time.Second, hookTimeout: 2 * time.Minute,
		nodes: map[string]*kubeapi.Node{}, messages: map[string]*queued{}, drains: map[string]int{}, notices: map[string]map[string]notice.Notice{}, fails: map[string]error{}, hooks: map[string]bool{},
		tags: map[string][]string{}, dnsNames: map[string]string{},
	}
	w.config.URL = "https://sqs.eu-west-1.amazonaws.com/1/notices"
	return w
}

// setClockAhead sets the clock of the process, which may run.
func (w *world) setClockAhead(ahead time.Duration) { w.clockAhead.Store(int64(ahead)) }

// wall returns what the clock of the process shows.
func (w *world) wall(t time.Time) time.Time { return t.Add(time.Duration(w.clockAhead.Load())) }

// start starts a process. The result kills it: none of its requests has an effect any more.
func (w *world) start() (kill func()) {
	w.mu.Lock()
	w.process++
	mine := w.process
	w.mu.Unlock()
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	clients := &fakeAWS{w, mine}
	w.metrics = observe.NewRegistry()
	c := New(Options{
		API: &fakeNodes{w, mine}, WatchNodes: func(ctx context.Context, h kubeapi.Handler[kubeapi.Node]) {
			w.mu.Lock()
			all := w.copyNodes()
			w.watch = &h
			w.mu.Unlock()
			time.Sleep(w.nodesDelay)
			h.Replaced(all)
			<-ctx.Done()
		},
		NewAgent: func(n *kubeapi.Node, _ string, s *queue.Source, _ agent.DrainSlots) (Agent, error) {
			return &fakeAgent{w: w, process: mine, node: n.Name, uid: n.UID, source: s}, nil
		},
		Clients: queue.Clients{SQS: clients, EC2: clients, AutoScaling: clients}, Config: w.config, Policy: w.policy,
		Leads: poll.Leads{Retirement: 24 * time.Hour, Maintenance: 15 * time.Minute}, Acknowledges: true,
		Metrics: queue.NewMetrics(w.metrics), Log: slog.New(slog.NewTextHandler(w.t.Output(), nil)), Wall: w.wall,
		OnUnreadable: func(queue.Message, error) {
			w.mu.Lock()
			w.unreadable++
			w.mu.Unlock()
		},
		OnHookRefused: func(error) {
			w.mu.Lock()
			w.refused++
			w.mu.Unlock()
		},
	})
	go func() {
		defer close(done)
		_ = c.Run(ctx)
	}()
	return func() {
		w.mu.Lock()
		w.process++
		w.watch = nil
		w.mu.Unlock()
		cancel()
		<-done
	}
}

func (w *world) copyNodes() []kubeapi.Node {
	var all []kubeapi.Node
	for _, name := range slices.Sorted(maps.Keys(w.nodes)) {
		all = append(all, copyNode(w.nodes[name]))
	}
	return all
}

func copyNode(n *kubeapi.Node) kubeapi.Node {
	copied := *n
	copied.Annotations, copied.Status.Conditions = maps.Clone(n.Annotations), slices.Clone(n.Status.Conditions)
	return copied
}

// setNode adds or changes a Node, and tells the watch.
func (w *world) setNode(name string, change func(n *kubeapi.Node)) {
	w.mu.Lock()
	n := w.nodes[name]
	if n == nil {
		w.version++
		n = &kubeapi.Node{ObjectMeta: kubeapi.ObjectMeta{Name: name, UID: "uid-" + strconv.Itoa(w.version), Annotations: map[string]string{}}}
		w.nodes[name] = n
	}
	change(n)
	w.version++
	n.ResourceVersion = strconv.Itoa(w.version)
	seen := copyNode(n)
	watch := w.watch
	w.mu.Unlock()
	if watch != nil {
		watch.Changed(seen)
	}
}

func (w *world) hasNode(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.nodes[name] != nil
}

func (w *world) addNode(name, instance string) {
	w.setNode(name, func(n *kubeapi.Node) {
		n.Spec.ProviderID = "aws:///eu-west-1a/" + instance
		n.Status.Conditions = []kubeapi.Condition{{Type: "Ready", Status: "True", LastTransitionTime: time.Now().Add(-time.Hour)}}
	})
}

func (w *world) deleteNode(name string) {
	w.mu.Lock()
	n := w.nodes[name]
	delete(w.nodes, name)
	watch := w.watch
	w.mu.Unlock()
	if watch != nil && n != nil {
		watch.Deleted(*n)
	}
}

func (w *world) send(body string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent++
	id := fmt.Sprintf("message-%d", w.sent)
	w.messages[id] = &queued{id: id, body: body, sent: time.Now(), visibleAt: time.Now()}
}

func (w *world) countHeartbeats() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.heartbeats
}

func (w *world) countMessages() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.messages)
}

func (w *world) drainsOf(node string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.drains[node]
}

// noticeOf returns the notice that the agent of a Node has; zero if it has none.
func (w *world) noticeOf(node, id string) notice.Notice {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.notices[node][id]
}

func (w *world) phaseOf(node, id string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.nodes[node] == nil {
		return "no node"
	}
	reports, _ := report.ReadReports(w.nodes[node].Annotations)
	for _, r := range reports {
		if r.ID == id {
			return cmpOr(r.Phase, "noticed")
		}
	}
	return ""
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// fail makes requests with this name fail, until err is nil.
func (w *world) fail(name string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fails[name] = err
}

// begin locks the world for a request of a process. It returns the error of the request, if it has one.
func (w *world) begin(process int, name string) error {
	w.mu.Lock()
	if process != w.process {
		return errors.New("the process was killed")
	}
	return w.fails[name]
}

type fakeAWS struct {
	w       *world
	process int
}

// newMetadata returns the metadata of a response that AWS sends now.
func (f *fakeAWS) newMetadata(ctx context.Context) middleware.Metadata {
	date := time.Now().UTC().Format(http.TimeFormat)
	_, metadata, _ := awsmiddleware.RecordResponseTiming{}.HandleDeserialize(ctx, middleware.DeserializeInput{}, middleware.DeserializeHandlerFunc(
		func(context.Context, middleware.DeserializeInput) (out middleware.DeserializeOutput, _ middleware.Metadata, _ error) {
			out.RawResponse = &smithyhttp.Response{Response: &http.Response{Header: http.Header{"Date": {date}}}}
			return out, middleware.Metadata{}, nil
		}))
	return metadata
}

func (f *fakeAWS) ReceiveMessage(ctx context.Context, in *sqs.ReceiveMessageInput, _ ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error) {
	for end := time.Now().Add(time.Duration(in.WaitTimeSeconds) * time.Second); ; {
		err := f.w.begin(f.process, "receive")
		var out sqs.ReceiveMessageOutput
		for _, m := range f.w.messages { // in random order
			if len(out.Messages) < int(in.MaxNumberOfMessages) && f.process == f.w.process && !m.visibleAt.After(time.Now()) {
				f.w.handles++
				m.handle, m.receives = fmt.Sprintf("handle-%d", f.w.handles), m.receives+1
				m.visibleAt = time.Now().Add(time.Duration(in.VisibilityTimeout) * time.Second)
				out.Messages = append(out.Messages, types.Message{
					MessageId: aws.String(m.id), ReceiptHandle: aws.String(m.handle), Body: aws.String(m.body),
					Attributes: map[string]string{"SentTimestamp": strconv.FormatInt(m.sent.UnixMilli(), 10), "ApproximateReceiveCount": strconv.Itoa(m.receives)},
				})
			}
		}
		f.w.mu.Unlock()
		switch {
		case err != nil:
			return nil, err // the messages are hidden, and the answer is lost
		case len(out.Messages) > 0 || time.Now().After(end):
			out.ResultMetadata = f.newMetadata(ctx)
			return &out, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (f *fakeAWS) byHandle(handle string) *queued {
	for _, m := range f.w.messages {
		if m.handle == handle {
			return m
		}
	}
	return nil
}

func (f *fakeAWS) DeleteMessageBatch(_ context.Context, in *sqs.DeleteMessageBatchInput, _ ...func(*sqs.Options)) (*sqs.DeleteMessageBatchOutput, error) {
	if len(in.Entries) > 10 {
		f.w.t.Errorf("a batch of %d", len(in.Entries))
	}
	err := f.w.begin(f.process, "delete")
	defer f.w.mu.Unlock()
	if err != nil {
		return nil, err
	}
	for _, e := range in.Entries {
		if m := f.byHandle(*e.ReceiptHandle); m != nil {
			delete(f.w.messages, m.id)
		}
	}
	if err := f.w.fails["delete answer"]; err != nil {
		return nil, err
	}
	return &sqs.DeleteMessageBatchOutput{}, nil
}

func (f *fakeAWS) ChangeMessageVisibilityBatch(_ context.Context, in *sqs.ChangeMessageVisibilityBatchInput, _ ...func(*sqs.Options)) (*sqs.ChangeMessageVisibilityBatchOutput, error) {
	err := f.w.begin(f.process, "visibility")
	defer f.w.mu.Unlock()
	if err != nil {
		return nil, err
	}
	for _, e := range in.Entries {
		if m := f.byHandle(*e.ReceiptHandle); m != nil {
			m.visibleAt = time.Now().Add(time.Duration(e.VisibilityTimeout) * time.Second)
		}
	}
	return &sqs.ChangeMessageVisibilityBatchOutput{}, nil
}

func (f *fakeAWS) DescribeInstances(_ context.Context, ids []string) (all []queue.Instance, err error) {
	err = f.w.begin(f.process, "describe")
	defer f.w.mu.Unlock()
	for _, id := range ids {
		if f.w.tags[id] != nil || f.w.dnsNames[id] != "" {
			all = append(all, queue.Instance{ID: id, PrivateDNSName: f.w.dnsNames[id], TagKeys: f.w.tags[id]})
		}
	}
	return all, err
}

func (f *fakeAWS) CompleteLifecycleAction(_ context.Context, in *autoscaling.CompleteLifecycleActionInput, _ ...func(*autoscaling.Options)) (*autoscaling.CompleteLifecycleActionOutput, error) {
	err := f.w.begin(f.process, "complete")
	defer f.w.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case !f.w.hooks[*in.LifecycleActionToken]:
		return nil, &smithy.GenericAPIError{Code: "ValidationError", Message: "No active Lifecycle Action found"}
	}
	delete(f.w.hooks, *in.LifecycleActionToken)
	return &autoscaling.CompleteLifecycleActionOutput{}, nil
}

func (f *fakeAWS) RecordLifecycleActionHeartbeat(context.Context, *autoscaling.RecordLifecycleActionHeartbeatInput, ...func(*autoscaling.Options)) (*autoscaling.RecordLifecycleActionHeartbeatOutput, error) {
	err := f.w.begin(f.process, "heartbeat")
	defer f.w.mu.Unlock()
	f.w.heartbeats++
	return &autoscaling.RecordLifecycleActionHeartbeatOutput{}, err
}

func (f *fakeAWS) DescribeLifecycleHooks(context.Context, *autoscaling.DescribeLifecycleHooksInput, ...func(*autoscaling.Options)) (*autoscaling.DescribeLifecycleHooksOutput, error) {
	err := f.w.begin(f.process, "hooks")
	defer f.w.mu.Unlock()
	return &autoscaling.DescribeLifecycleHooksOutput{LifecycleHooks: []astypes.LifecycleHook{{HeartbeatTimeout: aws.Int32(int32(f.w.hookTimeout / time.Second))}}}, err
}

type fakeNodes struct {
	w       *world
	process int
}

func (f *fakeNodes) ListNodes(context.Context, string) ([]kubeapi.Node, error) {
	err := f.w.begin(f.process, "list")
	defer f.w.mu.Unlock()
	f.w.lists++
	return f.w.copyNodes(), err
}

func (f *fakeNodes) PatchNode(_ context.Context, name string, patch []byte) (*kubeapi.Node, error) {
	err := f.w.begin(f.process, "patch")
	f.w.mu.Unlock()
	if err != nil {
		return nil, err
	}
	var change struct {
		Metadata struct {
			UID         string             `json:"uid"`
			Annotations map[string]*string `json:"annotations"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(patch, &change); err != nil {
		return nil, err
	}
	f.w.setNode(name, func(n *kubeapi.Node) {
		for key, value := range change.Metadata.Annotations {
			if value == nil {
				delete(n.Annotations, key)
			} else if n.UID == change.Metadata.UID {
				n.Annotations[key] = *value
			}
		}
	})
	return nil, nil
}

// fakeAgent does what an agent does, as far as its Node shows it: it records each notice, drains once for all, approves, and
// removes the records of ended notices.
type fakeAgent struct {
	w         *world
	process   int
	node, uid string
	source    *queue.Source
}

func (a *fakeAgent) AwaitDrained(context.Context, string, string) error { return nil }

func (a *fakeAgent) Run(ctx context.Context) error {
	notices := map[string]notice.Notice{}
	snapshots := make(chan notice.Snapshot)
	go a.source.Run(ctx, func(s notice.Snapshot) {
		select {
		case snapshots <- s:
		case <-ctx.Done():
		}
	})
	var drained <-chan time.Time
	isDrained := false
	for {
		for id, n := range notices {
			phase := a.w.phaseOf(a.node, id)
			action := a.w.policy.Decide(n, agent.SeenTimes{First: time.Now()}).Action
			isDrained = isDrained || phase == "drained" || phase == "acknowledged"
			switch {
			case action == agent.Cordon && phase != "cordoned":
				a.record(n, "cordoned")
			case action != agent.Drain, phase == "acknowledged":
			case isDrained && phase != "drained":
				a.record(n, "drained")
			case isDrained && !n.NotApprovable:
				if a.source.Approve(ctx, id) == nil {
					a.record(n, "acknowledged")
				}
			case !isDrained && drained == nil:
				a.record(n, "draining")
				drained = time.After(a.w.drainTime)
			case !isDrained && phase == "":
				a.record(n, "draining")
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-drained:
			drained, isDrained = nil, true
		case s := <-snapshots:
			now := map[string]notice.Notice{}
			for _, n := range s.Notices {
				now[n.ID] = n
			}
			a.removeEnded(now)
			notices = now
			a.w.mu.Lock()
			a.w.notices[a.node] = now
			a.w.mu.Unlock()
		case <-time.After(5 * time.Second):
		}
	}
}

// change changes the annotations of the agent's Node, unless the process was killed or another Node has the name. It does nothing
// while requests with the name "record" fail.
func (a *fakeAgent) change(change func(annotations map[string]string)) {
	err := a.w.begin(a.process, "record")
	a.w.mu.Unlock()
	if err == nil && a.w.hasNode(a.node) {
		a.w.setNode(a.node, func(n *kubeapi.Node) {
			if a.process == a.w.process && n.UID == a.uid {
				change(n.Annotations)
			}
		})
	}
}

// record records the phase of a notice. The first record of a drain counts the drain.
func (a *fakeAgent) record(n notice.Notice, phase string) {
	owner, now := notice.ClaimOwner(n.Source, n.ID), a.w.wall(time.Now())
	state, _ := json.Marshal(map[string]any{
		"notice": n, "phase": phase, "seen": map[string]any{"first": now}, "decision": map[string]any{"deadline": now.Add(time.Minute), "reason": "test"},
	})
	record, _ := json.Marshal(cordon.Record{Owner: owner, State: state})
	a.change(func(annotations map[string]string) {
		before, _ := report.ReadReports(annotations)
		if phase == "draining" && !slices.ContainsFunc(before, func(r report.Report) bool { return r.Phase != "cordoned" }) {
			a.w.drains[a.node]++
		}
		annotations[cordon.AnnotationKey(owner)] = string(record)
	})
}

func (a *fakeAgent) removeEnded(now map[string]notice.Notice) {
	a.change(func(annotations map[string]string) {
		reports, _ := report.ReadReports(annotations)
		for _, r := range reports {
			if _, listed := now[r.ID]; !listed {
				delete(annotations, cordon.AnnotationKey(notice.ClaimOwner(r.Source, r.ID)))
			}
		}
	})
}

// await waits until the condition is true, at most for the time.
func await(t *testing.T, what string, most time.Duration, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(most); !condition(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after %v: %s", most, what)
		}
	}
	synctest.Wait()
}
