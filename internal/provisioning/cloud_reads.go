package provisioning

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/drainability/fromcorev1"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
	"github.com/slipway-dev/slipway/internal/retirement/disruptionbudget"
)

// cloudObservation is one read of a group from its cloud.
type cloudObservation struct {
	startedAt    time.Time
	group        cloud.Group
	instances    []cloud.Instance
	templates    []cloud.Template
	templatesErr error // why the cloud did not list templates
	joinStates
}

// shouldReadCloud reports whether the cloud of the group is read. The group must have spec.scaleUp and must be accepted.
func shouldReadCloud(g *managedGroup) bool { return g.Group.Spec.ScaleUp != nil && g.NotAccepted == "" }

// readCloudsUntilTimeout starts to read the clouds of all groups that scale up, and waits for the answers until the
// answer timeout. If a cloud answers later, the next reconcile uses its answer. Until then the group has the state of
// its last answer, with the launches made since.
func (a *Controller) readCloudsUntilTimeout(ctx context.Context, s *clusterCaches, groups []*managedGroup) {
	for _, g := range groups {
		if shouldReadCloud(g) && (!g.state.isReadEarly || g.state.needsReread()) {
			a.startCloudRead(ctx, s, g)
		}
		g.state.isReadEarly = false
	}
	a.awaitReplies(ctx, groups, func(m *groupState) bool { return !m.isReading })
}

// startCloudReadsEarly starts to read the clouds before a reconcile begins, for the groups that the last reconcile has found.
func (a *Controller) startCloudReadsEarly(ctx context.Context, s *clusterCaches) {
	for _, g := range a.lastGroups {
		if shouldReadCloud(g) && !g.state.isReading {
			g.state.isReadEarly = true
			a.startCloudRead(ctx, s, g)
		}
	}
}

// startCloudRead starts to read one group from its cloud. It does nothing if a read is running or the cloud has asked
// for a pause.
func (a *Controller) startCloudRead(ctx context.Context, s *clusterCaches, g *managedGroup) {
	if g.state.isReading || time.Now().Before(g.state.quietUntil) {
		return
	}
	g.state.isReading = true
	g.state.mustReread.Store(g.state.cloudTemplates == nil || g.state.needsReread())
	a.calls.Go(func() {
		v, err := a.readCloud(ctx, s, g)
		a.queueReply(g, err == nil && v.templatesErr == nil && g.state.mustReread.Load(), func(g *managedGroup) {
			g.state.isReading = false
			if err == nil {
				a.applyObservation(g, v)
				err = v.templatesErr
			}
			switch {
			case err == nil && g.state.needsReread(): // the read began before the launch failed
				a.requeue()
			case err != nil && ctx.Err() == nil:
				g.state.readError = err.Error()
				g.state.pauseReads(err, time.Now())
				a.options.Log.Warn("cannot read the group from its cloud; nothing is launched", "group", g.name(), "err", err)
			}
		})
	})
}

// readCloud reads one group from its cloud. If only the templates cannot be listed, nothing is launched, but the
// instances are still tracked.
func (a *Controller) readCloud(ctx context.Context, s *clusterCaches, g *managedGroup) (v cloudObservation, err error) {
	provider := a.options.Clouds[g.Group.Spec.Cloud.Provider]
	if provider == nil {
		return v, fmt.Errorf("cloud %s is not configured", g.Group.Spec.Cloud.Provider)
	}
	ctx, cancel := context.WithTimeout(ctx, cloudTimeout)
	defer cancel()
	v.startedAt = time.Now()
	where := g.Group.Spec.Cloud.Group
	var failed [2]error
	var reads sync.WaitGroup
	reads.Go(func() { v.group, failed[0] = provider.Group(ctx, where) })
	reads.Go(func() { v.instances, failed[1] = provider.Instances(ctx, where) })
	reads.Go(func() { v.templates, v.templatesErr = provider.Templates(ctx, where) })
	reads.Wait()
	if err := cmp.Or(failed[:]...); err != nil {
		return v, err
	}
	nodes, err := s.nodes.List(labels.Everything())
	if err != nil {
		return v, fmt.Errorf("nodes: %w", err)
	}
	v.joinStates = findJoinStates(provider, g.Group, v.instances, nodes)
	return v, nil
}

// applyObservation updates the state of a group from a cloud read.
func (a *Controller) applyObservation(g *managedGroup, v cloudObservation) {
	m, now := g.state, time.Now()
	v.removeAdoptedWithoutNode()
	done := map[string]bool{}
	maps.Copy(done, g.replacements)
	maps.Copy(done, m.joined)
	for _, l := range m.launches {
		if l.State == v1alpha1.LaunchReady && len(l.Instances) > 0 {
			done[l.Instances[0].ProviderID] = true
		}
	}
	m.tracking = launch.TrackInstances(launch.Observation{
		Group: v.group, Instances: v.instances, JoinState: func(i cloud.Instance) launch.JoinState { return v.stateByID[i.ProviderID] },
		FirstSeen: m.tracking.FirstSeen, Unjoined: launch.DropReusedIDs(m.unjoined, v.instances), Pending: m.pending, UnseenSince: m.tracking.UnseenSince, EmptySince: m.tracking.EmptySince, WatchedSince: m.watchedSince,
		JoinTimeout: plan.JoinTimeout(g.Group), ReadAt: v.startedAt, Now: now, PreviouslyJoined: done,
	})
	m.joined = nil // they are in tracking.FirstSeen now
	maps.DeleteFunc(m.unusable, func(id string, _ bool) bool { _, there := m.tracking.FirstSeen[id]; return !there })
	g.excludeRetired(&m.tracking)
	m.instances = v.instances
	m.cloud, m.typeByNode, m.readError, m.readAt = v.group, v.typeByNode, "", v.startedAt
	if v.templatesErr == nil {
		m.cloudTemplates = v.templates
	}
	m.unjoined, m.pending = m.tracking.Unjoined, m.tracking.Pending
	for _, o := range m.tracking.Ended {
		m.missing[o.ID] += max(0, o.Count-len(o.Named))
	}
	if !m.cloud.CanRetryFailed {
		m.tracking.Unmade = 0
	}
	m.cloud.Size -= m.tracking.Unmade // the next launch reuses these, and leaves the size as it is
	m.cloud.Size = max(m.cloud.Size, countExpectedInstances(v.instances, m.pending))
	for _, r := range m.tracking.Joined {
		m.recordUsableInstance(&r)
	}
	for _, droppedLaunch := range m.tracking.Dropped {
		b := m.recordFailure(droppedLaunch.Template, launch.Failed, m.describeDroppedLaunch(droppedLaunch.Count), now)
		a.options.Metrics.countDropped(g.name(), droppedLaunch.Template)
		a.reportBackOff(g, b)
	}
	for _, failed := range g.listUncountedFailures(a.options.Clouds[g.Group.Spec.Cloud.Provider], &m.tracking) { // before the decision whether to launch others instead
		template := m.cloudTemplateName(failed.Template)
		if failed.Reason == launch.NeverUsable {
			if m.unusable[failed.Instance.ProviderID] {
				continue // one failure, however long the instance stays
			}
			m.unusable[failed.Instance.ProviderID] = true
			failed.Message += ": " + plan.WhyUnusable(g.Group, v.nodeByID[failed.Instance.ProviderID])
		}
		b, left := m.backOffs[template]
		if !left || plan.WhyBackedOff(&b, g.name(), now) == nil {
			a.reportBackOff(g, m.recordFailure(template, failed.Reason, failed.Message, now))
		}
	}
	m.updateReplacementLaunches(now)
	for _, id := range m.tracking.UnknownInstances {
		a.options.Log.Warn("an instance has no Node and belongs to no known launch; it is kept", "group", g.name(), "providerID", id)
	}
}

// describeDroppedLaunch returns the message for a launch that is dropped, because its instances have not appeared. If
// the size of the cloud group still counts them, the message says what a user can do.
func (m *groupState) describeDroppedLaunch(count int) string {
	message := fmt.Sprintf("the cloud has dropped a launch of %d instances without an error", count)
	if n := m.tracking.Unmade; n > 0 {
		message += fmt.Sprintf("; the group's size in the cloud counts %d instances that do not exist: "+
			"if they do not appear, lower the size to the existing instances", n)
	}
	return message
}

// removeAdoptedWithoutNode removes adopted instances without a Node from the observation, because they may belong to
// another cluster. They are then assigned to no launch, and do not count towards a maximum.
func (v *cloudObservation) removeAdoptedWithoutNode() {
	var kept []cloud.Instance
	for _, i := range v.instances {
		switch {
		case !i.OwnerUncertain || v.stateByID[i.ProviderID] != launch.NoNode:
			kept = append(kept, i)
		case i.State != cloud.Deleting:
			v.group.Size = max(0, v.group.Size-1)
		}
	}
	v.instances = kept
}

// countExpectedInstances counts a group's instances and the instances of pending launches that the cloud may not count
// yet.
func countExpectedInstances(instances []cloud.Instance, pending []launch.PendingLaunch) (n int) {
	for _, i := range instances {
		if i.State != cloud.Deleting {
			n++
		}
	}
	for _, a := range pending {
		n += a.ExpectedCount()
	}
	return n
}

// makePlanInput collects the input of a decision.
func (a *Controller) makePlanInput(s *clusterCaches, snapshot *snapshot.Snapshot, cluster *nodegroup.Cluster, groups []*managedGroup,
	waiting map[placement.PodKey]unschedulablePod,
) *plan.Input {
	w := &plan.Input{Snapshot: snapshot, MaxNodes: a.options.MaxNodes, LaunchRequests: a.settleAndListOpenRequests(groups), Now: cluster.Now, UnreadyLimit: a.options.UnreadyLimit}
	for i := range cluster.Nodes {
		if fromcorev1.NodeFacts(&cluster.Nodes[i]).ControlPlane == "" {
			w.NodeCount++
		}
	}
	if daemons, err := s.daemonSets.List(labels.Everything()); err == nil {
		w.DaemonSets = daemons
	}
	for key, p := range waiting {
		if snapshot.IsPending(key) { // the watch may be ahead of the snapshot
			w.Pods = append(w.Pods, plan.Pod{Key: key, Nominated: p.nominated})
		}
	}
	for _, g := range groups {
		g.removeJoinedFromProvisioning(a.options.Clouds[g.Group.Spec.Cloud.Provider], cluster.Nodes)
		g.state.clampAndPruneBackOffs(cluster.Now)
		g.learnTemplatesFromNodes(cluster.Now)
		g.recordFirstSeenNodes(cluster.Now)
		w.Groups = append(w.Groups, g.toPlanGroup())
		g.state.notSelected = w.Groups[len(w.Groups)-1].WhyNotSelected()
	}
	a.publishTemplates(groups)
	for _, n := range cluster.ListNodesBeingRemoved() {
		isManaged := findGroup(groups, cluster.Assignment.OwnerByNode[n.Name]) != nil
		if !isManaged && fromcorev1.NodeFacts(n).ControlPlane == "" {
			w.OtherNodesBeingRemoved = append(w.OtherNodesBeingRemoved, n.Name)
		}
	}
	w.UnreadyNodes = countUnexpectedUnready(w, cluster)
	a.options.Metrics.setUnreadyAndPausedGauges(w)
	return w
}

// countUnexpectedUnready counts the nodes that are not Ready, except starting nodes and nodes that are being retired. A node
// without a group may be new and lack its labels, so it counts as starting if it would be starting in any group.
func countUnexpectedUnready(w *plan.Input, cluster *nodegroup.Cluster) (n int) {
	byName := map[string]*plan.Group{}
	for i := range w.Groups {
		byName[w.Groups[i].Group.Name] = &w.Groups[i]
	}
	for i := range cluster.Nodes {
		node := &cluster.Nodes[i]
		if fromcorev1.NodeFacts(node).ControlPlane != "" || disruptionbudget.IsReady(node) || disruptionbudget.IsBeingRemoved(node) {
			continue
		}
		mine := w.Groups
		if g := byName[cluster.Assignment.OwnerByNode[node.Name]]; g != nil {
			mine = []plan.Group{*g}
		}
		if !slices.ContainsFunc(mine, func(g plan.Group) bool { return g.IsProvisioning(node, cluster.Now) }) {
			n++
		}
	}
	return n
}

// recordUsableInstance ends the back-off of the instance's template, because the Node of the instance was usable.
func (m *groupState) recordUsableInstance(r *launch.Instance) {
	if l, ok := m.launches[r.Launch]; ok && l.IsForRetirement() {
		launch.SetLaunchReady(&l, *r)
		m.launches[l.ID] = l
	}
	maps.DeleteFunc(m.backOffs, func(_ string, b v1alpha1.BackOff) bool { return launch.IsBackOffRefuted(&b, r) })
}

// removeJoinedFromProvisioning removes instances that have a Node now from the provisioning instances. When the cloud
// was read, they had no Node, so they would count twice. An instance with a usable Node is also recorded as joined for
// good, because the Node may be unusable at the next cloud read.
func (g *managedGroup) removeJoinedFromProvisioning(provider cloud.Provider, nodes []corev1.Node) {
	m := g.state
	m.launched = nil
	if len(m.tracking.Provisioning)+len(m.unjoined) == 0 || provider == nil {
		return
	}
	all := make([]*corev1.Node, len(nodes))
	for i := range nodes {
		all[i] = &nodes[i]
	}
	now := findJoinStates(provider, g.Group, m.appendUnshownInstances(m.instances), all)
	m.tracking.Provisioning = slices.DeleteFunc(m.tracking.Provisioning, func(w launch.ProvisioningInstance) bool { return now.nodeByID[w.ID] != nil })
	m.unjoined = slices.DeleteFunc(slices.Clone(m.unjoined), func(r launch.Instance) bool {
		switch now.stateByID[r.ProviderID] {
		case launch.NodeNotReady, launch.NodeUnusable:
			m.launched = append(m.launched, plan.LaunchedInstance{
				ProvisioningInstance: launch.ProvisioningInstance{ID: r.ProviderID, Template: m.cloudTemplateName(r.Template)}, Node: now.nodeByID[r.ProviderID],
				Overdue: m.tracking.Overdue[r.ProviderID],
			})
			return false
		case launch.NodeUsable:
		default:
			return false
		}
		m.recordUsableInstance(&r)
		if m.joined == nil {
			m.joined = map[string]bool{}
		}
		m.joined[r.ProviderID] = true
		return true
	})
}

// appendUnshownInstances adds the recorded instances that this process has not seen in the cloud yet.
func (m *groupState) appendUnshownInstances(shown []cloud.Instance) []cloud.Instance {
	all, there := slices.Clone(shown), map[string]bool{}
	for _, i := range shown {
		there[i.ProviderID] = true
	}
	for _, r := range m.unjoined {
		if !there[r.ProviderID] {
			all = append(all, cloud.Instance{ProviderID: r.ProviderID})
		}
	}
	return all
}

// toPlanGroup returns the group as input of a decision.
func (g *managedGroup) toPlanGroup() plan.Group {
	m := g.state
	out := plan.Group{GroupSnapshot: g.GroupSnapshot, Templates: m.planTemplates, Provisioning: m.tracking.Provisioning, LaunchedInstances: m.launched, DevicesByNode: m.devicesByNode, ObservedSince: map[string]time.Time{}, Size: m.cloud.Size, CloudMaxSize: m.cloud.Max}
	for name, is := range m.observedNodes {
		out.ObservedSince[name] = is.at
	}
	out.CloudMinSize, out.Unreplaced = m.cloud.Min, g.countUnreplacedInstances()
	if g.Group.Spec.ScaleUp != nil && (m.readError != "" || m.cloudTemplates == nil || m.needsReread()) {
		var why string
		switch {
		case m.readError != "":
			why = "cannot read the group from its cloud: " + m.readError
		case m.cloudTemplates == nil:
			why = "the group has not been read from its cloud yet"
		case m.quietUntil.After(m.failedAt):
			why = "the cloud allows no requests until " + m.quietUntil.UTC().Format(time.RFC3339)
		default:
			why = "the group has not been read from its cloud since a launch failed"
		}
		out.ClosedReason = &plan.Reason{Rule: plan.CloudUnreadable, Group: g.name(), Message: why}
	}
	return out
}
