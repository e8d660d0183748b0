package provisioning

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/events"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// selecting has an autoscaler act on some groups only.
func (f *fixture) selecting(selector string) {
	f.t.Helper()
	parsed, err := labels.Parse(selector)
	if err != nil {
		f.t.Fatal(err)
	}
	f.o.Selector = parsed
}

// beside is another autoscaler in the same cluster.
func (f *fixture) beside(selector string) *fixture {
	f.t.Helper()
	other := *f
	o := f.o
	other.events = events.NewFakeRecorder(1000)
	o.Events, o.Wishes = other.events, nil
	other.Controller = New(o)
	other.selecting(selector)
	var err error
	if other.sources, err = other.watch(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	return &other
}

func ofTeam(team string) func(*v1alpha1.NodeGroup) {
	return func(g *v1alpha1.NodeGroup) {
		g.Labels = map[string]string{"team": team}
		g.Spec.ScaleDown = &v1alpha1.ScaleDown{Underused: &v1alpha1.UnderusedNodes{}}
	}
}

func TestAnAutoscalerBeginsForTheGroupsOfItsSelectorOnly(t *testing.T) {
	f := newFixture(t, ofTeam("a"))
	for selector, want := range map[string]bool{"": true, "team=a": true, "team=b": false, "!team": false} {
		f.selecting(selector)
		if got := f.wanted(t.Context()); got != want {
			t.Errorf("selector %q: wanted is %t", selector, got)
		}
	}
}

func TestAnAutoscalerTakesNoMarkThatAnotherOneHasToTake(t *testing.T) { // I3
	since := time.Now().Add(-time.Minute).UTC().Format(time.RFC3339)
	cooling, ofNone, ofFile, ofTheOthersFile := idle("cooling", since), idle("none", since), idle("file", since), idle("theirs", since)
	ofNone.Labels, ofFile.Labels, ofTheOthersFile.Labels = nil, nil, nil
	ofFile.Annotations["nodegroup.slipway.dev/name"], ofFile.Annotations["nodegroup.slipway.dev/scope"] = "gone", "team=a"
	ofTheOthersFile.Annotations["nodegroup.slipway.dev/name"], ofTheOthersFile.Annotations["nodegroup.slipway.dev/scope"] = "theirs", "team=c"
	f := newFixture(t, ofTeam("a"), cooling, ofNone, ofFile, ofTheOthersFile)
	f.selecting("team=a")
	f.hasObserved("cooling")
	other := f.beside("team=b")
	other.look()
	for name, want := range map[string]string{"cooling": since, "none": "", "file": since, "theirs": since} {
		if got := f.mark(name); got != want {
			t.Errorf("after the look of the one beside it the mark of node %s is %q, want %q", name, got, want)
		}
	}
	f.look()
	for name, want := range map[string]string{"cooling": since, "none": "", "file": "", "theirs": since} {
		if got := f.mark(name); got != want {
			t.Errorf("after the look of its own autoscaler the mark of node %s is %q, want %q", name, got, want)
		}
	}
}

func TestAPodIsNotToldThatThereIsNoGroupByAnAutoscalerThatDoesNotActOnAll(t *testing.T) {
	f := newFixture(t, ofTeam("a"))
	f.selecting("team=a")
	other := f.beside("team=b")
	pod := huge("huge")
	f.waitFor(pod)
	f.until("the one beside it knows of the pod", func() bool { return other.pending(pod) && other.waits(pod) })
	other.look()
	if notes := other.told(eventHelpless); len(notes) > 0 {
		t.Errorf("the one beside it says %q", notes)
	}
	f.look()
	if notes := f.told(eventHelpless); len(notes) != 1 || !strings.Contains(notes[0], "web/m4: DoesNotFit") {
		t.Errorf("Events are %q, want one with the reason of the group", notes)
	}
}

func TestAPodIsToldThatThereIsNoGroupByAnAutoscalerThatActsOnAll(t *testing.T) {
	f := newFixture(t, func(g *v1alpha1.NodeGroup) {
		ofTeam("a")(g)
		g.Spec.ScaleUp = nil
	})
	f.wait("a")
	f.look()
	if notes := f.told(eventHelpless); len(notes) != 1 || !strings.Contains(notes[0], "NoGroup") {
		t.Errorf("Events are %q, want one that says that there is no group", notes)
	}
}
