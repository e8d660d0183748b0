package autoscaler

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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	asked     []scaling.Asked // orders whose machines were not all seen
	settle    time.Duration   // how long machines are expected of an order whose answer was lost
	instances []cloud.Instance
	unread    string      // why the cloud could not be read the last time; empty when it could
	reading   bool        // the cloud is being asked
	wanted    atomic.Bool // the group is closed until the cloud has said what there is
	ahead     bool        // it was asked before the look that wants to know
	seen      time.Time   // when the cloud began to be asked for what was last taken in
	quiet     time.Time   // until when the cloud wants to be left alone about the group
	doubt     time.Time   // when an order last failed: no more is ordered until the cloud was asked after that
	lastOrder int
	open      int               // orders that the cloud has not answered
	placed    map[string]int    // the orders placed last, by kind
	short     map[int]int       // how many machines of an order that failed have not come, while a grant waits for that
	held      []grant           // by orders of which it is not known yet what has come
	leaving   map[string]bool   // machines that are being given up, by provider ID
	joined    map[string]bool   // machines of ours that have joined since their cloud was read, by provider ID
	types     map[string]string // of each node's machine
	told      map[string]string // what was last said of a node, by its UID
	kinds     []scaling.Kind

	backOffs map[string]v1alpha1.BackOff
	learned  map[string]v1alpha1.LearnedTemplate
	present  map[string]time.Time // when a node of a kind was last there
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
			g.memory = remember(g.Group.Status.ScaleUp, a.o.Settle)
			a.memory[g.name()] = g.memory
		}
		g.forgetNodes()
	}
	maps.DeleteFunc(a.memory, func(name string, _ *memory) bool { return !there[name] })
}

// forgetNodes forgets what was said of nodes that the group has no more.
func (g *known) forgetNodes() {
	there := map[string]bool{}
	for i := range g.Nodes {
		there[string(g.Nodes[i].Object.UID)] = true
	}
	maps.DeleteFunc(g.memory.told, func(uid, _ string) bool { return !there[uid] })
}

func remember(s *v1alpha1.ScaleUpStatus, settle time.Duration) *memory {
	m := &memory{
		watched: time.Now(), settle: settle, placed: map[string]int{}, short: map[int]int{}, leaving: map[string]bool{},
		backOffs: map[string]v1alpha1.BackOff{}, learned: map[string]v1alpha1.LearnedTemplate{}, present: map[string]time.Time{},
	}
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
	for _, o := range s.Orders {
		m.asked = append(m.asked, m.recallOrder(o))
	}
	return m
}

// recallOrder makes an order of what an earlier process wrote down of it. What the cloud has said to it since is lost.
func (m *memory) recallOrder(o v1alpha1.OpenOrder) scaling.Asked {
	m.lastOrder++
	answer := scaling.Lost
	if o.Refused {
		answer = scaling.Refused
	}
	asked := scaling.Asked{ID: m.lastOrder, Kind: o.Template, Count: int(o.Count), At: o.At.Time}
	asked.Reply(answer, o.Machines, m.watched, m.settle)
	return asked
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

// refuse leaves a kind of machine alone after an order that failed, for as long at least as the cloud wants to be.
func (m *memory) refuse(kind string, err error, now time.Time) v1alpha1.BackOff {
	b := m.fail(kind, scaling.ReasonOf(err), err.Error(), now)
	m.leaveAlone(err, now)
	if least := metav1.NewTime(now.Add(cloud.PauseOf(err))); b.Until.Before(&least) {
		b.Until = least
		m.backOffs[kind] = b
	}
	return b
}

// leaveAlone has the cloud not asked about the group for as long as its error asks for.
func (m *memory) leaveAlone(err error, now time.Time) {
	if until := now.Add(cloud.PauseOf(err)); until.After(m.quiet) {
		m.quiet = until
	}
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
	var all []*corev1.Node
	byKind := map[string][]*corev1.Node{}
	for i := range g.Nodes {
		n := g.Nodes[i].Object
		kind := m.kind(n)
		m.present[kind] = now
		if !budget.Ready(n) || scaling.IsArriving(n, startup, scaling.JoinTimeout(g.Group), now) || len(n.Status.Allocatable) == 0 {
			continue
		}
		all = append(all, n)
		if kind != "" {
			byKind[kind] = append(byKind[kind], n)
		}
	}
	for kind, nodes := range byKind {
		m.learned[kind] = *scaling.Learn(kind, nodes, startup)
	}
	slices.SortFunc(all, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	m.kinds = g.makeKinds(scaling.Learn("", all, startup), now)
}

// templateOf is a kind's name as the cloud lists it.
func (m *memory) templateOf(kind string) string {
	for _, t := range m.templates {
		if scaling.SameKind(t.Name, kind) {
			return t.Name
		}
	}
	return kind
}

// kind is the name of a node's kind of machine: as its label says, as its cloud does, or the only one that there is, of a cloud
// that does not say. It is empty when the group can have no more of the node's kind.
func (m *memory) kind(n *corev1.Node) string {
	for _, name := range []string{n.Labels[corev1.LabelInstanceTypeStable], n.Labels[corev1.LabelInstanceType], m.types[n.Name]} {
		for _, t := range m.templates {
			if name != "" && scaling.SameKind(t.Name, name) {
				return t.Name
			}
		}
	}
	if len(m.templates) == 1 && m.types[n.Name] == "" {
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
		i := slices.IndexFunc(m.templates, func(t cloud.Template) bool { return scaling.SameKind(t.Name, want.Name) })
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
			source.Learned, source.LongGone = &l, m.isLongGone(t.Name, now)
		}
		k := scaling.Kind{Name: t.Name, Cost: t.Cost, Node: scaling.NodeOf(g.Group, source)}
		if b, ok := m.backOffs[t.Name]; ok {
			k.Closed = scaling.ClosedBy(&b, g.name(), now)
		}
		kinds = append(kinds, k)
	}
	return kinds
}

// believed is for how long nodes that are gone are believed that their kind lacks something. Where what is declared is wrong,
// machines that the pods do not fit on come no more often than that.
const believed = time.Hour

// isLongGone reports whether no node of a kind has been there for long, as far as this process has seen. One that is still
// arriving, and may have no devices yet, is there.
func (m *memory) isLongGone(kind string, now time.Time) bool {
	last := m.watched
	if present := m.present[kind]; present.After(last) {
		last = present
	}
	return !now.Before(last.Add(believed))
}

func names(templates []cloud.Template) string {
	all := make([]string, 0, len(templates))
	for _, t := range templates {
		all = append(all, t.Name)
	}
	return fmt.Sprintf("%v", all)
}

// unsure reports whether an order has failed since the cloud was last asked what there is.
func (m *memory) unsure() bool { return !m.doubt.IsZero() && !m.seen.After(m.doubt) }

// expect counts what is ordered as on its way, and gives the order's ID.
func (m *memory) expect(o scaling.Order, at time.Time) (id int) {
	m.lastOrder++
	m.open++
	m.placed[o.Template] = m.lastOrder
	m.asked = append(m.asked, scaling.Asked{ID: m.lastOrder, Kind: o.Template, Count: o.Count, At: at})
	m.cloud.Size += o.Count
	for i := range o.Count {
		m.survey.Awaited = append(m.survey.Awaited, scaling.Machine{
			ID: fmt.Sprintf("asked-%d-%d", m.lastOrder, i), Kind: o.Template, Order: m.lastOrder,
		})
	}
	return m.lastOrder
}

// withdraw forgets an order that the cloud has not been asked for.
func (m *memory) withdraw(id int) {
	m.open--
	m.less(id, func(a *scaling.Asked) { m.short[id], a.Count = a.Count, 0 })
	m.asked = slices.DeleteFunc(m.asked, func(a scaling.Asked) bool { return a.ID == id })
}

// replied takes in what the cloud has said to an order, with the machines that it names. The order is kept until the cloud
// has been read after that, as some of its machines may have been made, whatever the answer is.
func (m *memory) replied(id int, answer scaling.Answer, named []string, at time.Time) {
	m.open--
	if answer != scaling.Taken {
		m.doubt = at
		m.wanted.Store(true)
	}
	m.less(id, func(a *scaling.Asked) {
		before := a.Count
		a.Reply(answer, named, at, m.settle)
		m.short[id] = max(0, before-a.Count)
	})
}

// less changes an order, and expects no more machines of it than are to come then.
func (m *memory) less(id int, change func(*scaling.Asked)) {
	i := slices.IndexFunc(m.asked, func(a scaling.Asked) bool { return a.ID == id })
	if i < 0 {
		return
	}
	before := m.asked[i].Expected()
	change(&m.asked[i])
	drop := before - m.asked[i].Expected()
	m.cloud.Size -= max(0, drop)
	m.survey.Awaited = slices.DeleteFunc(m.survey.Awaited, func(w scaling.Machine) bool {
		if w.Order != id || drop <= 0 {
			return false
		}
		drop--
		return true
	})
}

// mostWritten is how many back-offs, and how many kinds that were learned, the schema of a NodeGroup allows its status to have.
const mostWritten = 64

// status is what is written down of a group: the back-offs that end last, and of what was learned the kinds that the cloud has
// first, where there is more than there is room for.
func (m *memory) status() *v1alpha1.ScaleUpStatus {
	s := &v1alpha1.ScaleUpStatus{OnTheWay: int32(len(m.survey.Awaited)), Awaited: m.record}
	for i := range m.asked {
		o := &m.asked[i]
		s.Orders = append(s.Orders, v1alpha1.OpenOrder{
			Template: o.Kind, Count: int32(o.Count), At: metav1.NewTime(o.At).Rfc3339Copy(), Machines: o.Named,
			Refused: o.Answer == scaling.Refused,
		})
	}
	current := map[string]int{}
	for _, t := range m.templates {
		current[t.Name] = 1
	}
	s.Learned = firstOf(m.learned, func(a, b v1alpha1.LearnedTemplate) int { return cmp.Compare(current[b.Name], current[a.Name]) })
	s.BackOffs = firstOf(m.backOffs, func(a, b v1alpha1.BackOff) int { return b.Until.Compare(a.Until.Time) })
	return s
}

// firstOf are as many of what is known of kinds as may be written down, by name.
func firstOf[T any](all map[string]T, order func(a, b T) int) (list []T) {
	names := slices.Sorted(maps.Keys(all))
	slices.SortStableFunc(names, func(a, b string) int { return order(all[a], all[b]) })
	for _, name := range slices.Sorted(slices.Values(names[:min(len(names), mostWritten)])) {
		list = append(list, all[name])
	}
	return list
}

// write writes down what has changed. The groups of a file have nowhere to write it.
func (a *Autoscaler) write(ctx context.Context, groups []*known) error {
	var errs []error
	for _, g := range groups {
		if g.Group.UID == "" || g.Group.Spec.ScaleUp == nil {
			continue
		}
		now := g.memory.status()
		if equality.Semantic.DeepEqual(g.Group.Status.ScaleUp, now) {
			continue
		}
		whole := map[string]any{ // what is empty has to be said, or a merge leaves it
			"onTheWay": now.OnTheWay, "learned": now.Learned, "backOffs": now.BackOffs, "awaited": now.Awaited, "orders": now.Orders,
		}
		if err := a.writeDown(ctx, g, whole); client.IgnoreNotFound(err) != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// writeOrders writes down a group's orders before its cloud is asked for them: whoever leads after a crash has to know whose
// the machines are (I8). For those of a file the marks on their machines have to do.
func (a *Autoscaler) writeOrders(ctx context.Context, g *known) error {
	if g.Group.UID == "" {
		return nil
	}
	now := g.memory.status()
	return a.writeDown(ctx, g, map[string]any{"onTheWay": now.OnTheWay, "orders": now.Orders})
}

// writeDown writes parts of a group's status.
func (a *Autoscaler) writeDown(ctx context.Context, g *known, parts map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": g.Group.UID}, "status": map[string]any{"scaleUp": parts}})
	if err != nil {
		return err
	}
	target := &v1alpha1.NodeGroup{}
	target.Name = g.name()
	if err := a.o.Client.Status().Patch(ctx, target, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("status of NodeGroup %s: %w", g.name(), err)
	}
	return nil
}
