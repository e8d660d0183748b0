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
	"github.com/slipway-dev/slipway/internal/retirement/budget"
)

// sight is what a cloud has said of a group.
type sight struct {
	began     time.Time
	group     cloud.Group
	instances []cloud.Instance
	templates []cloud.Template
	unlisted  error // why the cloud does not say which templates there are
	joining
}

// readable reports whether a group is one whose cloud is asked about it.
func readable(g *known) bool { return g.Group.Spec.ScaleUp != nil && g.NotAccepted == "" }

// survey asks the clouds about the groups that get machines, all at once, and waits a little for what they say. What comes
// later is taken in by the next look; until then a group is taken for what it was, with what was ordered since.
func (a *Controller) survey(ctx context.Context, s *sources, groups []*known) {
	for _, g := range groups {
		if readable(g) && (!g.memory.ahead || g.memory.unsure()) {
			a.ask(ctx, s, g)
		}
		g.memory.ahead = false
	}
	a.await(ctx, groups, func(m *memory) bool { return !m.reading })
}

// askAhead has the clouds asked before a look that is about to begin, about the groups as the last one found them.
func (a *Controller) askAhead(ctx context.Context, s *sources) {
	for _, g := range a.last {
		if readable(g) && !g.memory.reading {
			g.memory.ahead = true
			a.ask(ctx, s, g)
		}
	}
}

// ask has a cloud asked about one group, unless it is being asked already, or wants to be left alone.
func (a *Controller) ask(ctx context.Context, s *sources, g *known) {
	if g.memory.reading || time.Now().Before(g.memory.quiet) {
		return
	}
	g.memory.reading = true
	g.memory.wanted.Store(g.memory.templates == nil || g.memory.unsure())
	a.work.Go(func() {
		v, err := a.see(ctx, s, g)
		a.answer(g, err == nil && v.unlisted == nil && g.memory.wanted.Load(), func(g *known) {
			g.memory.reading = false
			if err == nil {
				a.takeIn(g, v)
				err = v.unlisted
			}
			switch {
			case err == nil && g.memory.unsure(): // it began before an order failed
				a.again()
			case err != nil && ctx.Err() == nil:
				g.memory.unread = err.Error()
				g.memory.leaveAlone(err, time.Now())
				a.o.Log.Warn("the group cannot be read from its cloud, and gets no machines", "group", g.name(), "err", err)
			}
		})
	})
}

// see asks the cloud about one group. Without its templates it can get no machines, and those that it has are seen to all the
// same.
func (a *Controller) see(ctx context.Context, s *sources, g *known) (v sight, err error) {
	provider := a.o.Clouds[g.Group.Spec.Cloud.Provider]
	if provider == nil {
		return v, fmt.Errorf("no cloud %s is configured", g.Group.Spec.Cloud.Provider)
	}
	ctx, cancel := context.WithTimeout(ctx, cloudTimeout)
	defer cancel()
	v.began = time.Now()
	where := g.Group.Spec.Cloud.Group
	var failed [2]error
	var reads sync.WaitGroup
	reads.Go(func() { v.group, failed[0] = provider.Group(ctx, where) })
	reads.Go(func() { v.instances, failed[1] = provider.Instances(ctx, where) })
	reads.Go(func() { v.templates, v.unlisted = provider.Templates(ctx, where) })
	reads.Wait()
	if err := cmp.Or(failed[:]...); err != nil {
		return v, err
	}
	nodes, err := s.nodes.List(labels.Everything())
	if err != nil {
		return v, fmt.Errorf("nodes: %w", err)
	}
	v.joining = joined(provider, g.Group, v.instances, nodes)
	return v, nil
}

// takeIn makes what the cloud has said into what is remembered of a group.
func (a *Controller) takeIn(g *known, v sight) {
	m, now := g.memory, time.Now()
	v.leaveOut()
	done := map[string]bool{}
	maps.Copy(done, g.replacements)
	maps.Copy(done, m.joined)
	for _, l := range m.launches {
		if l.State == v1alpha1.LaunchReady && len(l.Instances) > 0 {
			done[l.Instances[0].ProviderID] = true
		}
	}
	m.survey = launch.Track(launch.Observation{
		Group: v.group, Instances: v.instances, Join: func(i cloud.Instance) launch.Join { return v.joins[i.ProviderID] },
		Known: m.survey.Known, Record: m.record, Pending: m.asked, UnseenSince: m.survey.UnseenSince, Watched: m.watched,
		JoinTimeout: plan.JoinTimeout(g.Group), Began: v.began, Now: now, Joined: done,
	})
	m.joined = nil // from now on they are known
	maps.DeleteFunc(m.unusable, func(id string, _ bool) bool { _, there := m.survey.Known[id]; return !there })
	g.leaveToRetirements(&m.survey)
	m.instances = v.instances
	m.cloud, m.types, m.unread, m.seen = v.group, v.types, "", v.began
	if v.unlisted == nil {
		m.templates = v.templates
	}
	m.record, m.asked = m.survey.Record, m.survey.Pending
	for _, o := range m.survey.Over {
		m.short[o.ID] += max(0, o.Count-len(o.Named))
	}
	if !m.cloud.Refills {
		m.survey.Unmade = 0
	}
	m.cloud.Size -= m.survey.Unmade // the next order asks for these, and leaves the size as it is
	m.cloud.Size = max(m.cloud.Size, meant(v.instances, m.asked))
	for _, r := range m.survey.Joined {
		m.hasJoined(&r)
	}
	for _, lapsed := range m.survey.Lapsed {
		b := m.fail(lapsed.Kind, launch.Failed, m.dropped(lapsed.Count), now)
		a.o.Metrics.dropped(g.name(), lapsed.Kind)
		a.backedOff(g, b)
	}
	for _, dead := range g.newlyDead(a.o.Clouds[g.Group.Spec.Cloud.Provider], &m.survey) { // before it is decided what to order in its place
		kind := m.templateOf(dead.Kind)
		if dead.Reason == launch.NeverUsable {
			if m.unusable[dead.Instance.ProviderID] {
				continue // it is one failure, however long it stays
			}
			m.unusable[dead.Instance.ProviderID] = true
			dead.Message += ": " + plan.WhyUnusable(g.Group, v.nodes[dead.Instance.ProviderID])
		}
		b, left := m.backOffs[kind]
		if !left || plan.ClosedBy(&b, g.name(), now) == nil {
			a.backedOff(g, m.fail(kind, dead.Reason, dead.Message, now))
		}
	}
	m.updateLaunches(now)
	for _, id := range m.survey.Strays {
		a.o.Log.Warn("a machine has no Node, and came after no order that is known; it is left alone", "group", g.name(), "providerID", id)
	}
}

// dropped says that an order has come to nothing, and what to do where the cloud goes on counting its machines.
func (m *memory) dropped(count int) string {
	message := fmt.Sprintf("the cloud has dropped an order of %d machines without a word", count)
	if n := m.survey.Unmade; n > 0 {
		message += fmt.Sprintf("; the group's size in the cloud counts %d machines that it does not have: "+
			"lower it to the machines that it has if they do not come", n)
	}
	return message
}

// leaveOut leaves out the machines that a group has adopted and that have no Node: they may be another cluster's, and
// neither fulfil an order nor count for a maximum.
func (v *sight) leaveOut() {
	var kept []cloud.Instance
	for _, i := range v.instances {
		switch {
		case !i.Adopted || v.joins[i.ProviderID] != launch.NoNode:
			kept = append(kept, i)
		case i.State != cloud.Deleting:
			v.group.Size = max(0, v.group.Size-1)
		}
	}
	v.instances = kept
}

// meant is how many machines a group has with those that are on order: the cloud may not count these yet.
func meant(instances []cloud.Instance, asked []launch.Pending) (n int) {
	for _, i := range instances {
		if i.State != cloud.Deleting {
			n++
		}
	}
	for _, a := range asked {
		n += a.Expected()
	}
	return n
}

// world puts together what is decided on.
func (a *Controller) world(s *sources, snapshot *snapshot.Snapshot, cluster *nodegroup.Cluster, groups []*known,
	waiting map[placement.PodKey]waitingPod,
) *plan.World {
	w := &plan.World{Snapshot: snapshot, Maximum: a.o.Maximum, Wishes: a.wishes(groups), Now: cluster.Now, Unreadiness: a.o.Unreadiness}
	for i := range cluster.Nodes {
		if fromcorev1.Node(&cluster.Nodes[i]).ControlPlane == "" {
			w.Nodes++
		}
	}
	if daemons, err := s.daemons.List(labels.Everything()); err == nil {
		w.Daemons = daemons
	}
	for key, p := range waiting {
		if snapshot.IsPending(key) { // the watch may have told of more by now
			w.Pods = append(w.Pods, plan.Pod{Key: key, Nominated: p.nominated})
		}
	}
	for _, g := range groups {
		g.dropJoined(a.o.Clouds[g.Group.Spec.Cloud.Provider], cluster.Nodes)
		g.memory.forgive(cluster.Now)
		g.learn(cluster.Now)
		g.observe(cluster.Now)
		w.Groups = append(w.Groups, g.decidedOn())
		g.memory.notSelected = w.Groups[len(w.Groups)-1].NotSelected()
	}
	w.Unready = unready(w, cluster)
	a.o.Metrics.unreadyNodes(w)
	return w
}

// unready counts the nodes that are neither Ready nor arriving nor being taken out of service. One of no group that gets instances
// may be a new one whose labels have not come yet: it is arriving when any group would have it so.
func unready(w *plan.World, cluster *nodegroup.Cluster) (n int) {
	byName := map[string]*plan.Group{}
	for i := range w.Groups {
		byName[w.Groups[i].Group.Name] = &w.Groups[i]
	}
	for i := range cluster.Nodes {
		node := &cluster.Nodes[i]
		if fromcorev1.Node(node).ControlPlane != "" || budget.Ready(node) || budget.IsLeaving(node) {
			continue
		}
		mine := w.Groups
		if g := byName[cluster.Claims.Owner[node.Name]]; g != nil {
			mine = []plan.Group{*g}
		}
		if !slices.ContainsFunc(mine, func(g plan.Group) bool { return g.IsProvisioning(node, cluster.Now) }) {
			n++
		}
	}
	return n
}

// hasJoined forgets failures of a machine's kind, now that its Node has been usable.
func (m *memory) hasJoined(r *launch.Instance) {
	if l, ok := m.launches[r.Launch]; ok && l.IsForRetirement() {
		launch.SetReady(&l, *r)
		m.launches[l.ID] = l
	}
	maps.DeleteFunc(m.backOffs, func(_ string, b v1alpha1.BackOff) bool { return launch.Refuted(&b, r) })
}

// dropJoined awaits no machine any more that has a Node now, though its cloud was asked before that: it would count twice. One
// whose Node is usable has joined, however long it takes until its cloud can be read again: it may not be usable just then.
func (g *known) dropJoined(provider cloud.Provider, nodes []corev1.Node) {
	m := g.memory
	m.launched = nil
	if len(m.survey.Awaited)+len(m.record) == 0 || provider == nil {
		return
	}
	all := make([]*corev1.Node, len(nodes))
	for i := range nodes {
		all[i] = &nodes[i]
	}
	now := joined(provider, g.Group, m.withRecorded(m.instances), all)
	m.survey.Awaited = slices.DeleteFunc(m.survey.Awaited, func(w launch.Expected) bool { return now.nodes[w.ID] != nil })
	m.record = slices.DeleteFunc(slices.Clone(m.record), func(r launch.Instance) bool {
		switch now.joins[r.ProviderID] {
		case launch.HasNode, launch.NodeUnusable:
			m.launched = append(m.launched, plan.Launched{
				Expected: launch.Expected{ID: r.ProviderID, Kind: m.templateOf(r.Template)}, Node: now.nodes[r.ProviderID],
				Overdue: m.survey.Overdue[r.ProviderID],
			})
			return false
		case launch.NodeUsable:
		default:
			return false
		}
		m.hasJoined(&r)
		if m.joined == nil {
			m.joined = map[string]bool{}
		}
		m.joined[r.ProviderID] = true
		return true
	})
}

// withRecorded are machines with those on record that the cloud has not shown since this process began.
func (m *memory) withRecorded(shown []cloud.Instance) []cloud.Instance {
	all, there := slices.Clone(shown), map[string]bool{}
	for _, i := range shown {
		there[i.ProviderID] = true
	}
	for _, r := range m.record {
		if !there[r.ProviderID] {
			all = append(all, cloud.Instance{ProviderID: r.ProviderID})
		}
	}
	return all
}

// decidedOn is the group as scaling sees it.
func (g *known) decidedOn() plan.Group {
	m := g.memory
	out := plan.Group{World: g.World, Kinds: m.kinds, Awaited: m.survey.Awaited, Launched: m.launched, Devices: m.devices, Observed: map[string]time.Time{}, Size: m.cloud.Size, Most: m.cloud.Max}
	for name, is := range m.observed {
		out.Observed[name] = is.at
	}
	out.CloudMinimum, out.Unreplaced = m.cloud.Min, g.countUnreplaced()
	if g.Group.Spec.ScaleUp != nil && (m.unread != "" || m.templates == nil || m.unsure()) {
		why := m.unread
		switch {
		case why != "":
		case m.templates == nil:
			why = "it has not been read yet"
		case m.quiet.After(m.doubt):
			why = "it asks to be left alone until " + m.quiet.UTC().Format(time.RFC3339)
		default:
			why = "it has not been read since an order failed"
		}
		out.Closed = &plan.Reason{Rule: plan.CloudUnreadable, Group: g.name(), Message: "its cloud cannot be read: " + why}
	}
	return out
}
