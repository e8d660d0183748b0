package cloudpool_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/workload"
	"github.com/slipway-dev/slipway/internal/cloudpool/controller"
	"github.com/slipway-dev/slipway/internal/cloudpool/matching"
)

func TestI9LastTwoWorkersAreNotBothRemoved(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "two", 2, options{})
	f.create(f.app("web", 3).Deployment())
	f.startManager()
	f.startCloudpool("a")
	a := f.post("/pool/size", size(0))
	f.want(a, http.StatusConflict, "failed to set desired size", "removed 1 machines", "no-room")
	if n := len(f.pool.Machines()); n != 1 || f.pool.DesiredSize() != 1 {
		t.Errorf("%d machines, and a desired size of %d; want 1 and 1", n, f.pool.DesiredSize())
	}
	f.await("all pods run on the remaining node", func() bool {
		on := f.pods("web")
		for _, pods := range on {
			return len(on) == 1 && len(pods) == 3
		}
		return false
	})
}

func TestI2SharedPDBIsNotExceeded(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "budget", 3, options{})
	app := f.app("db", 3)
	f.create(spread(app), app.PodDisruptionBudget())
	f.startManager()
	f.startCloudpool("a")
	// Together the two machines would cost two disruptions. The plan chooses one machine, and gives a reason for the
	// other.
	f.await("the PDB is known", func() bool {
		var plan matching.Decision
		f.check(json.Unmarshal([]byte(f.get("/slipway/v1/pools/budget/plan?desiredSize=1").body), &plan))
		return len(plan.Victims) == 1 && slices.ContainsFunc(plan.Skipped, func(p matching.SkippedMachine) bool { return p.Rule == "disruption-budget" })
	})
	least := f.watchFewestReady(app.Name)
	a := f.post("/pool/size", size(1))
	switch a.code {
	case http.StatusOK: // the pods of the first machine ran elsewhere in time
	case http.StatusConflict:
		f.want(a, http.StatusConflict, "disruption-budget")
	default:
		t.Errorf("%s", a)
	}
	if n := least(); n < 2 {
		t.Errorf("I2: at one time only %d of 3 pods were ready, want 2", n)
	}
	if n := len(f.pool.Machines()); n != f.pool.DesiredSize() || n < 1 || n > 2 {
		t.Errorf("%d machines, and a desired size of %d", n, f.pool.DesiredSize())
	}
	for _, rt := range f.listRetirements() {
		if rt.Status.Phase != v1alpha1.Succeeded {
			t.Errorf("the retirement of %s: %s: %s", rt.Spec.NodeName, rt.Status.Phase, rt.Status.Message)
		}
	}
}

// spread returns an App's Deployment that spreads its pods over the available nodes.
func spread(app workload.App) *appsv1.Deployment {
	d := app.Deployment()
	d.Spec.Template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway,
		LabelSelector: d.Spec.Selector,
	}}
	return d
}

// watchFewestReady starts to watch an app's pods. stop returns the lowest number of pods that were ready and not terminating.
func (f *fixture) watchFewestReady(app string) (stop func() int) {
	f.t.Helper()
	selector := metav1.ListOptions{LabelSelector: workload.AppLabel + "=" + app}
	list, err := f.Client().CoreV1().Pods(f.name).List(f.ctx, selector)
	f.check(err)
	there := map[types.UID]bool{}
	note := func(p *corev1.Pod) {
		ready := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
		if delete(there, p.UID); ready && p.DeletionTimestamp == nil {
			there[p.UID] = true
		}
	}
	for i := range list.Items {
		note(&list.Items[i])
	}
	least := len(there)
	selector.ResourceVersion = list.ResourceVersion
	watch, err := f.Client().CoreV1().Pods(f.name).Watch(f.ctx, selector)
	f.check(err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range watch.ResultChan() {
			if p, ok := event.Object.(*corev1.Pod); ok && event.Type != apiwatch.Deleted {
				note(p)
			} else if ok {
				delete(there, p.UID)
			}
			least = min(least, len(there))
		}
	}()
	return func() int {
		watch.Stop()
		<-done
		return least
	}
}

func TestI1LateProtectedPodsKeepTheirNode(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "late", 3, options{})
	slow := f.app("slow", 6)
	f.create(slow.Deployment())
	f.setFinalizers(slow.Name, "example.com/keep") // the late pods must exist before the second node is drained
	f.startManager()
	f.startCloudpool("a")
	accepted := f.post("/pool/size", size(1), "Prefer: respond-async")
	f.want(accepted, http.StatusAccepted)
	var first v1alpha1.NodeRetirement
	f.await("the first node is being drained", func() bool {
		for _, rt := range f.listRetirements() {
			first = rt
			return rt.Status.Phase == v1alpha1.Draining
		}
		return false
	})
	var late []*corev1.Pod
	var objects []runtime.Object
	for i := range 3 {
		if f.node(i) == first.Spec.NodeName {
			continue
		}
		pod := f.app(fmt.Sprint("late-", i), 1)
		pod.Node = f.node(i)
		late = append(late, pod.Pod())
		objects = append(objects, late[len(late)-1])
	}
	f.create(objects...)
	f.setFinalizers(slow.Name)
	up := f.awaitUpdate(accepted.header.Get("Location"))
	if up.Outcome.Result != controller.Partial || up.Outcome.Removed != 1 {
		t.Errorf("%+v, want one machine removed, and two kept", up.Outcome)
	}
	for _, p := range late {
		got, err := f.Client().CoreV1().Pods(f.name).Get(f.ctx, p.Name, metav1.GetOptions{})
		if err != nil || got.DeletionTimestamp != nil || got.Status.Phase != corev1.PodRunning {
			t.Errorf("pod %s: %v, %v", p.Name, got.Status.Phase, err)
		}
	}
}

// setFinalizers sets the finalizers of an app's pods.
func (f *fixture) setFinalizers(app string, finalizers ...string) {
	f.t.Helper()
	pods := f.Client().CoreV1().Pods(f.name)
	list, err := pods.List(f.ctx, metav1.ListOptions{LabelSelector: workload.AppLabel + "=" + app})
	f.check(err)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"finalizers": finalizers}})
	f.check(err)
	for _, p := range list.Items {
		_, err := pods.Patch(f.ctx, p.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		f.check(err)
	}
}

// awaitUpdate waits until an update has ended.
func (f *fixture) awaitUpdate(path string) *controller.Update {
	f.t.Helper()
	up := &controller.Update{}
	f.await("the update has ended", func() bool {
		a := f.get(path)
		if a.code != http.StatusOK {
			return false
		}
		up = &controller.Update{}
		f.check(json.Unmarshal([]byte(a.body), up))
		return up.Outcome != nil
	})
	return up
}

func TestI8OtherReplicaContinuesUpdateWithoutClient(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "resume", 4, options{})
	slow := f.app("slow", 4)
	slow.StopSeconds = "2"
	f.create(slow.Deployment())
	f.startManager()
	first := f.startCloudpool("a")
	ctx, leave := context.WithCancel(f.ctx)
	asked := make(chan error, 1)
	go func() {
		_, err := f.send(ctx, http.MethodPost, "/pool/size", size(2))
		asked <- err
	}()
	f.await("a retirement exists", func() bool { return len(f.listRetirements()) > 0 })
	leave()
	if err := <-asked; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	f.check(first.Kill())
	f.startCloudpool("b")
	// A repeated request returns the result of the first request.
	f.want(f.post("/pool/size", size(2)), http.StatusOK)
	if n := len(f.pool.Machines()); n != 2 || f.pool.DesiredSize() != 2 {
		t.Errorf("%d machines, and a desired size of %d; want 2", n, f.pool.DesiredSize())
	}
	if n := len(f.listRetirements()); n != 2 {
		t.Errorf("%d retirements, want 2", n)
	}
}

// TestI8PausedReplicaLearnsOutcomeOfItsUpdate pauses the first process. Another process ends the update and
// carries out the next update.
func TestI8PausedReplicaLearnsOutcomeOfItsUpdate(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "paused", 4, options{})
	slow := f.app("slow", 4)
	slow.StopSeconds = "2"
	f.create(slow.Deployment())
	f.startManager()
	first := f.startCloudpool("a")
	a := f.address
	waiting := make(chan answer, 1)
	go func() {
		got, err := f.ask(a, http.MethodPost, "/pool/size", size(3))
		if err != nil {
			t.Error(err)
		}
		waiting <- got
	}()
	f.await("a retirement exists", func() bool { return len(f.listRetirements()) > 0 })
	id := f.listRetirements()[0].Labels[controller.UpdateLabel]
	f.check(first.Pause(f.ctx))
	f.startCloudpool("b")
	f.want(f.post("/pool/size", size(3)), http.StatusOK)
	f.want(f.post("/pool/size", size(2)), http.StatusOK)
	f.check(first.Resume())
	f.want(<-waiting, http.StatusOK)
	f.address = a
	if up := f.awaitUpdate("/slipway/v1/pools/paused/updates/" + id); up.Outcome.Result != controller.Done {
		t.Errorf("%+v", up.Outcome)
	}
	f.want(f.post("/pool/size", size(2)), http.StatusOK)
	if n := len(f.pool.Machines()); n != 2 || f.pool.DesiredSize() != 2 || len(f.listRetirements()) != 2 {
		t.Errorf("%d machines, a desired size of %d, %d retirements; want 2 of each", n, f.pool.DesiredSize(), len(f.listRetirements()))
	}
}
