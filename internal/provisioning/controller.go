// Package provisioning carries out what package plan decides: it watches what placement needs to know of the cluster,
// orders machines for the pods that find no room, gives up machines that will never be nodes, and asks for the
// retirement of nodes that are used little. It works from when the first NodeGroup asks for any of that.
//
// What has to outlive a restart is written down: the cooldown of a node on the Node; back-offs, the machines that are
// awaited and what was learned of their kinds in the status of the NodeGroup.
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

// Options are what a Controller works with. All fields but Selector, Maximum, Unreadiness, Wishes, Debounce, Every and
// Settle are required.
type Options struct {
	// Client writes, and reads NodeGroups and NodeRetirements from caches.
	Client client.Client
	// Launches is the record of launches.
	Launches *launch.Record
	// Informers watch what placement reads, and hold it once for all who read it. Pods reads theirs.
	Informers live.Informers
	Pods      live.Pods
	// Kube is asked past all caches: what is served, and before a machine is given up.
	Kube    kubernetes.Interface
	Groups  nodegroup.Groups
	Clouds  map[string]cloud.Provider
	Events  events.EventRecorder
	Metrics *Metrics
	Log     *slog.Logger
	// Selector restricts what is acted on to the groups with these labels; nil is all.
	Selector labels.Selector
	// Maximum is how many nodes the cluster may have without those of its control plane; nil sets no limit.
	Maximum *int
	// Unreadiness is how many nodes may be not Ready while instances are launched; the zero value sets no limit.
	Unreadiness plan.Unreadiness
	// Wishes are what is asked for from outside; nil is nothing.
	Wishes *Wishes
	// Debounce is how long the first pod without room waits for others, so that they are packed together: 1 second when 0.
	Debounce time.Duration
	// Every is the time between two looks while machines are on their way or pods wait: 10 seconds when 0.
	Every time.Duration
	// Settle is how long the machines of an order whose answer was lost may take to show: 1 minute when 0.
	Settle time.Duration
}

const (
	defaultDebounce = time.Second
	defaultInterval = 10 * time.Second
	// idleInterval is the time between two looks at whether any group asks for anything.
	idleInterval = 5 * time.Second
	// cloudReadInterval is how many looks pass between two at clouds for which nothing happens.
	cloudReadInterval = 6
	// cloudTimeout bounds what one group's cloud may take to answer.
	cloudTimeout = 20 * time.Second
)

// Controller is a manager's Runnable.
type Controller struct {
	options Options
	pods    *unschedulablePods
	wake    chan struct{}

	// calls is what clouds are asked meanwhile. It ends with Start.
	calls         sync.WaitGroup
	replyArrived  chan struct{}
	answerTimeout time.Duration
	// pollInterval is the constant of that name, and shorter in tests.
	pollInterval time.Duration
	lastGroups   []*managedGroup // as the last look found them

	mu        sync.Mutex
	states    map[string]*groupState     // by group
	podEvents map[string]emittedPodEvent // what was last said of a pod, by its UID
	replies   []reply
}

// New returns a controller to add to a manager.
func New(o Options) *Controller {
	if o.Debounce <= 0 {
		o.Debounce = defaultDebounce
	}
	if o.Every <= 0 {
		o.Every = defaultInterval
	}
	if o.Settle <= 0 {
		o.Settle = launch.Settle
	}
	if o.Selector == nil {
		o.Selector = labels.Everything()
	}
	wake := make(chan struct{}, 1)
	if o.Wishes == nil {
		o.Wishes = NewWishes()
	}
	o.Wishes.wake = wake
	return &Controller{
		options: o, pods: newUnschedulablePods(wake), wake: wake, replyArrived: make(chan struct{}, 1), answerTimeout: defaultAnswerTimeout, pollInterval: minPollInterval, states: map[string]*groupState{}, podEvents: map[string]emittedPodEvent{},
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*Controller) NeedLeaderElection() bool { return true }

// Start works until ctx ends.
func (a *Controller) Start(ctx context.Context) error {
	for !a.isAnyGroupManaged(ctx) {
		if !elapsed.Sleep(ctx, idleInterval) {
			return nil
		}
	}
	sources, err := a.startWatches(ctx)
	if err != nil {
		return fmt.Errorf("autoscaler: %w", err)
	}
	a.options.Log.Info("machines are ordered and underused nodes retired", "debounce", a.options.Debounce)
	defer a.calls.Wait()
	a.run(ctx, sources)
	return nil
}

// isAnyGroupManaged reports whether any group that is acted on asks for machines to come or go.
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

// isManaged reports whether a group is acted on, and asks for machines to come or go. The others are another manager's.
func (a *Controller) isManaged(g *v1alpha1.NodeGroup) bool {
	asks := g.Spec.ScaleUp != nil || g.Spec.ScaleDown != nil && g.Spec.ScaleDown.Underused != nil
	return asks && a.options.Selector.Matches(labels.Set(g.Labels))
}

// run looks whenever pods have begun to wait, after the debounce, and every now and then.
func (a *Controller) run(ctx context.Context, s *clusterCaches) {
	for quiet := 0; ; quiet++ {
		busy, err := a.reconcile(ctx, s, quiet%cloudReadInterval == 0)
		if err != nil && ctx.Err() == nil {
			a.options.Log.Error("the autoscaler's look failed, and is tried again", "err", err)
			a.options.Metrics.countFailure()
		}
		if busy {
			quiet = -1 // the next one looks at the clouds too
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(a.options.Every):
		case <-a.wake:
			if a.pods.waitedFor() > 0 {
				a.readCloudsEarly(ctx, s)
			}
			if !elapsed.Sleep(ctx, a.options.Debounce-a.pods.waitedFor()) {
				return
			}
			quiet = -1
		}
	}
}

// reconcile sees how things are, decides, and acts. The clouds are asked only when that is due. It reports whether something
// is under way.
func (a *Controller) reconcile(ctx context.Context, s *clusterCaches, askClouds bool) (busy bool, err error) {
	waiting := a.pods.takeAll()
	var cluster *nodegroup.Cluster
	var groups []*managedGroup
	asks := askClouds || len(waiting) > 0
	if asks {
		if _, groups, err = a.readCluster(ctx, s); err != nil {
			return false, err
		}
		a.loadStates(groups)
		a.applyReplies(groups)
		a.followRecordedOperations(ctx, groups)
		a.readClouds(ctx, s, groups)
	}
	var up *plan.Decision
	var down []plan.NodeDecision
	err = s.cluster.With(func(snapshot *snapshot.Snapshot) (err error) {
		// Nodes that came while the clouds were asked are awaited no longer, and have to be among those that are decided on.
		// While the snapshot is held it is not ahead of what is read here.
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
		if up, err = plan.Up(w); err != nil {
			return err
		}
		a.options.Metrics.observeDecision("up", time.Since(began))
		if len(up.Orders) > 0 {
			return nil // machines come first: what may go is decided when they are on their way
		}
		began = time.Now()
		if down, err = plan.Down(w); down == nil {
			down = []plan.NodeDecision{} // it was decided that none goes
		}
		a.options.Metrics.observeDecision("down", time.Since(began))
		return err
	})
	if err != nil {
		return true, err
	}
	up.Pods = a.filterVerdicts(up.Pods)
	failed := a.launchAll(ctx, groups, up, waiting)
	a.recordRequestVerdicts(groups, up.Wishes)
	a.emitPodEvents(up, areAllGroupsKnown(groups, time.Now()), waiting)
	a.options.Metrics.setGauges(groups, up, down)
	a.deleteFailedInstances(ctx, s, groups)
	errs := []error{failed, a.retireNeverReady(ctx, groups), a.writeStatuses(ctx, groups), a.retireUnderutilized(ctx, cluster, groups, down)}
	return len(up.Orders) > 0 || len(waiting) > 0 || isWorkPending(groups), errors.Join(errs...)
}

// filterVerdicts are the verdicts that this manager can answer for. That there is no group is for one to say that acts on all of them:
// groups that a selector passes over, and those of another process's file, may be helping the pod.
func (a *Controller) filterVerdicts(pods []plan.PodVerdict) []plan.PodVerdict {
	if a.options.Selector.Empty() {
		return pods
	}
	return slices.DeleteFunc(pods, func(v plan.PodVerdict) bool {
		return v.Outcome == plan.Helpless && len(v.Reasons) == 1 && v.Reasons[0].Rule == plan.NoGroup
	})
}

// unknownGroupGrace is for how long a group of which nothing is known keeps pods from being told that nothing helps them.
const unknownGroupGrace = time.Minute

// areAllGroupsKnown reports whether every group has been looked at, and its cloud been asked, or has had its time to be. After that
// what keeps a group from being asked is a reason as any other.
func areAllGroupsKnown(groups []*managedGroup, now time.Time) bool {
	for _, g := range groups {
		if since := g.unknownSince(); !since.IsZero() && now.Before(since.Add(unknownGroupGrace)) {
			return false
		}
	}
	return true
}

// unknownSince is since when it is not known what a group can do; zero when it is.
func (g *managedGroup) unknownSince() time.Time {
	if g.Group.Spec.ScaleUp == nil {
		return time.Time{}
	}
	m, state := g.state, acceptance.Of(g.Group).State
	switch {
	case state == acceptance.NotObserved || state == acceptance.CloudUnread:
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
		if len(m.tracking.Awaited) > 0 || len(m.unjoined) > 0 || len(m.tracking.Dead) > 0 || len(m.deleting) > 0 {
			return true
		}
	}
	return false
}

// managedGroup is a group with what is remembered of it.
type managedGroup struct {
	nodegroup.World
	state       *groupState
	retirements map[string]retirementProgress
	// replacements are instances that have replaced others, by provider ID.
	replacements map[string]bool
	// unreplaced are the retirements after a notice for which a replacement may still be launched, by provider ID.
	unreplaced map[string]types.UID
}

func (g *managedGroup) name() string { return g.Group.Name }

// readCluster reads the groups that concern the autoscaler, and the nodes.
func (a *Controller) readCluster(ctx context.Context, s *clusterCaches) (*nodegroup.Cluster, []*managedGroup, error) {
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
	cluster := nodegroup.NewCluster(a.options.Pods, all, objects, retirements.Items, time.Now())
	var groups []*managedGroup
	for i := range all {
		g := &all[i]
		if !a.isManaged(g) {
			continue
		}
		refused := cluster.NotAccepted(g)
		var unread error
		if g.Status.Provisioning, unread = a.options.Launches.Read(ctx, g); unread != nil { // what is in its record is not known (I8)
			a.options.Log.Warn("the group gets no instances", "group", g.Name, "err", unread)
			refused = cmp.Or(refused, unread.Error())
		}
		w, err := cluster.World(ctx, g, refused, nil)
		if err != nil {
			return nil, nil, fmt.Errorf("NodeGroup %s: %w", g.Name, err)
		}
		groups = append(groups, &managedGroup{
			World: w, retirements: findRetirementProgress(g, a.options.Clouds[g.Spec.Cloud.Provider], retirements.Items),
			replacements: retirement.Replacements(retirements.Items, g.Name),
			unreplaced:   findUnreplaced(g, a.options.Clouds[g.Spec.Cloud.Provider], retirements.Items),
		})
	}
	return cluster, groups, nil
}
