package provisioning

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
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
	"github.com/slipway-dev/slipway/internal/retirement/disruptionbudget"
)

// groupState is what the controller knows about a group from one reconcile to the next. Everything in it that must
// survive a restart is also in the group's status.
type groupState struct {
	cloudGroup        v1alpha1.CloudGroup
	watchedSince      time.Time // when this process first saw the group
	cloud             cloud.Group
	tracking          launch.Tracking
	cloudTemplates    []cloud.Template
	pending           []launch.PendingLaunch // launches with instances that were not seen yet
	settleTime        time.Duration          // how long instances are expected after a lost answer
	instances         []cloud.Instance
	readError         string                     // why the last cloud read failed; empty if it succeeded
	isReading         bool                       // a cloud read is running
	mustReread        atomic.Bool                // nothing is launched before the cloud is read again
	isReadEarly       bool                       // the read started before the reconcile that needs it
	readAt            time.Time                  // when the last applied cloud read started
	quietUntil        time.Time                  // until when the cloud asked not to be read
	failedAt          time.Time                  // when a launch last failed: the next needs a later cloud read
	launches          map[string]v1alpha1.Launch // by ID: open launches, and results that their owner has not recorded yet
	countedLaunches   map[string]bool            // the IDs of all launches that were counted here
	unanswered        int                        // launches without an answer
	latestLaunches    map[string]string          // the IDs of the latest launches, by template
	followedLaunches  map[string]bool            // the launches whose operation is polled, by ID
	missing           map[string]int             // how many instances of a failed launch are missing, by launch ID
	unsettledRequests []unsettledRequest         // launch requests whose launches have no result yet
	deleting          map[string]bool            // the instances that are being deleted, by provider ID
	unusable          map[string]bool            // our instances that were counted as never usable, by provider ID
	observedNodes     map[string]nodeObservation // when this process first saw each node, by name
	launched          []plan.LaunchedInstance
	notSelected       *plan.Reason      // why an instance's Node outside spec.nodeSelector stops launches; nil if none does
	joined            map[string]bool   // our instances that joined since the cloud was read, by provider ID
	typeByNode        map[string]string // the instance type of each node, by node name
	nodeEvents        map[string]string // the last Event of each node, by the node's UID
	planTemplates     []plan.Template
	devicesByNode     map[string]corev1.ResourceList // the devices of each node's template, by node name

	backOffs         map[string]v1alpha1.BackOff
	recordedBackOffs map[string]int64 // when the recorded back-offs end, in Unix time, by template
	learned          map[string]v1alpha1.LearnedTemplate
	lastPresent      map[string]time.Time // when a node of a template was last present
	unjoined         []launch.Instance
}

// loadStates gives each group its remembered state. After a restart it reads the state from the group's status. A group with another
// cloud group than before gets a new state. A group that was created anew keeps its state, because the cloud may still
// create instances of its launches (I5). loadStates removes the state of deleted groups.
func (a *Controller) loadStates(groups []*managedGroup) {
	a.mu.Lock()
	defer a.mu.Unlock()
	there := map[string]bool{}
	for _, g := range groups {
		there[g.name()] = true
		switch known := a.states[g.name()]; {
		case known == nil:
			g.state = newGroupState(g.Group, a.options.SettleTime)
		case known.cloudGroup != g.Group.Spec.Cloud:
			g.state = newGroupStateWithoutRecord(g.Group, a.options.SettleTime)
		default:
			g.state = known
		}
		a.states[g.name()] = g.state
		if p := g.Group.Status.Provisioning; p != nil {
			g.state.mergeRecord(p)
		}
		g.forgetEventsOfRemovedNodes()
	}
	maps.DeleteFunc(a.states, func(name string, _ *groupState) bool { return !there[name] })
}

func (g *managedGroup) forgetEventsOfRemovedNodes() {
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

// recordFirstSeenNodes records when each node of the group was first seen, and removes nodes that are gone.
func (g *managedGroup) recordFirstSeenNodes(now time.Time) {
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

func newEmptyGroupState(cloudGroup v1alpha1.CloudGroup, settle time.Duration) *groupState {
	return &groupState{
		cloudGroup:   cloudGroup,
		watchedSince: time.Now(), settleTime: settle, latestLaunches: map[string]string{}, missing: map[string]int{}, deleting: map[string]bool{}, unusable: map[string]bool{},
		backOffs: map[string]v1alpha1.BackOff{}, learned: map[string]v1alpha1.LearnedTemplate{}, lastPresent: map[string]time.Time{},
		launches: map[string]v1alpha1.Launch{}, countedLaunches: map[string]bool{}, followedLaunches: map[string]bool{}, recordedBackOffs: map[string]int64{},
	}
}

// newGroupState returns the state that is in the group's status.
func newGroupState(g *v1alpha1.NodeGroup, settle time.Duration) *groupState {
	m := newEmptyGroupState(g.Spec.Cloud, settle)
	p := g.Status.Provisioning
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

// newGroupStateWithoutRecord returns the state of a group with a status of another cloud group. The back-offs and launches in it count
// as merged, so that mergeRecord does not add them, and the next write removes them. Launches of other owners stay,
// because their owners still read them.
func newGroupStateWithoutRecord(g *v1alpha1.NodeGroup, settle time.Duration) *groupState {
	m := newEmptyGroupState(g.Spec.Cloud, settle)
	p := g.Status.Provisioning
	if p == nil {
		return m
	}
	for _, b := range p.BackOffs {
		m.recordedBackOffs[b.Template] = b.Until.Unix()
	}
	for i := range p.Launches {
		if p.Launches[i].For == nil {
			m.countedLaunches[p.Launches[i].ID] = true
		}
	}
	return m
}

// mergeRecord adds launches and answers that another process or a replacement has written to the launch record. It
// reports whether it has found a launch that was not counted yet.
func (m *groupState) mergeRecord(p *v1alpha1.ProvisioningStatus) (foundNewLaunch bool) {
	now := time.Now()
	for _, b := range p.BackOffs {
		if m.recordedBackOffs[b.Template] == b.Until.Unix() { // written or counted by this process
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
		m.countedLaunches[l.ID], m.launches[l.ID], foundNewLaunch = true, l, true
		if l.IsForRetirement() && l.State == v1alpha1.LaunchReady {
			continue
		}
		for _, i := range l.Instances { // instances of a failed launch are still to be deleted
			m.unjoined = append(m.unjoined, launch.Instance{ProviderID: i.ProviderID, Template: l.Template, Launch: l.ID, Since: i.Since})
		}
		if l.Count > 0 || len(l.Named) > 0 {
			asked := m.toPendingLaunch(l)
			m.pending = append(m.pending, asked)
			if !m.readAt.IsZero() {
				m.addProvisioningInstances(asked)
			}
		}
	}
	return foundNewLaunch
}

// mergeAnswer applies the cloud's answer to a launch, as the owner of the launch has recorded it. Each launch has only
// one answer.
func (m *groupState) mergeAnswer(l v1alpha1.Launch, now time.Time) {
	is, open := m.launches[l.ID]
	if !open || is.For == nil || is.AnsweredAt != nil || l.AnsweredAt == nil {
		return
	}
	is.State, is.AnsweredAt, is.OperationID, is.Reason, is.Message = l.State, l.AnsweredAt, l.OperationID, l.Reason, l.Message
	m.launches[l.ID] = is
	m.updatePendingLaunch(l.ID, func(a *launch.PendingLaunch) {
		if is.State == v1alpha1.LaunchFailed {
			a.Count, a.Named = 0, nil
			return
		}
		answered := launch.NewPendingLaunch(&is, m.settleTime, now)
		a.Answer, a.AnsweredAt, a.SettledAt, a.Running = answered.Answer, answered.AnsweredAt, answered.SettledAt, answered.Running
	})
}

// toPendingLaunch converts a launch that another process has recorded. If no answer is recorded, the process may have
// crashed after the request, and the answer counts as lost (invariant I8).
func (m *groupState) toPendingLaunch(l v1alpha1.Launch) launch.PendingLaunch {
	if l.IsForRetirement() {
		return launch.NewPendingLaunch(&l, m.settleTime, time.Now())
	}
	answer, at := launch.Lost, time.Now()
	if l.State == v1alpha1.LaunchFailed {
		answer = launch.Refused
	}
	asked := launch.PendingLaunch{ID: l.ID, Template: l.Template, Count: int(l.Count), RequestedAt: l.RequestedAt.Time}
	asked.ApplyAnswer(answer, l.Named, at, m.settleTime)
	asked.Running = l.OperationID != ""
	return asked
}

// recordFailure starts or extends the back-off of a template.
func (m *groupState) recordFailure(template, reason, message string, now time.Time) v1alpha1.BackOff {
	var before *v1alpha1.BackOff
	if b, ok := m.backOffs[template]; ok {
		before = &b
	}
	b := launch.NextBackOff(before, template, reason, message, now)
	m.backOffs[template] = b
	return b
}

// recordRefusalAndPauseReads starts the back-off of a template after a failed launch. If the cloud has asked for a pause, the
// back-off is at least as long.
func (m *groupState) recordRefusalAndPauseReads(template string, err error, now time.Time) v1alpha1.BackOff {
	b := m.recordFailure(template, launch.BackOffReason(err), err.Error(), now)
	m.pauseReads(err, now)
	if least := metav1.NewTime(now.Add(cloud.RetryDelay(err))); b.Until.Before(&least) {
		b.Until = least
		m.backOffs[template] = b
	}
	return b
}

// pauseReads stops reads of the group's cloud for the pause that the cloud's error asks for.
func (m *groupState) pauseReads(err error, now time.Time) {
	if until := now.Add(cloud.RetryDelay(err)); until.After(m.quietUntil) {
		m.quietUntil = until
	}
}

// clampAndPruneBackOffs removes back-offs that ended long ago.
func (m *groupState) clampAndPruneBackOffs(now time.Time) {
	for template, b := range m.backOffs {
		m.backOffs[template] = launch.ClampBackOff(b, now)
	}
	maps.DeleteFunc(m.backOffs, func(_ string, b v1alpha1.BackOff) bool { return launch.IsBackOffExpired(&b, now) })
}

// learnTemplatesFromNodes stores the resources, labels and taints that the current nodes of each template have.
func (g *managedGroup) learnTemplatesFromNodes(now time.Time) {
	m := g.state
	var startup []string
	if up := g.Group.Spec.ScaleUp; up != nil {
		startup = up.StartupTaints
	}
	var all []*corev1.Node
	byTemplate, devices := map[string][]*corev1.Node{}, map[string]corev1.ResourceList{}
	for _, k := range g.makePlanTemplates(nil, now) { // as they were before these Nodes
		devices[k.Name] = plan.ListDevices(k.Node)
	}
	m.devicesByNode = map[string]corev1.ResourceList{}
	for i := range g.Nodes {
		n := g.Nodes[i].Object
		template := m.templateOfNode(n)
		m.lastPresent[template] = now
		if len(devices[template]) > 0 {
			m.devicesByNode[n.Name] = devices[template]
		}
		if !disruptionbudget.IsReady(n) || plan.IsStarting(n, startup, devices[template], plan.JoinTimeout(g.Group), m.observedNodes[n.Name].at, now) || len(n.Status.Allocatable) == 0 {
			continue
		}
		all = append(all, n)
		if template != "" {
			byTemplate[template] = append(byTemplate[template], n)
		}
	}
	for template, nodes := range byTemplate {
		learned := plan.LearnTemplate(template, nodes, startup)
		learned.Cost = m.formatCost(template)
		m.learned[template] = *learned
	}
	slices.SortFunc(all, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	m.planTemplates = g.makePlanTemplates(plan.LearnTemplate("", all, startup), now)
}

// cloudTemplateName returns the template's name as the cloud spells it.
func (m *groupState) cloudTemplateName(template string) string {
	for _, t := range m.cloudTemplates {
		if launch.IsSameTemplate(t.Name, template) {
			return t.Name
		}
	}
	return template
}

// templateOfNode returns the name of the template that a node was launched with. It is the template with the instance
// type in the node's label, or else the type that the cloud reports. If the cloud reports no type and has only one
// template, it is that template. It returns "" if the group has no such template.
func (m *groupState) templateOfNode(n *corev1.Node) string {
	for _, name := range []string{n.Labels[corev1.LabelInstanceTypeStable], n.Labels[corev1.LabelInstanceType], m.typeByNode[n.Name]} {
		for _, t := range m.cloudTemplates {
			if name != "" && launch.IsSameTemplate(t.Name, name) {
				return t.Name
			}
		}
	}
	if len(m.cloudTemplates) == 1 && m.typeByNode[n.Name] == "" {
		return m.cloudTemplates[0].Name
	}
	return ""
}

// formatCost returns the price of a template that the cloud lists as a decimal number. It returns "" if it is unknown.
func (m *groupState) formatCost(template string) string {
	i := slices.IndexFunc(m.cloudTemplates, func(t cloud.Template) bool { return t.Name == template })
	if i < 0 || m.cloudTemplates[i].Cost <= 0 {
		return ""
	}
	return strconv.FormatFloat(m.cloudTemplates[i].Cost, 'f', -1, 64)
}

// makePlanTemplates returns the group's templates as input of a decision, in the group's order of preference.
func (g *managedGroup) makePlanTemplates(siblings *v1alpha1.LearnedTemplate, now time.Time) []plan.Template {
	m, up := g.state, g.Group.Spec.ScaleUp
	if up == nil {
		return nil
	}
	templates, declared := m.cloudTemplates, map[string]corev1.ResourceList{}
	var planTemplates []plan.Template
	if len(up.Templates) > 0 {
		templates = nil
	}
	for _, want := range up.Templates {
		i := slices.IndexFunc(m.cloudTemplates, func(t cloud.Template) bool { return launch.IsSameTemplate(t.Name, want.Name) })
		if i < 0 {
			planTemplates = append(planTemplates, plan.Template{Name: want.Name, ClosedReason: &plan.Reason{
				Rule: plan.NoTemplate, Group: g.name(), Template: want.Name,
				Message: fmt.Sprintf("its cloud has no such template for the group: it has %s", formatTemplateNames(m.cloudTemplates)),
			}})
			continue
		}
		templates = append(templates, m.cloudTemplates[i])
		declared[m.cloudTemplates[i].Name] = want.Allocatable
	}
	for _, t := range templates {
		source := plan.TemplateSource{Template: t, Declared: declared[t.Name], Siblings: siblings}
		if l, ok := m.learned[t.Name]; ok {
			source.Learned, source.NodesLongGone = &l, m.areNodesLongGone(t.Name, now)
		}
		k := plan.Template{Name: t.Name, Cost: t.Cost, Node: plan.NewTemplateNode(g.Group, source)}
		if b, ok := m.backOffs[t.Name]; ok {
			k.ClosedReason = plan.WhyBackedOff(&b, g.name(), now)
		}
		planTemplates = append(planTemplates, k)
	}
	return planTemplates
}

// learnedTTL is how long a declared resource is not expected on new nodes after the last nodes of a template lacked it.
// If the declaration is wrong, at most one useless instance is launched in each such period.
const learnedTTL = time.Hour

// areNodesLongGone reports whether this process has seen no node of a template for learnedTTL. A starting node counts as seen,
// even if it has no devices yet.
func (m *groupState) areNodesLongGone(template string, now time.Time) bool {
	last := m.watchedSince
	if present := m.lastPresent[template]; present.After(last) {
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

// needsReread reports whether a launch has failed since the last cloud read.
func (m *groupState) needsReread() bool { return !m.failedAt.IsZero() && !m.readAt.After(m.failedAt) }

// addLaunch adds a launch and counts its instances as provisioning. It returns the launch's ID.
func (m *groupState) addLaunch(o plan.Launch, at time.Time) (id string) {
	id = launch.NewLaunchID()
	m.unanswered++
	m.latestLaunches[o.Template], m.countedLaunches[id] = id, true
	m.launches[id] = v1alpha1.Launch{ID: id, Template: o.Template, RequestedAt: metav1.NewTime(at).Rfc3339Copy()}
	m.pending = append(m.pending, launch.PendingLaunch{ID: id, Template: o.Template, Count: o.Count, RequestedAt: at})
	m.addProvisioningInstances(launch.PendingLaunch{ID: id, Template: o.Template, Count: o.Count})
	return id
}

// addProvisioningInstances counts the instances of a launch as provisioning until the next cloud read.
func (m *groupState) addProvisioningInstances(a launch.PendingLaunch) {
	m.cloud.Size += a.ExpectedCount()
	for i := range a.ExpectedCount() {
		m.tracking.Provisioning = append(m.tracking.Provisioning, launch.ProvisioningInstance{ID: fmt.Sprintf("asked-%s-%d", a.ID, i), Template: a.Template, LaunchID: a.ID})
	}
}

// forgetRemovedLaunches forgets launches of other owners that are not in the launch record any more, because the cloud
// has refused them.
func (m *groupState) forgetRemovedLaunches(launches []v1alpha1.Launch) {
	for id, l := range m.launches {
		there := slices.ContainsFunc(launches, func(l v1alpha1.Launch) bool { return l.ID == id })
		if l.For == nil || there {
			continue
		}
		if l.IsForRetirement() && !l.IsOpen() { // the result is recorded; an unusable instance is still to be deleted
			l.For = nil
			m.launches[id] = l
			continue
		}
		m.updatePendingLaunch(id, func(a *launch.PendingLaunch) { a.Count, a.Named = 0, nil })
		m.pending = slices.DeleteFunc(m.pending, func(a launch.PendingLaunch) bool { return a.ID == id })
		m.unjoined = slices.DeleteFunc(slices.Clone(m.unjoined), func(r launch.Instance) bool { return r.Launch == id })
		delete(m.launches, id)
	}
}

// dropUnrequested removes a launch that was not requested from the cloud.
func (m *groupState) dropUnrequested(id string) {
	m.unanswered--
	m.updatePendingLaunch(id, func(a *launch.PendingLaunch) { m.missing[id], a.Count = a.Count, 0 })
	m.pending = slices.DeleteFunc(m.pending, func(a launch.PendingLaunch) bool { return a.ID == id })
}

// recordLaunchReply records the cloud's answer to a launch, and the instances that the answer names. The launch stays pending
// until the next cloud read: even after a refusal, some of its instances may exist.
func (m *groupState) recordLaunchReply(id string, answer launch.Answer, named []string, at time.Time) {
	m.unanswered--
	if answer != launch.Accepted {
		m.failedAt = at
		m.mustReread.Store(true)
	}
	m.updatePendingLaunch(id, func(a *launch.PendingLaunch) {
		before := a.Count
		a.ApplyAnswer(answer, named, at, m.settleTime)
		m.missing[id] = max(0, before-a.Count)
	})
}

// updatePendingLaunch changes a pending launch. It also removes the provisioning instances of the launch that are not expected
// any more.
func (m *groupState) updatePendingLaunch(id string, change func(*launch.PendingLaunch)) {
	i := slices.IndexFunc(m.pending, func(a launch.PendingLaunch) bool { return a.ID == id })
	if i < 0 {
		return
	}
	before := m.pending[i].ExpectedCount()
	change(&m.pending[i])
	surplus := before - m.pending[i].ExpectedCount()
	m.cloud.Size -= max(0, surplus)
	m.tracking.Provisioning = slices.DeleteFunc(m.tracking.Provisioning, func(w launch.ProvisioningInstance) bool {
		if w.LaunchID != id || surplus <= 0 {
			return false
		}
		surplus--
		return true
	})
}

// maxStatusEntries is how many back-offs, and how many learned templates, the status of a NodeGroup may have by its
// schema.
const maxStatusEntries = 64

// toStatus returns the status of the group. If there are too many entries, it keeps the back-offs that end last, and
// the learned templates that the cloud still lists.
func (m *groupState) toStatus() *v1alpha1.ProvisioningStatus {
	s := &v1alpha1.ProvisioningStatus{Provisioning: int32(len(m.tracking.Provisioning)), Launches: m.pruneAndListOpenLaunches()}
	current := map[string]int{}
	for _, t := range m.cloudTemplates {
		current[t.Name] = 1
	}
	s.Learned = limitStatusEntries(m.learned, func(a, b v1alpha1.LearnedTemplate) int { return cmp.Compare(current[b.Name], current[a.Name]) })
	s.BackOffs = limitStatusEntries(m.backOffs, func(a, b v1alpha1.BackOff) int { return b.Until.Compare(a.Until.Time) })
	return s
}

// pruneAndListOpenLaunches returns the launches that must stay in the launch record, the oldest first: launches with instances
// that are not usable yet, and launches whose result a NodeRetirement has not recorded yet.
func (m *groupState) pruneAndListOpenLaunches() []v1alpha1.Launch {
	open := map[string]*v1alpha1.Launch{}
	for id, l := range m.launches {
		if l.IsForRetirement() && !l.IsOpen() && !launch.IsLaunchForgotten(&l, time.Now()) {
			open[id] = &l
		}
	}
	openLaunch := func(id string) *v1alpha1.Launch {
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
		a, l := &m.pending[i], openLaunch(m.pending[i].ID)
		if l.IsForRetirement() && !l.IsOpen() {
			continue
		}
		l.Count, l.Named = int32(a.Count), a.Named
		if l.For != nil {
			l.State = m.launches[a.ID].State // as its owner has recorded it
			continue
		}
		l.State = toLaunchState(a)
		if l.AnsweredAt == nil && !a.AnsweredAt.IsZero() {
			l.AnsweredAt = new(metav1.NewTime(a.AnsweredAt).Rfc3339Copy())
		}
	}
	for _, r := range m.unjoined {
		l := openLaunch(r.Launch)
		if l.IsForRetirement() && !l.IsOpen() {
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

// updateReplacementLaunches updates the launches of replacements from the last result of TrackInstances.
func (m *groupState) updateReplacementLaunches(now time.Time) {
	for id, l := range m.launches {
		if !l.IsForRetirement() || !l.IsOpen() {
			continue
		}
		reported := l.Reason != ""
		m.tracking.UpdateLaunch(&l, now)
		m.launches[id] = l
		if l.State == v1alpha1.LaunchFailed && !reported && len(l.Instances) == 0 { // a failed instance is counted already
			m.recordFailure(m.cloudTemplateName(l.Template), l.Reason, l.Message, now)
		}
	}
}

// toLaunchState returns the state of a launch before any instance of it was seen.
func toLaunchState(a *launch.PendingLaunch) v1alpha1.LaunchState {
	switch {
	case a.AnsweredAt.IsZero(), a.Answer == launch.Lost:
		return v1alpha1.LaunchRequested
	case a.Answer == launch.Accepted:
		return v1alpha1.LaunchProvisioning
	}
	return v1alpha1.LaunchFailed
}

// limitStatusEntries returns the first entries by the given order, at most maxStatusEntries, sorted by name.
func limitStatusEntries[T any](all map[string]T, compare func(a, b T) int) (list []T) {
	names := slices.Sorted(maps.Keys(all))
	slices.SortStableFunc(names, func(a, b string) int { return compare(all[a], all[b]) })
	for _, name := range slices.Sorted(slices.Values(names[:min(len(names), maxStatusEntries)])) {
		list = append(list, all[name])
	}
	return list
}

// writeChangedStatuses writes the statuses that have changed.
func (a *Controller) writeChangedStatuses(ctx context.Context, groups []*managedGroup) error {
	var errs []error
	for _, g := range groups {
		if g.Group.Spec.ScaleUp == nil {
			continue
		}
		if g.Group.UID != "" {
			if err := a.writeScaleUpAllowedCondition(ctx, g); err != nil {
				errs = append(errs, err)
			}
		}
		if equality.Semantic.DeepEqual(g.Group.Status.Provisioning, g.state.toStatus()) {
			continue
		}
		if err := a.options.Launches.Update(ctx, g.Group, g.mergeIntoStatus); client.IgnoreNotFound(err) != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// writeScaleUpAllowedCondition writes the condition ScaleUpAllowed. Another controller writes the other conditions. After a conflict
// with such a write, the next reconcile tries again.
func (a *Controller) writeScaleUpAllowedCondition(ctx context.Context, g *managedGroup) error {
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
		a.options.Log.Warn("no more instances are launched for the group", "group", g.name(), "reason", why.Rule, "message", why.Message)
	}
	return nil
}

// mergeIntoStatus writes the group's state to its status, after it has merged what another process has written.
func (g *managedGroup) mergeIntoStatus(s *v1alpha1.ProvisioningStatus) error {
	g.state.mergeRecord(s)
	g.state.forgetRemovedLaunches(s.Launches)
	*s = *g.state.toStatus()
	for _, b := range s.BackOffs {
		g.state.recordedBackOffs[b.Template] = b.Until.Unix()
	}
	return nil
}

// errConcurrentLaunch is the error if another process has recorded a launch after this process has made its decision.
var errConcurrentLaunch = errors.New("another process has requested instances meanwhile: retrying with the new count")

// reserveLaunches records launches before they are requested, so that a crash cannot lose them (invariant I8). If
// another process has recorded a launch since the decision, it returns errConcurrentLaunch, because both together could
// exceed the maximum (invariant I5).
func (a *Controller) reserveLaunches(ctx context.Context, g *managedGroup, ids []string) ([]launch.Reservation, error) {
	return a.options.Launches.ReserveLaunches(ctx, g.Group, ids, func(s *v1alpha1.ProvisioningStatus) error {
		if g.state.mergeRecord(s) {
			a.requeue()
			return errConcurrentLaunch
		}
		return g.mergeIntoStatus(s)
	})
}
