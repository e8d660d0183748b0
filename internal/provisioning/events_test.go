package provisioning

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
)

func TestAPodThatStaysWithoutHelpIsToldAgainBeforeItsEventIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, nil)
		f.waitFor(huge("huge"))
		told := func(passed time.Duration, want int) {
			t.Helper()
			time.Sleep(passed)
			f.look()
			notes := f.told(eventHelpless)
			if len(notes) != want || want > 0 && (!strings.Contains(notes[0], plan.DoesNotFit) || !strings.Contains(notes[0], "insufficient cpu")) {
				t.Errorf("after %s more the Events are %q, want %d", passed, notes, want)
			}
		}
		told(0, 1)
		told(29*time.Minute, 0)
		told(time.Minute, 1)
		for range 3 { // from the last one on
			told(10*time.Second, 0)
		}
		told(29*time.Minute, 0)
		told(time.Minute, 1)
	})
}

// kept is a recorder of which those are left that client-go keeps: of Events that differ in their notes alone the first.
type kept struct {
	all  map[string]bool
	told []string
}

func (k *kept) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	key := fmt.Sprint(regarding, related, kind, reason, action)
	if k.all[key] || action == "" || len(action) > maxAction {
		return
	}
	k.all[key] = true
	k.told = append(k.told, fmt.Sprintf(reason+" "+note, args...))
}

func TestEventsOnAGroupNameEveryKindMachineAndNode(t *testing.T) {
	f := newFixture(t, nil)
	f.look()
	g, long := f.last[0], fmt.Sprintf("%0200d", 0)
	for what, tell := range map[string]func(name string){
		"orders":    func(name string) { f.orderPlaced(g, plan.Order{Count: 1, Template: name}) },
		"back-offs": func(name string) { f.backedOff(g, v1alpha1.BackOff{Template: name}) },
		"machines":  func(name string) { f.machineGivenUp(g, launch.FailedInstance{Instance: cloud.Instance{Name: name}}) },
		"machines without a name": func(name string) {
			f.machineGivenUp(g, launch.FailedInstance{Instance: cloud.Instance{ProviderID: name}})
		},
	} {
		k := &kept{all: map[string]bool{}}
		f.o.Events = k
		for _, name := range []string{"a", "b", long, ""} {
			tell(name)
		}
		if len(k.told) != 4 {
			t.Errorf("of four %s there are Events of %q", what, k.told)
		}
	}
}

func TestTheGroupsEventsNameEveryNodeThatLeaves(t *testing.T) {
	since := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	f := newFixture(t, func(g *v1alpha1.NodeGroup) {
		ofTeam("a")(g)
		g.Spec.DisruptionBudgets = []v1alpha1.DisruptionBudget{{Nodes: intstr.FromString("100%")}}
	}, idle("x", since), idle("y", since))
	k := &kept{all: map[string]bool{}}
	f.o.Events = k
	f.hasObserved("x", "y")
	f.looks(2)
	for _, name := range []string{"x", "y"} {
		if !slices.ContainsFunc(k.told, func(e string) bool { return strings.Contains(e, "node "+name+":") }) {
			t.Errorf("Events are %q, and none on the group is of node %s", k.told, name)
		}
	}
}

func TestWhatANodeWasToldIsForgottenWithTheNode(t *testing.T) {
	f := newFixture(t, ofTeam("a"), idle("x", ""), idle("y", ""))
	f.look()
	if got := len(f.memory["web"].told); got != 2 {
		t.Fatalf("%d nodes are remembered, want 2", got)
	}
	if err := f.kube.CoreV1().Nodes().Delete(t.Context(), "x", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.until("the watch has told of it", func() bool { _, err := f.sources.nodes.Get("x"); return err != nil })
	f.look()
	if got := f.memory["web"].told; len(got) != 1 || got["uid-y"] == "" {
		t.Errorf("%v are remembered, want y", got)
	}
}

func TestAnOrderThatTheCloudDropsIsCounted(t *testing.T) {
	f := newFixture(t, nil)
	f.wait("a")
	f.look()
	f.pool.change(func() { f.pool.machines = nil }) // nobody has seen it
	f.look()
	if notes := f.told(eventBackedOff); len(notes) != 1 {
		t.Errorf("Events are %q, want one", notes)
	}
	if got := testutil.ToFloat64(f.o.Metrics.refusals.WithLabelValues("web", "m4", launch.Failed)); got != 1 {
		t.Errorf("%v orders have failed, want 1", got)
	}
}
