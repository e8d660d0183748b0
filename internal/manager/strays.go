package manager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/strays"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/nodegroup/scaling"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/retirement"
	"github.com/slipway-dev/slipway/internal/retirement/budget"
)

// The values of Config.Strays.
const (
	ReportStrays  = "report"
	CollectStrays = "collect"
)

const (
	// strayLooks is how many looks of a NodeGroup at its cloud pass between two for strays, which read every Node.
	strayLooks = 5
	// strayTimeout bounds one look.
	strayTimeout = 2 * time.Minute
	// nodePage is how many Nodes, or NodeRetirements, are read at once.
	nodePage = 500
	// straysRequester is who asks for the retirements of ghosts.
	straysRequester = "slipway manager, strays"
)

// eventReason is the reason of an Event about a stray.
type eventReason string

// The reasons. The comment of each says of which type its Events are, what they are on, and when they are written.
const (
	// eventOrphan is Warning, on NodeGroup: a machine is the cluster's and has no Node.
	eventOrphan eventReason = "OrphanFound"
	// eventOrphansKept is Warning, on NodeGroup: such machines are too many at once, or none of the cluster's has a Node, so that
	// none of them is deleted.
	eventOrphansKept eventReason = "OrphansKept"
	// eventOrphanCollected is Warning, on NodeGroup: such a machine is deleted.
	eventOrphanCollected eventReason = "OrphanDeleted"
	// eventGhost is Warning, on Node: the Node has no machine.
	eventGhost eventReason = "MachineMissing"
)

// How sure it is that something is a stray.
const (
	suspected = "suspected"
	proven    = "proven"
)

// marking is a cloud that tells by its own marks which machines are the cluster's, whatever group they are in. Of any
// other cloud it is not known whose a machine without a Node is.
type marking interface {
	strays.Deleter
	Name() string
	Ours(ctx context.Context) ([]cloud.Instance, error)
}

// unmarked is a cloud without such marks, whose word that a machine is gone holds for all of it: it has ghosts, and no
// orphans. That it is not asked to delete anything is why it has no Delete here.
type unmarked interface {
	strays.Cloud
	cloud.GoneProver
	Name() string
	Instances(ctx context.Context, group string) ([]cloud.Instance, error)
}

// strayWatch finds the orphans and ghosts of one cloud, tells of each, and collects those that are due when it is told to:
// the machine of an orphan is deleted, and for the Node of a ghost a NodeRetirement is asked for, which makes its own sure
// that the machine is gone. It is a manager's Runnable.
type strayWatch struct {
	name     string        // the cloud's
	marking  marking       // nil for one without marks
	unmarked unmarked      // nil for one with marks
	client   client.Client // makes NodeRetirements
	// live reads Nodes past the cache, which leaves out what tells them apart, and NodeRetirements, of which the cache has
	// those alone that this manager acts on.
	live     client.Reader
	groups   *Groups
	selector labels.Selector
	collects bool
	grace    strays.Grace
	every    time.Duration
	events   events.EventRecorder
	metrics  *strayMetrics
	log      *slog.Logger

	told map[string]string // what was last said, by kind and name
	kept map[string]bool   // the cloud's groups of which it was said that their orphans are kept
}

// addStrays adds what looks for strays in each cloud that can tell which machines are the cluster's, or at least for
// certain that one is gone.
func addStrays(m manager.Manager, c Config, groups *Groups, clouds map[string]cloud.Provider, metrics *strayMetrics, log *slog.Logger) error {
	for _, p := range clouds {
		s := &strayWatch{
			client: m.GetClient(), live: m.GetAPIReader(), groups: groups, selector: c.parsedSelector,
			collects: c.Strays == CollectStrays, grace: strays.DefaultGrace(), every: strayLooks * c.GroupPoll,
			events: m.GetEventRecorder("slipway"), metrics: metrics, log: log.With("cloud", p.Name()),
		}
		if !s.of(p) {
			continue
		}
		if err := m.Add(s); err != nil {
			return err
		}
	}
	return nil
}

// of has the watch look at a cloud, and says whether there is anything to be found in it.
func (s *strayWatch) of(p interface{ Name() string }) bool {
	s.name = p.Name()
	var ok bool
	if s.marking, ok = p.(marking); !ok {
		s.unmarked, ok = p.(unmarked)
	}
	return ok
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*strayWatch) NeedLeaderElection() bool { return true }

// Start looks until ctx ends.
func (s *strayWatch) Start(ctx context.Context) error {
	s.told = map[string]string{}
	finder := s.finder()
	for {
		if err := s.look(ctx, finder); err != nil && ctx.Err() == nil {
			s.metrics.failures.WithLabelValues(s.name).Inc()
			s.log.Warn("not everything is known of machines without a Node and Nodes without a machine", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(s.every):
		}
	}
}

func (s *strayWatch) look(ctx context.Context, finder *strays.Finder) error {
	ctx, cancel := context.WithTimeout(ctx, strayTimeout)
	defer cancel()
	sight, err := s.see(ctx)
	if err != nil {
		return err
	}
	findings, unknown := s.find(ctx, finder, sight)
	s.tell(sight, findings)
	if !s.collects {
		return unknown
	}
	return errors.Join(unknown, s.collectOrphans(ctx, sight, findings), s.retireGhosts(ctx, sight, findings))
}

func (s *strayWatch) finder() *strays.Finder {
	if s.marking != nil {
		return strays.New(s.marking, s.grace)
	}
	return strays.New(s.unmarked, s.grace)
}

func (s *strayWatch) find(ctx context.Context, finder *strays.Finder, sight *straySight) ([]strays.Finding, error) {
	if s.marking != nil {
		finder.Spare = sight.spares
		findings, err := finder.Look(ctx, sight.machines, sight.nodes, time.Now())
		return slices.DeleteFunc(findings, func(f strays.Finding) bool { return f.Kind == strays.Ghost && s.othersNode(sight, f.Name) }), err
	}
	list := func(ctx context.Context) ([]cloud.Instance, error) { return s.listGroups(ctx, sight) }
	return finder.Ghosts(ctx, list, slices.DeleteFunc(slices.Clone(sight.nodes), func(n strays.Node) bool {
		return !s.mayAsk(sight, n)
	}), time.Now())
}

// mayAsk says whether a cloud without marks is to be asked about a Node: its owner is this manager's and says that it is
// there, and the cloud's word would prove something.
func (s *strayWatch) mayAsk(sight *straySight, n strays.Node) bool {
	g := sight.byName[sight.owner[n.Name]]
	return g != nil && s.mine(g) && g.Spec.Cloud.Provider == s.name && s.unmarked.ProvesGone(n.ProviderID)
}

// othersNode says that a Node's owner is a group of another cloud, whose machine's ID is only spelt as this one's are: a
// pool's machines have the IDs of the cloud that they are in.
func (s *strayWatch) othersNode(sight *straySight, node string) bool {
	g := sight.byName[sight.owner[node]]
	return g != nil && g.Spec.Cloud.Provider != s.name
}

func (s *strayWatch) mine(g *v1alpha1.NodeGroup) bool {
	return s.selector.Matches(labels.Set(g.Labels))
}

// listGroups lists the machines of all groups that this manager's NodeGroups have in the cloud, or nothing (I7). What
// another manager's NodeGroup calls a group may not be known to this one's configuration, nor be its credential's to read.
func (s *strayWatch) listGroups(ctx context.Context, sight *straySight) ([]cloud.Instance, error) {
	named := map[string]bool{}
	for _, g := range sight.byName {
		if s.mine(g) && g.Spec.Cloud.Provider == s.name {
			named[g.Spec.Cloud.Group] = true
		}
	}
	var all []cloud.Instance
	for _, group := range slices.Sorted(maps.Keys(named)) {
		machines, err := s.unmarked.Instances(ctx, group)
		if err != nil {
			return nil, fmt.Errorf("the machines of %s, without which no Node is called one without a machine: %w", group, err)
		}
		all = append(all, machines...)
	}
	return all, nil
}

// straySight is what one look has to go by.
type straySight struct {
	machines []cloud.Instance // of a cloud with marks: the cluster's
	nodes    []strays.Node
	uid      map[string]*corev1.Node        // by name
	owner    map[string]string              // node to group
	byName   map[string]*v1alpha1.NodeGroup // groups
	byCloud  map[string]*v1alpha1.NodeGroup // by the name that the cloud has for it
	leaving  map[string]bool                // nodes with a retirement that is not over
	inHand   map[string]bool                // machines with one
}

func (s *strayWatch) see(ctx context.Context) (*straySight, error) {
	groups, err := s.groups.List(ctx)
	if err != nil {
		return nil, err
	}
	leaving, inHand, err := s.readRetirements(ctx)
	if err != nil {
		return nil, err
	}
	var machines []cloud.Instance
	if s.marking != nil {
		if machines, err = s.marking.Ours(ctx); err != nil {
			return nil, err
		}
	}
	nodes, known, err := s.readNodes(ctx) // after the machines: what has joined meanwhile is seen
	if err != nil {
		return nil, err
	}
	sight := &straySight{
		machines: machines, nodes: known, uid: map[string]*corev1.Node{}, owner: nodegroup.Claim(groups, nodes).Owner,
		byName: map[string]*v1alpha1.NodeGroup{}, byCloud: map[string]*v1alpha1.NodeGroup{}, leaving: leaving, inHand: inHand,
	}
	for i := range nodes {
		sight.uid[nodes[i].Name] = &nodes[i]
	}
	for i := range groups {
		sight.byName[groups[i].Name] = &groups[i]
		if groups[i].Spec.Cloud.Provider == s.name {
			sight.byCloud[groups[i].Spec.Cloud.Group] = &groups[i]
		}
	}
	return sight, nil
}

// readRetirements reads the retirements that are not over, of whichever manager, page by page: the names of their Nodes, and
// the IDs of their machines as the cloud spells them.
func (s *strayWatch) readRetirements(ctx context.Context) (leaving, inHand map[string]bool, err error) {
	leaving, inHand = map[string]bool{}, map[string]bool{}
	var page v1alpha1.NodeRetirementList
	for more := true; more; more = page.Continue != "" {
		o := &client.ListOptions{Limit: nodePage, Continue: page.Continue}
		page = v1alpha1.NodeRetirementList{}
		if err := s.live.List(ctx, &page, o); err != nil {
			return nil, nil, fmt.Errorf("NodeRetirements: %w", err)
		}
		for i := range page.Items {
			rt := &page.Items[i]
			if rt.Status.Phase.Finished() {
				continue
			}
			leaving[rt.Spec.NodeName] = true
			switch id, err := s.machineOf(rt); {
			case err == nil:
				inHand[id] = true
			case cloud.IsUnanswered(err):
				return nil, nil, fmt.Errorf("NodeRetirement %s: %w", rt.Name, err)
			}
		}
	}
	return leaving, inHand, nil
}

// machineOf gives the ID of a retirement's machine as the cloud spells it. An error that is not [cloud.IsUnanswered] says that
// it is none of this cloud's.
func (s *strayWatch) machineOf(rt *v1alpha1.NodeRetirement) (string, error) {
	id := rt.Spec.ProviderID
	if rt.Status.Captured != nil {
		id = rt.Status.Captured.ProviderID
	}
	if s.marking != nil {
		return s.marking.Normalize(id)
	}
	return s.unmarked.Normalize(id)
}

// spares says that a machine is no orphan: a retirement sees to it, or it may still join.
func (s *straySight) spares(m cloud.Instance) bool {
	return s.inHand[m.ProviderID] || s.mayJoin(m, time.Now())
}

// mayJoin says whether a machine has still time to join, by what its group gives it.
func (s *straySight) mayJoin(m cloud.Instance, now time.Time) bool {
	g := s.byCloud[m.Group]
	return g != nil && now.Before(m.Created.Add(scaling.JoinTimeout(g)))
}

// readNodes reads all Nodes page by page, and keeps of each what is needed.
func (s *strayWatch) readNodes(ctx context.Context) (nodes []corev1.Node, known []strays.Node, err error) {
	var page corev1.NodeList
	for more := true; more; more = page.Continue != "" {
		o := &client.ListOptions{Limit: nodePage, Continue: page.Continue}
		page = corev1.NodeList{}
		if err := s.live.List(ctx, &page, o); err != nil {
			return nil, nil, fmt.Errorf("nodes: %w", err)
		}
		for i := range page.Items {
			n := &page.Items[i]
			known = append(known, strays.Node{
				Name: n.Name, ProviderID: n.Spec.ProviderID, SystemUUID: n.Status.NodeInfo.SystemUUID, Ready: budget.Ready(n),
				Created: n.CreationTimestamp.Time, ControlPlane: retirement.IsControlPlane(n.Labels),
			})
			nodes = append(nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, Labels: n.Labels}})
		}
	}
	return nodes, known, nil
}

// tell counts what was found, and tells of each when it is first found and when it is due.
func (s *strayWatch) tell(sight *straySight, findings []strays.Finding) {
	told := map[string]string{}
	counts := map[[2]string]float64{}
	for _, kind := range s.kinds() {
		for _, state := range []string{suspected, proven} {
			counts[[2]string{string(kind), state}] = 0
		}
	}
	for _, f := range findings {
		state := suspected
		if f.Due {
			state = proven
		}
		counts[[2]string{string(f.Kind), state}]++
		key := string(f.Kind) + " " + f.ProviderID + " " + f.Name
		told[key] = state
		if s.told[key] == state {
			continue
		}
		s.log.Warn("a stray", "kind", f.Kind, "name", f.Name, "providerID", f.ProviderID, "group", f.Group, "state", state, "since", f.Since,
			"proofs", f.Proofs)
		s.announce(sight, f, state)
	}
	s.told = told
	if s.collects {
		s.tellKept(sight, findings)
	}
	for key, n := range counts {
		s.metrics.strays.WithLabelValues(s.name, key[0], key[1]).Set(n)
	}
}

// tellKept tells that orphans are kept, and what is to be done about it, once for each of the cloud's groups that has any.
func (s *strayWatch) tellKept(sight *straySight, findings []strays.Finding) {
	kept := map[string]bool{}
	for _, f := range findings {
		if f.Kept == "" || kept[f.Group] {
			continue
		}
		kept[f.Group] = true
		if s.kept[f.Group] {
			continue
		}
		note := fmt.Sprintf("orphans are not deleted: %s. "+
			"Have their kubelets join again, or delete by hand in the cloud what the cluster does not need", f.Kept)
		s.log.Warn(note, "group", f.Group)
		s.onGroup(sight, f.Group, eventOrphansKept, "kept", note)
	}
	s.kept = kept
}

// kinds are those that may be found in the cloud.
func (s *strayWatch) kinds() []strays.Kind {
	if s.marking != nil {
		return []strays.Kind{strays.Orphan, strays.Ghost}
	}
	return []strays.Kind{strays.Ghost}
}

func (s *strayWatch) announce(sight *straySight, f strays.Finding, state string) {
	note := fmt.Sprintf("%s, %s: %s", f, state, s.intent(f))
	if f.Kind == strays.Ghost {
		if n := sight.uid[f.Name]; n != nil {
			s.emit(&corev1.Node{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID},
			}, eventGhost, state, note)
		}
		return
	}
	s.onGroup(sight, f.Group, eventOrphan, state, note)
}

// intent is what follows for a stray.
func (s *strayWatch) intent(f strays.Finding) string {
	switch {
	case !s.collects:
		return "it is reported and left alone"
	case f.Kind == strays.Ghost:
		return fmt.Sprintf("its Node is retired when that has been so for %s", s.grace.Stay)
	case f.Kept != "":
		return "it is left alone: " + f.Kept
	}
	return fmt.Sprintf("it is deleted when that has been so for %s", s.grace.Stay)
}

// onGroup makes an Event on the NodeGroup of a cloud's group, if there is one that has an object.
func (s *strayWatch) onGroup(sight *straySight, cloudGroup string, reason eventReason, action, note string) {
	g := sight.byCloud[cloudGroup]
	if g == nil || g.UID == "" {
		return
	}
	s.emit(&v1alpha1.NodeGroup{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeGroup"},
		ObjectMeta: metav1.ObjectMeta{Name: g.Name, UID: g.UID},
	}, reason, action, note)
}

// emit makes an Event, whose action keeps it apart from one about another machine: of Events that differ in their notes
// alone the API server keeps the first.
func (s *strayWatch) emit(about client.Object, reason eventReason, action, note string) {
	const maxAction = 128
	s.events.Eventf(about, nil, corev1.EventTypeWarning, string(reason), observe.Clip(action, maxAction), "%s", observe.Note(note))
}

// collectOrphans deletes the machines of the orphans that are due (I4, I7). A cloud without marks has none.
func (s *strayWatch) collectOrphans(ctx context.Context, sight *straySight, findings []strays.Finding) error {
	if s.marking == nil {
		return nil
	}
	collector := strays.Collector{Cloud: s.marking, Log: s.log, Nodes: func(ctx context.Context) ([]strays.Node, error) {
		_, known, err := s.readNodes(ctx)
		return known, err
	}}
	begun, err := collector.Collect(ctx, findings)
	for _, id := range begun {
		s.metrics.collected.WithLabelValues(s.name, string(strays.Orphan)).Inc()
		for _, f := range findings {
			if f.ProviderID == id {
				s.onGroup(sight, f.Group, eventOrphanCollected, f.Name, f.String())
			}
		}
	}
	return err
}

// retireGhosts asks for the retirement of the Nodes that are due, of groups that are this manager's. A Node of no group is
// reported only: nobody has said that Slipway may take it.
func (s *strayWatch) retireGhosts(ctx context.Context, sight *straySight, findings []strays.Finding) error {
	var errs []error
	for _, f := range findings {
		n, g := sight.uid[f.Name], sight.byName[sight.owner[f.Name]]
		if f.Kind != strays.Ghost || !f.Due || n == nil || g == nil || sight.leaving[f.Name] || !s.mine(g) {
			continue
		}
		rt := &v1alpha1.NodeRetirement{
			ObjectMeta: metav1.ObjectMeta{Name: retirement.Name(n.Name, "ghost", n.UID, f.Since.Unix()), Labels: g.Labels},
			Spec: v1alpha1.NodeRetirementSpec{
				NodeName: n.Name, NodeUID: n.UID, Reason: v1alpha1.MachineGone, RequestedBy: straysRequester, Group: g.Name,
			},
		}
		switch err := s.client.Create(ctx, rt); {
		case apierrors.IsAlreadyExists(err):
		case err != nil:
			errs = append(errs, fmt.Errorf("NodeRetirement %s: %w", rt.Name, err))
		default:
			s.metrics.collected.WithLabelValues(s.name, string(strays.Ghost)).Inc()
		}
	}
	return errors.Join(errs...)
}

// strayMetrics tell of strays.
type strayMetrics struct {
	strays    *prometheus.GaugeVec
	collected *prometheus.CounterVec
	failures  *prometheus.CounterVec
}

func newStrayMetrics(r prometheus.Registerer) (*strayMetrics, error) {
	m := &strayMetrics{
		strays: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "slipway_strays",
			Help: "Machines of the cluster without a Node (Orphan, of a cloud that marks its machines) and Nodes without a machine (Ghost), " +
				"suspected or proven.",
		}, []string{"cloud", "kind", "state"}),
		collected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "slipway_strays_collected_total", Help: "Orphans whose machine was deleted, and ghosts whose Node's retirement was asked for.",
		}, []string{"cloud", "kind"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "slipway_strays_look_failures_total", Help: "Looks for strays that have left something open.",
		}, []string{"cloud"}),
	}
	return m, errors.Join(r.Register(m.strays), r.Register(m.collected), r.Register(m.failures))
}
