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

func (p Pace) complete() Pace {
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
	o        Options
	events   announcer
	follower *launch.Follower
	// replacing and noticing are the slots of the two controllers: a cloud that hangs stops no other.
	replacing, noticing cloud.Slots
}

// New returns a controller. Register adds it to a manager.
func New(o Options) *Controller {
	o.Pace = o.Pace.complete()
	return &Controller{o: o, events: announcer{o.Events}, follower: launch.NewFollower(o.Launches, o.Pace.Settle, o.Asked)}
}

// one is one reconcile of one replacement.
type one struct {
	c     *Controller
	rt    *v1alpha1.NodeRetirement
	was   *v1alpha1.Replacement // as it was read, or written last
	group *v1alpha1.NodeGroup
	cloud cloud.Provider
	log   *slog.Logger
}

// Reconcile states that a replacement is wanted, and notes the state of its launch. It does so when the retirement is over too: the launch
// may have to wait for longer than that.
func (c *Controller) Reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	cached := &v1alpha1.NodeRetirement{}
	if err := c.o.Client.Get(ctx, r.NamespacedName, cached); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if stateOf(cached).Final() {
		return reconcile.Result{}, c.forget(ctx, cached)
	}
	provider, err := c.providerOf(ctx, cached)
	if err != nil {
		return reconcile.Result{}, err
	}
	release, ok := c.replacing.TryAcquire(provider)
	if !ok {
		return reconcile.Result{RequeueAfter: cloud.SlotBusy}, nil
	}
	defer release()
	rt := &v1alpha1.NodeRetirement{}
	if err := c.o.Live.Get(ctx, r.NamespacedName, rt); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	state := stateOf(rt)
	if rt.Spec.Notice == nil || rt.Spec.Group == "" || state.Final() || beingDeleted(rt) {
		return reconcile.Result{}, nil
	}
	l := &one{c: c, rt: rt, was: rt.Status.Replacement.DeepCopy(), log: c.o.Log.With("retirement", rt.Name, "node", rt.Spec.NodeName)}
	if wait, err := l.find(ctx); wait > 0 || err != nil {
		return reconcile.Result{RequeueAfter: wait}, err
	}
	if l.group.Spec.Cloud.Provider != provider { // it has changed meanwhile, and the slot is another cloud's
		return reconcile.Result{RequeueAfter: freshLook}, nil
	}
	pause, err := l.step(ctx)
	var throttled *cloud.ThrottledError
	switch {
	case errors.As(err, &throttled):
		return reconcile.Result{RequeueAfter: max(throttled.After, time.Second)}, nil
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: freshLook}, nil
	}
	return reconcile.Result{RequeueAfter: pause}, err
}

// step notes the state of the launch, or decides whether to launch.
func (l *one) step(ctx context.Context) (time.Duration, error) {
	if never := Wanted(Need{Policy: l.group.Spec.Replacement}); never.Outcome == None && retirement.ReplacementWaits(l.rt) { // the record may be missing or unreadable
		return 0, l.write(ctx, v1alpha1.ReplacementNotNeeded, never.Reasons...)
	}
	record, err := l.c.o.Launches.Current(ctx, l.group)
	if err != nil {
		return 0, err
	}
	own := launchOf(record, l.rt.UID)
	switch {
	case own != nil:
		return l.follow(ctx, own)
	case stateOf(l.rt) == v1alpha1.ReplacementLaunched:
		return 0, l.write(ctx, v1alpha1.ReplacementFailed, because(LaunchUnknown, "", "the record of NodeGroup %s has no launch %s any more",
			l.group.Name, l.record().Launch))
	}
	return l.consider(ctx, record)
}

// launchOf finds the launch for a retirement.
func launchOf(s *v1alpha1.ProvisioningStatus, retirement types.UID) *v1alpha1.Launch {
	for i := range s.Launches {
		if l := &s.Launches[i]; l.IsForRetirement() && l.For.UID == retirement {
			return l
		}
	}
	return nil
}

// forget removes the launch whose result is noted from the record.
func (c *Controller) forget(ctx context.Context, rt *v1alpha1.NodeRetirement) error {
	g, err := c.groupOf(ctx, rt)
	if g == nil || err != nil {
		return err
	}
	record, err := c.o.Launches.Read(ctx, g)
	if err != nil || record == nil || launchOf(record, rt.UID) == nil {
		return err
	}
	return c.o.Launches.Remove(ctx, g, launchOf(record, rt.UID).ID)
}

// groupOf returns the group of a retirement; nil if there is no such group.
func (c *Controller) groupOf(ctx context.Context, rt *v1alpha1.NodeRetirement) (*v1alpha1.NodeGroup, error) {
	groups, err := c.o.Groups.List(ctx)
	i := slices.IndexFunc(groups, func(g v1alpha1.NodeGroup) bool { return g.Name == rt.Spec.Group })
	if err != nil || i < 0 {
		return nil, err
	}
	return &groups[i], nil
}

// providerOf is the name of the cloud of a record's group; empty if there is no such group.
func (c *Controller) providerOf(ctx context.Context, rt *v1alpha1.NodeRetirement) (string, error) {
	g, err := c.groupOf(ctx, rt)
	if g == nil || err != nil {
		return "", err
	}
	return g.Spec.Cloud.Provider, nil
}

const freshLook = 50 * time.Millisecond

// beingDeleted reports a record that may be gone any moment, and for which nothing is launched any more. A launch is followed for as long
// as the record is there, and one that was called off says that there will be none.
func beingDeleted(rt *v1alpha1.NodeRetirement) bool {
	if rt.DeletionTimestamp.IsZero() || retirement.EndedBy(rt) == retirement.CalledOff {
		return false
	}
	return retirement.ReplacementWaits(rt)
}

func stateOf(rt *v1alpha1.NodeRetirement) v1alpha1.ReplacementState {
	if rt.Status.Replacement == nil {
		return ""
	}
	return rt.Status.Replacement.State
}

// find finds the group and its cloud, or waits for them.
func (l *one) find(ctx context.Context) (wait time.Duration, err error) {
	if l.group, err = l.c.groupOf(ctx, l.rt); err != nil {
		return 0, err
	}
	if l.group == nil {
		return l.c.o.Pace.Cloud, l.unknown(ctx, because(UnknownGroup, "", "there is no NodeGroup %s", l.rt.Spec.Group))
	}
	name := l.group.Spec.Cloud.Provider
	if l.cloud = l.c.o.Clouds[name]; l.cloud == nil {
		return l.c.o.Pace.Cloud, l.unknown(ctx, because(UnknownGroup, "", "the cloud %q of NodeGroup %s is not configured", name, l.group.Name))
	}
	return 0, nil
}

// unknown notes why nothing can be launched. A launch is not forgotten over it: it would be repeated.
func (l *one) unknown(ctx context.Context, why v1alpha1.RetirementReason) error {
	if !retirement.ReplacementWaits(l.rt) {
		l.log.Warn("a launch waits to be followed", "state", stateOf(l.rt), "why", why.Message)
		return nil
	}
	return l.write(ctx, v1alpha1.ReplacementWaiting, why)
}

// consider decides whether to launch, and launches.
func (l *one) consider(ctx context.Context, record *v1alpha1.ProvisioningStatus) (time.Duration, error) {
	need, node, err := l.need(ctx)
	if err != nil {
		return 0, err
	}
	wanted := Wanted(need)
	switch wanted.Outcome {
	case None:
		return 0, l.write(ctx, v1alpha1.ReplacementNotNeeded, wanted.Reasons...)
	case Wait:
		return l.c.o.Pace.Look, l.write(ctx, v1alpha1.ReplacementWaiting, wanted.Reasons...)
	}
	want := l.want(ctx, node)
	if record, err = l.trackAbandoned(ctx, record); err != nil {
		return 0, err
	}
	if _, err := launch.Allows(record, want, time.Now()); err != nil {
		return l.notRequested(ctx, err, wanted.Reasons)
	}
	began := time.Now()
	s, err := l.c.survey(ctx, l.cloud, l.group.Spec.Cloud.Group)
	if err != nil {
		return 0, err
	}
	others, err := l.others(ctx)
	if err != nil {
		return 0, err
	}
	stay, err := l.without(s, need.Leaving)
	if err != nil {
		return 0, err
	}
	b := boundsOf(need.Machine, s, record)
	owed, err := l.owed(others, s, record)
	if err != nil {
		return 0, err
	}
	if has := Replaced(l.rt.Spec.NodeUID, others, stay, b.Coming, need.Minimum-owed); has.Outcome == None {
		return 0, l.write(ctx, v1alpha1.ReplacementNotNeeded, has.Reasons...)
	}
	l.c.follower.See(l.group, record, s.Machines)
	switch may := Allowed(b); may.Outcome {
	case Wait:
		return l.c.o.Pace.Cloud, l.write(ctx, v1alpha1.ReplacementWaiting, append(may.Reasons, wanted.Reasons...)...)
	case Leave:
		if err := l.c.o.Launches.Expect(ctx, l.group, want); err != nil {
			return l.notRequested(ctx, err, may.Reasons)
		}
		return l.c.o.Pace.Cloud, l.write(ctx, v1alpha1.ReplacementWaiting, may.Reasons...)
	}
	if err := launch.HasRoom(l.group, record, s.Group, want.Count, began); err != nil {
		return l.notRequested(ctx, err, wanted.Reasons)
	}
	// The retirement that was decided on is the one that is written: one that was cancelled meanwhile launches nothing.
	if err := l.write(ctx, v1alpha1.ReplacementWaiting, wanted.Reasons...); err != nil {
		return 0, err
	}
	return l.launch(ctx, want)
}

// want is one instance of the group, of the lost instance's template first.
func (l *one) want(ctx context.Context, node *corev1.Node) launch.Want {
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

// refusal says why a group is refused; empty for one that is not, or is not only because of its cloud.
func refusal(g *v1alpha1.NodeGroup) string {
	if a := acceptance.Of(g); a.State == acceptance.Refused {
		return a.Message
	}
	return ""
}

// need finds out who would miss the machine. What needs the cloud is asked only when it can change the answer.
func (l *one) need(ctx context.Context) (n Need, node *corev1.Node, err error) {
	n = Need{
		Policy: l.group.Spec.Replacement, Over: over(l.rt), Ended: ended(l.rt), Refused: refusal(l.group),
		Machine: Lives, Minimum: int(l.group.Spec.Minimum),
	}
	if n.Policy == v1alpha1.ReplaceNever || n.Over != "" || n.Refused != "" {
		return n, node, nil
	}
	if node, err = l.node(ctx); err != nil {
		return n, node, err
	}
	if n.Machine, err = l.machine(ctx, node); err != nil {
		return n, node, err
	}
	if n.Ended != "" && n.Machine != Gone {
		return n, node, nil
	}
	if n.Stay, n.Leaving, err = l.staying(ctx); err != nil {
		return n, node, err
	}
	if node == nil { // the pods on one of the same name are not those of this one
		return n, node, nil
	}
	if n.Policy == v1alpha1.ReplaceWhenNeeded || n.Machine == Lives {
		if n.Homeless, err = l.c.o.Room.Homeless(ctx, l.rt.Spec.NodeName); err != nil {
			l.log.Warn("whether the pods have room elsewhere is not known", "err", err)
			n.RoomUnknown = err
		}
	}
	return n, node, nil
}

// over says why there is nothing to replace any more.
func over(rt *v1alpha1.NodeRetirement) string {
	switch retirement.EndedBy(rt) {
	case retirement.NoticeOver, retirement.MachineBack, retirement.AlreadyRetiring, retirement.CalledOff, retirement.NodeReplaced:
		return ended(rt)
	}
	return ""
}

// ended says why the retirement ended early; "" when it did not.
func ended(rt *v1alpha1.NodeRetirement) string {
	if retirement.EndedBy(rt) == "" {
		return ""
	}
	return "the retirement ended: " + rt.Status.Message
}

// node is the Node, as the cache has it; nil when it is gone, or another one of the same name.
func (l *one) node(ctx context.Context) (*corev1.Node, error) {
	node := &corev1.Node{}
	err := l.c.o.Client.Get(ctx, client.ObjectKey{Name: l.rt.Spec.NodeName}, node)
	switch {
	case apierrors.IsNotFound(err), err == nil && node.UID != l.rt.Spec.NodeUID:
		return nil, nil //nolint:nilnil // that there is none is an answer
	case err != nil:
		return nil, fmt.Errorf("node %s: %w", l.rt.Spec.NodeName, err)
	}
	return node, nil
}

// machine says what has become of the machine (I7). While its Node is Ready the cloud is not asked.
func (l *one) machine(ctx context.Context, node *corev1.Node) (Machine, error) {
	if l.rt.Status.MachineGone || l.rt.Status.Phase == v1alpha1.Succeeded {
		return Gone, nil
	}
	if node != nil && budget.Ready(node) {
		return Lives, nil
	}
	ctx, cancel := context.WithTimeout(ctx, cloud.ReadTimeout)
	defer cancel()
	instance, err := l.cloud.Instance(ctx, l.rt.Spec.ProviderID)
	l.c.o.Asked(l.cloud.Name(), "Instance", err)
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

// staying counts the group's nodes that nothing takes away, as far as is known, and gives the IDs of the group's machines that leave and
// for which none is still to be ordered.
func (l *one) staying(ctx context.Context) (stay int, machines []string, err error) {
	var all v1alpha1.NodeRetirementList
	if err := l.c.o.Client.List(ctx, &all); err != nil {
		return 0, nil, fmt.Errorf("other retirements: %w", err)
	}
	leaving := map[string]bool{l.rt.Spec.NodeName: true}
	for i := range all.Items {
		o := &all.Items[i]
		if !o.Status.Phase.Finished() {
			leaving[o.Spec.NodeName] = true
		}
		if group, machine := of(o); group == l.group.Name && retirement.Leaving(o) && !retirement.IsUnreplaced(o, all.Items) {
			machines = append(machines, machine)
		}
	}
	nodes, err := retirement.NodesOf(ctx, l.c.o.Client, l.group, leaving)
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

// of gives the group and the machine of a retirement, as far as they are known.
func of(rt *v1alpha1.NodeRetirement) (group, machine string) {
	if c := rt.Status.Captured; c != nil {
		return c.Group, c.ProviderID
	}
	return rt.Spec.Group, rt.Spec.ProviderID
}

// owed counts the other nodes of the group whose instances are gone, and for which an instance is still to be launched.
func (l *one) owed(others []v1alpha1.NodeRetirement, s Survey, record *v1alpha1.ProvisioningStatus) (n int, err error) {
	counted := map[types.UID]bool{l.rt.Spec.NodeUID: true}
	for i := range others {
		o := &others[i]
		if counted[o.Spec.NodeUID] || !retirement.IsUnreplaced(o, others) || launchOf(record, o.UID) != nil {
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

// without leaves out of a survey the node's own machine and others that leave.
func (l *one) without(s Survey, leaving []string) (Survey, error) {
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

// boundsOf adds up what stands against one more instance.
func boundsOf(m Machine, s Survey, record *v1alpha1.ProvisioningStatus) Bounds {
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

// others lists the other replacements of the group, read past the cache.
func (l *one) others(ctx context.Context) ([]v1alpha1.NodeRetirement, error) {
	var all v1alpha1.NodeRetirementList
	if err := l.c.o.Live.List(ctx, &all); err != nil {
		return nil, fmt.Errorf("other replacements: %w", err)
	}
	return slices.DeleteFunc(all.Items, func(o v1alpha1.NodeRetirement) bool {
		return o.UID == l.rt.UID || o.Spec.Group != l.rt.Spec.Group || o.Status.Replacement == nil
	}), nil
}

// record is the record, which is there from then on.
func (l *one) record() *v1alpha1.Replacement {
	if l.rt.Status.Replacement == nil {
		l.rt.Status.Replacement = &v1alpha1.Replacement{}
	}
	return l.rt.Status.Replacement
}

// write writes a state down, unless it is written already. A conflict asks for a fresh look: the launch is in its record.
func (l *one) write(ctx context.Context, state v1alpha1.ReplacementState, reasons ...v1alpha1.RetirementReason) error {
	r := l.record()
	if r.State != state || elapsed.Future(r.Since.Time, time.Now()) {
		r.State, r.Since = state, metav1.Now().Rfc3339Copy()
	}
	r.Reasons = reasons[:min(len(reasons), maxReasons)]
	if state == v1alpha1.ReplacementWaiting {
		r.Launch, r.Instance = "", ""
	}
	if equality.Semantic.DeepEqual(l.was, r) {
		return nil
	}
	if err := l.c.o.Client.Status().Update(ctx, l.rt); err != nil {
		return fmt.Errorf("writing down the replacement: %w", err)
	}
	reached := l.was == nil || l.was.State != state
	l.was = l.record().DeepCopy()
	if reached {
		l.log.Info("replacement", "state", state, "reasons", sentence(l.was.Reasons))
		l.c.o.Metrics.reached(l.rt.Spec.Group, state)
	}
	return nil
}
