package testbed

import (
	"cmp"
	"context"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/workload"
)

const ledgerNamespace = "ledger"

// podCase is a pod, the action on it before its machine is deleted, and the outcome that the ledger must report.
type podCase struct {
	app workload.App
	// gracePeriod is the grace period of the pod's deletion in seconds. A negative value means no deletion.
	gracePeriod int64
	wantOutcome azure.Outcome
	// wantBefore is the outcome while the machine lives. Empty means wantOutcome.
	wantBefore azure.Outcome
}

// daemonSetName is the name of the DaemonSet with the pod that stays on the machine.
const daemonSetName = "belongs-to-its-node"

// noDeletion is the grace period of a pod that is not deleted.
const noDeletion = -1

func podCases() []podCase {
	app := func(name, stop string, wanted time.Duration) workload.App {
		return workload.App{Namespace: ledgerNamespace, Name: name, StopSeconds: stop, GracePeriod: wanted}
	}
	return []podCase{
		{app: app("stops-by-itself", "1", 30*time.Second), gracePeriod: 30, wantOutcome: azure.OutcomeFinished},
		{app: app("stops-by-itself-in-less-than-it-wants", "1", 30*time.Second), gracePeriod: 15, wantOutcome: azure.OutcomeFinished},
		{app: app("never-stops-and-has-its-time", controlplane.Never, 2*time.Second), gracePeriod: 2, wantOutcome: azure.OutcomeSpentGrace},
		{app: app("is-given-less-than-it-wants", controlplane.Never, 30*time.Second), gracePeriod: 2, wantOutcome: azure.OutcomeCutShort},
		{app: app("is-given-nothing", "1", 30*time.Second), gracePeriod: 0, wantOutcome: azure.OutcomeKilledAtOnce},
		{app: app("is-never-asked", "1", 30*time.Second), gracePeriod: noDeletion, wantOutcome: azure.OutcomeLost, wantBefore: azure.OutcomeRunning},
		{app: app("is-asked-too-late", "60", time.Minute), gracePeriod: 60, wantOutcome: azure.OutcomeLost, wantBefore: azure.OutcomeStopping},
	}
}

// The kubelets are emulated by kwok, everything else is real. The ledger must judge what the API server, the controllers
// and the emulated machines do to a pod.
func TestLedgerClassifiesPodsOnRealControlPlane(t *testing.T) {
	bed, err := Start(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bed.Stop(); err != nil {
			t.Error(err)
		}
	})
	pool := controlplane.AKSPool{Name: "ledger", Spot: true}
	if err := bed.AddPool(t.Context(), pool, 1); err != nil {
		t.Fatal(err)
	}
	collector := workload.App{Namespace: ledgerNamespace, Name: daemonSetName}
	objects := []runtime.Object{workload.NewNamespace(ledgerNamespace), collector.DaemonSet()}
	for _, f := range podCases() {
		objects = append(objects, f.app.Pod())
	}
	if err := workload.CreateAndAwait(t.Context(), bed.Client(), objects...); err != nil {
		t.Fatal(err)
	}

	r, err := bed.Azure.Announce(azure.Announcement{
		Type: azure.Preempt, Resources: []string{pool.ResourceName(0)}, Notice: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	deletePods(t, bed.Client())
	awaitOutcomes(t, bed, r.EventID, func(f podCase) azure.Outcome { return cmp.Or(f.wantBefore, f.wantOutcome) })
	if err := bed.Azure.StartEvent(r.EventID); err != nil {
		t.Fatal(err)
	}
	if _, err := bed.AwaitNotice(t.Context(), r.EventID, "over", func(r azure.EventRecord) bool { return !r.IsListed() }); err != nil {
		t.Fatal(err)
	}
	awaitOutcomes(t, bed, r.EventID, func(f podCase) azure.Outcome { return f.wantOutcome })
	checkAwaitNoPods(t, bed)
}

// checkAwaitNoPods checks that waiting for no pods on an empty node returns. A watch of an empty list sends no event.
func checkAwaitNoPods(t *testing.T, bed *Testbed) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	pods, err := bed.AwaitPods(ctx, "a-node-without-pods", "none", func(pods []corev1.Pod) bool { return len(pods) == 0 })
	if err != nil || len(pods) > 0 {
		t.Errorf("%d pods, %v; want none and no error", len(pods), err)
	}
}

func deletePods(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	for _, f := range podCases() {
		if f.gracePeriod == noDeletion {
			continue
		}
		err := client.CoreV1().Pods(ledgerNamespace).Delete(t.Context(), f.app.Name, metav1.DeleteOptions{GracePeriodSeconds: &f.gracePeriod})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// awaitOutcomes waits until the ledger has the wanted outcome for every pod of the event, and for no other pods.
func awaitOutcomes(t *testing.T, bed *Testbed, event string, wantOutcome func(podCase) azure.Outcome) {
	t.Helper()
	want := map[string]azure.Outcome{daemonSetName: azure.OutcomeStayed}
	for _, f := range podCases() {
		want[f.app.Name] = wantOutcome(f)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	_ = PollUntil(ctx, "the ledger is as wanted", func() bool { return gocmp.Equal(ledgerOutcomes(bed, event), want) })
	if diff := gocmp.Diff(want, ledgerOutcomes(bed, event)); diff != "" {
		t.Fatalf("outcomes (-want +got):\n%s", diff)
	}
}

// ledgerOutcomes returns the ledger's outcomes of an event's pods by pod name. The DaemonSet's pod has the DaemonSet's name.
func ledgerOutcomes(bed *Testbed, event string) map[string]azure.Outcome {
	ledger, _ := bed.Azure.Ledger().Event(event)
	found := map[string]azure.Outcome{}
	for _, entry := range ledger.Pods {
		name := entry.Name
		if strings.HasPrefix(name, daemonSetName+"-") {
			name = daemonSetName
		}
		found[name] = entry.Outcome
	}
	return found
}
