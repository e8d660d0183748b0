// Package provisioning carries out the decisions of package plan. It watches the cluster, launches instances for
// unschedulable pods, deletes instances that never become nodes, and requests the retirement of underutilized nodes. It
// starts when the first NodeGroup asks for scale-up or for scale-down of underutilized nodes.
//
// State that must survive a restart is stored in the API. The cooldown of a node is an annotation of its Node.
// Back-offs, open launches and learned templates are in the status of the NodeGroup.
package provisioning

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/nodegroup/acceptance"
	"github.com/slipway-dev/slipway/internal/placement/live"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// Options configure a Controller. All fields but WatchCluster, Selector, MaxNodes, UnreadyLimit, LaunchRequests, Debounce, Interval
// and SettleTime are required.
type Options struct {
	// Client writes objects, and reads NodeGroups and NodeRetirements from caches.
	Client   client.Client
	Launches *launch.Record
	// Informers watch what placement reads. They are shared, so that objects are in memory once. Pods reads from them.
	Informers live.Informers
	Pods      live.PodReader
	// WatchCluster returns the snapshot that is fed by Informers, so that components share it. nil makes a new one.
	WatchCluster func(discovery.ServerResourcesInterface) (*live.Cluster, error)
	// Kube reads without a cache: the API discovery, and the Nodes before an instance is deleted.
	Kube    kubernetes.Interface
	Groups  nodegroup.Groups
	Clouds  map[string]cloud.Provider
	Events  events.EventRecorder
	Metrics *Metrics
	Log     *slog.Logger
	// Selector restricts the controller to groups with these labels. nil selects all groups.
	Selector labels.Selector
	// MaxNodes is how many nodes the cluster may have, without control-plane nodes. nil sets no limit.
	MaxNodes *int
	// UnreadyLimit limits how many nodes may be not Ready while instances are launched. The zero value sets no limit.
	UnreadyLimit plan.UnreadyLimit
	// LaunchRequests are the launch requests from outside, such as from plugins. nil means none.
	LaunchRequests *LaunchRequests
	// Debounce is how long the first unschedulable pod waits for others, so that they are packed together. 0 means 1
	// second.
	Debounce time.Duration
	// Interval is the time between two reconciles while instances are provisioning or pods are unschedulable. 0 means 10
	// seconds.
	Interval time.Duration
	// SettleTime is how long the instances of a launch may take to show after its answer was lost. 0 means 1 minute.
	SettleTime time.Duration
}

const (
	defaultDebounce = time.Second
	defaultInterval = 10 * time.Second
	// idleInterval is the time between two checks whether any group is managed.
	idleInterval = 5 * time.Second
	// cloudReadInterval is the number of reconciles between two cloud reads while nothing happens.
	cloudReadInterval = 6
	// cloudTimeout limits the time for the answer of one group's cloud.
	cloudTimeout = 20 * time.Second
)

// Controller launches instances and requests retirements. It implements manager.Runnable.
type Controller struct {
	options Options
	pods    *unschedulablePods
	wake    chan struct{}

	// calls are the running cloud calls. Start waits for them.
	calls         sync.WaitGroup
	replyArrived  chan struct{}
	answerTimeout time.Duration
	// pollInterval is minPollInterval, except in tests.
	pollInterval time.Duration
	lastGroups   []*managedGroup // as the last reconcile found them

	mu        sync.Mutex
	states    map[string]*groupState     // by group name
	templates map[string][]plan.Template // by name of each group with a cloud that was read; as of the last reconcile
	podEvents map[string]emittedPodEvent // the last Event of each pod, by the pod's UID
	replies   []reply
}

// New returns a Controller. It makes the requests of o.LaunchRequests wake this Controller, so only one Controller can
// use them.
func New(o Options) *Controller {
	if o.Debounce <= 0 {
		o.Debounce = defaultDebounce
	}
	if o.Interval <= 0 {
		o.Interval = defaultInterval
	}
	if o.SettleTime <= 0 {
		o.SettleTime = launch.SettleTime
	}
	if o.Selector == nil {
		o.Selector = labels.Everything()
	}
	wake := make(chan struct{}, 1)
	if o.LaunchRequests == nil {
		o.LaunchRequests = NewLaunchRequests()
	}
	if o.WatchCluster == nil {
		o.WatchCluster = func(api discovery.ServerResourcesInterface) (*live.Cluster, error) {
			return live.WatchCluster(api, o.Informers, o.Log)
		}
	}
	o.LaunchRequests.wake = wake
	return &Controller{
		options: o, pods: newUnschedulablePods(wake), wake: wake, replyArrived: make(chan struct{}, 1), answerTimeout: defaultAnswerTimeout, pollInterval: minPollInterval, states: map[string]*groupState{}, podEvents: map[string]emittedPodEvent{},
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*Controller) NeedLeaderElection() bool { return true }

// Start runs until ctx ends.
func (a *Controller) Start(ctx context.Context) error {
	for !a.isAnyGroupManaged(ctx) {
		if !elapsed.Sleep(ctx, idleInterval) {
			return nil
		}
	}
	sources, err := a.startWatches(ctx)
	if err != nil {
		return fmt.Errorf("provisioning: %w", err)
	}
	a.options.Log.Info("provisioning started", "debounce", a.options.Debounce)
	defer a.calls.Wait()
	a.runReconcileLoop(ctx, sources)
	return nil
}

// Templates returns the instance templates of a group. It returns false if the cloud of the group was not read yet.
func (a *Controller) Templates(group string) (templates []plan.Template, known bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	templates, known = a.templates[group]
	return templates, known
}

// publishTemplates makes the templates of the groups available to other components.
func (a *Controller) publishTemplates(groups []*managedGroup) {
	published := map[string][]plan.Template{}
	for _, g := range groups {
		if g.state.cloudTemplates != nil {
			published[g.name()] = g.state.planTemplates
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.templates = published
}

// isAnyGroupManaged reports whether there is a group that this controller scales.
func (a *Controller) isAnyGroupManaged(ctx context.Context) bool {
	groups, err := a.options.Groups.List(ctx)
	if err != nil {
		return false
	}
	for i := range groups {
		if a.isManaged(&groups[i]) {
			return true
		}
	}
	return false
}

// isManaged reports whether this controller scales the group. It does not scale a group of another manager, or a group
// without a rule for scaling.
func (a *Controller) isManaged(g *v1alpha1.NodeGroup) bool {
	asks := g.Spec.ScaleUp != nil || g.Spec.ScaleDown != nil && g.Spec.ScaleDown.Underutilized != nil
	return asks && a.options.Selector.Matches(labels.Set(g.Labels))
}

// runReconcileLoop reconciles when pods become unschedulable, after the debounce, and at every interval.
func (a *Controller) runReconcileLoop(ctx context.Context, s *clusterCaches) {
	for quiet := 0; ; quiet++ {
		busy, err := a.reconcile(ctx, s, quiet%cloudReadInterval == 0)
		if err != nil && ctx.Err() == nil {
			a.options.Log.Error("reconcile of provisioning failed; retrying", "err", err)
			a.options.Metrics.countFailure()
		}
		if busy {
			quiet = -1 // read the clouds in the next reconcile too
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(a.options.Interval):
		case <-a.wake:
			if a.pods.timeSinceFirstPod() > 0 {
				a.startCloudReadsEarly(ctx, s)
			}
			if !elapsed.Sleep(ctx, a.options.Debounce-a.pods.timeSinceFirstPod()) {
				return
			}
			quiet = -1
		}
	}
}

// reconcile reads the cluster, decides, and acts. It reads the clouds if readClouds is true or if pods are unschedulable.
// busy reports whether work is in progress, so that the next reconcile must come soon.
func (a *Controller) reconcile(ctx context.Context, s *clusterCaches, readClouds bool) (busy bool, err error) {
	waiting := a.pods.listAndResetWait()
	var cluster *nodegroup.Cluster
	var groups []*managedGroup
	asks := readClouds || len(waiting) > 0
	if asks {
		if _, groups, err = a.readCluster(ctx, s); err != nil {
			return false, err
		}
		a.loadStates(groups)
		a.applyReplies(groups)
		a.startPollingRecordedOperations(ctx, groups)
		a.readCloudsUntilTimeout(ctx, s, groups)
	}
	var up *plan.Decision
	var down []plan.NodeDecision
	err = s.cluster.WithSnapshot(func(snapshot *snapshot.Snapshot) (err error) {
		// Nodes may have joined while the clouds were read. They must be part of the decision, and no longer count as
		// provisioning. While With holds the snapshot, the snapshot cannot be newer than the data read here.
		if cluster, groups, err = a.readCluster(ctx, s); err != nil {
			return err
		}
		a.loadStates(groups)
		if !asks {
			a.applyReplies(groups)
		}
		a.lastGroups = groups
		began := time.Now()
		w := a.makePlanInput(s, snapshot, cluster, groups, waiting)
		if up, err = plan.DecideScaleUp(w); err != nil {
			return err
		}
		a.options.Metrics.observeDecision("up", time.Since(began))
		if len(up.Launches) > 0 {
			return nil // Launch first. Retirements are decided once the instances are provisioning.
		}
		began = time.Now()
		if down, err = plan.DecideScaleDown(w); down == nil {
			down = []plan.NodeDecision{} // a decision to retire no node
		}
		a.options.Metrics.observeDecision("down", time.Since(began))
		return err
	})
	if err != nil {
		return true, err
	}
	up.Pods = a.dropNoGroupVerdicts(up.Pods)
	failed := a.launchAndAwaitReplies(ctx, groups, up, waiting)
	a.recordRequestVerdicts(groups, up.LaunchRequests)
	a.emitChangedPodEvents(up, areGroupsKnownOrPastGrace(groups, time.Now()), waiting)
	a.options.Metrics.setGauges(groups, up, down)
	a.startFailedInstanceDeletions(ctx, s, groups)
	errs := []error{failed, a.retireNeverReady(ctx, groups), a.writeChangedStatuses(ctx, groups), a.applyScaleDownDecisions(ctx, cluster, groups, down)}
	return len(up.Launches) > 0 || len(waiting) > 0 || isWorkPending(groups), errors.Join(errs...)
}

// dropNoGroupVerdicts removes the verdict that no group exists, unless this manager knows all groups. A manager with a
// selector does not know the groups that it skips. No manager knows the groups in the file of another manager.
func (a *Controller) dropNoGroupVerdicts(pods []plan.PodVerdict) []plan.PodVerdict {
	if a.options.Selector.Empty() {
		return pods
	}
	return slices.DeleteFunc(pods, func(v plan.PodVerdict) bool {
		return v.Outcome == plan.Unschedulable && len(v.Reasons) == 1 && v.Reasons[0].Rule == plan.NoGroup
	})
}

// unknownGroupGrace is how long a group with unknown state delays the Events of unplaceable pods.
const unknownGroupGrace = time.Minute

// areGroupsKnownOrPastGrace reports whether the state of every group is known. A group with a state that has been
// unknown for longer than unknownGroupGrace counts as known. Its cloud cannot be read, and that is then the reason in
// the Events of pods.
func areGroupsKnownOrPastGrace(groups []*managedGroup, now time.Time) bool {
	for _, g := range groups {
		if since := g.unknownSince(); !since.IsZero() && now.Before(since.Add(unknownGroupGrace)) {
			return false
		}
	}
	return true
}

// unknownSince returns since when the state of the group is unknown. It returns zero if the state is known.
func (g *managedGroup) unknownSince() time.Time {
	if g.Group.Spec.ScaleUp == nil {
		return time.Time{}
	}
	m, state := g.state, acceptance.FromGroup(g.Group).State
	switch {
	case state == acceptance.NotObserved || state == acceptance.CloudNotRead:
		return m.watchedSince
	case state != acceptance.Accepted || m.readError != "":
		return time.Time{}
	case m.cloudTemplates == nil:
		return m.watchedSince
	case m.needsReread():
		return m.failedAt
	}
	return time.Time{}
}

func isWorkPending(groups []*managedGroup) bool {
	for _, g := range groups {
		m := g.state
		if len(m.tracking.Provisioning) > 0 || len(m.unjoined) > 0 || len(m.tracking.FailedWithoutNode) > 0 || len(m.deleting) > 0 {
			return true
		}
	}
	return false
}

// managedGroup is a group with its remembered state.
type managedGroup struct {
	nodegroup.GroupSnapshot
	state       *groupState
	retirements map[string]retirementState
	// replacements are the instances that replaced others, by provider ID.
	replacements map[string]bool
	// unreplaced are the retirements after a notice that may still launch a replacement, by provider ID.
	unreplaced map[string]types.UID
}

func (g *managedGroup) name() string { return g.Group.Name }

// readCluster reads the managed groups, the nodes and the retirements.
func (a *Controller) readCluster(ctx context.Context, s *clusterCaches) (cluster *nodegroup.Cluster, managed []*managedGroup, err error) {
	all, err := a.options.Groups.List(ctx)
	if err != nil {
		return nil, nil, err
	}
	nodes, err := s.nodes.List(labels.Everything())
	if err != nil {
		return nil, nil, fmt.Errorf("nodes: %w", err)
	}
	objects := make([]corev1.Node, len(nodes))
	for i, n := range nodes {
		objects[i] = *n
	}
	var retirements v1alpha1.NodeRetirementList
	if err := a.options.Client.List(ctx, &retirements); err != nil {
		return nil, nil, fmt.Errorf("NodeRetirements: %w", err)
	}
	cluster = nodegroup.NewCluster(a.options.Pods, all, objects, retirements.Items, time.Now())
	for i := range all {
		g := &all[i]
		if !a.isManaged(g) {
			continue
		}
		refused := cluster.WhyNotAccepted(g)
		var unread error
		if g.Status.Provisioning, unread = a.options.Launches.ReadCached(ctx, g); unread != nil { // its record is unknown (I8)
			a.options.Log.Warn("cannot read the launch record; nothing is launched for the group", "group", g.Name, "err", unread)
			refused = cmp.Or(refused, unread.Error())
		}
		w, err := cluster.ReadGroupSnapshot(ctx, g, refused, nil)
		if err != nil {
			return nil, nil, fmt.Errorf("NodeGroup %s: %w", g.Name, err)
		}
		managed = append(managed, &managedGroup{
			GroupSnapshot: w, retirements: findRetirementStates(g, a.options.Clouds[g.Spec.Cloud.Provider], retirements.Items),
			replacements: retirement.ReplacementInstanceIDs(retirements.Items, g.Name),
			unreplaced:   findUnreplacedRetirements(g, a.options.Clouds[g.Spec.Cloud.Provider], retirements.Items),
		})
	}
	return cluster, managed, nil
}
