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
	defaultEvery    = 10 * time.Second
	// idleEvery is the time between two looks at whether any group asks for anything.
	idleEvery = 5 * time.Second
	// quietEvery is how many looks pass between two at clouds for which nothing happens.
	quietEvery = 6
	// cloudTimeout bounds what one group's cloud may take to answer.
	cloudTimeout = 20 * time.Second
)

// Controller is a manager's Runnable.
type Controller struct {
	o      Options
	waiter *waiter
	wake   chan struct{}

	// work is what clouds are asked meanwhile. It ends with Start.
	work     sync.WaitGroup
	replied  chan struct{}
	patience time.Duration
	// followPause is the constant of that name, and shorter in tests.
	followPause time.Duration
	last        []*known // as the last look found them

	mu      sync.Mutex
	memory  map[string]*memory // by group
	told    map[string]said    // what was last said of a pod, by its UID
	replies []reply
}

// New returns a controller to add to a manager.
func New(o Options) *Controller {
	if o.Debounce <= 0 {
		o.Debounce = defaultDebounce
	}
	if o.Every <= 0 {
		o.Every = defaultEvery
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
		o: o, waiter: newWaiter(wake), wake: wake, replied: make(chan struct{}, 1), patience: defaultPatience, followPause: followPause, memory: map[string]*memory{}, told: map[string]said{},
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*Controller) NeedLeaderElection() bool { return true }

// Start works until ctx ends.
func (a *Controller) Start(ctx context.Context) error {
	for !a.wanted(ctx) {
		if !elapsed.Sleep(ctx, idleEvery) {
			return nil
		}
	}
	sources, err := a.watch(ctx)
	if err != nil {
		return fmt.Errorf("autoscaler: %w", err)
	}
	a.o.Log.Info("machines are ordered and underused nodes retired", "debounce", a.o.Debounce)
	defer a.work.Wait()
	a.loop(ctx, sources)
	return nil
}

// wanted reports whether any group that is acted on asks for machines to come or go.
func (a *Controller) wanted(ctx context.Context) bool {
	groups, err := a.o.Groups.List(ctx)
	if err != nil {
		return false
	}
	for i := range groups {
		if a.concerns(&groups[i]) {
			return true
		}
	}
	return false
}

// concerns reports whether a group is acted on, and asks for machines to come or go. The others are another manager's.
func (a *Controller) concerns(g *v1alpha1.NodeGroup) bool {
	asks := g.Spec.ScaleUp != nil || g.Spec.ScaleDown != nil && g.Spec.ScaleDown.Underused != nil
	return asks && a.o.Selector.Matches(labels.Set(g.Labels))
}

// loop looks whenever pods have begun to wait, after the debounce, and every now and then.
func (a *Controller) loop(ctx context.Context, s *sources) {
	for quiet := 0; ; quiet++ {
		busy, err := a.look(ctx, s, quiet%quietEvery == 0)
		if err != nil && ctx.Err() == nil {
			a.o.Log.Error("the autoscaler's look failed, and is tried again", "err", err)
			a.o.Metrics.failed()
		}
		if busy {
			quiet = -1 // the next one looks at the clouds too
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(a.o.Every):
		case <-a.wake:
			if a.waiter.waited() > 0 {
				a.askAhead(ctx, s)
			}
			if !elapsed.Sleep(ctx, a.o.Debounce-a.waiter.waited()) {
				return
			}
			quiet = -1
		}
	}
}

// look sees how things are, decides, and acts. The clouds are asked only when that is due. It reports whether something
// is under way.
func (a *Controller) look(ctx context.Context, s *sources, askClouds bool) (busy bool, err error) {
	waiting := a.waiter.take()
	var cluster *nodegroup.Cluster
	var groups []*known
	asks := askClouds || len(waiting) > 0
	if asks {
		if _, groups, err = a.read(ctx, s); err != nil {
			return false, err
		}
		a.recall(groups)
		a.settle(groups)
		a.followAgain(ctx, groups)
		a.survey(ctx, s, groups)
	}
	var up *plan.Decision
	var down []plan.NodeDecision
	err = s.live.With(func(snapshot *snapshot.Snapshot) (err error) {
		// Nodes that came while the clouds were asked are awaited no longer, and have to be among those that are decided on.
		// While the snapshot is held it is not ahead of what is read here.
		if cluster, groups, err = a.read(ctx, s); err != nil {
			return err
		}
		a.recall(groups)
		if !asks {
			a.settle(groups)
		}
		a.last = groups
		began := time.Now()
		w := a.world(s, snapshot, cluster, groups, waiting)
		if up, err = plan.Up(w); err != nil {
			return err
		}
		a.o.Metrics.decided("up", time.Since(began))
		if len(up.Orders) > 0 {
			return nil // machines come first: what may go is decided when they are on their way
		}
		began = time.Now()
		if down, err = plan.Down(w); down == nil {
			down = []plan.NodeDecision{} // it was decided that none goes
		}
		a.o.Metrics.decided("down", time.Since(began))
		return err
	})
	if err != nil {
		return true, err
	}
	up.Pods = a.judged(up.Pods)
	failed := a.grow(ctx, groups, up, waiting)
	a.tellWishes(groups, up.Wishes)
	a.tell(up, allKnown(groups, time.Now()), waiting)
	a.o.Metrics.see(groups, up, down)
	a.giveUp(ctx, s, groups)
	errs := []error{failed, a.retireNeverReady(ctx, groups), a.write(ctx, groups), a.retire(ctx, cluster, groups, down)}
	return len(up.Orders) > 0 || len(waiting) > 0 || underWay(groups), errors.Join(errs...)
}

// judged are the verdicts that this manager can answer for. That there is no group is for one to say that acts on all of them:
// groups that a selector passes over, and those of another process's file, may be helping the pod.
func (a *Controller) judged(pods []plan.PodVerdict) []plan.PodVerdict {
	if a.o.Selector.Empty() {
		return pods
	}
	return slices.DeleteFunc(pods, func(v plan.PodVerdict) bool {
		return v.Outcome == plan.Helpless && len(v.Reasons) == 1 && v.Reasons[0].Rule == plan.NoGroup
	})
}

// tellAfter is for how long a group of which nothing is known keeps pods from being told that nothing helps them.
const tellAfter = time.Minute

// allKnown reports whether every group has been looked at, and its cloud been asked, or has had its time to be. After that
// what keeps a group from being asked is a reason as any other.
func allKnown(groups []*known, now time.Time) bool {
	for _, g := range groups {
		if since := g.unknownSince(); !since.IsZero() && now.Before(since.Add(tellAfter)) {
			return false
		}
	}
	return true
}

// unknownSince is since when it is not known what a group can do; zero when it is.
func (g *known) unknownSince() time.Time {
	if g.Group.Spec.ScaleUp == nil {
		return time.Time{}
	}
	m, state := g.memory, acceptance.Of(g.Group).State
	switch {
	case state == acceptance.NotObserved || state == acceptance.CloudUnread:
		return m.watched
	case state != acceptance.Accepted || m.unread != "":
		return time.Time{}
	case m.templates == nil:
		return m.watched
	case m.unsure():
		return m.doubt
	}
	return time.Time{}
}

func underWay(groups []*known) bool {
	for _, g := range groups {
		m := g.memory
		if len(m.survey.Awaited) > 0 || len(m.record) > 0 || len(m.survey.Dead) > 0 || len(m.leaving) > 0 {
			return true
		}
	}
	return false
}

// known is a group with what is remembered of it.
type known struct {
	nodegroup.World
	memory     *memory
	departures map[string]departure
	// replacements are instances that have replaced others, by provider ID.
	replacements map[string]bool
	// unreplaced are the retirements after a notice for which a replacement may still be launched, by provider ID.
	unreplaced map[string]types.UID
}

func (g *known) name() string { return g.Group.Name }

// read reads the groups that concern the autoscaler, and the nodes.
func (a *Controller) read(ctx context.Context, s *sources) (*nodegroup.Cluster, []*known, error) {
	all, err := a.o.Groups.List(ctx)
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
	if err := a.o.Client.List(ctx, &retirements); err != nil {
		return nil, nil, fmt.Errorf("NodeRetirements: %w", err)
	}
	cluster := nodegroup.NewCluster(a.o.Pods, all, objects, retirements.Items, time.Now())
	var groups []*known
	for i := range all {
		g := &all[i]
		if !a.concerns(g) {
			continue
		}
		refused := cluster.NotAccepted(g)
		var unread error
		if g.Status.Provisioning, unread = a.o.Launches.Read(ctx, g); unread != nil { // what is in its record is not known (I8)
			a.o.Log.Warn("the group gets no instances", "group", g.Name, "err", unread)
			refused = cmp.Or(refused, unread.Error())
		}
		w, err := cluster.World(ctx, g, refused, nil)
		if err != nil {
			return nil, nil, fmt.Errorf("NodeGroup %s: %w", g.Name, err)
		}
		groups = append(groups, &known{
			World: w, departures: departures(g, a.o.Clouds[g.Spec.Cloud.Provider], retirements.Items),
			replacements: retirement.Replacements(retirements.Items, g.Name),
			unreplaced:   unreplaced(g, a.o.Clouds[g.Spec.Cloud.Provider], retirements.Items),
		})
	}
	return cluster, groups, nil
}
