// Package advised shows plugins the events of pods that they want to see, and passes on what they wish for: machines to the
// autoscaler, which grants them within the limits that hold for every order, and the end of a node to a NodeRetirement,
// which keeps the minimum, the budgets and the pods as any other does.
//
// A plugin harms nothing: what waits to be shown to one is bounded and kept apart from what waits for the others, each call
// ends in time, and an event whose call fails is shown twice more, after pauses, and then dropped. Nothing waits for it.
package advised

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud/advice"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
	"github.com/slipway-dev/slipway/internal/retirement/request"
)

const (
	// callTimeout bounds a call, beside the plugin's own bound.
	callTimeout = 30 * time.Second
	// maxConcurrentCalls is how many calls one plugin gets at the same time.
	maxConcurrentCalls = 4
	// maxTries is how often an event is shown to a plugin that fails, and firstRetryPause the time before the second.
	maxTries        = 3
	firstRetryPause = 2 * time.Second
	// retirementRetryPause is how long a node whose retirement ended early is not retired again for a wish.
	retirementRetryPause = 5 * time.Minute
)

// Wishes take the machines that are wished for.
type Wishes interface {
	// Ask reports whether the wish is taken.
	Ask(plan.Wish) bool
	// Withdraw forgets the wishes whose IDs begin so.
	Withdraw(prefix string)
}

// Options are what Advised works with. All fields but Selector are required.
type Options struct {
	// Kube watches Pods, whole as plugins get them. It does so only when a plugin wants that.
	Kube kubernetes.Interface
	// Client reads Nodes and NodeRetirements from caches, and asks for NodeRetirements.
	Client    client.Client
	Groups    nodegroup.Groups
	Analyzers []advice.Analyzer
	Wishes    Wishes
	Metrics   *Metrics
	Log       *slog.Logger
	// Selector restricts what is acted on to the groups with these labels; nil is all.
	Selector labels.Selector
}

// Advised is a manager's Runnable.
type Advised struct {
	options Options
	queues  []*eventQueue // of the analyzers, in their order
}

// New makes what is to be added to a manager.
func New(o Options) *Advised {
	if o.Selector == nil {
		o.Selector = labels.Everything()
	}
	a := &Advised{options: o}
	for range o.Analyzers {
		a.queues = append(a.queues, newEventQueue())
	}
	return a
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*Advised) NeedLeaderElection() bool { return true }

// Start works until ctx ends. Without a plugin that wants to see events it watches nothing.
func (a *Advised) Start(ctx context.Context) error {
	wanted := false
	for _, of := range a.options.Analyzers {
		wants := of.Events()
		wanted = wanted || wants.Modify || wants.Delete
	}
	if !wanted {
		<-ctx.Done()
		return nil
	}
	factory := informers.NewSharedInformerFactoryWithOptions(a.options.Kube, 0, informers.WithTransform(ctrlcache.TransformStripManagedFields()))
	if _, err := factory.Core().V1().Pods().Informer().AddEventHandler(a.eventHandler()); err != nil {
		return fmt.Errorf("watching pods for plugins: %w", err)
	}
	var work sync.WaitGroup
	for i, of := range a.options.Analyzers {
		for range maxConcurrentCalls {
			work.Go(func() { a.showEvents(ctx, of, a.queues[i]) })
		}
	}
	factory.Start(ctx.Done())
	<-ctx.Done()
	for _, q := range a.queues {
		q.close()
	}
	work.Wait()
	factory.Shutdown()
	return nil
}

func (a *Advised) eventHandler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { a.queueEvent(podModified, o) },
		UpdateFunc: func(_, o any) { a.queueEvent(podModified, o) },
		DeleteFunc: func(o any) {
			if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = last.Obj
			}
			a.queueEvent(podDeleted, o)
		},
	}
}

// queueEvent queues an event for the plugins that want it.
func (a *Advised) queueEvent(kind eventKind, o any) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	for i, of := range a.options.Analyzers {
		if kind == podDeleted {
			a.options.Wishes.Withdraw(requestIDPrefix(of, pod))
		}
		if wants := of.Events(); kind == podModified && !wants.Modify || kind == podDeleted && !wants.Delete {
			continue
		}
		if a.queues[i].put(podEvent{kind: kind, pod: pod}) {
			a.options.Metrics.countEvent(of.Name(), kind, resultDropped)
		}
	}
}

// showEvents shows events to one plugin.
func (a *Advised) showEvents(ctx context.Context, of advice.Analyzer, q *eventQueue) {
	for {
		e, ok := q.waitForNext()
		if !ok {
			return
		}
		wishes, err := a.callPlugin(ctx, of, e)
		switch {
		case err == nil:
			a.options.Metrics.countEvent(of.Name(), e.kind, resultAnswered)
			for i, w := range wishes {
				a.applyRequest(ctx, of, e.pod, i, w)
			}
		case ctx.Err() != nil:
			return
		default:
			a.retryEvent(ctx, of, q, e, err)
		}
	}
}

// callPlugin makes one call.
func (a *Advised) callPlugin(ctx context.Context, of advice.Analyzer, e podEvent) ([]advice.Wish, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	began := time.Now()
	defer func() { a.options.Metrics.observeCall(of.Name(), time.Since(began)) }()
	analyze := of.AnalyzeModifyEvent
	if e.kind == podDeleted {
		analyze = of.AnalyzeDeleteEvent
	}
	wishes, err := analyze(ctx, e.pod.DeepCopy())
	if err != nil {
		return nil, err
	}
	return wishes, advice.Validate(wishes)
}

// retryEvent has an event shown again after a pause, unless that was done often enough.
func (a *Advised) retryEvent(ctx context.Context, of advice.Analyzer, q *eventQueue, e podEvent, err error) {
	a.options.Metrics.countEvent(of.Name(), e.kind, resultFailed)
	e.tries++
	log := a.options.Log.With("plugin", of.Name(), "event", e.kind, "pod", e.pod.Namespace+"/"+e.pod.Name, "err", err)
	if e.tries >= maxTries {
		log.Warn("the plugin does not say what it wants; the event is dropped", "tries", e.tries)
		a.options.Metrics.countEvent(of.Name(), e.kind, resultDropped)
		return
	}
	log.Debug("the plugin does not say what it wants; the event is shown again", "tries", e.tries)
	if elapsed.Sleep(ctx, firstRetryPause<<(e.tries-1)) {
		q.putBack(e)
	}
}

// applyRequest passes on what a plugin wishes for.
func (a *Advised) applyRequest(ctx context.Context, of advice.Analyzer, pod *corev1.Pod, i int, w advice.Wish) {
	var err error
	kind := "retire"
	if w.Grow != nil {
		kind, err = "grow", a.requestInstances(ctx, of, pod, i, w)
	} else {
		err = a.requestRetirement(ctx, of, w)
	}
	if err != nil {
		a.options.Log.Warn("what the plugin wishes for is not done", "plugin", of.Name(), "wish", kind, "pod", pod.Namespace+"/"+pod.Name, "err", err)
	}
	a.options.Metrics.countRequest(of.Name(), kind, err)
}

func requestIDPrefix(of advice.Analyzer, pod *corev1.Pod) string {
	return of.Name() + "/" + string(pod.UID) + "/"
}

// requestInstances asks for machines of a group of the plugin's own cloud.
func (a *Advised) requestInstances(ctx context.Context, of advice.Analyzer, pod *corev1.Pod, i int, w advice.Wish) error {
	groups, err := a.options.Groups.List(ctx)
	if err != nil {
		return err
	}
	for j := range groups {
		g := &groups[j]
		if g.Spec.Cloud != (v1alpha1.CloudGroup{Provider: of.Name(), Group: w.Grow.Group}) || !a.options.Selector.Matches(labels.Set(g.Labels)) {
			continue
		}
		taken := a.options.Wishes.Ask(plan.Wish{
			ID: fmt.Sprintf("%s%s/%s/%d", requestIDPrefix(of, pod), g.Name, w.Grow.Template, i), Group: g.Name, Template: w.Grow.Template,
			Count: w.Grow.Count, Pod: placement.PodKey{Namespace: pod.Namespace, Name: pod.Name}, Why: describeReason(of, w),
		})
		if !taken {
			return fmt.Errorf("%d machines of group %s: too many wishes are open", w.Grow.Count, w.Grow.Group)
		}
		return nil
	}
	return fmt.Errorf("grow.group: no NodeGroup of cloud %s has spec.cloud.group %q", of.Name(), w.Grow.Group)
}

func describeReason(of advice.Analyzer, w advice.Wish) string {
	return "plugin " + of.Name() + ": " + observe.Clip(w.Reason, advice.MaxReason)
}

// requestRetirement asks for the retirement of a node of the plugin's own cloud.
func (a *Advised) requestRetirement(ctx context.Context, of advice.Analyzer, w advice.Wish) error {
	var n corev1.Node
	if err := a.options.Client.Get(ctx, client.ObjectKey{Name: w.Retire.Node}, &n); err != nil {
		return fmt.Errorf("retire.node: %w", err)
	}
	g, err := a.findGroup(ctx, of, &n)
	if err != nil {
		return err
	}
	var all v1alpha1.NodeRetirementList
	if err := a.options.Client.List(ctx, &all); err != nil {
		return fmt.Errorf("NodeRetirements: %w", err)
	}
	before := ""
	for i := range all.Items {
		rt := &all.Items[i]
		if rt.Spec.NodeName != n.Name || rt.Spec.NodeUID != "" && rt.Spec.NodeUID != n.UID {
			continue
		}
		if !rt.Status.Phase.Finished() {
			return nil // it is leaving
		}
		if ended := rt.Status.Times.Finished; ended != nil && time.Since(ended.Time) < retirementRetryPause {
			return fmt.Errorf("node %s: its retirement %s has only just ended: %s", n.Name, rt.Name, rt.Status.Message)
		}
		before += string(rt.UID)
	}
	const longestRequester = 253
	rt := request.New(request.Request{
		Name: request.Name(n.Name, "advised", n.UID, before), Labels: g.Labels,
		Spec: v1alpha1.NodeRetirementSpec{
			NodeName: n.Name, NodeUID: n.UID, Reason: v1alpha1.Requested, RequestedBy: observe.Cut(describeReason(of, w), longestRequester), Group: g.Name,
		},
	})
	if err := a.options.Client.Create(ctx, rt); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("NodeRetirement %s: %w", rt.Name, err)
	}
	return nil
}

// findGroup is the group of a node, if it is one of the plugin's own cloud.
func (a *Advised) findGroup(ctx context.Context, of advice.Analyzer, n *corev1.Node) (*v1alpha1.NodeGroup, error) {
	groups, err := a.options.Groups.List(ctx)
	if err != nil {
		return nil, err
	}
	owner := nodegroup.Claim(groups, []corev1.Node{*n}).Owner[n.Name]
	for i := range groups {
		g := &groups[i]
		if g.Name == owner && g.Spec.Cloud.Provider == of.Name() && a.options.Selector.Matches(labels.Set(g.Labels)) {
			return g, nil
		}
	}
	return nil, fmt.Errorf("retire.node: %s is of no NodeGroup of cloud %s", n.Name, of.Name())
}
