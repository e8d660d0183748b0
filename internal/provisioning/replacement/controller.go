package replacement

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/nodegroup/acceptance"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/retirement"
	"github.com/slipway-dev/slipway/internal/retirement/disruptionbudget"
)

// PodPlacement finds the pods that would be unschedulable without a node. [ClusterPlacement] implements it.
type PodPlacement interface {
	ListPodsNeedingNode(ctx context.Context, node string) ([]UnschedulablePod, error)
}

// Options configure a Controller. All fields but Intervals are required.
type Options struct {
	// Client writes objects, and reads NodeRetirements and Nodes from caches.
	Client client.Client
	// APIReader reads without a cache.
	APIReader client.Reader
	Groups    retirement.GroupLister
	// Selector selects the NodeGroups to act on.
	Selector  labels.Selector
	Clouds    map[string]cloud.Provider
	Launches  *launch.Record
	Placement PodPlacement
	Events    events.EventRecorder
	Metrics   *Metrics
	// ReportCall is called after every call of a cloud provider.
	ReportCall func(provider, call string, err error)
	Log        *slog.Logger
	Intervals  Intervals
}

// Intervals configures polling periods. Zero values mean the defaults.
type Intervals struct {
	// Retry is the pause between two reconciles of a node with a notice: 2 s.
	Retry time.Duration
	// CloudRead is the pause between two reads of the cloud: 5 s.
	CloudRead time.Duration
	// SettleTime is how long the instances of a launch may take to show after a lost answer: 1 minute.
	SettleTime time.Duration
}

func (p Intervals) withDefaults() Intervals {
	for d, fallback := range map[*time.Duration]time.Duration{
		&p.Retry: 2 * time.Second, &p.CloudRead: 5 * time.Second, &p.SettleTime: launch.SettleTime,
	} {
		if *d <= 0 {
			*d = fallback
		}
	}
	return p
}

// Controller launches replacements. It works on one replacement per cloud at a time, so that each launch takes the
// launches before it into account.
type Controller struct {
	options  Options
	events   eventEmitter
	follower *launch.Follower
	// replacementSlots and noticeSlots limit the two controllers separately: a hanging cloud blocks no other cloud.
	replacementSlots, noticeSlots cloud.WorkerLimiter
	warnings                      warningLog
}

// New returns a Controller. It replaces zero Intervals with their defaults.
func New(o Options) *Controller {
	o.Intervals = o.Intervals.withDefaults()
	return &Controller{options: o, events: eventEmitter{o.Events}, follower: launch.NewFollower(o.Launches, o.Intervals.SettleTime, o.ReportCall)}
}

// replacementScope holds the state of one reconcile of one replacement.
type replacementScope struct {
	controller  *Controller
	rt          *v1alpha1.NodeRetirement
	lastWritten *v1alpha1.Replacement // as it was read or last written
	group       *v1alpha1.NodeGroup
	cloud       cloud.Provider
	log         *slog.Logger
	// podReasons are why the pods of the node need the replacement, from the last check of them. Waiting and Launched keep
	// them, because they are all that is known of the pods when the Node is gone.
	podReasons []v1alpha1.RetirementReason
}

// Reconcile decides whether a replacement is wanted, launches it, and records the state of the launch. It continues
// after the end of the retirement, because the launch may have to wait for longer.
func (c *Controller) Reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	cached := &v1alpha1.NodeRetirement{}
	if err := c.options.Client.Get(ctx, r.NamespacedName, cached); err != nil {
		c.warnings.forget(r.Name)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if replacementState(cached).IsFinal() {
		return reconcile.Result{}, c.removeFinishedLaunch(ctx, cached)
	}
	provider, err := c.findProviderName(ctx, cached)
	if err != nil {
		return reconcile.Result{}, err
	}
	release, ok := c.replacementSlots.TryAcquire(provider)
	if !ok {
		return reconcile.Result{RequeueAfter: cloud.WorkerRetryDelay}, nil
	}
	defer release()
	rt := &v1alpha1.NodeRetirement{}
	if err := c.options.APIReader.Get(ctx, r.NamespacedName, rt); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	state := replacementState(rt)
	if rt.Spec.Notice == nil || rt.Spec.Group == "" || state.IsFinal() || isDeletedBeforeLaunch(rt) {
		return reconcile.Result{}, nil
	}
	l := &replacementScope{controller: c, rt: rt, lastWritten: rt.Status.Replacement.DeepCopy(), log: c.options.Log.With("retirement", rt.Name, "node", rt.Spec.NodeName)}
	if rt.Status.Replacement != nil {
		l.podReasons = selectPodReasons(rt.Status.Replacement.Reasons)
	}
	if wait, err := l.resolveGroupAndCloud(ctx); wait > 0 || err != nil {
		return reconcile.Result{RequeueAfter: wait}, err
	}
	if l.group.Spec.Cloud.Provider != provider { // it has changed meanwhile, and the slot belongs to another cloud
		return reconcile.Result{RequeueAfter: shortRetry}, nil
	}
	pause, err := l.reconcileLaunch(ctx)
	if replacementState(rt).IsFinal() {
		c.warnings.forget(rt.Name)
	}
	switch {
	case cloud.IsThrottled(err):
		return reconcile.Result{RequeueAfter: max(cloud.RetryDelay(err), time.Second)}, nil
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: shortRetry}, nil
	}
	return reconcile.Result{RequeueAfter: pause}, err
}

// reconcileLaunch records the state of the launch, or decides whether to launch.
func (l *replacementScope) reconcileLaunch(ctx context.Context) (requeueAfter time.Duration, err error) {
	if never := DecideWanted(Need{Policy: l.group.Spec.Replacement, Instance: InstanceExists}); never.Outcome == None && retirement.IsReplacementPending(l.rt) { // the record may be missing or unreadable
		return 0, l.writeStateIfChanged(ctx, v1alpha1.ReplacementNotNeeded, never.Reasons...)
	}
	record, err := l.controller.options.Launches.ReadUncached(ctx, l.group)
	if err != nil {
		return 0, err
	}
	own := findLaunchOfRetirement(record, l.rt.UID)
	switch {
	case own != nil:
		return l.recordLaunchState(ctx, own)
	case replacementState(l.rt) == v1alpha1.ReplacementLaunched:
		return 0, l.writeStateIfChanged(ctx, v1alpha1.ReplacementFailed, newReason(LaunchUnknown, "", "the record of NodeGroup %s no longer has the launch %s",
			l.group.Name, l.ensureStatus().Launch))
	}
	return l.decideAndLaunch(ctx, record)
}

// findLaunchOfRetirement finds the launch for a retirement.
func findLaunchOfRetirement(s *v1alpha1.ProvisioningStatus, retirement types.UID) *v1alpha1.Launch {
	for i := range s.Launches {
		if l := &s.Launches[i]; l.IsForRetirement() && l.For.UID == retirement {
			return l
		}
	}
	return nil
}

// removeFinishedLaunch removes a launch from the record after its result was recorded.
func (c *Controller) removeFinishedLaunch(ctx context.Context, rt *v1alpha1.NodeRetirement) error {
	g, err := c.findGroup(ctx, rt)
	if g == nil || err != nil {
		return err
	}
	record, err := c.options.Launches.ReadCached(ctx, g)
	if err != nil || record == nil || findLaunchOfRetirement(record, rt.UID) == nil {
		return err
	}
	return c.options.Launches.RemoveLaunch(ctx, g, findLaunchOfRetirement(record, rt.UID).ID)
}

// findGroup returns the group of a retirement, or nil if the group does not exist.
func (c *Controller) findGroup(ctx context.Context, rt *v1alpha1.NodeRetirement) (*v1alpha1.NodeGroup, error) {
	groups, err := c.options.Groups.List(ctx)
	i := slices.IndexFunc(groups, func(g v1alpha1.NodeGroup) bool { return g.Name == rt.Spec.Group })
	if err != nil || i < 0 {
		return nil, err
	}
	return &groups[i], nil
}

// findProviderName returns the cloud of a retirement's group. It returns "" if the group does not exist.
func (c *Controller) findProviderName(ctx context.Context, rt *v1alpha1.NodeRetirement) (string, error) {
	g, err := c.findGroup(ctx, rt)
	if g == nil || err != nil {
		return "", err
	}
	return g.Spec.Cloud.Provider, nil
}

const shortRetry = 50 * time.Millisecond

// isDeletedBeforeLaunch reports whether the NodeRetirement may disappear at any moment, so that nothing may be launched for it.
// A launch that was made before is followed as long as the NodeRetirement exists. A cancelled NodeRetirement still
// records that it launches nothing.
func isDeletedBeforeLaunch(rt *v1alpha1.NodeRetirement) bool {
	if rt.DeletionTimestamp.IsZero() || retirement.EarlyEndCode(rt) == retirement.Cancelled {
		return false
	}
	return retirement.IsReplacementPending(rt)
}

func replacementState(rt *v1alpha1.NodeRetirement) v1alpha1.ReplacementState {
	if rt.Status.Replacement == nil {
		return ""
	}
	return rt.Status.Replacement.State
}

// resolveGroupAndCloud finds the group and its cloud. If one of them is missing, wait is the pause until the next attempt.
func (l *replacementScope) resolveGroupAndCloud(ctx context.Context) (wait time.Duration, err error) {
	if l.group, err = l.controller.findGroup(ctx, l.rt); err != nil {
		return 0, err
	}
	if l.group == nil {
		return l.controller.options.Intervals.CloudRead, l.recordUnresolvedIfPending(ctx, newReason(UnknownGroup, "", "there is no NodeGroup %s", l.rt.Spec.Group))
	}
	name := l.group.Spec.Cloud.Provider
	if l.cloud = l.controller.options.Clouds[name]; l.cloud == nil {
		return l.controller.options.Intervals.CloudRead, l.recordUnresolvedIfPending(ctx, newReason(UnknownGroup, "", "the cloud %q of NodeGroup %s is not configured", name, l.group.Name))
	}
	return 0, nil
}

// recordUnresolvedIfPending records why nothing can be launched. If a launch was made before, it keeps the state of this launch:
// otherwise the launch would be repeated.
func (l *replacementScope) recordUnresolvedIfPending(ctx context.Context, why v1alpha1.RetirementReason) error {
	if !retirement.IsReplacementPending(l.rt) {
		l.warnOnChange("cannot follow a launch", errors.New(why.Message))
		return nil
	}
	return l.writeStateIfChanged(ctx, v1alpha1.ReplacementWaiting, why)
}

// decideAndLaunch decides whether to launch, and launches.
func (l *replacementScope) decideAndLaunch(ctx context.Context, record *v1alpha1.ProvisioningStatus) (requeueAfter time.Duration, err error) {
	need, node, err := l.assessReplacementNeed(ctx)
	if err != nil {
		return 0, err
	}
	wanted := DecideWanted(need)
	if checked := selectPodReasons(wanted.Reasons); len(checked) > 0 {
		l.podReasons = checked
	}
	switch wanted.Outcome {
	case None:
		return 0, l.writeStateIfChanged(ctx, v1alpha1.ReplacementNotNeeded, wanted.Reasons...)
	case Wait:
		return l.controller.options.Intervals.Retry, l.writeStateIfChanged(ctx, v1alpha1.ReplacementWaiting, wanted.Reasons...)
	}
	want := l.newLaunchRequest(ctx, node)
	if record, err = l.trackAbandonedLaunches(ctx, record); err != nil {
		return 0, err
	}
	if _, err := launch.ChooseLaunchableTemplate(record, want, time.Now()); err != nil {
		return l.recordIfNotRequested(ctx, err, wanted.Reasons)
	}
	began := time.Now()
	s, err := l.controller.readConsistentGroup(ctx, l.cloud, l.group.Spec.Cloud.Group)
	if err != nil {
		return 0, err
	}
	others, err := l.listOtherReplacementsOfGroup(ctx)
	if err != nil {
		return 0, err
	}
	remaining, err := l.excludeLeavingInstances(s, need.LeavingInstances)
	if err != nil {
		return 0, err
	}
	b := newLaunchBounds(need.Instance, s, record)
	unreplaced, err := l.countUnreplacedNodes(others, s, record)
	if err != nil {
		return 0, err
	}
	if has := DecideIfAlreadyReplaced(l.rt.Spec.NodeUID, others, remaining, b.Provisioning, need.MinSize-unreplaced); has.Outcome == None {
		return 0, l.writeStateIfChanged(ctx, v1alpha1.ReplacementNotNeeded, has.Reasons...)
	}
	l.controller.follower.RecordInstancesBeforeLaunch(l.group, record, s.Instances)
	switch may := DecideLaunchNow(b); may.Outcome {
	case Wait:
		return l.controller.options.Intervals.CloudRead, l.writeStateIfChanged(ctx, v1alpha1.ReplacementWaiting, append(may.Reasons, wanted.Reasons...)...)
	case LeaveToCloud:
		if err := l.controller.options.Launches.RecordUnrequestedLaunch(ctx, l.group, want); err != nil {
			return l.recordIfNotRequested(ctx, err, may.Reasons)
		}
		return l.controller.options.Intervals.CloudRead, l.writeStateIfChanged(ctx, v1alpha1.ReplacementWaiting, may.Reasons...)
	}
	if err := launch.CheckSizeLimits(l.group, record, s.Group, want.Count, began); err != nil {
		return l.recordIfNotRequested(ctx, err, wanted.Reasons)
	}
	// This write fails if the retirement was cancelled meanwhile, and then nothing is launched.
	if err := l.writeStateIfChanged(ctx, v1alpha1.ReplacementWaiting, wanted.Reasons...); err != nil {
		return 0, err
	}
	return l.requestAndRecordLaunch(ctx, want)
}

// newLaunchRequest returns a request for one instance of the group. The lost instance's template comes first.
func (l *replacementScope) newLaunchRequest(ctx context.Context, node *corev1.Node) launch.LaunchRequest {
	w := launch.LaunchRequest{Count: 1, Owner: v1alpha1.LaunchOwner{
		Kind: v1alpha1.LaunchForRetirement, Name: l.rt.Name, UID: l.rt.UID, NodeUID: l.rt.Spec.NodeUID,
	}}
	like := ""
	if node != nil {
		like = node.Labels[corev1.LabelInstanceTypeStable]
	}
	ctx, cancel := context.WithTimeout(ctx, cloud.ReadTimeout)
	defer cancel()
	var err error
	w.Templates, err = launch.ListReplacementTemplates(ctx, l.group, l.cloud, like)
	l.warnOnChange("cannot list the templates; launching the group's first", err)
	return w
}

// groupRefusalMessage returns why the group is refused, or "". It also returns "" if only the group's cloud does not answer.
func groupRefusalMessage(g *v1alpha1.NodeGroup) string {
	if a := acceptance.FromGroup(g); a.State == acceptance.Refused {
		return a.Message
	}
	return ""
}

// assessReplacementNeed finds out whether a replacement for the instance is needed. It reads the cloud only if the answer can
// change the decision.
func (l *replacementScope) assessReplacementNeed(ctx context.Context) (n Need, node *corev1.Node, err error) {
	n = Need{
		Policy: l.group.Spec.Replacement, NothingToReplace: whyNothingToReplace(l.rt), Ended: whyEndedEarly(l.rt), Refused: groupRefusalMessage(l.group),
		Instance: InstanceExists, MinSize: int(l.group.Spec.MinSize),
	}
	if n.Policy == v1alpha1.ReplaceNever || n.NothingToReplace != "" || n.Refused != "" {
		return n, node, nil
	}
	if node, err = l.fetchNode(ctx); err != nil {
		return n, node, err
	}
	if n.Instance, err = l.readInstanceState(ctx, node); err != nil {
		return n, node, err
	}
	if n.Ended != "" && n.Instance != InstanceGone {
		return n, node, nil
	}
	if n.StayingNodes, n.LeavingInstances, err = l.countStayingAndLeaving(ctx); err != nil {
		return n, node, err
	}
	if node == nil { // the pods on a new Node of the same name belong to that Node
		if l.group.Spec.ScaleUp != nil {
			n.WithoutPods = "the Node is deleted, and scale-up launches what the pending pods need"
			return n, node, nil
		}
		n.WithoutPods = "the Node is deleted, and no pod is known to need a new instance"
		n.CheckedPods = slices.DeleteFunc(slices.Clone(l.podReasons), func(r v1alpha1.RetirementReason) bool {
			return r.Code == RoomUnknown && n.Instance == InstanceExists // waits until the instance is gone
		})
		return n, node, nil
	}
	l.podReasons = nil
	if n.Policy == v1alpha1.ReplaceWhenNeeded || n.Instance == InstanceExists {
		n.UnschedulablePods, n.PlacementErr = l.controller.options.Placement.ListPodsNeedingNode(ctx, l.rt.Spec.NodeName)
		l.warnOnChange("cannot tell whether the pods fit on other nodes", n.PlacementErr)
	}
	return n, node, nil
}

// whyNothingToReplace returns why no replacement is needed any more. It returns "" if one may be needed.
func whyNothingToReplace(rt *v1alpha1.NodeRetirement) string {
	switch retirement.EarlyEndCode(rt) {
	case retirement.NoticeOver, retirement.InstanceRecovered, retirement.AlreadyRetiring, retirement.Cancelled, retirement.NodeReplaced:
		return whyEndedEarly(rt)
	}
	return ""
}

// whyEndedEarly returns why the retirement ended early. It returns "" if it did not.
func whyEndedEarly(rt *v1alpha1.NodeRetirement) string {
	if retirement.EarlyEndCode(rt) == "" {
		return ""
	}
	return "the retirement ended: " + rt.Status.Message
}

// fetchNode returns the Node from the cache. It returns nil if the Node is gone or has another UID.
func (l *replacementScope) fetchNode(ctx context.Context) (*corev1.Node, error) {
	node := &corev1.Node{}
	err := l.controller.options.Client.Get(ctx, client.ObjectKey{Name: l.rt.Spec.NodeName}, node)
	switch {
	case apierrors.IsNotFound(err), err == nil && node.UID != l.rt.Spec.NodeUID:
		return nil, nil //nolint:nilnil // a missing Node is a result
	case err != nil:
		return nil, fmt.Errorf("node %s: %w", l.rt.Spec.NodeName, err)
	}
	return node, nil
}

// readInstanceState returns what has happened to the instance, or that this is unknown (invariant I7). While the Node
// is Ready, it does not read the cloud.
func (l *replacementScope) readInstanceState(ctx context.Context, node *corev1.Node) (InstanceState, error) {
	if l.rt.Status.InstanceGone || l.rt.Status.Phase == v1alpha1.Succeeded {
		return InstanceGone, nil
	}
	if node != nil && disruptionbudget.IsReady(node) {
		return InstanceExists, nil
	}
	ctx, cancel := context.WithTimeout(ctx, cloud.ReadTimeout)
	defer cancel()
	instance, err := l.cloud.Instance(ctx, l.rt.Spec.ProviderID)
	l.controller.options.ReportCall(l.cloud.Name(), "Instance", err)
	switch {
	case cloud.IsNotFound(err):
		return InstanceGone, nil
	case err != nil:
		return InstanceExists, fmt.Errorf("instance %s: %w", l.rt.Spec.ProviderID, err)
	case instance.State == cloud.Stopped:
		return InstanceStopped, nil
	}
	return InstanceExists, nil
}

// countStayingAndLeaving counts the group's nodes that are not retiring. It also returns the provider IDs of the group's retiring
// instances that need no further launch.
func (l *replacementScope) countStayingAndLeaving(ctx context.Context) (staying int, leavingProviderIDs []string, err error) {
	var all v1alpha1.NodeRetirementList
	if err := l.controller.options.Client.List(ctx, &all); err != nil {
		return 0, nil, fmt.Errorf("other retirements: %w", err)
	}
	leaving := []*v1alpha1.NodeRetirement{l.rt}
	for i := range all.Items {
		o := &all.Items[i]
		if !o.Status.Phase.IsFinal() {
			leaving = append(leaving, o)
		}
		if group, providerID := groupAndInstance(o); group == l.group.Name && retirement.WillRemoveNode(o) && !retirement.CanLaunchReplacement(o, all.Items) {
			leavingProviderIDs = append(leavingProviderIDs, providerID)
		}
	}
	nodes, err := retirement.ListBudgetNodes(ctx, l.controller.options.Client, l.group, func(n *corev1.Node) bool {
		return slices.ContainsFunc(leaving, func(o *v1alpha1.NodeRetirement) bool {
			return o.Spec.NodeName == n.Name && retirement.MayTargetNode(o, n.UID)
		})
	})
	if err != nil {
		return 0, nil, err
	}
	for _, n := range nodes {
		if !n.BeingRemoved {
			staying++
		}
	}
	return staying, leavingProviderIDs, nil
}

// groupAndInstance returns the group and the provider ID of a retirement, if known.
func groupAndInstance(rt *v1alpha1.NodeRetirement) (group, providerID string) {
	if c := rt.Status.Captured; c != nil {
		return c.Group, c.ProviderID
	}
	return rt.Spec.Group, rt.Spec.ProviderID
}

// countUnreplacedNodes counts the other nodes of the group whose instance is gone and that still need a launch.
func (l *replacementScope) countUnreplacedNodes(others []v1alpha1.NodeRetirement, s GroupSnapshot, record *v1alpha1.ProvisioningStatus) (n int, err error) {
	counted := map[types.UID]bool{l.rt.Spec.NodeUID: true}
	for i := range others {
		o := &others[i]
		if counted[o.Spec.NodeUID] || !retirement.CanLaunchReplacement(o, others) || findLaunchOfRetirement(record, o.UID) != nil {
			continue
		}
		id, err := l.cloud.Normalize(o.Spec.ProviderID)
		if cloud.IsProviderUnavailable(err) {
			return 0, fmt.Errorf("instance %s: %w", o.Spec.ProviderID, err)
		}
		if err != nil || !slices.ContainsFunc(s.Instances, func(m cloud.Instance) bool { return m.ProviderID == id }) {
			counted[o.Spec.NodeUID] = true
			n++
		}
	}
	return n, nil
}

// excludeLeavingInstances removes the instance of this node and other instances that are being retired from a read of the group.
func (l *replacementScope) excludeLeavingInstances(s GroupSnapshot, leaving []string) (GroupSnapshot, error) {
	own, err := l.cloud.Normalize(l.rt.Spec.ProviderID)
	if err != nil {
		return s, fmt.Errorf("instance %s: %w", l.rt.Spec.ProviderID, err)
	}
	s = s.WithoutInstance(own)
	for _, id := range leaving {
		switch is, err := l.cloud.Normalize(id); {
		case err == nil:
			s = s.WithoutInstance(is)
		case cloud.IsProviderUnavailable(err):
			return s, fmt.Errorf("instance %s: %w", id, err)
		}
	}
	return s, nil
}

// newLaunchBounds collects the facts that may prevent a launch.
func newLaunchBounds(state InstanceState, s GroupSnapshot, record *v1alpha1.ProvisioningStatus) LaunchBounds {
	b := LaunchBounds{Instance: state, Size: s.Size, Present: len(s.Instances)}
	for i := range record.Launches {
		l := &record.Launches[i]
		if !l.IsOpen() || l.Count == 0 {
			continue
		}
		b.Provisioning += int(l.Count)
		if l.State == v1alpha1.LaunchRequested {
			b.UnansweredLaunch = l.ID
		}
	}
	return b
}

// listOtherReplacementsOfGroup lists the other replacements of the group, without a cache.
func (l *replacementScope) listOtherReplacementsOfGroup(ctx context.Context) ([]v1alpha1.NodeRetirement, error) {
	var all v1alpha1.NodeRetirementList
	if err := l.controller.options.APIReader.List(ctx, &all); err != nil {
		return nil, fmt.Errorf("other replacements: %w", err)
	}
	return slices.DeleteFunc(all.Items, func(o v1alpha1.NodeRetirement) bool {
		return o.UID == l.rt.UID || o.Spec.Group != l.rt.Spec.Group || o.Status.Replacement == nil
	}), nil
}

// ensureStatus returns the replacement status, and creates it if it is missing.
func (l *replacementScope) ensureStatus() *v1alpha1.Replacement {
	if l.rt.Status.Replacement == nil {
		l.rt.Status.Replacement = &v1alpha1.Replacement{}
	}
	return l.rt.Status.Replacement
}

// writeStateIfChanged writes the state of the replacement if it differs. After a conflict the reconcile is retried. That launches
// nothing twice, because the launch is in its record.
func (l *replacementScope) writeStateIfChanged(ctx context.Context, state v1alpha1.ReplacementState, reasons ...v1alpha1.RetirementReason) error {
	r := l.ensureStatus()
	if r.State != state || elapsed.IsFuture(r.Since.Time, time.Now()) {
		r.State, r.Since = state, metav1.Now().Rfc3339Copy()
	}
	if state == v1alpha1.ReplacementWaiting || state == v1alpha1.ReplacementLaunched {
		reasons = slices.Clone(reasons)
		for _, reason := range l.podReasons {
			if !slices.Contains(reasons, reason) {
				reasons = append(reasons, reason)
			}
		}
	}
	r.Reasons = reasons[:min(len(reasons), maxReasons)]
	if state == v1alpha1.ReplacementWaiting {
		r.Launch, r.Instance = "", ""
	}
	if equality.Semantic.DeepEqual(l.lastWritten, r) {
		return nil
	}
	if err := l.controller.options.Client.Status().Update(ctx, l.rt); err != nil {
		return fmt.Errorf("status of the replacement: %w", err)
	}
	reached := l.lastWritten == nil || l.lastWritten.State != state
	l.lastWritten = l.ensureStatus().DeepCopy()
	if reached {
		l.log.Info("replacement", "state", state, "reasons", joinMessages(l.lastWritten.Reasons))
		l.controller.options.Metrics.countState(l.rt.Spec.Group, state)
	}
	return nil
}
