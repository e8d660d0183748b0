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
	"github.com/slipway-dev/slipway/internal/retirement/budget"
)

// Housing answers which pods would have nowhere to go if a node went. [Room] is one.
type Housing interface {
	Homeless(ctx context.Context, node string) ([]Homeless, error)
}

// Options are what a Controller works with. All fields but Pace are required.
type Options struct {
	// Client writes, and reads NodeRetirements and Nodes from caches.
	Client client.Client
	// Live reads past the caches.
	Live   client.Reader
	Groups retirement.Groups
	// Selector selects the NodeGroups that are acted on.
	Selector labels.Selector
	Clouds   map[string]cloud.Provider
	// Launches is the record of launches.
	Launches *launch.Record
	Room     Housing
	Events   events.EventRecorder
	Metrics  *Metrics
	// Asked is told of every call of a cloud provider.
	Asked func(provider, call string, err error)
	Log   *slog.Logger
	Pace  Pace
}

// Pace says how often is looked at what does not announce itself. Zero values are replaced by the defaults.
type Pace struct {
	// Look is the pause between two looks at a node that a notice takes away: 2 s.
	Look time.Duration
	// Cloud is the pause between two reads of the cloud: 5 s.
	Cloud time.Duration
	// Settle is how long a launch whose answer was lost may take to show: 1 minute.
	Settle time.Duration
}

func (p Pace) withDefaults() Pace {
	for d, fallback := range map[*time.Duration]time.Duration{
		&p.Look: 2 * time.Second, &p.Cloud: 5 * time.Second, &p.Settle: launch.Settle,
	} {
		if *d <= 0 {
			*d = fallback
		}
	}
	return p
}

// Controller replaces instances. It works on one at a time of each cloud, so that each launch sees those before it.
type Controller struct {
	options  Options
	events   eventEmitter
	follower *launch.Follower
	// replacementSlots and noticing are the slots of the two controllers: a cloud that hangs stops no other.
	replacementSlots, noticeSlots cloud.Slots
}

// New returns a controller. Register adds it to a manager.
func New(o Options) *Controller {
	o.Pace = o.Pace.withDefaults()
	return &Controller{options: o, events: eventEmitter{o.Events}, follower: launch.NewFollower(o.Launches, o.Pace.Settle, o.Asked)}
}

// replacementScope is one reconcile of one replacement.
type replacementScope struct {
	controller  *Controller
	rt          *v1alpha1.NodeRetirement
	lastWritten *v1alpha1.Replacement // as it was read, or written last
	group       *v1alpha1.NodeGroup
	cloud       cloud.Provider
	log         *slog.Logger
}

// Reconcile states that a replacement is wanted, and notes the state of its launch. It does so when the retirement is over too: the launch
// may have to wait for longer than that.
func (c *Controller) Reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	cached := &v1alpha1.NodeRetirement{}
	if err := c.options.Client.Get(ctx, r.NamespacedName, cached); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if replacementState(cached).Final() {
		return reconcile.Result{}, c.removeLaunch(ctx, cached)
	}
	provider, err := c.providerName(ctx, cached)
	if err != nil {
		return reconcile.Result{}, err
	}
	release, ok := c.replacementSlots.TryAcquire(provider)
	if !ok {
		return reconcile.Result{RequeueAfter: cloud.SlotBusy}, nil
	}
	defer release()
	rt := &v1alpha1.NodeRetirement{}
	if err := c.options.Live.Get(ctx, r.NamespacedName, rt); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	state := replacementState(rt)
	if rt.Spec.Notice == nil || rt.Spec.Group == "" || state.Final() || isBeingDeleted(rt) {
		return reconcile.Result{}, nil
	}
	l := &replacementScope{controller: c, rt: rt, lastWritten: rt.Status.Replacement.DeepCopy(), log: c.options.Log.With("retirement", rt.Name, "node", rt.Spec.NodeName)}
	if wait, err := l.resolveGroup(ctx); wait > 0 || err != nil {
		return reconcile.Result{RequeueAfter: wait}, err
	}
	if l.group.Spec.Cloud.Provider != provider { // it has changed meanwhile, and the slot is another cloud's
		return reconcile.Result{RequeueAfter: shortRetry}, nil
	}
	pause, err := l.reconcileLaunch(ctx)
	var throttled *cloud.ThrottledError
	switch {
	case errors.As(err, &throttled):
		return reconcile.Result{RequeueAfter: max(throttled.After, time.Second)}, nil
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: shortRetry}, nil
	}
	return reconcile.Result{RequeueAfter: pause}, err
}

// reconcileLaunch notes the state of the launch, or decides whether to launch.
func (l *replacementScope) reconcileLaunch(ctx context.Context) (time.Duration, error) {
	if never := Wanted(Need{Policy: l.group.Spec.Replacement}); never.Outcome == None && retirement.ReplacementWaits(l.rt) { // the record may be missing or unreadable
		return 0, l.writeState(ctx, v1alpha1.ReplacementNotNeeded, never.Reasons...)
	}
	record, err := l.controller.options.Launches.Current(ctx, l.group)
	if err != nil {
		return 0, err
	}
	own := findLaunch(record, l.rt.UID)
	switch {
	case own != nil:
		return l.followLaunch(ctx, own)
	case replacementState(l.rt) == v1alpha1.ReplacementLaunched:
		return 0, l.writeState(ctx, v1alpha1.ReplacementFailed, newReason(LaunchUnknown, "", "the record of NodeGroup %s has no launch %s any more",
			l.group.Name, l.ensureStatus().Launch))
	}
	return l.decideLaunch(ctx, record)
}

// findLaunch finds the launch for a retirement.
func findLaunch(s *v1alpha1.ProvisioningStatus, retirement types.UID) *v1alpha1.Launch {
	for i := range s.Launches {
		if l := &s.Launches[i]; l.IsForRetirement() && l.For.UID == retirement {
			return l
		}
	}
	return nil
}

// removeLaunch removes the launch whose result is noted from the record.
func (c *Controller) removeLaunch(ctx context.Context, rt *v1alpha1.NodeRetirement) error {
	g, err := c.findGroup(ctx, rt)
	if g == nil || err != nil {
		return err
	}
	record, err := c.options.Launches.Read(ctx, g)
	if err != nil || record == nil || findLaunch(record, rt.UID) == nil {
		return err
	}
	return c.options.Launches.Remove(ctx, g, findLaunch(record, rt.UID).ID)
}

// findGroup returns the group of a retirement; nil if there is no such group.
func (c *Controller) findGroup(ctx context.Context, rt *v1alpha1.NodeRetirement) (*v1alpha1.NodeGroup, error) {
	groups, err := c.options.Groups.List(ctx)
	i := slices.IndexFunc(groups, func(g v1alpha1.NodeGroup) bool { return g.Name == rt.Spec.Group })
	if err != nil || i < 0 {
		return nil, err
	}
	return &groups[i], nil
}

// providerName is the name of the cloud of a record's group; empty if there is no such group.
func (c *Controller) providerName(ctx context.Context, rt *v1alpha1.NodeRetirement) (string, error) {
	g, err := c.findGroup(ctx, rt)
	if g == nil || err != nil {
		return "", err
	}
	return g.Spec.Cloud.Provider, nil
}

const shortRetry = 50 * time.Millisecond

// isBeingDeleted reports a record that may be gone any moment, and for which nothing is launched any more. A launch is followed for as long
// as the record is there, and one that was called off says that there will be none.
func isBeingDeleted(rt *v1alpha1.NodeRetirement) bool {
	if rt.DeletionTimestamp.IsZero() || retirement.EndedBy(rt) == retirement.CalledOff {
		return false
	}
	return retirement.ReplacementWaits(rt)
}

func replacementState(rt *v1alpha1.NodeRetirement) v1alpha1.ReplacementState {
	if rt.Status.Replacement == nil {
		return ""
	}
	return rt.Status.Replacement.State
}

// resolveGroup finds the group and its cloud, or waits for them.
func (l *replacementScope) resolveGroup(ctx context.Context) (wait time.Duration, err error) {
	if l.group, err = l.controller.findGroup(ctx, l.rt); err != nil {
		return 0, err
	}
	if l.group == nil {
		return l.controller.options.Pace.Cloud, l.recordUnresolved(ctx, newReason(UnknownGroup, "", "there is no NodeGroup %s", l.rt.Spec.Group))
	}
	name := l.group.Spec.Cloud.Provider
	if l.cloud = l.controller.options.Clouds[name]; l.cloud == nil {
		return l.controller.options.Pace.Cloud, l.recordUnresolved(ctx, newReason(UnknownGroup, "", "the cloud %q of NodeGroup %s is not configured", name, l.group.Name))
	}
	return 0, nil
}

// recordUnresolved notes why nothing can be launched. A launch is not forgotten over it: it would be repeated.
func (l *replacementScope) recordUnresolved(ctx context.Context, why v1alpha1.RetirementReason) error {
	if !retirement.ReplacementWaits(l.rt) {
		l.log.Warn("a launch waits to be followed", "state", replacementState(l.rt), "why", why.Message)
		return nil
	}
	return l.writeState(ctx, v1alpha1.ReplacementWaiting, why)
}

// decideLaunch decides whether to launch, and launches.
func (l *replacementScope) decideLaunch(ctx context.Context, record *v1alpha1.ProvisioningStatus) (time.Duration, error) {
	need, node, err := l.assessNeed(ctx)
	if err != nil {
		return 0, err
	}
	wanted := Wanted(need)
	switch wanted.Outcome {
	case None:
		return 0, l.writeState(ctx, v1alpha1.ReplacementNotNeeded, wanted.Reasons...)
	case Wait:
		return l.controller.options.Pace.Look, l.writeState(ctx, v1alpha1.ReplacementWaiting, wanted.Reasons...)
	}
	want := l.newLaunchRequest(ctx, node)
	if record, err = l.trackAbandonedLaunches(ctx, record); err != nil {
		return 0, err
	}
	if _, err := launch.Allows(record, want, time.Now()); err != nil {
		return l.recordNotRequested(ctx, err, wanted.Reasons)
	}
	began := time.Now()
	s, err := l.controller.readGroup(ctx, l.cloud, l.group.Spec.Cloud.Group)
	if err != nil {
		return 0, err
	}
	others, err := l.listOthers(ctx)
	if err != nil {
		return 0, err
	}
	stay, err := l.excludeLeaving(s, need.Leaving)
	if err != nil {
		return 0, err
	}
	b := newBounds(need.Machine, s, record)
	owed, err := l.countUnreplaced(others, s, record)
	if err != nil {
		return 0, err
	}
	if has := Replaced(l.rt.Spec.NodeUID, others, stay, b.Coming, need.Minimum-owed); has.Outcome == None {
		return 0, l.writeState(ctx, v1alpha1.ReplacementNotNeeded, has.Reasons...)
	}
	l.controller.follower.See(l.group, record, s.Machines)
	switch may := Allowed(b); may.Outcome {
	case Wait:
		return l.controller.options.Pace.Cloud, l.writeState(ctx, v1alpha1.ReplacementWaiting, append(may.Reasons, wanted.Reasons...)...)
	case Leave:
		if err := l.controller.options.Launches.Expect(ctx, l.group, want); err != nil {
			return l.recordNotRequested(ctx, err, may.Reasons)
		}
		return l.controller.options.Pace.Cloud, l.writeState(ctx, v1alpha1.ReplacementWaiting, may.Reasons...)
	}
	if err := launch.HasRoom(l.group, record, s.Group, want.Count, began); err != nil {
		return l.recordNotRequested(ctx, err, wanted.Reasons)
	}
	// The retirement that was decided on is the one that is written: one that was cancelled meanwhile launches nothing.
	if err := l.writeState(ctx, v1alpha1.ReplacementWaiting, wanted.Reasons...); err != nil {
		return 0, err
	}
	return l.requestLaunch(ctx, want)
}

// newLaunchRequest is one instance of the group, of the lost instance's template first.
func (l *replacementScope) newLaunchRequest(ctx context.Context, node *corev1.Node) launch.Want {
	w := launch.Want{Count: 1, Owner: v1alpha1.LaunchOwner{
		Kind: v1alpha1.LaunchForRetirement, Name: l.rt.Name, UID: l.rt.UID, NodeUID: l.rt.Spec.NodeUID,
	}}
	like := ""
	if node != nil {
		like = node.Labels[corev1.LabelInstanceTypeStable]
	}
	ctx, cancel := context.WithTimeout(ctx, cloud.ReadTimeout)
	defer cancel()
	var err error
	if w.Templates, err = launch.Templates(ctx, l.group, l.cloud, like); err != nil {
		l.log.Warn("the templates are not known, and the group's first is launched", "err", err)
	}
	return w
}

// refusalMessage says why a group is refused; empty for one that is not, or is not only because of its cloud.
func refusalMessage(g *v1alpha1.NodeGroup) string {
	if a := acceptance.Of(g); a.State == acceptance.Refused {
		return a.Message
	}
	return ""
}

// assessNeed finds out who would miss the machine. What needs the cloud is asked only when it can change the answer.
func (l *replacementScope) assessNeed(ctx context.Context) (n Need, node *corev1.Node, err error) {
	n = Need{
		Policy: l.group.Spec.Replacement, Over: whyNothingToReplace(l.rt), Ended: whyEndedEarly(l.rt), Refused: refusalMessage(l.group),
		Machine: Lives, Minimum: int(l.group.Spec.Minimum),
	}
	if n.Policy == v1alpha1.ReplaceNever || n.Over != "" || n.Refused != "" {
		return n, node, nil
	}
	if node, err = l.fetchNode(ctx); err != nil {
		return n, node, err
	}
	if n.Machine, err = l.checkInstance(ctx, node); err != nil {
		return n, node, err
	}
	if n.Ended != "" && n.Machine != Gone {
		return n, node, nil
	}
	if n.Stay, n.Leaving, err = l.countStaying(ctx); err != nil {
		return n, node, err
	}
	if node == nil { // the pods on one of the same name are not those of this one
		return n, node, nil
	}
	if n.Policy == v1alpha1.ReplaceWhenNeeded || n.Machine == Lives {
		if n.Homeless, err = l.controller.options.Room.Homeless(ctx, l.rt.Spec.NodeName); err != nil {
			l.log.Warn("whether the pods have room elsewhere is not known", "err", err)
			n.RoomUnknown = err
		}
	}
	return n, node, nil
}

// whyNothingToReplace says why there is nothing to replace any more.
func whyNothingToReplace(rt *v1alpha1.NodeRetirement) string {
	switch retirement.EndedBy(rt) {
	case retirement.NoticeOver, retirement.MachineBack, retirement.AlreadyRetiring, retirement.CalledOff, retirement.NodeReplaced:
		return whyEndedEarly(rt)
	}
	return ""
}

// whyEndedEarly says why the retirement ended early; "" when it did not.
func whyEndedEarly(rt *v1alpha1.NodeRetirement) string {
	if retirement.EndedBy(rt) == "" {
		return ""
	}
	return "the retirement ended: " + rt.Status.Message
}

// fetchNode is the Node, as the cache has it; nil when it is gone, or another one of the same name.
func (l *replacementScope) fetchNode(ctx context.Context) (*corev1.Node, error) {
	node := &corev1.Node{}
	err := l.controller.options.Client.Get(ctx, client.ObjectKey{Name: l.rt.Spec.NodeName}, node)
	switch {
	case apierrors.IsNotFound(err), err == nil && node.UID != l.rt.Spec.NodeUID:
		return nil, nil //nolint:nilnil // that there is none is an answer
	case err != nil:
		return nil, fmt.Errorf("node %s: %w", l.rt.Spec.NodeName, err)
	}
	return node, nil
}

// checkInstance says what has become of the machine (I7). While its Node is Ready the cloud is not asked.
func (l *replacementScope) checkInstance(ctx context.Context, node *corev1.Node) (Machine, error) {
	if l.rt.Status.MachineGone || l.rt.Status.Phase == v1alpha1.Succeeded {
		return Gone, nil
	}
	if node != nil && budget.Ready(node) {
		return Lives, nil
	}
	ctx, cancel := context.WithTimeout(ctx, cloud.ReadTimeout)
	defer cancel()
	instance, err := l.cloud.Instance(ctx, l.rt.Spec.ProviderID)
	l.controller.options.Asked(l.cloud.Name(), "Instance", err)
	switch {
	case cloud.IsNotFound(err):
		return Gone, nil
	case err != nil:
		return Lives, fmt.Errorf("machine %s: %w", l.rt.Spec.ProviderID, err)
	case instance.State == cloud.Stopped:
		return Kept, nil
	}
	return Lives, nil
}

// countStaying counts the group's nodes that nothing takes away, as far as is known, and gives the IDs of the group's machines that leave and
// for which none is still to be ordered.
func (l *replacementScope) countStaying(ctx context.Context) (stay int, machines []string, err error) {
	var all v1alpha1.NodeRetirementList
	if err := l.controller.options.Client.List(ctx, &all); err != nil {
		return 0, nil, fmt.Errorf("other retirements: %w", err)
	}
	leaving := map[string]bool{l.rt.Spec.NodeName: true}
	for i := range all.Items {
		o := &all.Items[i]
		if !o.Status.Phase.Finished() {
			leaving[o.Spec.NodeName] = true
		}
		if group, machine := groupAndInstance(o); group == l.group.Name && retirement.Leaving(o) && !retirement.IsUnreplaced(o, all.Items) {
			machines = append(machines, machine)
		}
	}
	nodes, err := retirement.NodesOf(ctx, l.controller.options.Client, l.group, leaving)
	if err != nil {
		return 0, nil, err
	}
	for _, n := range nodes {
		if !n.Leaving {
			stay++
		}
	}
	return stay, machines, nil
}

// groupAndInstance gives the group and the machine of a retirement, as far as they are known.
func groupAndInstance(rt *v1alpha1.NodeRetirement) (group, machine string) {
	if c := rt.Status.Captured; c != nil {
		return c.Group, c.ProviderID
	}
	return rt.Spec.Group, rt.Spec.ProviderID
}

// countUnreplaced counts the other nodes of the group whose instances are gone, and for which an instance is still to be launched.
func (l *replacementScope) countUnreplaced(others []v1alpha1.NodeRetirement, s Survey, record *v1alpha1.ProvisioningStatus) (n int, err error) {
	counted := map[types.UID]bool{l.rt.Spec.NodeUID: true}
	for i := range others {
		o := &others[i]
		if counted[o.Spec.NodeUID] || !retirement.IsUnreplaced(o, others) || findLaunch(record, o.UID) != nil {
			continue
		}
		id, err := l.cloud.Normalize(o.Spec.ProviderID)
		if cloud.IsUnanswered(err) {
			return 0, fmt.Errorf("machine %s: %w", o.Spec.ProviderID, err)
		}
		if err != nil || !slices.ContainsFunc(s.Machines, func(m cloud.Instance) bool { return m.ProviderID == id }) {
			counted[o.Spec.NodeUID] = true
			n++
		}
	}
	return n, nil
}

// excludeLeaving leaves out of a survey the node's own machine and others that leave.
func (l *replacementScope) excludeLeaving(s Survey, leaving []string) (Survey, error) {
	own, err := l.cloud.Normalize(l.rt.Spec.ProviderID)
	if err != nil {
		return s, fmt.Errorf("machine %s: %w", l.rt.Spec.ProviderID, err)
	}
	s = s.Without(own)
	for _, id := range leaving {
		switch is, err := l.cloud.Normalize(id); {
		case err == nil:
			s = s.Without(is)
		case cloud.IsUnanswered(err):
			return s, fmt.Errorf("machine %s: %w", id, err)
		}
	}
	return s, nil
}

// newBounds adds up what stands against one more instance.
func newBounds(m Machine, s Survey, record *v1alpha1.ProvisioningStatus) Bounds {
	b := Bounds{Machine: m, Size: s.Size, Present: len(s.Machines)}
	for i := range record.Launches {
		l := &record.Launches[i]
		if !l.Open() || l.Count == 0 {
			continue
		}
		b.Coming += int(l.Count)
		if l.State == v1alpha1.LaunchRequested {
			b.Unsettled = l.ID
		}
	}
	return b
}

// listOthers lists the other replacements of the group, read past the cache.
func (l *replacementScope) listOthers(ctx context.Context) ([]v1alpha1.NodeRetirement, error) {
	var all v1alpha1.NodeRetirementList
	if err := l.controller.options.Live.List(ctx, &all); err != nil {
		return nil, fmt.Errorf("other replacements: %w", err)
	}
	return slices.DeleteFunc(all.Items, func(o v1alpha1.NodeRetirement) bool {
		return o.UID == l.rt.UID || o.Spec.Group != l.rt.Spec.Group || o.Status.Replacement == nil
	}), nil
}

// ensureStatus is the record, which is there from then on.
func (l *replacementScope) ensureStatus() *v1alpha1.Replacement {
	if l.rt.Status.Replacement == nil {
		l.rt.Status.Replacement = &v1alpha1.Replacement{}
	}
	return l.rt.Status.Replacement
}

// writeState writes a state down, unless it is written already. A conflict asks for a fresh look: the launch is in its record.
func (l *replacementScope) writeState(ctx context.Context, state v1alpha1.ReplacementState, reasons ...v1alpha1.RetirementReason) error {
	r := l.ensureStatus()
	if r.State != state || elapsed.Future(r.Since.Time, time.Now()) {
		r.State, r.Since = state, metav1.Now().Rfc3339Copy()
	}
	r.Reasons = reasons[:min(len(reasons), maxReasons)]
	if state == v1alpha1.ReplacementWaiting {
		r.Launch, r.Instance = "", ""
	}
	if equality.Semantic.DeepEqual(l.lastWritten, r) {
		return nil
	}
	if err := l.controller.options.Client.Status().Update(ctx, l.rt); err != nil {
		return fmt.Errorf("writing down the replacement: %w", err)
	}
	reached := l.lastWritten == nil || l.lastWritten.State != state
	l.lastWritten = l.ensureStatus().DeepCopy()
	if reached {
		l.log.Info("replacement", "state", state, "reasons", joinMessages(l.lastWritten.Reasons))
		l.controller.options.Metrics.countState(l.rt.Spec.Group, state)
	}
	return nil
}
