package top

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/drainability/grouppolicy"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

var tall = tea.WindowSizeMsg{Width: 120, Height: 40}

func heapSize() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// podsOnNode implements live.PodReader for one node.
type podsOnNode []*corev1.Pod

func (p podsOnNode) ListOnNode(context.Context, string) ([]*corev1.Pod, error) { return p, nil }

func (podsOnNode) ListSelected(context.Context, string, labels.Selector) ([]*corev1.Pod, error) {
	return nil, nil
}

func newRunningPod(name, owner string, changes ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name), Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{{
			Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}},
		}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	if owner != "" {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: owner, Name: "o", UID: "o", Controller: new(true)}}
	}
	for _, change := range changes {
		change(p)
	}
	return p
}

func TestPodsPaneSaysWhyEachPodStays(t *testing.T) {
	w := &Watcher{loads: snapshot.New()}
	for _, name := range []string{"node-1", "node-2"} {
		n := newNode(name, "g")
		n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi"), corev1.ResourcePods: resource.MustParse("10")}
		w.setObject(&n)
	}
	pods := podsOnNode{
		newRunningPod("moves", "ReplicaSet"),
		newRunningPod("bare", ""),
		newRunningPod("keeps", "ReplicaSet", func(p *corev1.Pod) { p.Annotations = map[string]string{"slipway.dev/do-not-evict": "true"} }),
		newRunningPod("blocked", "ReplicaSet"),
		newRunningPod("large", "ReplicaSet", func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("2")
		}),
		newRunningPod("stopping", "ReplicaSet", func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: noon.Add(7 * time.Second)}, new(int64(30))
		}),
		newRunningPod("logs", "DaemonSet"),
		newRunningPod("finished", "Job", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
	}
	w.pods = pods
	for _, p := range pods {
		w.setObject(p)
	}
	w.setObject(&policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pdb"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "blocked"}}},
		Status:     policyv1.PodDisruptionBudgetStatus{CurrentHealthy: 1, DesiredHealthy: 1, ExpectedPods: 1},
	})
	got, err := w.DescribeNodePods(t.Context(), "node-1", planner.Policies()[0], planner.Options{Now: noon, PodRules: grouppolicy.NewPodPolicy(&v1alpha1.NodeGroup{}, false)})
	must.NoError(t, err)
	var lines []string
	for _, line := range got.Lines {
		lines = append(lines, normalizeSpace(line.Text))
	}
	for i, want := range []string{
		"shop/bare stays (unmanaged): ", "shop/blocked waits for PDB shop/pdb, which allows no eviction now", "shop/keeps stays (protected): ",
		"shop/large stays (no-room): fits on no other node: ", "shop/stopping is terminating, at most 0:07 longer", "shop/moves would move to node-2",
		"shop/logs is deleted with the node: daemonset",
	} {
		if len(lines) != 7 || !strings.HasPrefix(lines[i], want) {
			t.Fatalf("line %d: want %q in\n%s", i, want, strings.Join(lines, "\n"))
		}
	}
}

func TestPodsPaneMovesNothingToRetiringNode(t *testing.T) {
	w := &Watcher{loads: snapshot.New(), marked: map[string]bool{}, pods: podsOnNode{newRunningPod("web", "ReplicaSet")}}
	nodes := []corev1.Node{newNode("node-1", "g"), newNode("node-2", "g")}
	for i := range nodes {
		nodes[i].Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi"), corev1.ResourcePods: resource.MustParse("10")}
		w.setObject(&nodes[i])
	}
	w.setObject(newRunningPod("web", "ReplicaSet"))
	describe := func() string {
		got, err := w.DescribeNodePods(t.Context(), "node-1", planner.Policies()[0], planner.Options{Now: noon, PodRules: grouppolicy.NewPodPolicy(&v1alpha1.NodeGroup{}, false)})
		must.NoError(t, err)
		return normalizeSpace(got.Lines[len(got.Lines)-1].Text)
	}
	rt := v1alpha1.NodeRetirement{Spec: v1alpha1.NodeRetirementSpec{NodeName: "node-2"}}
	w.markNodesBeingRemoved(nodes, []v1alpha1.NodeRetirement{rt})
	if got := describe(); !strings.HasPrefix(got, "shop/web stays (no-room)") {
		t.Errorf("while the only other node is retired: %s", got)
	}
	rt.Status.Phase = v1alpha1.Aborted
	w.markNodesBeingRemoved(nodes, []v1alpha1.NodeRetirement{rt})
	if got := describe(); got != "shop/web would move to node-2" {
		t.Errorf("after the retirement was aborted: %s", got)
	}
}

func TestPaneFollowsCursorWithoutRequests(t *testing.T) {
	term := newTerminal(t, BuildState(newSceneFacts()))
	term.press("down")
	if len(term.asks.described) != 0 {
		t.Errorf("described %q without a pane", term.asks.described)
	}
	term.press("enter")
	term.checkScreen("Pods of "+pool+"1", "a pod of "+pool+"1")
	term.press("down")
	term.checkScreen("Pods of "+pool+"2", "a pod of "+pool+"2")
	term.press("enter")
	if text := term.ui.RenderScreen(); strings.Contains(text, "Pods of") {
		t.Errorf("the pane is still open:\n%s", text)
	}
	s := BuildState(newSceneFacts())
	s.Events = []Event{{At: noon.Add(-7 * time.Second), Warning: true, Object: "Node/spot-0", Reason: "Drained", Message: "40 pods gone\n", Count: 2}}
	s.Evictions = []int{0, 3, 12}
	term.send(s)
	term.press("e")
	term.send(tall)
	term.checkScreen("Events", "0:07 Drained Node/spot-0 40 pods gone (2 times)")
	term.checkScreen("evictions  ▂█ 15")
	term.press("?")
	term.checkScreen("slipway top: keys", "this page")
	term.press("esc", "N", "T", "Z", "A", "P", "C", "M", "D", "/", "x", "esc", "pgdown", "home")
	term.checkCalls() // no key has sent a request
}

// visiblePaneLines returns the numbers of the first and the last visible line of the open pane.
func (term *terminal) visiblePaneLines() (first, last int) {
	term.t.Helper()
	text := ansi.Strip(term.ui.RenderScreen())
	_, position, found := strings.Cut(text, "─ lines ")
	if n, err := fmt.Sscanf(position, "%d to %d of", &first, &last); !found || n != 2 {
		term.t.Fatalf("the pane says not which lines are visible: %v:\n%s", err, text)
	}
	return first, last
}

func newStateWithEvents(n int) State {
	s := BuildState(newSceneFacts())
	for i := range n {
		s.Events = append(s.Events, Event{At: noon, Object: fmt.Sprintf("Node/n%d", i+1), Reason: "R", Message: "event", Count: 1})
	}
	return s
}

func TestLongPaneScrolls(t *testing.T) {
	term := newTerminal(t, newStateWithEvents(50))
	term.send(tall)
	term.press("e", "tab")
	_, visible := term.visiblePaneLines()
	for _, step := range []struct {
		key   string
		first int
	}{
		{"down", 2}, {"j", 3}, {"k", 2}, {"up", 1}, {"up", 1}, {"pgdown", 1 + visible}, {"b", 1}, {" ", 1 + visible},
		{"end", 51 - visible}, {"down", 51 - visible}, {"k", 50 - visible}, {"home", 1}, {"G", 51 - visible},
	} {
		term.press(step.key)
		first, last := term.visiblePaneLines()
		if first != step.first || last != first+visible-1 {
			t.Errorf("after %s lines %d to %d are visible, want %d lines from %d on", step.key, first, last, visible, step.first)
		}
		term.checkScreen(fmt.Sprintf("R Node/n%d event", first), fmt.Sprintf("R Node/n%d event", last))
	}
	if node := term.ui.listNodeNames()[0]; term.ui.selected != node {
		t.Errorf("the cursor is on %s, want it still on %s", term.ui.selected, node)
	}
	term.send(newStateWithEvents(30)) // fewer
	term.press("up")
	if _, last := term.visiblePaneLines(); last != 29 {
		t.Errorf("one line above the end of 30 lines, line %d is the last", last)
	}
}

func TestTabSwitchesBetweenPaneAndNodes(t *testing.T) {
	term := newTerminal(t, newStateWithEvents(50))
	nodes := term.ui.listNodeNames()
	checkSelected := func(want string) {
		t.Helper()
		if term.ui.selected != want {
			t.Errorf("the cursor is on %s, want %s", term.ui.selected, want)
		}
	}
	term.press("tab")
	term.checkScreen("no pane is open")
	term.press("down")
	checkSelected(nodes[1])
	term.send(tall)
	term.checkScreen("<tab> scroll")
	term.press("tab", "down")
	checkSelected(nodes[1])
	term.send(tea.WindowSizeMsg{Width: 120, Height: 24})
	term.checkScreen("Pods of "+nodes[1], "<tab> nodes") // the pane that is scrolled stays
	term.press("/", "s", "enter", "esc")
	term.checkScreen("filter s")
	term.press("esc", "down")
	checkSelected(nodes[2])
	term.press("tab", "enter", "down") // the pane is closed
	checkSelected(nodes[3])
}

func TestPodsOfAnotherNodeBeginAtTheFirstLine(t *testing.T) {
	term := newTerminal(t, BuildState(newSceneFacts()))
	term.asks.pods = make([]PaneLine, 40)
	term.send(tall)
	term.press("tab", "end")
	if _, last := term.visiblePaneLines(); last != 41 {
		t.Errorf("line %d is the last, want 41", last)
	}
	term.send(BuildState(newSceneFacts())) // describes the pods again
	if _, last := term.visiblePaneLines(); last != 41 {
		t.Errorf("after an update line %d is the last, want 41", last)
	}
	term.press("tab", "down")
	if first, _ := term.visiblePaneLines(); first != 1 {
		t.Errorf("line %d of the next node's pods is the first", first)
	}
}

func TestRecentEventsAreBoundedAndNewestFirst(t *testing.T) {
	r := &recentEvents{changed: func() {}, byUID: map[types.UID]Event{}}
	for i := range 20 * maxEvents {
		r.add(&corev1.Event{
			ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprint(i))}, Reason: fmt.Sprint(i), LastTimestamp: metav1.NewTime(noon.Add(time.Duration(i%3000) * time.Second)),
		})
	}
	all, _ := r.list()
	if len(r.byUID) > 2*maxEvents || len(all) != maxEvents || all[0].Reason != "2999" {
		t.Errorf("%d kept, %d listed, the first is %q", len(r.byUID), len(all), all[0].Reason)
	}
	if !slices.IsSortedFunc(all, func(a, b Event) int { return b.At.Compare(a.At) }) {
		t.Error("the Events are not sorted by time")
	}
}

func TestEvictionsAreCountedOncePerPod(t *testing.T) {
	c := &evictionCounter{at: map[types.UID]time.Time{}}
	transform := c.newPodTransform()
	evict := func(uid, reason string, ago time.Duration) {
		p := newRunningPod(uid, "ReplicaSet")
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reason, LastTransitionTime: metav1.NewTime(noon.Add(-ago)),
		})
		for range 2 {
			_, err := transform(p)
			must.NoError(t, err)
		}
	}
	evict("a", "EvictionByEvictionAPI", 5*time.Second)
	evict("b", "DeletionByNodeTermination", 15*time.Second)
	evict("c", "EvictionByEvictionAPI", 18*time.Second)
	evict("d", "PreemptionByScheduler", 5*time.Second)
	evict("e", "EvictionByEvictionAPI", evictionWindow)
	got := c.count(noon)
	if n := len(got); got[n-1] != 1 || got[n-2] != 2 || slices.Max(got[:n-2]) != 0 || len(c.at) != 3 {
		t.Errorf("%v, %d kept", got, len(c.at))
	}
}
