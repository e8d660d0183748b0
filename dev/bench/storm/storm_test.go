package storm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	source "github.com/slipway-dev/slipway/internal/notice/azure"
)

// newAcceptedRequest returns a request that the API server completed at a time.
func newAcceptedRequest(at time.Time, verb string, object auditv1.ObjectReference, body string) auditv1.Event {
	return auditv1.Event{
		Verb: verb, ObjectRef: &object, RequestObject: &apiruntime.Unknown{Raw: []byte(body)}, Stage: auditv1.StageResponseComplete,
		StageTimestamp: metav1.NewMicroTime(at), ResponseStatus: &metav1.Status{Code: 200},
	}
}

func TestTimeOfAllAgentsBeginsAtFirstNotice(t *testing.T) {
	first := time.Now()
	m := stormMeasurements{kinds: map[string]int{}}
	for event, tc := range map[string]struct{ visible, evicted time.Duration }{
		"first":  {0, 5 * time.Second},
		"second": {time.Second, 5500 * time.Millisecond},
		"third":  {500 * time.Millisecond, 3 * time.Second},
	} {
		at := first.Add(tc.evicted)
		err := m.addAgentRequests(azure.EventRecord{EventID: event, VisibleAt: first.Add(tc.visible)}, event, []auditv1.Event{
			newAcceptedRequest(at, "patch", auditv1.ObjectReference{Resource: "nodes", Name: event},
				fmt.Sprintf(`{"metadata":{"annotations":{%q:"{}"}},"spec":{"unschedulable":true}}`, cordon.AnnotationKey(source.SourceName+"-"+event))),
			newAcceptedRequest(at, "create", auditv1.ObjectReference{Resource: "pods", Subresource: "eviction", Namespace: "work", Name: event},
				`{"deleteOptions":{"preconditions":{"uid":"1"}}}`),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if took := m.lastEviction.Sub(first); took != 5500*time.Millisecond {
		t.Errorf("the last eviction is %s after the first notice, want 5.5 s", took)
	}
	if longest := slices.Max(m.evicted); longest != 5*time.Second {
		t.Errorf("the last eviction of a node is at most %s after the node's own notice, want 5 s", longest)
	}
}

func TestFloorIsTimeOfFasterBareClients(t *testing.T) {
	for _, bareClients := range [][]time.Duration{{10 * time.Second, 8 * time.Second}, {8 * time.Second, 10 * time.Second}} {
		r := compareWithFloor(9*time.Second, bareClients)
		if r.Value != 9.0/8 || r.MeetsTarget() {
			t.Errorf("bare clients with %s: the agents need %v times the floor, want a missed target with 9/8", bareClients, r.Value)
		}
		for _, text := range []string{"9.00 s from the first notice", "8.00 s with", "10.00 s with"} {
			if !strings.Contains(r.Setup, text) {
				t.Errorf("setup %q: want %q", r.Setup, text)
			}
		}
	}
}

func TestPodsOfOnePDBHaveOneQueue(t *testing.T) {
	selectors := map[string]labels.Selector{} // of the PDBs, by name
	var pods []kubeapi.Pod
	for _, object := range (&stormBench{size: defaultSize}).workloadObjects() {
		switch o := object.(type) {
		case *policyv1.PodDisruptionBudget:
			selectors[o.Name] = labels.SelectorFromSet(o.Spec.Selector.MatchLabels)
		case *appsv1.Deployment:
			for i := range *o.Spec.Replicas {
				pods = append(pods, kubeapi.Pod{ObjectMeta: kubeapi.ObjectMeta{UID: fmt.Sprint(o.Name, "-", i), Labels: o.Spec.Template.Labels}})
			}
		}
	}
	queueOf, queues := newQueueOf(), map[string]int{}
	for _, p := range pods {
		queues[queueOf(p)]++
	}
	want := map[string]int{}
	for _, p := range pods {
		want[p.UID] = 1
		for name, selector := range selectors {
			if selector.Matches(labels.Set(p.Labels)) {
				delete(want, p.UID)
				want[name]++
			}
		}
	}
	if diff := cmp.Diff(want, queues); diff != "" || len(selectors) != apps/2 {
		t.Errorf("pods by queue with %d PDBs, -want +got:\n%s", len(selectors), diff)
	}
}

func TestNoticesAreSpreadOverScaleSetsAndLeaveOthers(t *testing.T) {
	for _, size := range []int{10, 50, 100, 150, 200, 370, maxSize} {
		s := &stormBench{size: size}
		sum := 0
		for i := range s.scaleSetCount() {
			n := s.noticedIn(i)
			if n > machinesEach {
				t.Errorf("size %d: scale set %d has %d notices, want at most %d", size, i, n, machinesEach)
			}
			sum += n
		}
		if sum != size || s.machineCount()-size < minOtherMachines {
			t.Errorf("size %d: %d notices for %d machines, want %d and at least %d without", size, sum, s.machineCount(), size, minOtherMachines)
		}
	}
}

func TestSweepKeepsResultsIfSizesFail(t *testing.T) {
	measure := func(_ context.Context, _ Options, size int) ([]result.Result, error) {
		lost := result.Result{Name: "lost", Unit: "pods"}
		switch size {
		case 50:
			return nil, errors.New("no agents")
		case 150:
			return []result.Result{lost}, errors.New("no floor") // of the agents alone
		case 200:
			lost.Value = 1
		}
		return []result.Result{lost}, nil
	}
	results, err := measureSizes(t.Context(), Options{Sizes: []int{50, 100, 150, 200}, Progress: io.Discard}, measure)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range results {
		names = append(names, r.Name)
	}
	want := []string{
		"50 notices: failures", "100 notices: lost", "150 notices: lost", "150 notices: failures", "200 notices: lost",
		"largest storm without a pod deleted past its PDB or lost",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Fatalf("-want +got:\n%s", diff)
	}
	if largest := results[len(results)-1].Value; largest != 150 {
		t.Errorf("the largest storm is %v, want 150", largest)
	}
	if missed := result.MissedTargets(results); len(missed) != 1 || missed[0] != names[0] || !strings.Contains(results[0].Setup, "no agents") {
		t.Errorf("missed targets %q with %q, want the failure of 50 notices", missed, results[0].Setup)
	}
	if results, err := measureSizes(t.Context(), Options{Sizes: []int{50}}, measure); err == nil || results != nil {
		t.Errorf("the only size fails: got %v, %v", results, err)
	}
}
