// Package nodegroup owns NodeGroups: it says which are acted on and why the others are not, keeps their status, and has
// the nodes leave that nobody needs, by the rules of their group.
//
// What thinks is apart from what acts. Claim gives nodes to groups, Decide says of each node what is to become of it, and
// why, with all reasons as data; both are pure. The controller reads, asks them, writes down on the Node since when it is
// idle, and creates or deletes NodeRetirements, which package retirement carries out within the group's budgets. It holds
// nothing in memory that a restart would miss.
package nodegroup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/placement/live"
	"github.com/slipway-dev/slipway/internal/retirement/request"
)

// API is what is asked of the API server past all caches. *kubeapi.Client is one.
type API interface {
	ListPodsOn(ctx context.Context, node string) ([]kubeapi.Pod, error)
}

// Groups gives the NodeGroups that there are, those of a file included, which have no UID.
type Groups interface {
	List(ctx context.Context) ([]v1alpha1.NodeGroup, error)
}

// Options are what a Controller works with. All fields but Selector and Every are required.
type Options struct {
	// Client writes, and reads from caches; Pods are read from them too.
	Client client.Client
	Pods   live.Pods
	API    API
	Groups Groups
	// Clouds are the providers by name.
	Clouds  map[string]cloud.Provider
	Events  events.EventRecorder
	Metrics *Metrics
	Log     *slog.Logger
	// Selector restricts what is acted on to the groups with these labels, which are given to their NodeRetirements too;
	// nil is all. The others are seen: nodes are not taken from them.
	Selector labels.Selector
	// Every is the time between two looks at a group for which nothing happens, and at its cloud: 1 minute when 0.
	Every time.Duration
}

const (
	defaultEvery = time.Minute
	freshLook    = 50 * time.Millisecond
	// maxMessage is the API server's limit of an Event's note and of the message of a retirement, in bytes, with room.
	maxMessage = 900
)

// Who asks for the retirements of idle and of underused nodes.
const (
	RequestedBy          = "slipway manager, idleByLabel"
	UnderusedRequestedBy = "slipway manager, underused"
)

// Controller owns NodeGroups. Reconcile may be called concurrently for different ones.
type Controller struct {
	o     Options
	ruled atomic.Bool // some group has had a rule that looks at Pods, since when Pods are heard of

	mu       sync.Mutex
	slots    *cloud.Slots
	looks    map[v1alpha1.CloudGroup]recentLook
	ofFile   map[string]v1alpha1.NodeGroupStatus // of groups that have no object to write it on
	lastKept map[string]time.Time                // when this process last knew of a pod that kept the node
	told     map[string]map[string]string        // group to node to what was last said of it
	written  map[string]time.Time                // when the status of a group was last written
}

type recentLook struct {
	cloudLook
	next time.Time
}

// New returns a controller. Register adds it to a manager.
func New(o Options) *Controller {
	if o.Every <= 0 {
		o.Every = defaultEvery
	}
	if o.Selector == nil {
		o.Selector = labels.Everything()
	}
	return &Controller{
		o: o, slots: cloud.NewSlots(atOnce, o.Clouds), looks: map[v1alpha1.CloudGroup]recentLook{}, ofFile: map[string]v1alpha1.NodeGroupStatus{},
		lastKept: map[string]time.Time{}, told: map[string]map[string]string{}, written: map[string]time.Time{},
	}
}

// Status is that of a group of a file, which has no object to write it on; empty when it has not been looked at.
func (c *Controller) Status(group string) v1alpha1.NodeGroupStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	status := c.ofFile[group]
	return *status.DeepCopy()
}

// Reconcile looks at one group, and does what is due.
func (c *Controller) Reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	result, err := c.reconcile(ctx, r.Name)
	if err != nil && only(err, apierrors.IsConflict) { // somebody was faster: another look is due, and that is no failure
		return reconcile.Result{RequeueAfter: freshLook}, nil
	}
	if err != nil && only(err, isFaster) {
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	return result, err
}

// isFaster reports that somebody else has asked for the same retirement already, of which the caches will tell.
func isFaster(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }

// only reports whether an error, or all that are joined in it, are of a kind.
func only(err error, kind func(error) bool) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(joined.Unwrap(), func(e error) bool { return !only(e, kind) })
	}
	return kind(err)
}

func (c *Controller) reconcile(ctx context.Context, name string) (reconcile.Result, error) {
	groups, err := c.groups(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	at := slices.IndexFunc(groups, func(g v1alpha1.NodeGroup) bool { return g.Name == name })
	if at >= 0 && !c.o.Selector.Matches(labels.Set(groups[at].Labels)) {
		return reconcile.Result{}, nil
	}
	if at >= 0 && hasRule(&groups[at]) {
		c.ruled.Store(true)
	}
	cluster, err := ReadCluster(ctx, c.o.Client, c.o.Pods, groups)
	if err != nil {
		return reconcile.Result{}, err
	}
	if at < 0 {
		c.forget(name)
		return reconcile.Result{}, c.abandon(ctx, cluster, name)
	}
	return c.manage(ctx, cluster, &groups[at])
}

// groups lists the groups, with the status of those that are of a file.
func (c *Controller) groups(ctx context.Context) ([]v1alpha1.NodeGroup, error) {
	groups, err := c.o.Groups.List(ctx)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range groups {
		if g := &groups[i]; ofFile(g) {
			status := c.ofFile[g.Name]
			g.Status = *status.DeepCopy()
		}
	}
	return groups, nil
}

// ofFile reports a group that the API server does not know.
func ofFile(g *v1alpha1.NodeGroup) bool { return g.UID == "" }

func hasRule(g *v1alpha1.NodeGroup) bool {
	return g.Spec.ScaleDown != nil && g.Spec.ScaleDown.IdleByLabel != nil
}

// manage judges a group, acts on it if it is accepted, and writes its status.
func (c *Controller) manage(ctx context.Context, cluster *Cluster, g *v1alpha1.NodeGroup) (reconcile.Result, error) {
	configured := slices.Sorted(maps.Keys(c.o.Clouds))
	look := cloudLook{}
	if _, wrong := cluster.Claims.Faults[g.Name]; !wrong {
		look = c.lookAtCloud(ctx, g.Spec.Cloud)
	}
	is := acceptedCondition(g, cluster.Claims, configured, look)
	why := ""
	if is.Status != metav1.ConditionTrue {
		why = is.Message
	}
	world, err := cluster.World(ctx, g, why, c.quiet)
	if err != nil {
		return reconcile.Result{}, err
	}
	world.CloudMinimum = look.minimum(g)
	c.noteKept(&world)
	decisions, err := Decide(world)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("NodeGroup %s: %w", g.Name, err)
	}
	status := world.status(look)
	lastTimes(&status, &world, cluster.Retirements)
	was := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.GroupAccepted)
	for _, condition := range []metav1.Condition{is, reachable(g, configured, look)} {
		condition.ObservedGeneration = g.Generation
		meta.SetStatusCondition(&status.Conditions, condition)
	}
	if g.Spec.ScaleUp == nil { // the autoscaler, which writes it, does not look at such a group
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.GroupScaleUpAllowed)
	}
	meta.SetStatusCondition(&status.Conditions, readyCondition(status.Conditions, g.Generation))
	// Nothing is done on the strength of an acceptance that is not written down.
	later, err := c.writeStatus(ctx, g, status)
	if err != nil {
		return reconcile.Result{}, err
	}
	c.announceAcceptance(g, was, is)
	c.o.Metrics.see(g.Name, status, decisions)
	errs := []error{c.abandon(ctx, cluster, g.Name), c.cancelUnderused(ctx, cluster, g)}
	for _, d := range inOrder(decisions) {
		errs = append(errs, c.act(ctx, &world, d))
	}
	c.announce(&world, decisions)
	next := c.next(&world, decisions)
	if look.waits {
		next = min(next, time.Second)
	}
	if later > 0 {
		next = min(next, later)
	}
	return reconcile.Result{RequeueAfter: next}, errors.Join(errs...)
}

// next is when the group is due for a look though nothing happens.
func (c *Controller) next(w *World, decisions []Decision) time.Duration {
	after := c.o.Every
	for _, d := range decisions {
		if d.Verdict == Waits {
			after = min(after, d.MayLeaveAt.Sub(w.Now))
		}
	}
	return max(after, freshLook)
}

// minimum is the cloud's own minimum, as it was last read: by this process, or by the one that wrote the status (I7).
func (l cloudLook) minimum(g *v1alpha1.NodeGroup) int {
	if l.known && l.err == nil {
		return l.group.Min
	}
	return int(g.Status.CloudMinimum)
}

// lookAtCloud asks the cloud about a group, unless it was asked a moment ago, or hangs for others of its groups.
func (c *Controller) lookAtCloud(ctx context.Context, where v1alpha1.CloudGroup) cloudLook {
	provider := c.o.Clouds[where.Provider]
	if provider == nil {
		return cloudLook{}
	}
	c.mu.Lock()
	recent, known := c.looks[where]
	c.mu.Unlock()
	if known && time.Now().Before(recent.next) {
		return recent.cloudLook
	}
	release, ok := c.slots.TryAcquire(where.Provider)
	if !ok {
		recent.waits = true
		return recent.cloudLook
	}
	defer release()
	within, cancel := context.WithTimeout(ctx, cloud.ReadTimeout)
	defer cancel()
	group, err := provider.Group(within, where.Group)
	var missing cloud.GroupRights
	if err == nil {
		missing = c.missingRights(within, provider, where.Group)
	}
	if ctx.Err() != nil {
		return recent.cloudLook
	}
	c.o.Metrics.cloud(where.Provider, err)
	if err != nil {
		group = recent.group // which it was when it was last read (I7)
	}
	recent = recentLook{cloudLook{group: group, err: err, missing: missing, known: true}, time.Now().Add(c.o.Every)}
	var throttled *cloud.ThrottledError
	if errors.As(err, &throttled) && throttled.After > c.o.Every {
		recent.next = time.Now().Add(throttled.After)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if before := c.looks[where].err; err != nil && (before == nil || before.Error() != err.Error()) {
		c.o.Log.Warn("the group cannot be read from its cloud", "provider", where.Provider, "group", where.Group, "err", err)
	}
	c.looks[where] = recent
	return recent.cloudLook
}

// missingRights asks which rights the credential lacks for a group. None are known to be missing where that cannot be said
// (I7).
func (c *Controller) missingRights(ctx context.Context, provider cloud.Provider, group string) cloud.GroupRights {
	checker, can := provider.(cloud.RightsChecker)
	if !can {
		return cloud.GroupRights{}
	}
	missing, err := checker.MissingForGroup(ctx, group)
	if err != nil {
		c.o.Log.Debug("which rights the credential has is not known", "provider", provider.Name(), "group", group, "err", err)
		return cloud.GroupRights{}
	}
	return missing
}

func (c *Controller) quiet(node string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if last, ok := c.lastKept[node]; ok {
		return time.Since(last) // by the monotonic clock
	}
	return -1
}

// kept notes that a pod keeps a node, or did until now.
func (c *Controller) kept(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastKept[node] = time.Now()
}

func (c *Controller) noteKept(w *World) {
	for i := range w.Nodes {
		if n := &w.Nodes[i]; n.Keepers.Count > 0 {
			c.kept(n.Object.Name)
		}
	}
}

// nodeGone forgets a Node that is no more.
func (c *Controller) nodeGone(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.lastKept, node)
}

func (c *Controller) forget(group string) {
	c.o.Metrics.forget(group)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.ofFile, group)
	delete(c.told, group)
	delete(c.written, group)
}

// lastTimes are when the group last got and lost a node.
func lastTimes(s *v1alpha1.NodeGroupStatus, w *World, retirements []v1alpha1.NodeRetirement) {
	if up := w.lastScaleUp(); !up.IsZero() {
		s.LastScaleUp = &metav1.Time{Time: up}
	}
	for i := range retirements {
		rt := &retirements[i]
		over := rt.Status.Times.Finished
		if rt.Status.Phase != v1alpha1.Succeeded || over == nil || rt.Status.Captured == nil ||
			rt.Status.Captured.Group != w.Group.Name {
			continue
		}
		if s.LastScaleDown == nil || s.LastScaleDown.Before(over) {
			s.LastScaleDown = over.DeepCopy()
		}
	}
}

// countsEvery is the pause between two writes of a status that differ in numbers of nodes alone: where many nodes leave at once,
// each of their phases changes a number.
const countsEvery = time.Second

// writeStatus writes the status unless it is written already, or is to be written later, for which it returns the time. That of a
// group of a file is kept.
func (c *Controller) writeStatus(ctx context.Context, g *v1alpha1.NodeGroup, status v1alpha1.NodeGroupStatus) (later time.Duration, err error) {
	if equality.Semantic.DeepEqual(g.Status, status) {
		return 0, nil
	}
	c.mu.Lock()
	if ofFile(g) {
		c.ofFile[g.Name] = status
		c.mu.Unlock()
		return 0, nil
	}
	later = time.Until(c.written[g.Name].Add(countsEvery))
	c.mu.Unlock()
	if later > 0 && differInCounts(g.Status, status) {
		return later, nil
	}
	written := g.DeepCopy()
	written.Status = status
	if err := c.o.Client.Status().Update(ctx, written); err != nil {
		return 0, fmt.Errorf("status of NodeGroup %s: %w", g.Name, err)
	}
	c.mu.Lock()
	c.written[g.Name] = time.Now()
	c.mu.Unlock()
	return 0, nil
}

// differInCounts reports whether two statuses differ in numbers of nodes alone.
func differInCounts(a, b v1alpha1.NodeGroupStatus) bool {
	a.Nodes, a.Ready, a.Leaving, a.Unavailable = b.Nodes, b.Ready, b.Leaving, b.Unavailable
	a.AllowedDisruptions, a.CloudSize = b.AllowedDisruptions, b.CloudSize
	return equality.Semantic.DeepEqual(a, b)
}

// abandon takes a group's marks off nodes that no group owns any more, and calls off the retirements that it has asked
// for and that have not begun, of nodes that it does not own. Nodes of another group are that group's to mark.
func (c *Controller) abandon(ctx context.Context, cluster *Cluster, group string) error {
	var errs []error
	for i := range cluster.Nodes {
		n := &cluster.Nodes[i]
		if owner := cluster.Claims.Owner[n.Name]; owner == "" && ownerOf(n) == c.owner(group) {
			errs = append(errs, c.mark(ctx, n, group, Marks{}))
		}
	}
	for i := range cluster.Retirements {
		rt := &cluster.Retirements[i]
		if rt.Spec.Group != group || rt.Spec.RequestedBy != RequestedBy || cluster.Claims.Owner[rt.Spec.NodeName] == group {
			continue
		}
		if !rt.Status.Phase.Finished() && rescuable(rt) && !admitted(rt) {
			errs = append(errs, c.callOff(ctx, rt, "the NodeGroup "+group+" does not own the node any more"))
		}
	}
	return errors.Join(errs...)
}

// cancelUnderused deletes the waiting NodeRetirements of underused nodes of a group that does not have the rule any more.
func (c *Controller) cancelUnderused(ctx context.Context, cluster *Cluster, g *v1alpha1.NodeGroup) error {
	if g.Spec.ScaleDown != nil && g.Spec.ScaleDown.Underused != nil {
		return nil
	}
	var errs []error
	for i := range cluster.Retirements {
		rt := &cluster.Retirements[i]
		if rt.Spec.Group == g.Name && rt.Spec.RequestedBy == UnderusedRequestedBy && !rt.Status.Phase.Finished() && Rescuable(rt) {
			errs = append(errs, c.callOff(ctx, rt, "the NodeGroup "+g.Name+" does not have spec.scaleDown.underutilized any more"))
		}
	}
	return errors.Join(errs...)
}

// owner is a group as the owner of marks.
func (c *Controller) owner(group string) owner { return owner{group, c.o.Selector.String()} }

func (c *Controller) mark(ctx context.Context, n *corev1.Node, group string, m Marks) error {
	patch, err := m.patch(n, c.owner(group))
	if err != nil || patch == nil {
		return err
	}
	target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
	err = c.o.Client.Patch(ctx, target, client.RawPatch(types.MergePatchType, patch))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("annotations of node %s: %w", n.Name, err)
	}
	return nil
}

// act carries a decision out: first what has to outlive a restart, then the rest.
func (c *Controller) act(ctx context.Context, w *World, d *Decision) error {
	n := d.node.Object
	if w.NotAccepted == "" {
		m := d.marks.holdOff(n, w.Group.Spec.ClusterAutoscalerScaleDownDisabled)
		if err := c.mark(ctx, n, w.Group.Name, m); err != nil {
			return err
		}
	}
	switch {
	case d.CallOff != "":
		return c.callOff(ctx, d.node.open(), Sentence(d.Reasons))
	case d.Verdict == Leaves:
		return c.retire(ctx, w, d)
	}
	return nil
}

func (c *Controller) callOff(ctx context.Context, rt *v1alpha1.NodeRetirement, why string) error {
	err := c.o.Client.Delete(ctx, rt, client.Preconditions{UID: &rt.UID, ResourceVersion: &rt.ResourceVersion})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("calling off NodeRetirement %s: %w", rt.Name, err)
	}
	c.calledOff(rt, why)
	return nil
}

// retire asks for the retirement of a node, after a look past the caches.
func (c *Controller) retire(ctx context.Context, w *World, d *Decision) error {
	rule, err := ruleOf(w.Group)
	if err != nil {
		return err
	}
	pods, err := c.o.API.ListPodsOn(ctx, d.Node)
	if err != nil {
		return fmt.Errorf("pods on node %s: %w", d.Node, err)
	}
	now := rule.live(pods)
	switch {
	case now.keeper != "":
		d.Verdict, d.Reasons = Stays, []Reason{{LiveKeeper, "pod " + now.keeper + " keeps it"}}
		c.kept(d.Node)
		return nil
	case !now.ended.IsZero() && w.Now.Before(now.ended.Add(rule.cooldown)):
		// The last pod ended while no manager looked.
		m := d.marks
		m.Since, m.Used = wholeSecond(now.ended), true
		until := m.Since.Add(rule.cooldown)
		d.Verdict, d.IdleSince, d.MayLeaveAt = Waits, &m.Since, &until
		d.Reasons = []Reason{{CoolingDown, fmt.Sprintf("idle since %s, and may leave at %s", at(m.Since), at(until))}}
		return c.mark(ctx, d.node.Object, w.Group.Name, m.holdOff(d.node.Object, w.Group.Spec.ClusterAutoscalerScaleDownDisabled))
	}
	rt := c.retirementOf(w, d)
	if err := c.o.Client.Create(ctx, rt); err != nil {
		return fmt.Errorf("NodeRetirement %s: %w", rt.Name, err)
	}
	c.o.Metrics.retired(w.Group.Name)
	return c.dropOldFailures(ctx, d)
}

// livePods is what the API server says of a node's pods.
type livePods struct {
	keeper string    // a pod that keeps the node; empty is none
	ended  time.Time // when the last pod of the kind ended that is still to be seen; zero without one
}

func (r *idleRule) live(pods []kubeapi.Pod) (found livePods) {
	for i := range pods {
		p := &pods[i]
		if !r.KeepsNode(p.Namespace, labels.Set(p.Labels)) {
			continue
		}
		if unfinished(corev1.PodPhase(p.Status.Phase)) {
			found.keeper = p.Namespace + "/" + p.Name
			continue
		}
		for _, s := range p.Status.ContainerStatuses {
			if s.State.Terminated != nil && s.State.Terminated.FinishedAt.After(found.ended) {
				found.ended = s.State.Terminated.FinishedAt
			}
		}
	}
	return found
}

// retirementOf is the NodeRetirement of an idle node.
func (c *Controller) retirementOf(w *World, d *Decision) *v1alpha1.NodeRetirement {
	n := d.node.Object
	before := ""
	if last := d.node.lastFailure(); last != nil {
		before = string(last.UID)
	}
	return request.New(request.Request{
		Name: request.Name(n.Name, "idle", n.UID, d.IdleSince.Unix(), before), Labels: w.Group.Labels,
		Spec: v1alpha1.NodeRetirementSpec{
			NodeName: n.Name, NodeUID: n.UID, Reason: v1alpha1.Idle, RequestedBy: RequestedBy, Group: w.Group.Name,
		},
	})
}

// dropOldFailures keeps of a node's idle retirements that failed only the last, so that a node that cannot leave does
// not fill the record of the cluster.
func (c *Controller) dropOldFailures(ctx context.Context, d *Decision) error {
	last := d.node.lastFailure()
	var errs []error
	for i := range d.node.Retirements {
		rt := &d.node.Retirements[i]
		if last == nil || rt.UID == last.UID || rt.Spec.RequestedBy != RequestedBy || !rt.Status.Phase.Finished() ||
			rt.Status.Phase == v1alpha1.Succeeded || !rt.DeletionTimestamp.IsZero() {
			continue
		}
		err := c.o.Client.Delete(ctx, rt, client.Preconditions{UID: &rt.UID})
		errs = append(errs, client.IgnoreNotFound(err))
	}
	return errors.Join(errs...)
}
