package provisioning

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/keptevents"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestUnplaceablePodEventIsRepeatedBeforeItExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, nil)
		f.addUnschedulablePod(newHugePod("huge"))
		told := func(passed time.Duration, want int) {
			t.Helper()
			time.Sleep(passed)
			f.reconcile()
			notes := f.eventNotes(eventUnplaceable)
			if len(notes) != want || want > 0 && (!strings.Contains(notes[0], plan.DoesNotFit) || !strings.Contains(notes[0], "insufficient cpu")) {
				t.Errorf("after %s more the Events are %q, want %d", passed, notes, want)
			}
		}
		told(0, 1)
		told(29*time.Minute, 0)
		told(time.Minute, 1)
		for range 3 { // from the last Event on
			told(10*time.Second, 0)
		}
		told(29*time.Minute, 0)
		told(time.Minute, 1)
	})
}

func TestGroupEventsNameTemplateInstanceAndNode(t *testing.T) {
	f := newFixture(t, nil)
	f.reconcile()
	g, long := f.lastGroups[0], fmt.Sprintf("%0200d", 0)
	for what, tell := range map[string]func(name string){
		"orders":    func(name string) { f.emitLaunched(g, plan.Launch{Count: 1, Template: name}) },
		"back-offs": func(name string) { f.reportBackOff(g, v1alpha1.BackOff{Template: name}) },
		"machines": func(name string) {
			f.emitInstanceDeleted(g, launch.FailedInstance{Instance: cloud.Instance{Name: name}})
		},
		"instances without a name": func(name string) {
			f.emitInstanceDeleted(g, launch.FailedInstance{Instance: cloud.Instance{ProviderID: name}})
		},
	} {
		k := &keptevents.Recorder{}
		f.options.Events = k
		for _, name := range []string{"a", "b", long, ""} {
			tell(name)
		}
		check.Is(t, 4, len(k.Kept), what, k.Kept)
	}
}

func TestGroupEventsNameEveryRetiredNode(t *testing.T) {
	since := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	f := newFixture(t, func(g *v1alpha1.NodeGroup) {
		withTeamLabel("a")(g)
		g.Spec.DisruptionBudgets = []v1alpha1.DisruptionBudget{{Nodes: intstr.FromString("100%")}}
	}, newIdleNode("x", since), newIdleNode("y", since))
	k := &keptevents.Recorder{}
	f.options.Events = k
	f.observeSince("x", "y")
	f.reconcileTimes(2)
	for _, name := range []string{"x", "y"} {
		if !slices.ContainsFunc(k.Kept, func(e string) bool { return strings.Contains(e, "node "+name+":") }) {
			t.Errorf("Events are %q, and none on the group is of node %s", k.Kept, name)
		}
	}
}

func TestNodeEventStateIsRemovedWithTheNode(t *testing.T) {
	f := newFixture(t, withTeamLabel("a"), newIdleNode("x", ""), newIdleNode("y", ""))
	f.reconcile()
	if got := len(f.states["web"].nodeEvents); got != 2 {
		t.Fatalf("%d nodes are remembered, want 2", got)
	}
	must.NoError(t, f.kube.CoreV1().Nodes().Delete(t.Context(), "x", metav1.DeleteOptions{}))
	f.waitUntil("the watch has told of it", func() bool { _, err := f.sources.nodes.Get("x"); return err != nil })
	f.reconcile()
	if got := f.states["web"].nodeEvents; len(got) != 1 || got["uid-y"] == "" {
		t.Errorf("%v are remembered, want y", got)
	}
}

func TestNodeThatLosesItsCooldownIsLogged(t *testing.T) {
	since := time.Now().Add(-time.Minute).UTC().Format(time.RFC3339)
	f := newFixture(t, withTeamLabel("a"), newIdleNode("x", since), newIdleNode("y", since), newRunningPod("busy", "x", "3"))
	var log strings.Builder
	f.options.Log = slog.New(slog.NewTextHandler(&log, nil))
	f.observeSince("x", "y")
	f.reconcileTimes(2) // the second has no news
	lines := slices.DeleteFunc(strings.Split(log.String(), "\n"), func(line string) bool { return !strings.Contains(line, "cooldown") })
	if len(lines) != 1 {
		t.Fatalf("logged %q, want one line", lines)
	}
	check.Contains(t, lines[0], "node=x", "since="+since, plan.Used, "75 % of its cpu")
}

func TestDroppedLaunchIsCounted(t *testing.T) {
	f := newFixture(t, nil)
	f.addUnschedulable("a")
	f.reconcile()
	f.pool.change(func() { f.pool.machines = nil }) // no read has shown it
	f.reconcile()
	if notes := f.eventNotes(eventBackedOff); len(notes) != 1 {
		t.Errorf("Events are %q, want one", notes)
	}
	check.Is(t, 1, testutil.ToFloat64(f.options.Metrics.refusals.WithLabelValues("web", "m4", launch.Failed)))
}

func TestI3OldSinceAnnotationIsReplaced(t *testing.T) {
	mine, theirs := newIdleNode("mine", ""), newIdleNode("theirs", "")
	theirs.Labels = nil
	for _, n := range []*corev1.Node{mine, theirs} {
		n.Annotations = map[string]string{plan.OldSinceAnnotation: "2026-01-01T00:00:00Z"}
	}
	f := newFixture(t, func(g *v1alpha1.NodeGroup) {
		g.Spec.ScaleDown = &v1alpha1.ScaleDown{Underutilized: &v1alpha1.UnderutilizedRule{}}
	}, mine, theirs)
	f.reconcile()
	for name, marked := range map[string]bool{"mine": true, "theirs": false} {
		var n corev1.Node
		must.NoError(t, f.client.Get(t.Context(), types.NamespacedName{Name: name}, &n))
		_, hasOld := n.Annotations[plan.OldSinceAnnotation]
		check.Not(t, hasOld || (n.Annotations[plan.UnderutilizedSinceAnnotation] != "") != marked, "%s has the annotations %v", name, n.Annotations)
	}
}

// setSelector restricts the controller to some groups.
func (f *fixture) setSelector(selector string) {
	f.t.Helper()
	parsed := must.Get(labels.Parse(selector))(f.t)
	f.options.Selector = parsed
}

// newSecondManager returns another controller in the same cluster.
func (f *fixture) newSecondManager(selector string) *fixture {
	f.t.Helper()
	other := *f
	o := f.options
	other.events = events.NewFakeRecorder(1000)
	o.Events, o.LaunchRequests = other.events, nil
	other.Controller = New(o)
	other.setSelector(selector)
	var err error
	if other.sources, err = other.startWatches(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	return &other
}

func withTeamLabel(team string) func(*v1alpha1.NodeGroup) {
	return func(g *v1alpha1.NodeGroup) {
		g.Labels = map[string]string{"team": team}
		g.Spec.ScaleDown = &v1alpha1.ScaleDown{Underutilized: &v1alpha1.UnderutilizedRule{}}
	}
}

func TestOnlySelectedGroupsStartTheController(t *testing.T) {
	f := newFixture(t, withTeamLabel("a"))
	for selector, want := range map[string]bool{"": true, "team=a": true, "team=b": false, "!team": false} {
		f.setSelector(selector)
		check.Is(t, want, f.isAnyGroupManaged(t.Context()), selector)
	}
}

func TestAnotherManagersAnnotationIsKept(t *testing.T) { // I3
	since := time.Now().Add(-time.Minute).UTC().Format(time.RFC3339)
	cooling, ofNone, ofFile, ofTheOthersFile := newIdleNode("cooling", since), newIdleNode("none", since), newIdleNode("file", since), newIdleNode("theirs", since)
	ofNone.Labels, ofFile.Labels, ofTheOthersFile.Labels = nil, nil, nil
	ofFile.Annotations["nodegroup.slipway.dev/name"], ofFile.Annotations["nodegroup.slipway.dev/scope"] = "gone", "team=a"
	ofTheOthersFile.Annotations["nodegroup.slipway.dev/name"], ofTheOthersFile.Annotations["nodegroup.slipway.dev/scope"] = "theirs", "team=c"
	f := newFixture(t, withTeamLabel("a"), cooling, ofNone, ofFile, ofTheOthersFile)
	f.setSelector("team=a")
	f.observeSince("cooling")
	other := f.newSecondManager("team=b")
	other.reconcile()
	for name, want := range map[string]string{"cooling": since, "none": "", "file": since, "theirs": since} {
		check.Is(t, want, f.sinceAnnotation(name), name)
	}
	f.reconcile()
	for name, want := range map[string]string{"cooling": since, "none": "", "file": "", "theirs": since} {
		check.Is(t, want, f.sinceAnnotation(name), name)
	}
}

func TestManagerWithASelectorEmitsNoNoGroupEvent(t *testing.T) {
	f := newFixture(t, withTeamLabel("a"))
	f.setSelector("team=a")
	other := f.newSecondManager("team=b")
	pod := newHugePod("huge")
	f.addUnschedulablePod(pod)
	f.waitUntil("the one beside it knows of the pod", func() bool { return other.isPending(pod) && other.isUnschedulable(pod) })
	other.reconcile()
	if notes := other.eventNotes(eventUnplaceable); len(notes) > 0 {
		t.Errorf("the one beside it says %q", notes)
	}
	f.reconcile()
	if notes := f.eventNotes(eventUnplaceable); len(notes) != 1 || !strings.Contains(notes[0], "web/m4: DoesNotFit") {
		t.Errorf("Events are %q, want one with the reason of the group", notes)
	}
}

func TestManagerOfAllGroupsEmitsTheNoGroupEvent(t *testing.T) {
	f := newFixture(t, func(g *v1alpha1.NodeGroup) {
		withTeamLabel("a")(g)
		g.Spec.ScaleUp = nil
	})
	f.addUnschedulable("a")
	f.reconcile()
	if notes := f.eventNotes(eventUnplaceable); len(notes) != 1 || !strings.Contains(notes[0], "NoGroup") {
		t.Errorf("Events are %q, want one that says that there is no group", notes)
	}
}

// The tests of this file are named after faults of the OpenStack cluster autoscaler that concern watches and actions.
// Package openstackautoscaler has the faults that concern decisions.

// watches are the open watches of an API server.
type watches struct {
	mu   sync.Mutex
	open []*watch.RaceFreeFakeWatcher
}

func recordWatches(kube *fake.Clientset) *watches {
	w := &watches{}
	kube.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		var options metav1.ListOptions
		if asked, ok := action.(clienttesting.WatchActionImpl); ok {
			options = asked.ListOptions
		}
		opened, err := kube.Tracker().Watch(action.GetResource(), action.GetNamespace(), options)
		if of, ok := opened.(*watch.RaceFreeFakeWatcher); ok {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.open = append(w.open, of)
		}
		return true, opened, err
	})
	return w
}

// endAll ends all open watches, after it has called last for each.
func (w *watches) endAll(last func(*watch.RaceFreeFakeWatcher)) (n int) {
	w.mu.Lock()
	open := w.open
	w.open = nil
	w.mu.Unlock()
	for _, of := range open {
		last(of)
		of.Stop()
	}
	return len(open)
}

func TestFaultPodsAreDeletedWithServer(t *testing.T) {
	f := newFixture(t, func(g *v1alpha1.NodeGroup) {
		g.Spec.ScaleDown = &v1alpha1.ScaleDown{Underutilized: &v1alpha1.UnderutilizedRule{}}
	}, newIdleNode("a", time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)), newIdleNode("b", ""), newRunningPod("web", "a", "100m"))
	f.observeSince("a")
	f.reconcile()
	var all v1alpha1.NodeRetirementList
	if err := f.client.List(t.Context(), &all); err != nil || len(all.Items) != 1 || all.Items[0].Spec.NodeName != "a" {
		t.Fatalf("retirements are %+v, %v, want one of a", all.Items, err)
	}
	// The retirement drains the node before its instance is deleted.
	check.Is(t, 0, len(f.pool.deleted), f.pool.deleted)
	f.sinceAnnotation("a") // fails unless the Node is there
	for _, action := range f.kube.Actions() {
		if action.GetVerb() == "delete" {
			t.Errorf("a %s is deleted", action.GetResource().Resource)
		}
	}
}

func TestFaultPendingPodsAreKnownByTheirNameAlone(t *testing.T) {
	f := newFixture(t, nil)
	shop, blog := newUnschedulablePod("shop", "web-0"), newUnschedulablePod("blog", "web-0")
	f.addUnschedulablePod(shop)
	f.addUnschedulablePod(blog)
	f.reconcile()
	if got := f.pool.launches(); len(got) != 1 || got[0].Count != 2 {
		t.Errorf("launches are %v for two pods of one name in two namespaces, want one of 2", got)
	}
	f.removePod(shop)
	f.waitUntil("the pod of the shop is gone", func() bool { return !f.isUnschedulable(shop) })
	check.Not(t, !f.isUnschedulable(blog), "with the pod of the shop that of the blog is forgotten")
}

func TestFaultAMissingNodeAndAPodWithoutConditionsArePanics(t *testing.T) {
	f := newFixture(t, func(g *v1alpha1.NodeGroup) {
		g.Spec.ScaleDown = &v1alpha1.ScaleDown{Underutilized: &v1alpha1.UnderutilizedRule{}}
	})
	bare, orphan := newUnschedulablePod("apps", "bare"), newUnschedulablePod("apps", "orphan")
	bare.Status.Conditions = nil
	orphan.Spec.NodeName, orphan.Status.Phase = "gone", corev1.PodRunning
	f.createPod(bare)
	f.createPod(orphan)
	f.addUnschedulable("a") // the watch has delivered the others by then
	f.reconcile()
	f.removePod(bare)
	f.removePod(orphan)
	f.addUnschedulable("b")
	f.pods.eventHandler().OnDelete(cache.DeletedFinalStateUnknown{Key: "apps/b"}) // the watch was interrupted when it was deleted
	f.reconcile()
	if got := f.pool.launches(); len(got) != 1 || got[0].Count != 1 {
		t.Errorf("launches are %v, want one of 1: no other pod has found no room and is there", got)
	}
}

func TestFaultAWatchThatEndsIsNeverRestarted(t *testing.T) {
	expired := apierrors.NewResourceExpired("too old resource version").Status()
	f := newFixture(t, nil)
	f.addUnschedulable("a")
	for pod, last := range map[string]func(*watch.RaceFreeFakeWatcher){
		"b": func(*watch.RaceFreeFakeWatcher) {},
		"c": func(w *watch.RaceFreeFakeWatcher) { w.Error(&expired) },
	} {
		if f.watches.endAll(last) == 0 {
			t.Fatal("no watch was open")
		}
		f.addUnschedulable(pod) // it is created while no watch is open
	}
	f.reconcile()
	if got := f.pool.launches(); len(got) != 1 || got[0].Count != 3 {
		t.Errorf("launches are %v, want one of 3", got)
	}
}
