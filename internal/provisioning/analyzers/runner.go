// Package analyzers shows pod events to plugins, and applies their requests. A request for instances becomes a launch
// request, within the limits of every launch. A request to retire a node becomes a NodeRetirement, which respects the
// minimum, the budgets and the pods.
//
// A plugin cannot block Slipway. Each plugin has its own limited queue, and each call has a timeout. An event with a
// failed call is shown twice more, after pauses, and is then dropped. While a plugin does not run, its events are kept.
// Nothing waits for a plugin.
package analyzers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
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
	// callTimeout limits a call, in addition to the plugin's own limit.
	callTimeout = 30 * time.Second
	// maxConcurrentCalls is the maximum of running calls per plugin.
	maxConcurrentCalls = 4
	// maxTries is how often an event is shown to a failing plugin. firstRetryPause is the pause before the second try.
	maxTries        = 3
	firstRetryPause = 2 * time.Second
	// retirementRetryPause is how long a node is not retired again after its retirement ended early.
	retirementRetryPause = 5 * time.Minute
)

// LaunchRequests accepts launch requests.
type LaunchRequests interface {
	// Add adds a launch request. It returns false if there are too many.
	Add(request plan.LaunchRequest) (accepted bool)
	// RemoveByPrefix removes the launch requests with this ID prefix.
	RemoveByPrefix(prefix string)
}

// Options configure a Runner. All fields but Selector are required.
type Options struct {
	// Kube watches whole Pods, as plugins get them. It is used only if a plugin wants events.
	Kube kubernetes.Interface
	// Client reads Nodes and NodeRetirements from caches, and creates NodeRetirements.
	Client         client.Client
	Groups         nodegroup.Groups
	Analyzers      []advice.Analyzer
	LaunchRequests LaunchRequests
	Metrics        *Metrics
	Log            *slog.Logger
	// Selector restricts requests to groups with these labels. nil selects all groups.
	Selector labels.Selector
}

// PluginRunner runs the plugins. It implements manager.Runnable.
type PluginRunner struct {
	options Options
	queues  []*eventQueue // in the order of the analyzers
	pods    cache.Store   // the present pods; nil before Start
}

// New returns a PluginRunner with an empty queue of events for each plugin.
func New(o Options) *PluginRunner {
	if o.Selector == nil {
		o.Selector = labels.Everything()
	}
	a := &PluginRunner{options: o}
	for range o.Analyzers {
		a.queues = append(a.queues, newEventQueue())
	}
	return a
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*PluginRunner) NeedLeaderElection() bool { return true }

// Start runs the plugins until ctx ends. If no plugin wants events of pods, it watches no pods.
func (a *PluginRunner) Start(ctx context.Context) error {
	wanted := false
	for _, analyzer := range a.options.Analyzers {
		wants := analyzer.Events()
		wanted = wanted || wants.Modify || wants.Delete
	}
	if !wanted {
		<-ctx.Done()
		return nil
	}
	factory := informers.NewSharedInformerFactoryWithOptions(a.options.Kube, 0, informers.WithTransform(ctrlcache.TransformStripManagedFields()))
	informer := factory.Core().V1().Pods().Informer()
	a.pods = informer.GetStore()
	if _, err := informer.AddEventHandler(a.eventHandler()); err != nil {
		return fmt.Errorf("watching pods for plugins: %w", err)
	}
	var work sync.WaitGroup
	for i, analyzer := range a.options.Analyzers {
		for range maxConcurrentCalls {
			work.Go(func() { a.sendEventsToPlugin(ctx, analyzer, a.queues[i]) })
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

func (a *PluginRunner) eventHandler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { a.queuePodEvent(podModified, o) },
		UpdateFunc: func(_, o any) { a.queuePodEvent(podModified, o) },
		DeleteFunc: func(o any) {
			if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = last.Obj
			}
			a.queuePodEvent(podDeleted, o)
		},
	}
}

// queuePodEvent queues an event for each plugin that wants it.
func (a *PluginRunner) queuePodEvent(kind eventKind, o any) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	for i, analyzer := range a.options.Analyzers {
		if kind == podDeleted {
			a.options.LaunchRequests.RemoveByPrefix(requestIDPrefix(analyzer, pod))
		}
		if wants := analyzer.Events(); kind == podModified && !wants.Modify || kind == podDeleted && !wants.Delete {
			continue
		}
		if a.queues[i].putDroppingOldest(podEvent{kind: kind, pod: pod}) {
			a.options.Metrics.countEvent(analyzer.Name(), kind, resultDropped)
		}
	}
}

// sendEventsToPlugin takes the events from a queue and shows each to a plugin, until the queue is closed.
func (a *PluginRunner) sendEventsToPlugin(ctx context.Context, analyzer advice.Analyzer, q *eventQueue) {
	for {
		e, ok := q.waitForNext()
		if !ok {
			return
		}
		if e.kind == podModified && a.isDeleted(e.pod) { // while the plugin did not run
			continue
		}
		requests, err := a.callPlugin(ctx, analyzer, e)
		switch {
		case err == nil:
			a.options.Metrics.countEvent(analyzer.Name(), e.kind, resultAnswered)
			for _, w := range addUpLaunches(requests) {
				a.applyRecommendation(ctx, analyzer, e.pod, w)
			}
		case ctx.Err() != nil:
			return
		default:
			a.retryOrDropEvent(ctx, analyzer, q, e, err)
		}
	}
}

// isDeleted reports whether the watch no longer has a pod.
func (a *PluginRunner) isDeleted(pod *corev1.Pod) bool {
	if a.pods == nil {
		return false
	}
	present, exists, err := a.pods.Get(pod)
	if err != nil || !exists {
		return err == nil
	}
	return present.(*corev1.Pod).UID != pod.UID
}

// callPlugin calls the plugin once, and validates its answer.
func (a *PluginRunner) callPlugin(ctx context.Context, analyzer advice.Analyzer, e podEvent) ([]advice.Recommendation, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	began := time.Now()
	defer func() { a.options.Metrics.observeCall(analyzer.Name(), time.Since(began)) }()
	analyze := analyzer.AnalyzeModifyEvent
	if e.kind == podDeleted {
		analyze = analyzer.AnalyzeDeleteEvent
	}
	requests, err := analyze(ctx, e.pod.DeepCopy())
	if err != nil {
		return nil, err
	}
	return requests, advice.Validate(requests)
}

// retryOrDropEvent queues a failed event again after a pause, or drops it after the last try.
func (a *PluginRunner) retryOrDropEvent(ctx context.Context, analyzer advice.Analyzer, q *eventQueue, e podEvent, err error) {
	a.options.Metrics.countEvent(analyzer.Name(), e.kind, resultFailed)
	if errors.Is(err, advice.ErrNotRunning) { // an event that it has not seen did not stop it
		if elapsed.Sleep(ctx, firstRetryPause) {
			q.putBackUnlessReplaced(e)
		}
		return
	}
	e.tries++
	log := a.options.Log.With("plugin", analyzer.Name(), "event", e.kind, "pod", e.pod.Namespace+"/"+e.pod.Name, "err", err)
	if e.tries >= maxTries {
		log.Warn("the plugin failed; its event is dropped", "tries", e.tries)
		a.options.Metrics.countEvent(analyzer.Name(), e.kind, resultDropped)
		return
	}
	log.Debug("the plugin failed; its event is retried", "tries", e.tries)
	if elapsed.Sleep(ctx, firstRetryPause<<(e.tries-1)) {
		q.putBackUnlessReplaced(e)
	}
}

// addUpLaunches returns the requests of an answer with one launch per group and template, with the sum of their counts.
// So a launch has the same ID in a later answer with another order.
func addUpLaunches(requests []advice.Recommendation) (merged []advice.Recommendation) {
	for _, w := range requests {
		i := slices.IndexFunc(merged, func(m advice.Recommendation) bool {
			return w.Grow != nil && m.Grow != nil && m.Grow.Group == w.Grow.Group && m.Grow.Template == w.Grow.Template
		})
		if i < 0 {
			merged = append(merged, w)
			continue
		}
		sum := *merged[i].Grow
		sum.Count += w.Grow.Count
		merged[i].Grow = &sum
	}
	return merged
}

// applyRecommendation applies a request of a plugin.
func (a *PluginRunner) applyRecommendation(ctx context.Context, analyzer advice.Analyzer, pod *corev1.Pod, recommendation advice.Recommendation) {
	var err error
	kind := "retire"
	if recommendation.Grow != nil {
		kind, err = "grow", a.addLaunchRequest(ctx, analyzer, pod, recommendation)
	} else {
		err = a.requestRetirement(ctx, analyzer, recommendation)
	}
	if err != nil {
		a.options.Log.Warn("the request of a plugin was refused", "plugin", analyzer.Name(), "request", kind, "pod", pod.Namespace+"/"+pod.Name, "err", err)
	}
	a.options.Metrics.countRequest(analyzer.Name(), kind, err)
}

func requestIDPrefix(analyzer advice.Analyzer, pod *corev1.Pod) string {
	return analyzer.Name() + "/" + string(pod.UID) + "/"
}

// addLaunchRequest adds a launch request for a group of the plugin's own cloud.
func (a *PluginRunner) addLaunchRequest(ctx context.Context, analyzer advice.Analyzer, pod *corev1.Pod, w advice.Recommendation) error {
	groups, err := a.options.Groups.List(ctx)
	if err != nil {
		return err
	}
	for j := range groups {
		g := &groups[j]
		if g.Spec.Cloud != (v1alpha1.CloudGroup{Provider: analyzer.Name(), Group: w.Grow.Group}) || !a.options.Selector.Matches(labels.Set(g.Labels)) {
			continue
		}
		taken := a.options.LaunchRequests.Add(plan.LaunchRequest{
			ID: requestIDPrefix(analyzer, pod) + g.Name + "/" + w.Grow.Template, Group: g.Name, Template: w.Grow.Template,
			Count: w.Grow.Count, Pod: placement.PodKey{Namespace: pod.Namespace, Name: pod.Name}, Reason: describeReason(analyzer, w),
		})
		if !taken {
			return fmt.Errorf("%d instances of group %s: too many launch requests are open: retry later", w.Grow.Count, w.Grow.Group)
		}
		return nil
	}
	return fmt.Errorf("grow.group: no NodeGroup of cloud %s has spec.cloud.group %q", analyzer.Name(), w.Grow.Group)
}

func describeReason(analyzer advice.Analyzer, w advice.Recommendation) string {
	return "plugin " + analyzer.Name() + ": " + observe.ClipBytes(w.Reason, advice.MaxReason)
}

// requestRetirement creates the NodeRetirement of a node in the plugin's own cloud.
func (a *PluginRunner) requestRetirement(ctx context.Context, analyzer advice.Analyzer, w advice.Recommendation) error {
	var n corev1.Node
	if err := a.options.Client.Get(ctx, client.ObjectKey{Name: w.Retire.Node}, &n); err != nil {
		return fmt.Errorf("retire.node: %w", err)
	}
	g, err := a.findGroupInPluginCloud(ctx, analyzer, &n)
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
		if !rt.Status.Phase.IsFinal() {
			return nil // it is retiring already
		}
		if ended := rt.Status.Times.Finished; ended != nil && time.Since(ended.Time) < retirementRetryPause {
			return fmt.Errorf("node %s: its retirement %s has just ended: %s", n.Name, rt.Name, rt.Status.Message)
		}
		before += string(rt.UID)
	}
	const longestRequester = 253
	rt := request.New(request.Request{
		Name: request.NewName(n.Name, "advised", n.UID, before), Labels: g.Labels,
		Spec: v1alpha1.NodeRetirementSpec{
			NodeName: n.Name, NodeUID: n.UID, Reason: v1alpha1.Requested, RequestedBy: observe.ClipChars(describeReason(analyzer, w), longestRequester), Group: g.Name,
		},
	})
	if err := a.options.Client.Create(ctx, rt); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("NodeRetirement %s: %w", rt.Name, err)
	}
	return nil
}

// findGroupInPluginCloud returns the group of a node, if it belongs to the plugin's own cloud.
func (a *PluginRunner) findGroupInPluginCloud(ctx context.Context, analyzer advice.Analyzer, n *corev1.Node) (*v1alpha1.NodeGroup, error) {
	groups, err := a.options.Groups.List(ctx)
	if err != nil {
		return nil, err
	}
	owner := nodegroup.AssignNodes(groups, []corev1.Node{*n}).OwnerByNode[n.Name]
	for i := range groups {
		g := &groups[i]
		if g.Name == owner && g.Spec.Cloud.Provider == analyzer.Name() && a.options.Selector.Matches(labels.Set(g.Labels)) {
			return g, nil
		}
	}
	return nil, fmt.Errorf("retire.node: %s is of no NodeGroup of cloud %s", n.Name, analyzer.Name())
}
