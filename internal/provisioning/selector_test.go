package provisioning

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/events"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// setSelector restricts the controller to some groups.
func (f *fixture) setSelector(selector string) {
	f.t.Helper()
	parsed, err := labels.Parse(selector)
	if err != nil {
		f.t.Fatal(err)
	}
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
		if got := f.isAnyGroupManaged(t.Context()); got != want {
			t.Errorf("selector %q: wanted is %t", selector, got)
		}
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
		if got := f.sinceAnnotation(name); got != want {
			t.Errorf("after the reconcile of the one beside it the mark of node %s is %q, want %q", name, got, want)
		}
	}
	f.reconcile()
	for name, want := range map[string]string{"cooling": since, "none": "", "file": "", "theirs": since} {
		if got := f.sinceAnnotation(name); got != want {
			t.Errorf("after the reconcile of its own autoscaler the mark of node %s is %q, want %q", name, got, want)
		}
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
