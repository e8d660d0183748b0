package autoscaler

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/nodegroup/scaling"
	"github.com/slipway-dev/slipway/internal/placement"
)

func sameKind(a, b string) bool { return strings.EqualFold(a, b) }

// survey asks the clouds about the groups that get machines, all at once.
func (a *Autoscaler) survey(ctx context.Context, s *sources, groups []*known) {
	nodes, err := s.nodes.List(labels.Everything())
	if err != nil {
		return // a lister of a cache does not fail
	}
	var all sync.WaitGroup
	for _, g := range groups {
		if g.Group.Spec.ScaleUp == nil || g.NotAccepted != "" {
			continue
		}
		all.Go(func() {
			if err := a.ask(ctx, g, nodes); err != nil && ctx.Err() == nil {
				g.memory.unread = err.Error()
				a.o.Log.Warn("the group cannot be read from its cloud, and gets no machines", "group", g.name(), "err", err)
			}
		})
	}
	all.Wait()
}

// ask asks the cloud about one group, and takes in what it says. What is on its way is taken for what it was before when
// the cloud does not answer.
func (a *Autoscaler) ask(ctx context.Context, g *known, nodes []*corev1.Node) error {
	provider := a.o.Clouds[g.Group.Spec.Cloud.Provider]
	if provider == nil {
		return fmt.Errorf("no cloud %s is configured", g.Group.Spec.Cloud.Provider)
	}
	ctx, cancel := context.WithTimeout(ctx, cloudTimeout)
	defer cancel()
	m, where := g.memory, g.Group.Spec.Cloud.Group
	var group cloud.Group
	var instances []cloud.Instance
	var templates []cloud.Template
	var failed [3]error
	var reads sync.WaitGroup
	reads.Go(func() { group, failed[0] = provider.Group(ctx, where) })
	reads.Go(func() { instances, failed[1] = provider.Instances(ctx, where) })
	reads.Go(func() { templates, failed[2] = provider.Templates(ctx, where) })
	reads.Wait()
	for _, err := range failed {
		if err != nil {
			return err
		}
	}
	hasNode, types := joined(provider, instances, nodes)
	now := time.Now()
	m.survey = scaling.Look(scaling.Sight{
		Group: group, Instances: instances, HasNode: func(i cloud.Instance) bool { return hasNode[i.ProviderID] },
		Known: m.survey.Known, Record: m.record, Asked: m.asked, UnseenSince: m.survey.UnseenSince, Watched: m.watched,
		JoinTimeout: scaling.JoinTimeout(g.Group), Now: now,
	})
	m.cloud, m.templates, m.types, m.unread = group, templates, types, ""
	m.record, m.asked = m.survey.Record, m.survey.Asked
	for _, kind := range m.survey.Joined {
		delete(m.backOffs, kind)
	}
	for _, lapsed := range m.survey.Lapsed {
		b := m.fail(lapsed.Kind, scaling.Failed, fmt.Sprintf("the cloud has dropped an order of %d machines without a word", lapsed.Count), now)
		a.backedOff(g, b)
	}
	for _, dead := range m.survey.Dead { // before it is decided what to order in its place
		b, left := m.backOffs[dead.Instance.Type]
		if !left || scaling.ClosedBy(&b, g.name(), now) == nil {
			a.backedOff(g, m.fail(dead.Instance.Type, dead.Reason, dead.Message, now))
		}
	}
	for _, id := range m.survey.Strays {
		a.o.Log.Warn("a machine has no Node, and came after no order that is known; it is left alone", "group", g.name(), "providerID", id)
	}
	return nil
}

// joined tells which machines have a Node, by provider ID or by name, and the type of each Node's machine.
func joined(provider cloud.Provider, instances []cloud.Instance, nodes []*corev1.Node) (hasNode map[string]bool, types map[string]string) {
	byID, byName := map[string]string{}, map[string]bool{}
	for _, n := range nodes {
		byName[strings.ToLower(n.Name)] = true
		if id, err := provider.Normalize(n.Spec.ProviderID); n.Spec.ProviderID != "" && err == nil {
			byID[id] = n.Name
		}
	}
	hasNode, types = map[string]bool{}, map[string]string{}
	for _, i := range instances {
		name, ok := byID[i.ProviderID]
		hasNode[i.ProviderID] = ok || byName[strings.ToLower(i.Name)] || i.ComputerName != "" && byName[strings.ToLower(i.ComputerName)]
		if ok {
			types[name] = i.Type
		}
	}
	return hasNode, types
}

// world puts together what is decided on.
func (a *Autoscaler) world(s *sources, snapshot *placement.Snapshot, cluster *nodegroup.Cluster, groups []*known,
	waiting map[placement.PodKey]waitingPod,
) *scaling.World {
	w := &scaling.World{Snapshot: snapshot, Maximum: a.o.Maximum, Wishes: a.o.Wishes.open(), Now: cluster.Now}
	for i := range cluster.Nodes {
		if !isControlPlane(&cluster.Nodes[i]) {
			w.Nodes++
		}
	}
	if daemons, err := s.daemons.List(labels.Everything()); err == nil {
		w.Daemons = daemons
	}
	for key, p := range waiting {
		if snapshot.IsPending(key) { // the watch may have told of more by now
			w.Pods = append(w.Pods, scaling.Pod{Key: key, Nominated: p.nominated})
		}
	}
	for _, g := range groups {
		g.memory.forgive(cluster.Now)
		g.learn(cluster.Now)
		w.Groups = append(w.Groups, g.decidedOn())
	}
	return w
}

// decidedOn is the group as scaling sees it.
func (g *known) decidedOn() scaling.Group {
	m := g.memory
	out := scaling.Group{World: g.World, Kinds: m.kinds, Awaited: m.survey.Awaited, Size: m.cloud.Size, Most: m.cloud.Max}
	if g.Group.Spec.ScaleUp != nil && (m.unread != "" || m.templates == nil) {
		why := m.unread
		if why == "" {
			why = "it has not been read yet"
		}
		out.Closed = &scaling.Reason{Rule: scaling.CloudUnreadable, Group: g.name(), Message: "its cloud cannot be read: " + why}
	}
	return out
}

func isControlPlane(n *corev1.Node) bool {
	for _, key := range []string{"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"} {
		if _, is := n.Labels[key]; is {
			return true
		}
	}
	return false
}
