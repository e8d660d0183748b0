package plan

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
)

// The simulation is one day of load. Deployments grow and shrink, a scheduler places their pods, and a cloud creates
// instances slowly, wrongly or not at all. Retired nodes are drained for some minutes. Up, Down and Track decide minute by
// minute while anything happens.

const (
	tick     = time.Minute
	quiet    = 15 // minutes at most between two decisions while nothing happens
	day      = 24 * time.Hour
	cooldown = 10 * time.Minute
	joinTime = 15 * time.Minute
)

// load is the load of one deployment: how many pods it has from a minute of the day on.
type load struct {
	cpu, memory string
	levels      []level
}

type level struct{ minute, replicas int }

// fate is what happens to the instances of a launch.
type fate int

const (
	joins fate = iota
	failsAtOnce
	failsLater
	buildsForLong
	neverJoins
	cordonedForLong // its Node joins cordoned, and is uncordoned long after the join timeout
	labelledLate    // its Node joins without the group's label, and gets it after some minutes
)

type scenario struct {
	loads    []load
	fates    []fate
	minimum  int32
	maximum  int32
	quota    int
	spare    int32
	policy   v1alpha1.ScaleUpPolicy
	together bool
	drain    int  // minutes until a retired node is empty, if no PDB delays it
	pdb      bool // a PodDisruptionBudget allows one pod of the first deployment to be unavailable
}

var scenarios = rapid.Custom(func(t *rapid.T) scenario {
	s := scenario{
		minimum: rapid.Int32Range(0, 2).Draw(t, "minimum"), maximum: rapid.Int32Range(8, 16).Draw(t, "maximum"),
		spare: rapid.Int32Range(0, 2).Draw(t, "spare"), together: rapid.Bool().Draw(t, "consolidate"),
		policy: rapid.SampledFrom([]v1alpha1.ScaleUpPolicy{v1alpha1.LeastWaste, v1alpha1.LeastCost, v1alpha1.FirstTemplate}).Draw(t, "policy"),
		quota:  rapid.IntRange(10, 24).Draw(t, "quota"),
	}
	s.fates = rapid.SliceOfN(rapid.SampledFrom([]fate{joins, joins, joins, joins, failsAtOnce, failsLater, buildsForLong, neverJoins, cordonedForLong, labelledLate}), 16, 16).Draw(t, "fates")
	for range rapid.IntRange(2, 5).Draw(t, "deployments") {
		l := load{
			cpu:    rapid.SampledFrom([]string{"200m", "500m", "1", "2"}).Draw(t, "cpu"),
			memory: rapid.SampledFrom([]string{"256Mi", "1Gi", "3Gi"}).Draw(t, "memory"),
		}
		for range rapid.IntRange(2, 12).Draw(t, "changes") {
			l.levels = append(l.levels, level{rapid.IntRange(0, 22*60).Draw(t, "minute"), rapid.IntRange(0, 12).Draw(t, "replicas")})
		}
		slices.SortFunc(l.levels, func(a, b level) int { return cmp.Compare(a.minute, b.minute) })
		s.loads = append(s.loads, l)
	}
	s.drain, s.pdb = rapid.IntRange(0, 5).Draw(t, "drain"), rapid.Bool().Draw(t, "pdb")
	return s
})

func (l *load) replicasAt(minute int) (replicas int) {
	for _, v := range l.levels {
		if v.minute <= minute {
			replicas = v.replicas
		}
	}
	return replicas
}

// simulated is an instance of the cloud.
type simulated struct {
	cloud.Instance
	fate  fate
	since time.Time
	node  bool
}

// removal is a node that was retired. replicas is the smallest size of each deployment since. unplaced counts the pods
// and headroom pods without a place at that time: instances launched for those are an exchange, and no flap.
type removal struct {
	node     string
	at       time.Time
	gone     time.Time // when the drained node was deleted, or now
	replicas []int
	unplaced int
	moved    []placement.PodKey        // the node's pods
	waiting  map[placement.PodKey]bool // pods that were unschedulable while the node existed
	others   map[string]bool           // the other nodes that were Ready and stayed
}

type simulation struct {
	t    rapid.TB
	s    scenario
	now  time.Time
	snap *snapshot.Snapshot

	group    *v1alpha1.NodeGroup
	kinds    []Template
	machines map[string]*simulated
	nodes    map[string]*corev1.Node
	draining map[string]int // evictions per minute, by the node that is being retired
	pods     map[placement.PodKey]*corev1.Pod
	serial   int

	watched  time.Time
	known    map[string]time.Time
	record   []launch.Instance
	asked    []launch.PendingLaunch
	unseen   time.Time
	backs    map[string]v1alpha1.BackOff
	unusable map[string]bool // instances that were never usable and count as failures

	removals []removal
	replicas []int
	unplaced int // pods and headroom pods without a place
	launches int // instances that have joined
	rises    int // the total rise of the needed number of instances
	need     int
	troubled time.Time // when something last failed
	flaps    []string
	happened bool // in this decision
}

func newSimulation(t rapid.TB, s scenario) *simulation {
	g := newNodeGroup("web", s.maximum, func(g *v1alpha1.NodeGroup) {
		g.Spec.MinSize = s.minimum
		g.Spec.ScaleUp.Policy = s.policy
		g.Spec.ScaleUp.JoinTimeout = &metav1.Duration{Duration: joinTime}
		if s.spare > 0 {
			g.Spec.ScaleUp.Headroom = &v1alpha1.Headroom{Slots: s.spare, Requests: resources("500m", "512Mi")}
		}
		g.Spec.ScaleDown = &v1alpha1.ScaleDown{Underutilized: &v1alpha1.UnderutilizedRule{
			Consolidate: s.together, Cooldown: &metav1.Duration{Duration: cooldown},
		}}
		g.Spec.DisruptionBudgets = []v1alpha1.DisruptionBudget{{Nodes: intstr.FromInt32(2)}}
	})
	return &simulation{
		t: t, s: s, now: start, snap: snapshot.New(), group: g, watched: start,
		kinds:    []Template{newKind(g, "m4", "4", "16Gi"), newKind(g, "c8", "8", "16Gi")},
		machines: map[string]*simulated{}, nodes: map[string]*corev1.Node{}, draining: map[string]int{}, pods: map[placement.PodKey]*corev1.Pod{},
		backs: map[string]v1alpha1.BackOff{}, unusable: map[string]bool{}, replicas: make([]int, len(s.loads)),
	}
}

func (m *simulation) must(err error) {
	if err != nil {
		m.t.Helper()
		m.t.Fatalf("%s: %v", m.now.Format(time.TimeOnly), err)
	}
}

// run simulates the day.
func (m *simulation) run() {
	step := 1
	for minute := 0; minute < int(day/tick); minute = min(minute+step, m.nextChange(minute)) {
		m.now, m.happened = start.Add(time.Duration(minute)*tick), false
		m.applyDemand(minute)
		m.advanceInstances()
		m.drainNodes()
		m.schedulePods()
		m.decide()
		m.checkInvariants()
		if step = min(2*step, quiet); m.happened {
			step = 1
		}
	}
	m.checkSettled()
}

// nextChange returns the next minute of a change of any deployment.
func (m *simulation) nextChange(minute int) int {
	next := int(day / tick)
	for i := range m.s.loads {
		for _, v := range m.s.loads[i].levels {
			if v.minute > minute {
				next = min(next, v.minute)
			}
		}
	}
	return next
}

// applyDemand creates and deletes pods.
func (m *simulation) applyDemand(minute int) {
	for i := range m.s.loads {
		l := &m.s.loads[i]
		want := l.replicasAt(minute)
		for r := want; r < m.replicas[i]; r++ {
			key := placement.PodKey{Namespace: "apps", Name: fmt.Sprintf("d%d-%d", i, r)}
			m.happened = true
			delete(m.pods, key)
			m.must(m.snap.DeletePod(key))
		}
		for r := m.replicas[i]; r < want; r++ {
			m.setPod(newPod(fmt.Sprintf("d%d-%d", i, r), "", l.cpu, l.memory, func(p *corev1.Pod) { p.Labels["app"] = fmt.Sprintf("d%d", i) }))
		}
		m.replicas[i] = want
		for _, r := range m.removals {
			r.replicas[i] = min(r.replicas[i], want)
		}
	}
	need := m.minInstances()
	m.rises += max(0, need-m.need)
	m.need = need
}

// minInstances returns the least number of the smaller instances that the pods need. It counts in whole units, so that
// rounding adds none.
func (m *simulation) minInstances() int {
	var cpu, memory int64
	for _, p := range m.pods {
		r := p.Spec.Containers[0].Resources.Requests
		cpu, memory = cpu+r.Cpu().MilliValue(), memory+r.Memory().Value()
	}
	machines := func(sum, each int64) int { return int((sum + each - 1) / each) }
	return max(machines(cpu, 4000), machines(memory, 16*gibi), int(m.s.minimum))
}

func (m *simulation) setPod(p *corev1.Pod) {
	m.happened = true
	m.pods[placement.PodKey{Namespace: p.Namespace, Name: p.Name}] = p
	m.must(m.snap.SetPod(p))
}

// advanceInstances simulates one minute of the cloud and the kubelets.
func (m *simulation) advanceInstances() {
	for _, id := range slices.Sorted(maps.Keys(m.machines)) {
		i := m.machines[id]
		age := m.now.Sub(i.since)
		m.happened = m.happened || !i.node || i.State == cloud.Deleting // provisioning instances need a decision each minute
		switch {
		case i.State == cloud.Deleting:
			delete(m.machines, id)
		case i.fate == failsLater && age >= 2*tick:
			i.State, i.Refusal, i.Message = cloud.Failed, cloud.NoCapacity, "no valid host"
		case i.fate == buildsForLong && age < 2*joinTime, age < 2*tick:
		case i.State == cloud.Pending:
			i.State = cloud.Running
		case i.fate == neverJoins || i.State == cloud.Failed:
		case !i.node:
			i.node = true
			m.launches++
			m.joinNode(id, i)
		case m.draining[id] > 0:
		case i.fate == cordonedForLong && age >= 3*joinTime && m.nodes[id].Spec.Unschedulable:
			m.changeNode(id, func(n *corev1.Node) { n.Spec.Unschedulable = false })
		case i.fate == labelledLate && age >= 6*tick && m.nodes[id].Labels[groupLabel] == "":
			m.changeNode(id, func(n *corev1.Node) { n.Labels[groupLabel] = m.group.Name })
		}
	}
	for _, n := range m.nodes {
		if !m.isReady(n) && m.now.Sub(n.CreationTimestamp.Time) >= tick {
			fresh := n.DeepCopy()
			fresh.Status.Conditions[0].Status, fresh.Spec.Taints = corev1.ConditionTrue, nil
			m.setNode(fresh)
		}
	}
}

func (m *simulation) isReady(n *corev1.Node) bool {
	return n.Status.Conditions[0].Status == corev1.ConditionTrue
}

func (m *simulation) setNode(n *corev1.Node) {
	m.happened = true
	m.nodes[n.Name] = n
	m.must(m.snap.SetNode(n))
}

func (m *simulation) changeNode(name string, change func(*corev1.Node)) {
	n := m.nodes[name].DeepCopy()
	change(n)
	m.setNode(n)
}

func (m *simulation) joinNode(id string, i *simulated) {
	for _, k := range m.kinds {
		if k.Name == i.Type {
			m.setNode(newNode("web", id, k.Node.Status.Allocatable, func(n *corev1.Node) {
				n.CreationTimestamp, n.Status.Conditions[0].Status = metav1.NewTime(m.now), corev1.ConditionFalse
				n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}
				n.Spec.Unschedulable = i.fate == cordonedForLong
				if i.fate == labelledLate {
					delete(n.Labels, groupLabel)
				}
			}))
		}
	}
}

// schedulePods places pods like the scheduler, on the least used node first.
func (m *simulation) schedulePods() {
	names := slices.Sorted(maps.Keys(m.nodes))
	for _, key := range slices.SortedFunc(maps.Keys(m.pods), comparePodKeys) {
		p := m.pods[key]
		if p.Spec.NodeName != "" {
			continue
		}
		best, least := "", math.Inf(1)
		for _, name := range names {
			v, err := m.snap.JudgeRecreatedPod(key, name)
			m.must(err)
			l, err := planner.MeasureWorkloadUtilization(m.snap, name, nil)
			m.must(err)
			if used := l.CPUPercent() + l.MemoryPercent(); v.Outcome == placement.Fits && used < least {
				best, least = name, used
			}
		}
		if best != "" {
			bound := p.DeepCopy()
			bound.Spec.NodeName, bound.Status.Phase = best, corev1.PodRunning
			bound.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			m.setPod(bound)
		}
	}
}

// decide simulates one reconcile of a controller.
func (m *simulation) decide() {
	m.updatePDB()
	w := m.newWorld()
	d := decideUp(m.t, w)
	if m.happened {
		if again := decideUp(m.t, w); len(again.Launches) != len(d.Launches) {
			m.t.Fatalf("%s: asked twice: %v, then %v", m.now.Format(time.TimeOnly), launchCounts(d), launchCounts(again))
		}
	}
	m.unplaced = outcomeCounts(d)[Unschedulable] + d.missingHeadroom
	for _, o := range d.Launches {
		m.launchInstances(o)
	}
	all, err := DecideScaleDown(m.newWorld())
	m.must(err)
	for _, n := range all {
		if !n.Since.Equal(ReadUnderutilizedSince(m.nodes[n.Node], m.now)) {
			m.writeSince(n)
		}
		if n.Verdict == nodegroup.VerdictDue {
			m.retireNode(n.Node)
		}
	}
}

func (m *simulation) writeSince(d NodeDecision) {
	m.changeNode(d.Node, func(n *corev1.Node) {
		delete(n.Annotations, UnderutilizedSinceAnnotation)
		if !d.Since.IsZero() {
			metav1.SetMetaDataAnnotation(&n.ObjectMeta, UnderutilizedSinceAnnotation, formatTime(d.Since))
		}
	})
}

// countHealthy counts the pods of the first deployment that have a node.
func (m *simulation) countHealthy() (n int) {
	for r := range m.replicas[0] {
		if m.pods[placement.PodKey{Namespace: "apps", Name: fmt.Sprintf("d0-%d", r)}].Spec.NodeName != "" {
			n++
		}
	}
	return n
}

// updatePDB updates the status of the PodDisruptionBudget.
func (m *simulation) updatePDB() {
	if !m.s.pdb {
		return
	}
	b := newPDB(0)
	b.Spec.Selector.MatchLabels["app"] = "d0"
	b.Status.CurrentHealthy, b.Status.DesiredHealthy = int32(m.countHealthy()), int32(m.replicas[0]-1)
	b.Status.DisruptionsAllowed = max(0, b.Status.CurrentHealthy-b.Status.DesiredHealthy)
	m.must(m.snap.PDBs.Set(b))
}

// retireNode starts to drain a node.
func (m *simulation) retireNode(name string) {
	r := removal{
		node: name, at: m.now, gone: m.now, replicas: slices.Clone(m.replicas), unplaced: m.unplaced, waiting: map[placement.PodKey]bool{}, others: map[string]bool{},
	}
	for other, n := range m.nodes {
		r.others[other] = other != name && m.isReady(n) && m.draining[other] == 0
	}
	for key, p := range m.pods {
		switch p.Spec.NodeName {
		case "":
			r.waiting[key] = true
		case name:
			r.moved = append(r.moved, key)
		}
	}
	m.removals = append(m.removals, r)
	m.changeNode(name, func(n *corev1.Node) {
		n.Spec.Unschedulable = true
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, "cordon.slipway.dev/retirement", `{"owner":"retirement","since":"`+formatTime(m.now)+`"}`)
	})
	m.draining[name] = 1 + len(r.moved)/max(1, m.s.drain)
	if m.s.drain == 0 {
		m.drainNode(name)
	}
}

func (m *simulation) drainNodes() {
	for _, name := range slices.Sorted(maps.Keys(m.draining)) {
		m.drainNode(name)
	}
}

// drainNode evicts some of a node's pods, which become pending. After the last pod it deletes the node and its instance.
func (m *simulation) drainNode(name string) {
	m.happened = true
	isEmpty, evictions := true, m.draining[name]
	for _, key := range slices.SortedFunc(maps.Keys(m.pods), comparePodKeys) {
		p := m.pods[key]
		if p.Spec.NodeName != name {
			continue
		}
		isBlocked := m.s.pdb && p.Labels["app"] == "d0" && m.countHealthy() < m.replicas[0]
		if evictions == 0 || isBlocked {
			isEmpty = false
			continue
		}
		evictions--
		fresh := p.DeepCopy()
		fresh.Spec.NodeName, fresh.Status = "", corev1.PodStatus{Phase: corev1.PodPending}
		m.must(m.snap.DeletePod(key))
		m.setPod(fresh)
	}
	for i := range m.removals {
		if r := &m.removals[i]; r.node == name {
			r.gone = m.now
		}
	}
	if isEmpty {
		m.must(m.snap.DeleteNode(name))
		delete(m.nodes, name)
		delete(m.draining, name)
		m.machines[name].State = cloud.Deleting
	}
}

func (m *simulation) countAlive() (n int) {
	for _, i := range m.machines {
		if i.State != cloud.Deleting {
			n++
		}
	}
	return n
}

// launchInstances simulates the cloud's answer to a launch.
func (m *simulation) launchInstances(o Launch) {
	m.happened = true
	for i := range m.removals {
		r := &m.removals[i]
		rose := slices.ContainsFunc(m.rangeReplicas(), func(i int) bool { return m.replicas[i] > r.replicas[i] })
		if m.now.Sub(r.gone) >= cooldown || rose || m.now.Sub(m.troubled) < cooldown || m.isUnrelatedLaunch(r, o) {
			continue
		}
		// The scheduler may place the pods of nodes that left together in another way than the plan, so that they need room for
		// some again. It is a flap if as many instances come as nodes have left.
		if r.unplaced -= o.Count; r.unplaced < 0 && -r.unplaced >= m.countRemovals(r.at) {
			m.flaps = append(m.flaps, fmt.Sprintf("%s: %v is ordered, and a node left at %s", m.now.Format(time.TimeOnly), o.Reasons, r.at.Format(time.TimeOnly)))
		}
	}
	for range o.Count {
		m.serial++
		f := m.s.fates[m.serial%len(m.s.fates)]
		if m.now.Sub(start) > 20*time.Hour {
			f = joins // the faults end before the day does
		}
		switch {
		case f == failsAtOnce:
			m.backOff(o.Template, string(cloud.NoCapacity))
			m.addPending(o, launch.Refused)
			return
		case m.countAlive() >= m.s.quota:
			m.backOff(o.Template, string(cloud.NoQuota))
			m.addPending(o, launch.Refused)
			return
		}
		id := fmt.Sprintf("machine-%04d", m.serial)
		m.machines[id] = &simulated{
			Instance: cloud.Instance{ProviderID: id, Type: o.Template, State: cloud.Pending, Created: m.now}, fate: f, since: m.now,
		}
	}
	m.addPending(o, launch.Accepted)
}

// countRemovals counts the nodes that have left at a time.
func (m *simulation) countRemovals(at time.Time) (n int) {
	for _, r := range m.removals {
		if r.at.Equal(at) {
			n++
		}
	}
	return n
}

// isUnrelatedLaunch reports whether a launch would have been made with the removed node too. Its pods had no room then,
// and the pods of the node run on other nodes of that time. Such a launch happens when the scheduler needs more
// instances than the plan has packed.
func (m *simulation) isUnrelatedLaunch(r *removal, o Launch) bool {
	for _, why := range o.Reasons {
		if why.Rule != PodsWait {
			return false
		}
	}
	for _, key := range o.Pods {
		if !r.waiting[key] {
			return false
		}
	}
	for _, key := range r.moved {
		if p := m.pods[key]; p != nil && p.Spec.NodeName != r.node && !r.others[p.Spec.NodeName] {
			return false
		}
	}
	return true
}

func (m *simulation) rangeReplicas() []int {
	list := make([]int, len(m.replicas))
	for i := range list {
		list[i] = i
	}
	return list
}

// addPending records a launch with its answer, which is immediate.
func (m *simulation) addPending(o Launch, answer launch.Answer) {
	a := launch.PendingLaunch{Template: o.Template, Count: o.Count, RequestedAt: m.now}
	a.ApplyAnswer(answer, nil, m.now, 0)
	m.asked = append(m.asked, a)
}

func (m *simulation) backOff(kind, reason string) {
	var before *v1alpha1.BackOff
	if b, ok := m.backs[kind]; ok {
		before = &b
	}
	m.backs[kind] = launch.NextBackOff(before, kind, reason, "simulated", m.now)
	m.troubled = m.now
}

// newWorld reads the cloud, deletes failed instances, and returns the input of a decision.
func (m *simulation) newWorld() *Input {
	var instances []cloud.Instance
	for _, i := range m.machines {
		instances = append(instances, i.Instance)
	}
	v := launch.TrackInstances(launch.Observation{
		Group: cloud.Group{Size: m.countAlive()}, Instances: instances, JoinState: m.joinState,
		FirstSeen: m.known, Unjoined: m.record, Pending: m.asked, UnseenSince: m.unseen, WatchedSince: m.watched, JoinTimeout: joinTime, ReadAt: m.now, Now: m.now,
	})
	m.known, m.record, m.asked, m.unseen = v.FirstSeen, v.Unjoined, v.Pending, v.UnseenSince
	for _, dead := range v.FailedWithoutNode {
		if i := m.machines[dead.Instance.ProviderID]; i.node {
			m.t.Fatalf("%s: an instance that had a Node is deleted", m.now.Format(time.TimeOnly))
		}
		m.machines[dead.Instance.ProviderID].State = cloud.Deleting
		m.backOff(dead.Instance.Type, dead.Reason)
	}
	for _, unusable := range v.NeverUsable {
		if !m.unusable[unusable.Instance.ProviderID] {
			m.unusable[unusable.Instance.ProviderID] = true
			m.backOff(unusable.Template, unusable.Reason)
		}
		m.troubled = m.now
	}
	for _, joined := range v.Joined {
		maps.DeleteFunc(m.backs, func(_ string, b v1alpha1.BackOff) bool { return launch.IsBackOffRefuted(&b, &joined) })
	}
	g := Group{GroupSnapshot: nodegroup.GroupSnapshot{Group: m.group, Now: m.now}, Size: m.countAlive(), Provisioning: v.Provisioning}
	for _, r := range v.Unjoined {
		if n := m.nodes[r.ProviderID]; n != nil {
			g.LaunchedInstances = append(g.LaunchedInstances, LaunchedInstance{ProvisioningInstance: launch.ProvisioningInstance{ID: r.ProviderID, Template: r.Template}, Node: n, Overdue: v.Overdue[r.ProviderID]})
		}
	}
	for _, k := range m.kinds {
		if b, ok := m.backs[k.Name]; ok {
			k.ClosedReason = WhyBackedOff(&b, m.group.Name, m.now)
		}
		g.Templates = append(g.Templates, k)
	}
	for _, name := range slices.Sorted(maps.Keys(m.nodes)) {
		if m.nodes[name].Labels[groupLabel] != "" {
			n := nodegroup.Node{Object: m.nodes[name], QuietFor: -1}
			if m.draining[name] > 0 {
				n.Retirements = []v1alpha1.NodeRetirement{newDrainingRetirement(name)}
			}
			g.Nodes = append(g.Nodes, n)
		}
	}
	w := &Input{Snapshot: m.snap, Groups: []Group{g}, NodeCount: len(m.nodes), Now: m.now}
	for _, key := range slices.SortedFunc(maps.Keys(m.pods), comparePodKeys) {
		if m.pods[key].Spec.NodeName == "" {
			w.Pods = append(w.Pods, Pod{Key: key})
		}
	}
	return w
}

func (m *simulation) joinState(i cloud.Instance) launch.JoinState {
	if n := m.nodes[i.ProviderID]; n != nil {
		return FindJoinState(m.group, n)
	}
	return launch.NoNode
}

// checkInvariants checks the limits that hold at every minute (I5).
func (m *simulation) checkInvariants() {
	alive := m.countAlive()
	if alive > int(m.s.maximum) {
		m.t.Fatalf("%s: %d instances, and a maximum of %d", m.now.Format(time.TimeOnly), alive, m.s.maximum)
	}
	stay := len(m.nodes) - len(m.draining)
	if len(m.removals) > 0 && m.removals[len(m.removals)-1].at.Equal(m.now) && stay < int(m.s.minimum) {
		m.t.Fatalf("%s: a node left, and %d stay of a minimum of %d", m.now.Format(time.TimeOnly), stay, m.s.minimum)
	}
}

// checkSettled checks the end of the day. Nothing has changed or failed in its last hours.
func (m *simulation) checkSettled() {
	if n := len(m.nodes) - len(m.draining); n < int(m.s.minimum) {
		m.t.Errorf("%d nodes are left, and the minimum is %d", n, m.s.minimum)
	}
	var left []string
	for key, p := range m.pods {
		if p.Spec.NodeName == "" {
			left = append(left, key.String())
		}
	}
	full := m.countAlive() >= min(int(m.s.maximum), m.s.quota)
	if len(left) > 0 && !full {
		m.t.Errorf("%d pods are left with %d instances of %d: %v", len(left), m.countAlive(), m.s.maximum, left[0])
	}
	for _, f := range m.flaps {
		m.t.Errorf("flaps: %s", f)
	}
	if most := 2*m.rises + int(m.s.minimum) + int(m.s.spare) + 2; m.launches > most {
		m.t.Errorf("%d instances were launched, and the need rose by %d in all", m.launches, m.rises)
	}
	if m.need > 2*len(m.nodes) && len(m.removals) > 0 && !full {
		m.t.Errorf("%d nodes are left, and at least %d small ones are needed", len(m.nodes), m.need)
	}
}

func TestOneDayOfLoadDoesNotFlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { newSimulation(t, scenarios.Draw(t, "day")).run() })
}
