package provisioning

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
	"github.com/slipway-dev/slipway/internal/retirement/budget"
)

// groupState is what is remembered of a group from look to look. What has to outlive a restart is in its status too.
type groupState struct {
	watchedSince      time.Time // since when this process looks at it
	cloud             cloud.Group
	tracking          launch.Tracking
	cloudTemplates    []cloud.Template
	pending           []launch.Pending // orders whose machines were not all seen
	settleTime        time.Duration    // how long machines are expected of an order whose answer was lost
	instances         []cloud.Instance
	readError         string                     // why the cloud could not be read the last time; empty when it could
	isReading         bool                       // the cloud is being asked
	mustReread        atomic.Bool                // the group is closed until the cloud has said what there is
	isReadEarly       bool                       // it was asked before the look that wants to know
	readAt            time.Time                  // when the cloud began to be asked for what was last taken in
	quietUntil        time.Time                  // until when the cloud wants to be left alone about the group
	failedAt          time.Time                  // when an order last failed: no more is ordered until the cloud was asked after that
	launches          map[string]v1alpha1.Launch // by ID: what is open, and what its owner has not noted yet
	countedLaunches   map[string]bool            // the IDs of the launches that were ever counted here
	unanswered        int                        // orders that the cloud has not answered
	latestLaunches    map[string]string          // the IDs of the launches requested last, by template
	followedLaunches  map[string]bool            // launches whose operations are asked for, by ID
	missing           map[string]int             // how many machines of an order that failed have not come, while a grant waits for that
	unsettledRequests []unsettledRequest         // by orders of which it is not known yet what has come
	deleting          map[string]bool            // machines that are being given up, by provider ID
	unusable          map[string]bool            // machines of ours that count as a failure of their kind, by provider ID, since they were never usable
	observedNodes     map[string]nodeObservation // when this process first saw a node, by its name
	launched          []plan.Launched
	notSelected       *plan.Reason      // why the group is closed for the Node of one of its instances; nil when it is not
	joined            map[string]bool   // machines of ours that have joined since their cloud was read, by provider ID
	typeByNode        map[string]string // of each node's machine
	nodeEvents        map[string]string // what was last said of a node, by its UID
	planTemplates     []plan.Kind
	devicesByNode     map[string]corev1.ResourceList // of each Node's template, by the Node's name

	backOffs         map[string]v1alpha1.BackOff
	recordedBackOffs map[string]int64 // when the back-offs of the record end, in Unix time, by template
	learned          map[string]v1alpha1.LearnedTemplate
	lastPresent      map[string]time.Time // when a node of a kind was last there
	unjoined         []launch.Instance
}

// loadStates gives each group what is remembered of it, or what its status says after a restart, and forgets groups that are
// no more.
func (a *Controller) loadStates(groups []*managedGroup) {
	a.mu.Lock()
	defer a.mu.Unlock()
	there := map[string]bool{}
	for _, g := range groups {
		there[g.name()] = true
		g.state = a.states[g.name()]
		if g.state == nil {
			g.state = newGroupState(&g.Group.Status, a.options.Settle)
			a.states[g.name()] = g.state
		}
		if p := g.Group.Status.Provisioning; p != nil {
			g.state.mergeRecord(p)
		}
		g.forgetRemovedNodes()
	}
	maps.DeleteFunc(a.states, func(name string, _ *groupState) bool { return !there[name] })
}

// forgetRemovedNodes forgets what was said of nodes that the group has no more.
func (g *managedGroup) forgetRemovedNodes() {
	there := map[string]bool{}
	for i := range g.Nodes {
		there[string(g.Nodes[i].Object.UID)] = true
	}
	maps.DeleteFunc(g.state.nodeEvents, func(uid, _ string) bool { return !there[uid] })
}

// nodeObservation is when a Node was first seen.
type nodeObservation struct {
	uid types.UID
	at  time.Time
}

// observeNodes notes the nodes that the group has had since the last look, and forgets the others.
func (g *managedGroup) observeNodes(now time.Time) {
	before := g.state.observedNodes
	g.state.observedNodes = make(map[string]nodeObservation, len(g.Nodes))
	for i := range g.Nodes {
		n := g.Nodes[i].Object
		is, known := before[n.Name]
		if !known || is.uid != n.UID {
			is = nodeObservation{n.UID, now}
		}
		g.state.observedNodes[n.Name] = is
	}
}

func newGroupState(s *v1alpha1.NodeGroupStatus, settle time.Duration) *groupState {
	m := &groupState{
		watchedSince: time.Now(), settleTime: settle, latestLaunches: map[string]string{}, missing: map[string]int{}, deleting: map[string]bool{}, unusable: map[string]bool{},
		backOffs: map[string]v1alpha1.BackOff{}, learned: map[string]v1alpha1.LearnedTemplate{}, lastPresent: map[string]time.Time{},
		launches: map[string]v1alpha1.Launch{}, countedLaunches: map[string]bool{}, followedLaunches: map[string]bool{}, recordedBackOffs: map[string]int64{},
	}
	p := s.Provisioning
	if p == nil {
		return m
	}
	for _, b := range p.BackOffs {
		m.backOffs[b.Template], m.recordedBackOffs[b.Template] = b, b.Until.Unix()
	}
	for _, l := range p.Learned {
		m.learned[l.Name] = l
	}
	m.mergeRecord(p)
	return m
}

// mergeRecord counts what another process or a replacement has written. It reports whether there was any launch that was not counted.
func (m *groupState) mergeRecord(p *v1alpha1.ProvisioningStatus) (changed bool) {
	now := time.Now()
	for _, b := range p.BackOffs {
		if m.recordedBackOffs[b.Template] == b.Until.Unix() { // it was written or counted here
			continue
		}
		m.recordedBackOffs[b.Template] = b.Until.Unix()
		if mine, left := m.backOffs[b.Template]; now.Before(b.Until.Time) && (!left || mine.Until.Before(&b.Until)) {
			m.backOffs[b.Template] = b
		}
	}
	for _, l := range p.Launches {
		if m.countedLaunches[l.ID] {
			m.mergeAnswer(l, now)
			continue
		}
		m.countedLaunches[l.ID], m.launches[l.ID], changed = true, l, true
		if l.IsForRetirement() && l.State == v1alpha1.LaunchReady {
			continue
		}
		for _, i := range l.Instances { // those of a launch that has failed are still to be deleted
			m.unjoined = append(m.unjoined, launch.Instance{ProviderID: i.ProviderID, Template: l.Template, Launch: l.ID, Since: i.Since})
		}
		if l.Count > 0 || len(l.Named) > 0 {
			asked := m.toPending(l)
			m.pending = append(m.pending, asked)
			if !m.readAt.IsZero() {
				m.addProvisioning(asked)
			}
		}
	}
	return changed
}

// mergeAnswer takes in what the owner of a launch has written of the cloud's answer, which comes once.
func (m *groupState) mergeAnswer(l v1alpha1.Launch, now time.Time) {
	is, open := m.launches[l.ID]
	if !open || is.For == nil || is.AnsweredAt != nil || l.AnsweredAt == nil {
		return
	}
	is.State, is.AnsweredAt, is.OperationID, is.Reason, is.Message = l.State, l.AnsweredAt, l.OperationID, l.Reason, l.Message
	m.launches[l.ID] = is
	m.updatePending(l.ID, func(a *launch.Pending) {
		if is.State == v1alpha1.LaunchFailed {
			a.Count, a.Named = 0, nil
			return
		}
		answered := launch.PendingOf(&is, m.settleTime, now)
		a.Answer, a.Answered, a.Settled, a.Running = answered.Answer, answered.Answered, answered.Settled, answered.Running
	})
}

// toPending makes a launch of what another process has written. What the cloud has answered since is lost (I8).
func (m *groupState) toPending(l v1alpha1.Launch) launch.Pending {
	if l.IsForRetirement() {
		return launch.PendingOf(&l, m.settleTime, time.Now())
	}
	answer, at := launch.Lost, time.Now()
	if l.State == v1alpha1.LaunchFailed {
		answer = launch.Refused
	}
	asked := launch.Pending{ID: l.ID, Kind: l.Template, Count: int(l.Count), At: l.RequestedAt.Time}
	asked.Reply(answer, l.Named, at, m.settleTime)
	asked.Running = l.OperationID != ""
	return asked
}

// recordFailure leaves a kind of machine alone for a while.
func (m *groupState) recordFailure(kind, reason, message string, now time.Time) v1alpha1.BackOff {
	var before *v1alpha1.BackOff
	if b, ok := m.backOffs[kind]; ok {
		before = &b
	}
	b := launch.Fail(before, kind, reason, message, now)
	m.backOffs[kind] = b
	return b
}

// recordRefusal leaves a kind of machine alone after an order that failed, for as long at least as the cloud wants to be.
func (m *groupState) recordRefusal(kind string, err error, now time.Time) v1alpha1.BackOff {
	b := m.recordFailure(kind, launch.ReasonOf(err), err.Error(), now)
	m.pauseReads(err, now)
	if least := metav1.NewTime(now.Add(cloud.PauseOf(err))); b.Until.Before(&least) {
		b.Until = least
		m.backOffs[kind] = b
	}
	return b
}

// pauseReads has the cloud not asked about the group for as long as its error asks for.
func (m *groupState) pauseReads(err error, now time.Time) {
	if until := now.Add(cloud.PauseOf(err)); until.After(m.quietUntil) {
		m.quietUntil = until
	}
}

// pruneBackOffs drops the back-offs that have been over for long.
func (m *groupState) pruneBackOffs(now time.Time) {
	for kind, b := range m.backOffs {
		m.backOffs[kind] = launch.Clamp(b, now)
	}
	maps.DeleteFunc(m.backOffs, func(_ string, b v1alpha1.BackOff) bool { return launch.Forgiven(&b, now) })
}

// learnTemplates notes what the nodes of each kind have.
func (g *managedGroup) learnTemplates(now time.Time) {
	m := g.state
	var startup []string
	if up := g.Group.Spec.ScaleUp; up != nil {
		startup = up.StartupTaints
	}
	var all []*corev1.Node
	byKind, devices := map[string][]*corev1.Node{}, map[string]corev1.ResourceList{}
	for _, k := range g.makePlanTemplates(nil, now) { // as they were before these Nodes
		devices[k.Name] = plan.DevicesOf(k.Node)
	}
	m.devicesByNode = map[string]corev1.ResourceList{}
	for i := range g.Nodes {
		n := g.Nodes[i].Object
		kind := m.templateOfNode(n)
		m.lastPresent[kind] = now
		if len(devices[kind]) > 0 {
			m.devicesByNode[n.Name] = devices[kind]
		}
		if !budget.Ready(n) || plan.IsArriving(n, startup, devices[kind], plan.JoinTimeout(g.Group), m.observedNodes[n.Name].at, now) || len(n.Status.Allocatable) == 0 {
			continue
		}
		all = append(all, n)
		if kind != "" {
			byKind[kind] = append(byKind[kind], n)
		}
	}
	for kind, nodes := range byKind {
		m.learned[kind] = *plan.Learn(kind, nodes, startup)
	}
	slices.SortFunc(all, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	m.planTemplates = g.makePlanTemplates(plan.Learn("", all, startup), now)
}

// cloudTemplateName is a kind's name as the cloud lists it.
func (m *groupState) cloudTemplateName(kind string) string {
	for _, t := range m.cloudTemplates {
		if launch.SameKind(t.Name, kind) {
			return t.Name
		}
	}
	return kind
}

// templateOfNode is the name of a node's kind of machine: as its label says, as its cloud does, or the only one that there is, of a cloud
// that does not say. It is empty when the group can have no more of the node's kind.
func (m *groupState) templateOfNode(n *corev1.Node) string {
	for _, name := range []string{n.Labels[corev1.LabelInstanceTypeStable], n.Labels[corev1.LabelInstanceType], m.typeByNode[n.Name]} {
		for _, t := range m.cloudTemplates {
			if name != "" && launch.SameKind(t.Name, name) {
				return t.Name
			}
		}
	}
	if len(m.cloudTemplates) == 1 && m.typeByNode[n.Name] == "" {
		return m.cloudTemplates[0].Name
	}
	return ""
}

// makePlanTemplates makes what is known of the group's kinds of machines into what is decided on, in the order in which the group
// prefers them.
func (g *managedGroup) makePlanTemplates(siblings *v1alpha1.LearnedTemplate, now time.Time) []plan.Kind {
	m, up := g.state, g.Group.Spec.ScaleUp
	if up == nil {
		return nil
	}
	templates, declared := m.cloudTemplates, map[string]corev1.ResourceList{}
	var kinds []plan.Kind
	if len(up.Templates) > 0 {
		templates = nil
	}
	for _, want := range up.Templates {
		i := slices.IndexFunc(m.cloudTemplates, func(t cloud.Template) bool { return launch.SameKind(t.Name, want.Name) })
		if i < 0 {
			kinds = append(kinds, plan.Kind{Name: want.Name, Closed: &plan.Reason{
				Rule: plan.NoTemplate, Group: g.name(), Template: want.Name,
				Message: fmt.Sprintf("its cloud has no such kind of machine for the group: it has %s", formatTemplateNames(m.cloudTemplates)),
			}})
			continue
		}
		templates = append(templates, m.cloudTemplates[i])
		declared[m.cloudTemplates[i].Name] = want.Allocatable
	}
	for _, t := range templates {
		source := plan.Source{Template: t, Declared: declared[t.Name], Siblings: siblings}
		if l, ok := m.learned[t.Name]; ok {
			source.Learned, source.LongGone = &l, m.isLongGone(t.Name, now)
		}
		k := plan.Kind{Name: t.Name, Cost: t.Cost, Node: plan.NodeOf(g.Group, source)}
		if b, ok := m.backOffs[t.Name]; ok {
			k.Closed = plan.ClosedBy(&b, g.name(), now)
		}
		kinds = append(kinds, k)
	}
	return kinds
}

// learnedTTL is for how long nodes that are gone are believed that their kind lacks something. Where what is declared is wrong,
// machines that the pods do not fit on come no more often than that.
const learnedTTL = time.Hour

// isLongGone reports whether no node of a kind has been there for long, as far as this process has seen. One that is still
// arriving, and may have no devices yet, is there.
func (m *groupState) isLongGone(kind string, now time.Time) bool {
	last := m.watchedSince
	if present := m.lastPresent[kind]; present.After(last) {
		last = present
	}
	return !now.Before(last.Add(learnedTTL))
}

func formatTemplateNames(templates []cloud.Template) string {
	all := make([]string, 0, len(templates))
	for _, t := range templates {
		all = append(all, t.Name)
	}
	return fmt.Sprintf("%v", all)
}

// needsReread reports whether an order has failed since the cloud was last asked what there is.
func (m *groupState) needsReread() bool { return !m.failedAt.IsZero() && !m.readAt.After(m.failedAt) }

// addLaunch counts what is requested as provisioning, and returns the launch's ID.
func (m *groupState) addLaunch(o plan.Order, at time.Time) (id string) {
	id = launch.NewID()
	m.unanswered++
	m.latestLaunches[o.Template], m.countedLaunches[id] = id, true
	m.launches[id] = v1alpha1.Launch{ID: id, Template: o.Template, RequestedAt: metav1.NewTime(at).Rfc3339Copy()}
	m.pending = append(m.pending, launch.Pending{ID: id, Kind: o.Template, Count: o.Count, At: at})
	m.addProvisioning(launch.Pending{ID: id, Kind: o.Template, Count: o.Count})
	return id
}

// addProvisioning counts the instances of a launch as provisioning until the cloud is read again.
func (m *groupState) addProvisioning(a launch.Pending) {
	m.cloud.Size += a.Expected()
	for i := range a.Expected() {
		m.tracking.Awaited = append(m.tracking.Awaited, launch.Expected{ID: fmt.Sprintf("asked-%s-%d", a.ID, i), Kind: a.Kind, Order: a.ID})
	}
}

// forgetRemovedLaunches forgets launches of others that are not in the record any more: their cloud has refused them.
func (m *groupState) forgetRemovedLaunches(launches []v1alpha1.Launch) {
	for id, l := range m.launches {
		there := slices.ContainsFunc(launches, func(l v1alpha1.Launch) bool { return l.ID == id })
		if l.For == nil || there {
			continue
		}
		if l.IsForRetirement() && !l.Open() { // its result is noted; an instance that is not usable is still to be deleted
			l.For = nil
			m.launches[id] = l
			continue
		}
		m.updatePending(id, func(a *launch.Pending) { a.Count, a.Named = 0, nil })
		m.pending = slices.DeleteFunc(m.pending, func(a launch.Pending) bool { return a.ID == id })
		m.unjoined = slices.DeleteFunc(slices.Clone(m.unjoined), func(r launch.Instance) bool { return r.Launch == id })
		delete(m.launches, id)
	}
}

// dropUnrequested forgets an order that the cloud has not been asked for.
func (m *groupState) dropUnrequested(id string) {
	m.unanswered--
	m.updatePending(id, func(a *launch.Pending) { m.missing[id], a.Count = a.Count, 0 })
	m.pending = slices.DeleteFunc(m.pending, func(a launch.Pending) bool { return a.ID == id })
}

// recordReply takes in what the cloud has said to an order, with the machines that it names. The order is kept until the cloud
// has been read after that, as some of its machines may have been made, whatever the answer is.
func (m *groupState) recordReply(id string, answer launch.Answer, named []string, at time.Time) {
	m.unanswered--
	if answer != launch.Accepted {
		m.failedAt = at
		m.mustReread.Store(true)
	}
	m.updatePending(id, func(a *launch.Pending) {
		before := a.Count
		a.Reply(answer, named, at, m.settleTime)
		m.missing[id] = max(0, before-a.Count)
	})
}

// updatePending changes an order, and expects no more machines of it than are to come then.
func (m *groupState) updatePending(id string, change func(*launch.Pending)) {
	i := slices.IndexFunc(m.pending, func(a launch.Pending) bool { return a.ID == id })
	if i < 0 {
		return
	}
	before := m.pending[i].Expected()
	change(&m.pending[i])
	drop := before - m.pending[i].Expected()
	m.cloud.Size -= max(0, drop)
	m.tracking.Awaited = slices.DeleteFunc(m.tracking.Awaited, func(w launch.Expected) bool {
		if w.Order != id || drop <= 0 {
			return false
		}
		drop--
		return true
	})
}

// maxStatusEntries is how many back-offs, and how many kinds that were learned, the schema of a NodeGroup allows its status to have.
const maxStatusEntries = 64

// toStatus is what is written of a group: its launches, the back-offs that end last, and of what was learned the templates that the cloud
// has first, where there is more than there is room for.
func (m *groupState) toStatus() *v1alpha1.ProvisioningStatus {
	s := &v1alpha1.ProvisioningStatus{Provisioning: int32(len(m.tracking.Awaited)), Launches: m.listOpenLaunches()}
	current := map[string]int{}
	for _, t := range m.cloudTemplates {
		current[t.Name] = 1
	}
	s.Learned = selectFirst(m.learned, func(a, b v1alpha1.LearnedTemplate) int { return cmp.Compare(current[b.Name], current[a.Name]) })
	s.BackOffs = selectFirst(m.backOffs, func(a, b v1alpha1.BackOff) int { return b.Until.Compare(a.Until.Time) })
	return s
}

// listOpenLaunches are the launches whose instances are not all usable yet, the oldest first, and those whose results a NodeRetirement has to
// note.
func (m *groupState) listOpenLaunches() []v1alpha1.Launch {
	open := map[string]*v1alpha1.Launch{}
	for id, l := range m.launches {
		if l.IsForRetirement() && !l.Open() && !launch.IsForgotten(&l, time.Now()) {
			open[id] = &l
		}
	}
	of := func(id string) *v1alpha1.Launch {
		if open[id] == nil {
			l := m.launches[id]
			l.Count, l.Named, l.Instances = 0, nil, nil
			if !l.IsForRetirement() {
				l.State = v1alpha1.LaunchProvisioning
			}
			open[id] = &l
		}
		return open[id]
	}
	for i := range m.pending {
		a, l := &m.pending[i], of(m.pending[i].ID)
		if l.IsForRetirement() && !l.Open() {
			continue
		}
		l.Count, l.Named = int32(a.Count), a.Named
		if l.For != nil {
			l.State = m.launches[a.ID].State // as its owner has written it
			continue
		}
		l.State = toLaunchState(a)
		if l.AnsweredAt == nil && !a.Answered.IsZero() {
			l.AnsweredAt = new(metav1.NewTime(a.Answered).Rfc3339Copy())
		}
	}
	for _, r := range m.unjoined {
		l := of(r.Launch)
		if l.IsForRetirement() && !l.Open() {
			continue
		}
		l.Instances = append(l.Instances, v1alpha1.LaunchedInstance{ProviderID: r.ProviderID, Since: r.Since})
	}
	maps.DeleteFunc(m.launches, func(id string, _ v1alpha1.Launch) bool { return open[id] == nil })
	list := make([]v1alpha1.Launch, 0, len(open))
	for _, l := range open {
		list = append(list, *l)
	}
	slices.SortFunc(list, func(a, b v1alpha1.Launch) int {
		return cmp.Or(a.RequestedAt.Compare(b.RequestedAt.Time), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// updateLaunches sets how far the launches of replacements are by what was tracked.
func (m *groupState) updateLaunches(now time.Time) {
	for id, l := range m.launches {
		if !l.IsForRetirement() || !l.Open() {
			continue
		}
		reported := l.Reason != ""
		m.tracking.Update(&l, now)
		m.launches[id] = l
		if l.State == v1alpha1.LaunchFailed && !reported && len(l.Instances) == 0 { // an instance that failed was counted
			m.recordFailure(m.cloudTemplateName(l.Template), l.Reason, l.Message, now)
		}
	}
}

// toLaunchState is how far a launch is of which instances have not been seen.
func toLaunchState(a *launch.Pending) v1alpha1.LaunchState {
	switch {
	case a.Answered.IsZero(), a.Answer == launch.Lost:
		return v1alpha1.LaunchRequested
	case a.Answer == launch.Accepted:
		return v1alpha1.LaunchProvisioning
	}
	return v1alpha1.LaunchFailed
}

// selectFirst are as many of what is known of kinds as may be written down, by name.
func selectFirst[T any](all map[string]T, order func(a, b T) int) (list []T) {
	names := slices.Sorted(maps.Keys(all))
	slices.SortStableFunc(names, func(a, b string) int { return order(all[a], all[b]) })
	for _, name := range slices.Sorted(slices.Values(names[:min(len(names), maxStatusEntries)])) {
		list = append(list, all[name])
	}
	return list
}

// writeStatuses writes what has changed.
func (a *Controller) writeStatuses(ctx context.Context, groups []*managedGroup) error {
	var errs []error
	for _, g := range groups {
		if g.Group.Spec.ScaleUp == nil {
			continue
		}
		if g.Group.UID != "" {
			if err := a.writeCondition(ctx, g); err != nil {
				errs = append(errs, err)
			}
		}
		if equality.Semantic.DeepEqual(g.Group.Status.Provisioning, g.state.toStatus()) {
			continue
		}
		if err := a.options.Launches.Change(ctx, g.Group, g.saveStatus); client.IgnoreNotFound(err) != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// writeCondition writes down whether the Node of an instance keeps the group from getting more. The other conditions are another
// controller's: what has been written since they were read wins, and the next look tries again.
func (a *Controller) writeCondition(ctx context.Context, g *managedGroup) error {
	is := metav1.Condition{
		Type: v1alpha1.GroupScaleUpAllowed, Status: metav1.ConditionTrue, Reason: v1alpha1.ScaleUpAllowedReason,
		Message: "the Nodes of its instances match spec.nodeSelector", ObservedGeneration: g.Group.Generation,
	}
	why := g.state.notSelected
	if why != nil {
		is.Status, is.Reason, is.Message = metav1.ConditionFalse, v1alpha1.NodeNotSelected, why.Message
	}
	conditions := slices.Clone(g.Group.Status.Conditions)
	was := meta.FindStatusCondition(conditions, is.Type)
	if was == nil && why == nil || !meta.SetStatusCondition(&conditions, is) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": g.Group.UID, "resourceVersion": g.Group.ResourceVersion}, "status": map[string]any{"conditions": conditions},
	})
	if err != nil {
		return err
	}
	target := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: g.name()}}
	err = a.options.Client.Status().Patch(ctx, target, client.RawPatch(types.MergePatchType, patch))
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("condition %s of NodeGroup %s: %w", is.Type, g.name(), err)
	}
	if why != nil {
		a.options.Log.Warn("the group gets no more instances", "group", g.name(), "reason", why.Rule, "message", why.Message)
	}
	return nil
}

// saveStatus makes what is known of a group into what its status says. What another process has written meanwhile is counted first.
func (g *managedGroup) saveStatus(s *v1alpha1.ProvisioningStatus) error {
	g.state.mergeRecord(s)
	g.state.forgetRemovedLaunches(s.Launches)
	*s = *g.state.toStatus()
	for _, b := range s.BackOffs {
		g.state.recordedBackOffs[b.Template] = b.Until.Unix()
	}
	return nil
}

// errConcurrentLaunch says that another process has requested instances since it was decided what to launch.
var errConcurrentLaunch = errors.New("another process has requested instances since they were counted: it is decided anew")

// reserveLaunches writes launches before the cloud is asked for them (I8), unless another process has requested instances since they were
// counted (I5).
func (a *Controller) reserveLaunches(ctx context.Context, g *managedGroup, ids []string) ([]launch.Reservation, error) {
	return a.options.Launches.Reserve(ctx, g.Group, ids, func(s *v1alpha1.ProvisioningStatus) error {
		if g.state.mergeRecord(s) {
			a.requeue()
			return errConcurrentLaunch
		}
		return g.saveStatus(s)
	})
}
