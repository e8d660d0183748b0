package autoscaler

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/nodegroup/scaling"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/retirement/budget"
)

// memory is what is remembered of a group from look to look. What has to outlive a restart is in its status too.
type memory struct {
	watched   time.Time // since when this process looks at it
	cloud     cloud.Group
	survey    scaling.Survey
	templates []cloud.Template
	asked     []scaling.Asked   // orders since the last survey
	unread    string            // why the cloud could not be read the last time; empty when it could
	types     map[string]string // of each node's machine
	told      map[string]string // what was last said of a node, by its UID
	kinds     []scaling.Kind

	backOffs map[string]v1alpha1.BackOff
	learned  map[string]v1alpha1.LearnedTemplate
	record   []v1alpha1.AwaitedMachine
}

// recall gives each group what is remembered of it, or what its status says after a restart, and forgets groups that are
// no more.
func (a *Autoscaler) recall(groups []*known) {
	a.mu.Lock()
	defer a.mu.Unlock()
	there := map[string]bool{}
	for _, g := range groups {
		there[g.name()] = true
		g.memory = a.memory[g.name()]
		if g.memory == nil {
			g.memory = remember(g.Group.Status.ScaleUp)
			a.memory[g.name()] = g.memory
		}
	}
	maps.DeleteFunc(a.memory, func(name string, _ *memory) bool { return !there[name] })
}

func remember(s *v1alpha1.ScaleUpStatus) *memory {
	m := &memory{watched: time.Now(), backOffs: map[string]v1alpha1.BackOff{}, learned: map[string]v1alpha1.LearnedTemplate{}}
	if s == nil {
		return m
	}
	for _, b := range s.BackOffs {
		m.backOffs[b.Template] = b
	}
	for _, l := range s.Learned {
		m.learned[l.Name] = l
	}
	m.record = s.Awaited
	return m
}

// fail leaves a kind of machine alone for a while.
func (m *memory) fail(kind, reason, message string, now time.Time) v1alpha1.BackOff {
	var before *v1alpha1.BackOff
	if b, ok := m.backOffs[kind]; ok && !scaling.Forgiven(&b, now) {
		before = &b
	}
	const longest = 512
	b := scaling.After(before, kind, reason, observe.Clip(message, longest), now)
	m.backOffs[kind] = b
	return b
}

// forgive drops the back-offs that have been over for long.
func (m *memory) forgive(now time.Time) {
	maps.DeleteFunc(m.backOffs, func(_ string, b v1alpha1.BackOff) bool { return scaling.Forgiven(&b, now) })
}

// learn notes what the nodes of each kind have.
func (g *known) learn(now time.Time) {
	m := g.memory
	var startup []string
	if up := g.Group.Spec.ScaleUp; up != nil {
		startup = up.StartupTaints
	}
	byKind := map[string][]*corev1.Node{}
	for i := range g.Nodes {
		n := g.Nodes[i].Object
		kind := m.kind(n)
		if kind == "" {
			continue
		}
		if budget.Ready(n) && !scaling.IsArriving(n, startup, scaling.JoinTimeout(g.Group), now) && len(n.Status.Allocatable) > 0 {
			byKind[kind] = append(byKind[kind], n)
		}
	}
	var all []*corev1.Node
	for kind, nodes := range byKind {
		m.learned[kind] = *scaling.Learn(kind, nodes, startup)
		all = append(all, nodes...)
	}
	slices.SortFunc(all, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	m.kinds = g.makeKinds(scaling.Learn("", all, startup), now)
}

// kind is the name of a node's kind of machine: as its label says, as its cloud does, or the only one that there is.
func (m *memory) kind(n *corev1.Node) string {
	for _, name := range []string{n.Labels[corev1.LabelInstanceTypeStable], n.Labels[corev1.LabelInstanceType], m.types[n.Name]} {
		for _, t := range m.templates {
			if name != "" && sameKind(t.Name, name) {
				return t.Name
			}
		}
	}
	if len(m.templates) == 1 {
		return m.templates[0].Name
	}
	return ""
}

// makeKinds makes what is known of the group's kinds of machines into what is decided on, in the order in which the group
// prefers them.
func (g *known) makeKinds(siblings *v1alpha1.LearnedTemplate, now time.Time) []scaling.Kind {
	m, up := g.memory, g.Group.Spec.ScaleUp
	if up == nil {
		return nil
	}
	templates, declared := m.templates, map[string]corev1.ResourceList{}
	var kinds []scaling.Kind
	if len(up.Templates) > 0 {
		templates = nil
	}
	for _, want := range up.Templates {
		i := slices.IndexFunc(m.templates, func(t cloud.Template) bool { return sameKind(t.Name, want.Name) })
		if i < 0 {
			kinds = append(kinds, scaling.Kind{Name: want.Name, Closed: &scaling.Reason{
				Rule: scaling.NoTemplate, Group: g.name(), Template: want.Name,
				Message: fmt.Sprintf("its cloud has no such kind of machine for the group: it has %s", names(m.templates)),
			}})
			continue
		}
		templates = append(templates, m.templates[i])
		declared[m.templates[i].Name] = want.Allocatable
	}
	for _, t := range templates {
		source := scaling.Source{Template: t, Declared: declared[t.Name], Siblings: siblings}
		if l, ok := m.learned[t.Name]; ok {
			source.Learned = &l
		}
		k := scaling.Kind{Name: t.Name, Cost: t.Cost, Node: scaling.NodeOf(g.Group, source)}
		if b, ok := m.backOffs[t.Name]; ok {
			k.Closed = scaling.ClosedBy(&b, g.name(), now)
		}
		kinds = append(kinds, k)
	}
	return kinds
}

func names(templates []cloud.Template) string {
	all := make([]string, 0, len(templates))
	for _, t := range templates {
		all = append(all, t.Name)
	}
	return fmt.Sprintf("%v", all)
}

// status is what is written down of a group.
func (m *memory) status() *v1alpha1.ScaleUpStatus {
	s := &v1alpha1.ScaleUpStatus{OnTheWay: int32(len(m.survey.Awaited)), Awaited: m.record}
	for _, name := range slices.Sorted(maps.Keys(m.learned)) {
		s.Learned = append(s.Learned, m.learned[name])
	}
	for _, name := range slices.Sorted(maps.Keys(m.backOffs)) {
		s.BackOffs = append(s.BackOffs, m.backOffs[name])
	}
	return s
}

// write writes down what has changed. The groups of a file have nowhere to write it.
func (a *Autoscaler) write(ctx context.Context, groups []*known) error {
	for _, g := range groups {
		if g.Group.UID == "" || g.Group.Spec.ScaleUp == nil {
			continue
		}
		now := g.memory.status()
		if equality.Semantic.DeepEqual(g.Group.Status.ScaleUp, now) {
			continue
		}
		whole := map[string]any{ // what is empty has to be said, or a merge leaves it
			"onTheWay": now.OnTheWay, "learned": now.Learned, "backOffs": now.BackOffs, "awaited": now.Awaited,
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": g.Group.UID}, "status": map[string]any{"scaleUp": whole}})
		if err != nil {
			return err
		}
		target := &v1alpha1.NodeGroup{}
		target.Name = g.name()
		if err := a.o.Client.Status().Patch(ctx, target, client.RawPatch(types.MergePatchType, patch)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("status of NodeGroup %s: %w", g.name(), err)
		}
	}
	return nil
}
