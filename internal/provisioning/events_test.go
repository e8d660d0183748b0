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

// keptRecorder keeps the Events that client-go keeps: if Events differ only in their notes, it keeps the first.
type keptRecorder struct {
	all  map[string]bool
	told []string
}

func (k *keptRecorder) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	key := fmt.Sprint(regarding, related, kind, reason, action)
	if k.all[key] || action == "" || len(action) > maxAction {
		return
	}
	k.all[key] = true
	k.told = append(k.told, fmt.Sprintf(reason+" "+note, args...))
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
		k := &keptRecorder{all: map[string]bool{}}
		f.options.Events = k
		for _, name := range []string{"a", "b", long, ""} {
			tell(name)
		}
		if len(k.told) != 4 {
			t.Errorf("of four %s there are Events of %q", what, k.told)
		}
	}
}

func TestGroupEventsNameEveryRetiredNode(t *testing.T) {
	since := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	f := newFixture(t, func(g *v1alpha1.NodeGroup) {
		withTeamLabel("a")(g)
		g.Spec.DisruptionBudgets = []v1alpha1.DisruptionBudget{{Nodes: intstr.FromString("100%")}}
	}, newIdleNode("x", since), newIdleNode("y", since))
	k := &keptRecorder{all: map[string]bool{}}
	f.options.Events = k
	f.observeSince("x", "y")
	f.reconcileTimes(2)
	for _, name := range []string{"x", "y"} {
		if !slices.ContainsFunc(k.told, func(e string) bool { return strings.Contains(e, "node "+name+":") }) {
			t.Errorf("Events are %q, and none on the group is of node %s", k.told, name)
		}
	}
}

func TestNodeEventStateIsRemovedWithTheNode(t *testing.T) {
	f := newFixture(t, withTeamLabel("a"), newIdleNode("x", ""), newIdleNode("y", ""))
	f.reconcile()
	if got := len(f.states["web"].nodeEvents); got != 2 {
		t.Fatalf("%d nodes are remembered, want 2", got)
	}
	if err := f.kube.CoreV1().Nodes().Delete(t.Context(), "x", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.waitUntil("the watch has told of it", func() bool { _, err := f.sources.nodes.Get("x"); return err != nil })
	f.reconcile()
	if got := f.states["web"].nodeEvents; len(got) != 1 || got["uid-y"] == "" {
		t.Errorf("%v are remembered, want y", got)
	}
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
	if got := testutil.ToFloat64(f.options.Metrics.refusals.WithLabelValues("web", "m4", launch.Failed)); got != 1 {
		t.Errorf("%v launches have failed, want 1", got)
	}
}
