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
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/retry"
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
	// Cloud is the pause between two looks at a machine that is on its way, or may be gone: 5 s.
	Cloud time.Duration
	// Retry is the pause after an order that was refused: 30 s, doubled each time up to 10 minutes.
	Retry time.Duration
	// Settle is how long an order whose answer is not known may take to show in the group's size: 1 minute.
	Settle time.Duration
}

func (p Pace) complete() Pace {
	for d, fallback := range map[*time.Duration]time.Duration{
		&p.Look: 2 * time.Second, &p.Cloud: 5 * time.Second, &p.Retry: 30 * time.Second, &p.Settle: time.Minute,
	} {
		if *d <= 0 {
			*d = fallback
		}
	}
	return p
}

// Controller brings machines in the place of others. It works on one at a time of each cloud, so that each order sees those before it.
type Controller struct {
	o      Options
	events announcer
	// replacing and noticing are the slots of the two controllers: a cloud that hangs stops no other.
	replacing, noticing cloud.Slots
}

// New returns a controller. Register adds it to a manager.
func New(o Options) *Controller {
	o.Pace = o.Pace.complete()
	return &Controller{o: o, events: announcer{o.Events}}
}

// one is one look at one replacement.
type one struct {
	c     *Controller
	rt    *v1alpha1.NodeRetirement
	group *v1alpha1.NodeGroup
	cloud cloud.Provider
	log   *slog.Logger
}

// Reconcile looks at the replacement that a NodeRetirement records. It goes on when the retirement is over: the order
// may have to wait for longer than that.
func (c *Controller) Reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	cached := &v1alpha1.NodeRetirement{}
	if err := c.o.Client.Get(ctx, r.NamespacedName, cached); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
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
	l := &one{c: c, rt: rt, log: c.o.Log.With("retirement", rt.Name, "node", rt.Spec.NodeName)}
	if wait, err := l.find(ctx); wait > 0 || err != nil {
		return reconcile.Result{RequeueAfter: wait}, err
	}
	if l.group.Spec.Cloud.Provider != provider { // it has changed meanwhile, and the slot is another cloud's
		return reconcile.Result{RequeueAfter: freshLook}, nil
	}
	if r := rt.Status.Replacement; r != nil && elapsed.Future(r.Since.Time, time.Now()) { // its waits begin anew, rather than never end
		r.Since = metav1.Now().Rfc3339Copy()
		if err := c.o.Client.Status().Update(ctx, rt); err != nil {
			return reconcile.Result{RequeueAfter: freshLook}, client.IgnoreNotFound(ignoreConflict(err))
		}
	}
	step := l.consider
	switch state {
	case v1alpha1.ReplacementOrdering:
		step = l.settle
	case v1alpha1.ReplacementOrdered, v1alpha1.ReplacementLeftToCloud:
		step = l.follow
	}
	pause, err := step(ctx)
	var throttled *cloud.ThrottledError
	switch {
	case errors.As(err, &throttled):
		return reconcile.Result{RequeueAfter: max(throttled.After, time.Second)}, nil
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: freshLook}, nil
	}
	return reconcile.Result{RequeueAfter: pause}, err
}

// providerOf is the name of the cloud of a record's group; empty if there is no such group.
func (c *Controller) providerOf(ctx context.Context, rt *v1alpha1.NodeRetirement) (string, error) {
	groups, err := c.o.Groups.List(ctx)
	i := slices.IndexFunc(groups, func(g v1alpha1.NodeGroup) bool { return g.Name == rt.Spec.Group })
	if err != nil || i < 0 {
		return "", err
	}
	return groups[i].Spec.Cloud.Provider, nil
}

func ignoreConflict(err error) error {
	if apierrors.IsConflict(err) {
		return nil
	}
	return err
}

const freshLook = 50 * time.Millisecond

// beingDeleted reports a record that may be gone any moment, and for which nothing is ordered any more. An order that was made is
// followed for as long as the record is there, and one that was called off says that there will be none.
func beingDeleted(rt *v1alpha1.NodeRetirement) bool {
	if rt.DeletionTimestamp.IsZero() || retirement.EndedBy(rt) == retirement.CalledOff {
		return false
	}
	return unordered(rt)
}

// unordered reports a record for which no machine is ordered yet, nor decided that none is needed.
func unordered(rt *v1alpha1.NodeRetirement) bool {
	state := stateOf(rt)
	return state == "" || state == v1alpha1.ReplacementWaiting
}

func stateOf(rt *v1alpha1.NodeRetirement) v1alpha1.ReplacementState {
	if rt.Status.Replacement == nil {
		return ""
	}
	return rt.Status.Replacement.State
}

// find finds the group and its cloud, or waits for them.
func (l *one) find(ctx context.Context) (time.Duration, error) {
	groups, err := l.c.o.Groups.List(ctx)
	if err != nil {
		return 0, err
	}
	i := slices.IndexFunc(groups, func(g v1alpha1.NodeGroup) bool { return g.Name == l.rt.Spec.Group })
	if i < 0 {
		return l.c.o.Pace.Retry, l.unknown(ctx, because(UnknownGroup, "", "there is no NodeGroup %s", l.rt.Spec.Group))
	}
	l.group = &groups[i]
	name := l.group.Spec.Cloud.Provider
	if l.cloud = l.c.o.Clouds[name]; l.cloud == nil {
		return l.c.o.Pace.Retry, l.unknown(ctx, because(UnknownGroup, "", "the cloud %q of NodeGroup %s is not configured", name, l.group.Name))
	}
	return 0, nil
}

// unknown notes why nothing can be ordered. An order that was made is not forgotten over it: it would be made again.
func (l *one) unknown(ctx context.Context, why v1alpha1.RetirementReason) error {
	if !unordered(l.rt) {
		l.log.Warn("an order waits to be followed", "state", stateOf(l.rt), "why", why.Message)
		return nil
	}
	return l.write(ctx, v1alpha1.ReplacementWaiting, why)
}

// consider decides whether to order, and orders.
func (l *one) consider(ctx context.Context) (time.Duration, error) {
	need, err := l.need(ctx)
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
	if r := l.rt.Status.Replacement; r != nil && r.RetryAfter != nil {
		if left := elapsed.Left(r.RetryAfter.Time, time.Now(), longestPause); left > 0 {
			return left, nil
		}
	}
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
	switch has := Replaced(l.rt.Spec.NodeUID, others, stay, need.Minimum); has.Outcome {
	case None:
		return 0, l.write(ctx, v1alpha1.ReplacementNotNeeded, has.Reasons...)
	case Wait:
		return l.c.o.Pace.Cloud, l.write(ctx, v1alpha1.ReplacementWaiting, has.Reasons...)
	}
	switch may := Allowed(l.bounds(need.Machine, s, others)); may.Outcome {
	case Wait:
		return l.c.o.Pace.Cloud, l.write(ctx, v1alpha1.ReplacementWaiting, append(may.Reasons, wanted.Reasons...)...)
	case Leave:
		return l.c.o.Pace.Cloud, l.begin(ctx, v1alpha1.ReplacementLeftToCloud, s, may.Reasons)
	}
	if err := l.begin(ctx, v1alpha1.ReplacementOrdering, s, wanted.Reasons); err != nil {
		return 0, err
	}
	return l.order(ctx)
}

// refusal says why a group is refused; empty for one that is not, or is not only because of its cloud.
func refusal(g *v1alpha1.NodeGroup) string {
	if a := acceptance.Of(g); a.State == acceptance.Refused {
		return a.Message
	}
	return ""
}

// need finds out who would miss the machine. What needs the cloud is asked only when it can change the answer.
func (l *one) need(ctx context.Context) (Need, error) {
	n := Need{
		Policy: l.group.Spec.Replacement, Over: over(l.rt), Ended: ended(l.rt), Refused: refusal(l.group),
		Machine: Lives, Minimum: int(l.group.Spec.Minimum),
	}
	if n.Policy == v1alpha1.ReplaceNever || n.Over != "" || n.Refused != "" {
		return n, nil
	}
	node, err := l.node(ctx)
	if err != nil {
		return n, err
	}
	if n.Machine, err = l.machine(ctx, node); err != nil {
		return n, err
	}
	if n.Ended != "" && n.Machine != Gone {
		return n, nil
	}
	if n.Stay, n.Leaving, err = l.staying(ctx); err != nil {
		return n, err
	}
	if node == nil { // the pods on one of the same name are not those of this one
		return n, nil
	}
	if n.Policy == v1alpha1.ReplaceWhenNeeded || n.Machine == Lives {
		if n.Homeless, err = l.c.o.Room.Homeless(ctx, l.rt.Spec.NodeName); err != nil {
			l.log.Warn("whether the pods have room elsewhere is not known", "err", err)
			n.RoomUnknown = err
		}
	}
	return n, nil
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
		if group, machine := of(o); group == l.group.Name && retirement.Leaving(o) && !toBeReplaced(o, all.Items) {
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

// toBeReplaced reports a record of a notice that orders a machine yet if one is needed, and of whose Node no other record has.
func toBeReplaced(rt *v1alpha1.NodeRetirement, all []v1alpha1.NodeRetirement) bool {
	if rt.Spec.Notice == nil || !rt.DeletionTimestamp.IsZero() || !unordered(rt) {
		return false
	}
	return !slices.ContainsFunc(all, func(o v1alpha1.NodeRetirement) bool {
		return o.Spec.NodeUID == rt.Spec.NodeUID && o.Spec.Notice != nil && !unordered(&o) && stateOf(&o) != v1alpha1.ReplacementNotNeeded
	})
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

// bounds adds up what stands against one more machine.
func (l *one) bounds(m Machine, s Survey, others []v1alpha1.NodeRetirement) Bounds {
	b := Bounds{Machine: m, Size: s.Size, Present: len(s.Machines)}
	for _, room := range launch.Rooms(l.group, s.Size, s.Max) {
		if room.Left < 1 {
			b.Full = room.Message
		}
	}
	for _, o := range others {
		switch o.Status.Replacement.State {
		case v1alpha1.ReplacementOrdering:
			b.Unsettled = o.Name
		case v1alpha1.ReplacementOrdered, v1alpha1.ReplacementLeftToCloud:
			if o.Status.Replacement.Machine == "" {
				b.Coming++
			}
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

// begin writes down, before anything is done, what the group is like.
func (l *one) begin(ctx context.Context, state v1alpha1.ReplacementState, s Survey, reasons []v1alpha1.RetirementReason) error {
	r := l.record()
	r.Size, r.Machines, r.RetryAfter = int32(s.Size), s.Names(), nil
	if err := l.write(ctx, state, reasons...); err != nil {
		return err
	}
	if state == v1alpha1.ReplacementLeftToCloud {
		l.c.events.leftToCloud(l.rt)
	}
	return nil
}

// record is the record, which is there from then on.
func (l *one) record() *v1alpha1.Replacement {
	if l.rt.Status.Replacement == nil {
		l.rt.Status.Replacement = &v1alpha1.Replacement{}
	}
	return l.rt.Status.Replacement
}

// write writes a state down, unless it is written already. A conflict asks for a fresh look, since nothing of what was
// decided is done then; but for the answer to an order, which comes once and is all that is written while one is made.
func (l *one) write(ctx context.Context, state v1alpha1.ReplacementState, reasons ...v1alpha1.RetirementReason) error {
	var before v1alpha1.Replacement
	if l.rt.Status.Replacement != nil {
		before = *l.rt.Status.Replacement.DeepCopy()
	}
	r := l.record()
	if r.State != state {
		r.State, r.Since = state, metav1.Now().Rfc3339Copy()
	}
	r.Reasons = reasons[:min(len(reasons), maxReasons)]
	if state.Final() {
		r.Machines, r.RetryAfter, r.OperationID = nil, nil, ""
	}
	if before.State == state && equality.Semantic.DeepEqual(before.Reasons, r.Reasons) {
		if state == v1alpha1.ReplacementWaiting && before.RetryAfter.Equal(r.RetryAfter) {
			return nil
		}
	}
	err := l.c.o.Client.Status().Update(ctx, l.rt)
	if apierrors.IsConflict(err) && before.State == v1alpha1.ReplacementOrdering {
		err = l.rewrite(ctx)
	}
	if err != nil {
		return fmt.Errorf("writing down the replacement: %w", err)
	}
	if before.State != state {
		l.log.Info("replacement", "state", state, "reasons", sentence(r.Reasons))
		l.c.o.Metrics.reached(l.rt.Spec.Group, state)
	}
	return nil
}

// rewrite puts the answer to an order into the record as it has become. The retirement goes on while the cloud is asked,
// and writes its phases into the same object; the replacement in it is written here alone, by one process at a time.
func (l *one) rewrite(ctx context.Context) error {
	answered := l.record()
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		fresh := &v1alpha1.NodeRetirement{}
		if err := l.c.o.Live.Get(ctx, client.ObjectKeyFromObject(l.rt), fresh); err != nil {
			return err
		}
		if fresh.UID != l.rt.UID || stateOf(fresh) != v1alpha1.ReplacementOrdering {
			return fmt.Errorf("the record of node %s is not the one of this order any more: it says %q", fresh.Spec.NodeName, stateOf(fresh))
		}
		fresh.Status.Replacement = answered
		l.rt = fresh
		return l.c.o.Client.Status().Update(ctx, fresh)
	})
}
