// Package nodegroup controls NodeGroups. It accepts or refuses each group, writes its status, and retires nodes by the
// rules of their group.
//
// Decisions are separate from actions. AssignNodes assigns nodes to groups, and DecideIdle decides on each node. Both
// are pure functions, and return all their reasons. The controller reads the cluster and calls them. It then writes on
// each Node since when it is idle, and creates or deletes NodeRetirements. Package retirement carries out the
// NodeRetirements within the group's disruption budgets. A restarted process can read or compute again everything that
// is in memory.
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

// API lists the reads from the API server without a cache. *kubeapi.Client implements it.
type API interface {
	ListPodsOnNode(ctx context.Context, node string) ([]kubeapi.Pod, error)
}

// Groups lists all NodeGroups. Groups from a file have no UID.
type Groups interface {
	List(ctx context.Context) ([]v1alpha1.NodeGroup, error)
}

// Options configure a Controller. All fields but Selector and Interval are required.
type Options struct {
	// Client writes objects, and reads from caches. Pods reads from them too.
	Client client.Client
	Pods   live.PodReader
	API    API
	Groups Groups
	// Clouds are the providers by name.
	Clouds  map[string]cloud.Provider
	Events  events.EventRecorder
	Metrics *Metrics
	Log     *slog.Logger
	// Selector restricts the controller to groups with these labels. Their NodeRetirements get the labels too. nil
	// selects all groups. Other groups are read, so that their nodes are not assigned to another group.
	Selector labels.Selector
	// Interval is the time between two reconciles of an idle group, and between two reads of its cloud. 0 means 1 minute.
	Interval time.Duration
}

const (
	defaultInterval = time.Minute
	shortRetry      = 50 * time.Millisecond
	// maxMessage is the longest text of an Event and of a NodeRetirement's message, in bytes. It is shorter than the
	// API server's limits.
	maxMessage = 900
)

// IdleRequester is the value of spec.requestedBy in the NodeRetirements of idle nodes.
const IdleRequester = "slipway manager, idleByLabel"

// Controller reconciles NodeGroups. Reconcile may run concurrently for different groups.
type Controller struct {
	options    Options
	hasPodRule atomic.Bool // a group has or had a rule that needs Pods: Pod updates count from then on

	mu            sync.Mutex
	cloudSlots    *cloud.WorkerLimiter
	cloudReadings map[v1alpha1.CloudGroup]recentReading
	fileStatuses  map[string]v1alpha1.NodeGroupStatus // the status of groups of a file, which have no object
	keptAt        map[string]time.Time                // when this process last saw a pod that keeps the node
	emittedKeys   map[string]map[string]string        // group to node to the key of the last Event
	writtenAt     map[string]time.Time                // when the status of a group was last written
}

type recentReading struct {
	cloudReading
	next time.Time
}

// New returns a Controller. It has no state until the first reconcile.
func New(o Options) *Controller {
	if o.Interval <= 0 {
		o.Interval = defaultInterval
	}
	if o.Selector == nil {
		o.Selector = labels.Everything()
	}
	return &Controller{
		options: o, cloudSlots: cloud.NewWorkerLimiter(maxConcurrentGroups, o.Clouds), cloudReadings: map[v1alpha1.CloudGroup]recentReading{}, fileStatuses: map[string]v1alpha1.NodeGroupStatus{},
		keptAt: map[string]time.Time{}, emittedKeys: map[string]map[string]string{}, writtenAt: map[string]time.Time{},
	}
}

// FileGroupStatus returns the status of a group from a file. Such a group has no object that could store it. The status
// is empty before the first reconcile.
func (c *Controller) FileGroupStatus(group string) v1alpha1.NodeGroupStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	status := c.fileStatuses[group]
	return *status.DeepCopy()
}

// Reconcile reconciles one group.
func (c *Controller) Reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	result, err := c.reconcile(ctx, r.Name)
	if err != nil && allErrorsMatch(err, apierrors.IsConflict) { // a concurrent write is no failure
		return reconcile.Result{RequeueAfter: shortRetry}, nil
	}
	if err != nil && allErrorsMatch(err, isConcurrentChange) {
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	return result, err
}

// isConcurrentChange reports whether a write has failed because another client has changed or created the object, and
// the cache does not show that yet.
func isConcurrentChange(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)
}

// allErrorsMatch reports whether matches is true for err. For joined errors, it must be true for each of them.
func allErrorsMatch(err error, matches func(error) bool) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(joined.Unwrap(), func(e error) bool { return !allErrorsMatch(e, matches) })
	}
	return matches(err)
}

func (c *Controller) reconcile(ctx context.Context, name string) (reconcile.Result, error) {
	groups, err := c.listGroupsWithStatus(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	at := slices.IndexFunc(groups, func(g v1alpha1.NodeGroup) bool { return g.Name == name })
	if at >= 0 && !c.options.Selector.Matches(labels.Set(groups[at].Labels)) {
		return reconcile.Result{}, nil
	}
	if at >= 0 && hasIdleRule(&groups[at]) {
		c.hasPodRule.Store(true)
	}
	cluster, err := ReadCluster(ctx, c.options.Client, c.options.Pods, groups)
	if err != nil {
		return reconcile.Result{}, err
	}
	if at < 0 {
		c.forgetGroup(name)
		return reconcile.Result{}, c.cleanUpUnownedNodes(ctx, cluster, name)
	}
	return c.reconcileGroup(ctx, cluster, &groups[at])
}

// listGroupsWithStatus lists the groups. It adds to each group from a file the status that this process has in memory.
func (c *Controller) listGroupsWithStatus(ctx context.Context) ([]v1alpha1.NodeGroup, error) {
	groups, err := c.options.Groups.List(ctx)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range groups {
		if g := &groups[i]; isFromFile(g) {
			status := c.fileStatuses[g.Name]
			g.Status = *status.DeepCopy()
		}
	}
	return groups, nil
}

// isFromFile reports whether the group is defined in a file. Such a group has no object in the API server.
func isFromFile(g *v1alpha1.NodeGroup) bool { return g.UID == "" }

func hasIdleRule(g *v1alpha1.NodeGroup) bool {
	return g.Spec.ScaleDown != nil && g.Spec.ScaleDown.IdleByLabel != nil
}

// reconcileGroup makes the decisions on a group and writes the group's status. If the group is accepted, it also
// carries out the decisions.
func (c *Controller) reconcileGroup(ctx context.Context, cluster *Cluster, g *v1alpha1.NodeGroup) (reconcile.Result, error) {
	configured := slices.Sorted(maps.Keys(c.options.Clouds))
	reading := cloudReading{}
	if _, wrong := cluster.Assignment.FaultByGroup[g.Name]; !wrong {
		reading = c.readCloudOrRecent(ctx, g.Spec.Cloud)
	}
	is := newAcceptedCondition(g, cluster.Assignment, configured, reading)
	why := ""
	if is.Status != metav1.ConditionTrue {
		why = is.Message
	}
	world, err := cluster.ReadGroupSnapshot(ctx, g, why, c.timeSinceKeepingPod)
	if err != nil {
		return reconcile.Result{}, err
	}
	world.CloudMinSize = reading.cloudMinSizeOrStatus(g)
	c.recordNodesWithKeepingPods(&world)
	decisions, err := DecideIdle(world)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("NodeGroup %s: %w", g.Name, err)
	}
	status := world.toStatus(reading)
	setLastScaleTimes(&status, &world, cluster.Retirements)
	was := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.GroupAccepted)
	for _, condition := range []metav1.Condition{is, newReachableCondition(g, configured, reading)} {
		condition.ObservedGeneration = g.Generation
		meta.SetStatusCondition(&status.Conditions, condition)
	}
	if g.Spec.ScaleUp == nil { // the provisioning controller writes it, and skips this group
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.GroupScaleUpAllowed)
	}
	meta.SetStatusCondition(&status.Conditions, newReadyCondition(status.Conditions, g.Generation))
	// Write the status before acting, so that an action never depends on an unrecorded acceptance.
	later, err := c.writeStatusIfDue(ctx, g, status)
	if err != nil {
		return reconcile.Result{}, err
	}
	c.emitAcceptanceIfChanged(g, was, is)
	c.options.Metrics.setGroupGauges(g.Name, status, decisions)
	errs := []error{c.cleanUpUnownedNodes(ctx, cluster, g.Name), c.cancelUnderutilizedWithoutRule(ctx, cluster, g)}
	for _, d := range sortForExecution(decisions) {
		errs = append(errs, c.applyDecision(ctx, &world, d))
	}
	c.emitChangedDecisions(&world, decisions)
	next := c.timeUntilNextReconcile(&world, decisions)
	if reading.isPostponed {
		next = min(next, time.Second)
	}
	if later > 0 {
		next = min(next, later)
	}
	return reconcile.Result{RequeueAfter: next}, errors.Join(errs...)
}

// timeUntilNextReconcile returns the time until the group is reconciled again if no event comes earlier.
func (c *Controller) timeUntilNextReconcile(w *GroupSnapshot, decisions []Decision) time.Duration {
	after := c.options.Interval
	for _, d := range decisions {
		if d.Verdict == VerdictCoolingDown {
			after = min(after, d.RemovableAt.Sub(w.Now))
		}
	}
	return max(after, shortRetry)
}

// cloudMinSizeOrStatus returns the minimum size that the cloud has configured for its group. If the last read has
// failed, it returns the minimum from the group's status (invariant I7).
func (l cloudReading) cloudMinSizeOrStatus(g *v1alpha1.NodeGroup) int {
	if l.known && l.err == nil {
		return l.group.Min
	}
	return int(g.Status.CloudMinSize)
}

// readCloudOrRecent reads a group from its cloud. If the last answer is recent, or calls for other groups of this cloud
// hang, it returns the last answer.
func (c *Controller) readCloudOrRecent(ctx context.Context, where v1alpha1.CloudGroup) cloudReading {
	provider := c.options.Clouds[where.Provider]
	if provider == nil {
		return cloudReading{}
	}
	c.mu.Lock()
	recent, known := c.cloudReadings[where]
	c.mu.Unlock()
	if known && time.Now().Before(recent.next) {
		return recent.cloudReading
	}
	release, ok := c.cloudSlots.TryAcquire(where.Provider)
	if !ok {
		recent.isPostponed = true
		return recent.cloudReading
	}
	defer release()
	within, cancel := context.WithTimeout(ctx, cloud.ReadTimeout)
	defer cancel()
	group, err := provider.Group(within, where.Group)
	var missing cloud.GroupPermissions
	if err == nil {
		missing = c.missingRights(within, provider, where.Group)
	}
	if ctx.Err() != nil {
		return recent.cloudReading
	}
	c.options.Metrics.countCloudRead(where.Provider, err)
	if err != nil {
		group = recent.group // as it was last read (I7)
	}
	pause := max(cloud.RetryDelay(err), c.options.Interval)
	recent = recentReading{cloudReading{group: group, err: err, missing: missing, known: true}, time.Now().Add(pause)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if before := c.cloudReadings[where].err; err != nil && (before == nil || before.Error() != err.Error()) {
		c.options.Log.Warn("cannot read the group from its cloud", "provider", where.Provider, "group", where.Group, "err", err)
	}
	c.cloudReadings[where] = recent
	return recent.cloudReading
}

// missingRights returns the rights that the credential needs for a group and does not have. If the cloud cannot tell,
// it returns none (invariant I7).
func (c *Controller) missingRights(ctx context.Context, provider cloud.Provider, group string) cloud.GroupPermissions {
	checker, can := provider.(cloud.PermissionChecker)
	if !can {
		return cloud.GroupPermissions{}
	}
	missing, err := checker.MissingGroupPermissions(ctx, group)
	if err != nil {
		c.options.Log.Debug("cannot check the rights of the credential", "provider", provider.Name(), "group", group, "err", err)
		return cloud.GroupPermissions{}
	}
	return missing
}

func (c *Controller) timeSinceKeepingPod(node string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if last, ok := c.keptAt[node]; ok {
		return time.Since(last) // by the monotonic clock
	}
	return -1
}

// recordKeepingPod records that, at the current time, a pod keeps the node from being idle.
func (c *Controller) recordKeepingPod(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keptAt[node] = time.Now()
}

func (c *Controller) recordNodesWithKeepingPods(w *GroupSnapshot) {
	for i := range w.Nodes {
		if n := &w.Nodes[i]; n.KeepingPods.Count > 0 {
			c.recordKeepingPod(n.Object.Name)
		}
	}
}

func (c *Controller) forgetNode(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.keptAt, node)
}

func (c *Controller) forgetGroup(group string) {
	c.options.Metrics.deleteGroupMetrics(group)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.fileStatuses, group)
	delete(c.emittedKeys, group)
	delete(c.writtenAt, group)
}

// setLastScaleTimes sets in the status when the group last got a node and when it last lost one.
func setLastScaleTimes(s *v1alpha1.NodeGroupStatus, w *GroupSnapshot, retirements []v1alpha1.NodeRetirement) {
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

// countWriteInterval is the shortest time between two writes of a status with changes of node counts only. If many
// nodes retire at once, a count changes often.
const countWriteInterval = time.Second

// writeStatusIfDue writes the status if it has changed. If the write must wait because only counts have changed, it
// returns how long. The status of a group from a file is stored in memory instead.
func (c *Controller) writeStatusIfDue(ctx context.Context, g *v1alpha1.NodeGroup, status v1alpha1.NodeGroupStatus) (retryAfter time.Duration, err error) {
	if equality.Semantic.DeepEqual(g.Status, status) {
		return 0, nil
	}
	c.mu.Lock()
	if isFromFile(g) {
		c.fileStatuses[g.Name] = status
		c.mu.Unlock()
		return 0, nil
	}
	retryAfter = time.Until(c.writtenAt[g.Name].Add(countWriteInterval))
	c.mu.Unlock()
	if retryAfter > 0 && differOnlyInCounts(g.Status, status) {
		return retryAfter, nil
	}
	written := g.DeepCopy()
	written.Status = status
	if err := c.options.Client.Status().Update(ctx, written); err != nil {
		return 0, fmt.Errorf("status of NodeGroup %s: %w", g.Name, err)
	}
	c.mu.Lock()
	c.writtenAt[g.Name] = time.Now()
	c.mu.Unlock()
	return 0, nil
}

func differOnlyInCounts(a, b v1alpha1.NodeGroupStatus) bool {
	a.Nodes, a.Ready, a.Retiring, a.Unavailable = b.Nodes, b.Ready, b.Retiring, b.Unavailable
	a.AllowedDisruptions, a.CloudSize = b.AllowedDisruptions, b.CloudSize
	return equality.Semantic.DeepEqual(a, b)
}

// cleanUpUnownedNodes removes the group's annotations from nodes that no group owns. It also cancels retirements of
// this group that have not begun, if the group no longer owns their node. It does not touch the annotations of nodes
// that another group owns now.
func (c *Controller) cleanUpUnownedNodes(ctx context.Context, cluster *Cluster, group string) error {
	var errs []error
	for i := range cluster.Nodes {
		n := &cluster.Nodes[i]
		if owner := cluster.Assignment.OwnerByNode[n.Name]; owner == "" && readMarkOwner(n) == c.markOwner(group) {
			errs = append(errs, c.writeMarksIfChanged(ctx, n, group, Marks{}))
		}
	}
	for i := range cluster.Retirements {
		rt := &cluster.Retirements[i]
		if rt.Spec.Group != group || rt.Spec.RequestedBy != IdleRequester || cluster.Assignment.OwnerByNode[rt.Spec.NodeName] == group {
			continue
		}
		if !rt.Status.Phase.IsFinal() && isCancellable(rt) && !isAdmitted(rt) {
			errs = append(errs, c.cancelRetirement(ctx, rt, "the NodeGroup "+group+" no longer owns the node"))
		}
	}
	return errors.Join(errs...)
}

// cancelUnderutilizedWithoutRule cancels the pending NodeRetirements of underutilized nodes, if the group no longer has
// the rule for underutilized nodes.
func (c *Controller) cancelUnderutilizedWithoutRule(ctx context.Context, cluster *Cluster, g *v1alpha1.NodeGroup) error {
	if g.Spec.ScaleDown != nil && g.Spec.ScaleDown.Underutilized != nil {
		return nil
	}
	var errs []error
	for i := range cluster.Retirements {
		rt := &cluster.Retirements[i]
		if rt.Spec.Group == g.Name && rt.Spec.RequestedBy == UnderutilizedRequester && !rt.Status.Phase.IsFinal() && CanCancel(rt) {
			errs = append(errs, c.cancelRetirement(ctx, rt, "the NodeGroup "+g.Name+" no longer has spec.scaleDown.underutilized"))
		}
	}
	return errors.Join(errs...)
}

// markOwner returns the group with this manager's selector, as the owner of annotations on a Node.
func (c *Controller) markOwner(group string) markOwner {
	return markOwner{group, c.options.Selector.String()}
}

func (c *Controller) writeMarksIfChanged(ctx context.Context, n *corev1.Node, group string, m Marks) error {
	patch, err := m.makePatch(n, c.markOwner(group))
	if err != nil || patch == nil {
		return err
	}
	target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
	err = c.options.Client.Patch(ctx, target, client.RawPatch(types.MergePatchType, patch))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("annotations of node %s: %w", n.Name, err)
	}
	return nil
}

// applyDecision writes the annotations of the Node, and then creates or cancels a retirement if the decision requires
// it. The annotations come first, because they must survive a crash.
func (c *Controller) applyDecision(ctx context.Context, w *GroupSnapshot, d *Decision) error {
	n := d.node.Object
	if w.NotAccepted == "" {
		m := d.marks.withScaleDownDisabled(n, w.Group.Spec.ClusterAutoscalerScaleDownDisabled)
		if err := c.writeMarksIfChanged(ctx, n, w.Group.Name, m); err != nil {
			return err
		}
	}
	switch {
	case d.CancelledRetirement != "":
		return c.cancelRetirement(ctx, d.node.openRetirement(), JoinReasons(d.Reasons))
	case d.Verdict == VerdictDue:
		return c.requestRetirementIfStillIdle(ctx, w, d)
	}
	return nil
}

func (c *Controller) cancelRetirement(ctx context.Context, rt *v1alpha1.NodeRetirement, why string) error {
	err := c.options.Client.Delete(ctx, rt, client.Preconditions{UID: &rt.UID, ResourceVersion: &rt.ResourceVersion})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cancel NodeRetirement %s: %w", rt.Name, err)
	}
	c.emitRetirementCancelled(rt, why)
	return nil
}

// requestRetirementIfStillIdle reads the pods of the node without a cache. If the node is still idle, it creates the
// NodeRetirement.
func (c *Controller) requestRetirementIfStillIdle(ctx context.Context, w *GroupSnapshot, d *Decision) error {
	rule, err := newIdleRule(w.Group)
	if err != nil {
		return err
	}
	pods, err := c.options.API.ListPodsOnNode(ctx, d.Node)
	if err != nil {
		return fmt.Errorf("pods on node %s: %w", d.Node, err)
	}
	now := rule.summarizeLivePods(pods)
	switch {
	case now.keepingPod != "":
		d.Verdict, d.Reasons = VerdictKept, []Reason{{UncachedMatchingPod, "pod " + now.keepingPod + " keeps it"}}
		c.recordKeepingPod(d.Node)
		return nil
	case !now.lastEnded.IsZero() && w.Now.Before(now.lastEnded.Add(rule.cooldown)):
		// The last pod ended while no manager ran.
		m := d.marks
		m.Since, m.Used = roundUpToSecond(now.lastEnded), true
		until := m.Since.Add(rule.cooldown)
		d.Verdict, d.IdleSince, d.RemovableAt = VerdictCoolingDown, &m.Since, &until
		d.Reasons = []Reason{{CoolingDown, fmt.Sprintf("idle since %s; it may be retired at %s", formatTime(m.Since), formatTime(until))}}
		return c.writeMarksIfChanged(ctx, d.node.Object, w.Group.Name, m.withScaleDownDisabled(d.node.Object, w.Group.Spec.ClusterAutoscalerScaleDownDisabled))
	}
	rt := c.newIdleRetirement(w, d)
	if err := c.options.Client.Create(ctx, rt); err != nil {
		return fmt.Errorf("NodeRetirement %s: %w", rt.Name, err)
	}
	c.options.Metrics.countRetirement(w.Group.Name)
	return c.deleteOlderFailedRetirements(ctx, d)
}

// currentPods holds the pods of a node as the API server reports them now.
type currentPods struct {
	keepingPod string    // a pod that keeps the node; empty if none
	lastEnded  time.Time // when the last finished pod of the rule ended; zero if none
}

func (r *idleRule) summarizeLivePods(pods []kubeapi.Pod) (found currentPods) {
	for i := range pods {
		p := &pods[i]
		if !r.KeepsNode(p.Namespace, labels.Set(p.Labels)) {
			continue
		}
		if isUnfinished(corev1.PodPhase(p.Status.Phase)) {
			found.keepingPod = p.Namespace + "/" + p.Name
			continue
		}
		for _, s := range p.Status.ContainerStatuses {
			if s.State.Terminated != nil && s.State.Terminated.FinishedAt.After(found.lastEnded) {
				found.lastEnded = s.State.Terminated.FinishedAt
			}
		}
	}
	return found
}

func (c *Controller) newIdleRetirement(w *GroupSnapshot, d *Decision) *v1alpha1.NodeRetirement {
	n := d.node.Object
	before := ""
	if last := d.node.lastFailedRetirement(); last != nil {
		before = string(last.UID)
	}
	return request.New(request.Request{
		Name: request.NewName(n.Name, "idle", n.UID, d.IdleSince.Unix(), before), Labels: w.Group.Labels,
		Spec: v1alpha1.NodeRetirementSpec{
			NodeName: n.Name, NodeUID: n.UID, Reason: v1alpha1.Idle, RequestedBy: IdleRequester, Group: w.Group.Name,
		},
	})
}

// deleteOlderFailedRetirements deletes all failed idle retirements of a node except the last one. Otherwise the records
// of a node that cannot be drained would fill the cluster.
func (c *Controller) deleteOlderFailedRetirements(ctx context.Context, d *Decision) error {
	last := d.node.lastFailedRetirement()
	var errs []error
	for i := range d.node.Retirements {
		rt := &d.node.Retirements[i]
		if last == nil || rt.UID == last.UID || rt.Spec.RequestedBy != IdleRequester || !rt.Status.Phase.IsFinal() ||
			rt.Status.Phase == v1alpha1.Succeeded || !rt.DeletionTimestamp.IsZero() {
			continue
		}
		err := c.options.Client.Delete(ctx, rt, client.Preconditions{UID: &rt.UID})
		errs = append(errs, client.IgnoreNotFound(err))
	}
	return errors.Join(errs...)
}
