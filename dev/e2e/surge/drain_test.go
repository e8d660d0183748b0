package surge_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/surge"
)

// drain runs `slipway drain` of the first instance with surges, and returns its report.
func (f *fixture) drain(flags ...string) drain.Report {
	f.t.Helper()
	cmd := testbed.NewCommand(f.ctx, f.t, "slipway", append([]string{
		"drain", f.node(home), "--kubeconfig", f.Kubeconfig(), "--surge=always", "-o", "json",
	}, flags...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		f.t.Fatalf("slipway drain: %v\n%s%s", err, stdout.String(), stderr.String())
	}
	var report drain.Report
	if err := json.Unmarshal(stdout.Bytes(), &report); err != nil {
		f.t.Fatalf("drain report: %v\n%s", err, stdout.String())
	}
	f.t.Logf("%s", stderr.String())
	return report
}

// singles returns n Deployments of one pod each, with a PDB of minAvailable 1 and a Service each.
func (f *fixture) singles(n int, prefix, startSeconds string) (all []runtime.Object, sizes map[string]int32) {
	sizes = map[string]int32{}
	for i := range n {
		app := f.app(fmt.Sprintf("%s-%d", prefix, i), 1)
		app.MinAvailable, app.MaxUnavailable, app.StartSeconds = "1", "", startSeconds
		all, sizes[app.Name] = append(all, objects(app)...), 1
	}
	return all, sizes
}

func TestDrainKeepsEachServiceServed(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "served")
	f.checkSizes()
	all, sizes := f.singles(8, "web", "2")
	f.runAtHome(all...)
	report := f.drain("--timeout", "3m")
	f.checkNoGaps()
	f.awaitNoTraces(restoreTime, sizes)
	if n := report.Totals().Surged; report.Outcome != drain.Drained || n != len(sizes) {
		t.Errorf("outcome %s, %d pods had a successor first, want %d", report.Outcome, n, len(sizes))
	}
}

// TestDrainSurgesOnlyWhereItCan drains pods of owners that can surge, and of owners that cannot.
func TestDrainSurgesOnlyWhereItCan(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "kinds")
	f.checkSizes()
	bare, db, never := f.app("bare", 1), f.app("db", 1), f.app("never", 1)
	db.MaxUnavailable, never.MaxUnavailable = "1", "1"
	never.Annotations = map[string]string{surge.Annotation: "false"}
	f.runAtHome(bare.ReplicaSet(), bare.PodDisruptionBudget(), bare.Service(), db.StatefulSet(), db.PodDisruptionBudget(), db.Service(),
		never.Deployment(), never.PodDisruptionBudget(), never.Service())
	report := f.drain("--timeout", "3m")
	f.checkNoGaps("db", "never")
	f.awaitNoTraces(restoreTime, map[string]int32{"never": 1})
	found := 0
	for _, p := range report.Pods {
		app, _, _ := strings.Cut(p.Name, "-")
		if p.Namespace != f.ns {
			continue
		}
		found++
		var verdict surge.Verdict
		if p.Surge != nil {
			verdict = p.Surge.Decision.Verdict
		}
		want, removal := surge.Refused, drain.Evicted
		if app == "bare" {
			want, removal = surge.Needed, drain.Surged
		}
		if verdict != want || p.Removal != removal {
			t.Errorf("%s was %s with the verdict %q; want it %s and %q", p.Name, p.Removal, verdict, removal, want)
		}
	}
	if found != 3 {
		t.Errorf("the report has %d of the pods, want 3", found)
	}
}

// TestDeniedPodLeavesOnceOneMoreIsHealthy has three pods with a PDB of minAvailable 2. One of them, on another node, is not Ready.
func TestDeniedPodLeavesOnceOneMoreIsHealthy(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "denied")
	f.checkSizes()
	app := f.app("web", 1)
	app.MinAvailable, app.MaxUnavailable = "2", ""
	f.runAtHome(app.Deployment(), app.Service())
	_, err := f.Client().CoreV1().Nodes().Patch(f.ctx, f.node(home), types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{})
	f.check(err)
	f.check(f.scaleAsUser("web", func(int32) int32 { return 3 }))
	f.check(workload.Create(f.ctx, f.Client(), app.PodDisruptionBudget()))
	f.awaitHealthy("web", 3)
	var away []corev1.Pod
	for _, p := range f.livingPods() {
		if p.Spec.NodeName != f.node(home) {
			away = append(away, p)
		}
	}
	if len(away) != 2 {
		t.Fatalf("%d pods run on other nodes, want 2", len(away))
	}
	f.makeUnready(away[0].Name)
	f.awaitHealthy("web", 2)
	leastHealthy := f.watchHealthy("web")
	report := f.drain("--deadline", "30s")
	f.checkNoGaps()
	f.awaitNoTraces(restoreTime, map[string]int32{"web": 3})
	if n := leastHealthy(); n < 2 {
		t.Errorf("for a time %d pods were healthy, want 2", n)
	}
	for _, p := range report.Pods {
		if p.Namespace != f.ns {
			continue
		}
		if p.Removal != drain.Evicted || p.Surge == nil || p.Surge.Decision.Reason != surge.ReasonPDBDenies || !p.Surge.Result.PodLeft {
			t.Errorf("%s was %s: %+v; want it evicted after its successor was ready", p.Name, p.Removal, p.Surge)
			continue
		}
		stay := []string{away[1].Name, strings.TrimPrefix(p.Surge.Result.Successor, f.ns+"/")}
		living := f.livingPods()
		for _, name := range stay {
			if !slices.ContainsFunc(living, func(p corev1.Pod) bool { return p.Name == name }) {
				t.Errorf("the healthy pod %s was deleted", name)
			}
		}
	}
}

// livingPods returns the test's pods that are not terminating.
func (f *fixture) livingPods() []corev1.Pod {
	f.t.Helper()
	pods, err := f.Client().CoreV1().Pods(f.ns).List(f.ctx, metav1.ListOptions{})
	f.check(err)
	return slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

// makeUnready makes a pod unready for ever, as if its containers restarted again and again.
func (f *fixture) makeUnready(pod string) {
	f.t.Helper()
	pods := f.Client().CoreV1().Pods(f.ns)
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, controlplane.StartSecondsAnnotation, controlplane.Never)
	_, err := pods.Patch(f.ctx, pod, types.MergePatchType, patch, metav1.PatchOptions{})
	f.check(err)
	_, err = pods.Patch(f.ctx, pod, types.StrategicMergePatchType,
		[]byte(`{"status":{"conditions":[{"type":"Ready","status":"False"},{"type":"ContainersReady","status":"False"}]}}`), metav1.PatchOptions{}, "status")
	f.check(err)
}

// awaitHealthy waits until a PDB counts this many pods as healthy.
func (f *fixture) awaitHealthy(pdb string, n int32) {
	f.t.Helper()
	f.check(testbed.PollUntil(f.ctx, fmt.Sprintf("PDB %s counts %d healthy pods", pdb, n), func() bool {
		b, err := f.Client().PolicyV1().PodDisruptionBudgets(f.ns).Get(f.ctx, pdb, metav1.GetOptions{})
		return err == nil && b.Status.CurrentHealthy == n
	}))
}

// watchHealthy watches how many pods a PDB counts as healthy. The returned function ends that, and returns the least number.
func (f *fixture) watchHealthy(pdb string) (end func() int32) {
	f.t.Helper()
	w, err := f.Client().PolicyV1().PodDisruptionBudgets(f.ns).Watch(f.ctx, metav1.SingleObject(metav1.ObjectMeta{Name: pdb}))
	f.check(err)
	least := make(chan int32, 1)
	go func() {
		n := int32(math.MaxInt32)
		for e := range w.ResultChan() {
			if b, ok := e.Object.(*policyv1.PodDisruptionBudget); ok {
				n = min(n, b.Status.CurrentHealthy)
			}
		}
		least <- n
	}()
	return func() int32 { w.Stop(); return <-least }
}

// TestDeadlineIsDecidedPerOwner has owners that start in time for the deadline, and owners that do not.
func TestDeadlineIsDecidedPerOwner(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "deadline")
	f.checkSizes()
	all, sizes := f.singles(2, "fast", "1")
	slow, slowSizes := f.singles(2, "slow", "25")
	for name, size := range slowSizes {
		sizes[name] = size
	}
	f.runAtHome(append(all, slow...)...)
	report := f.drain("--deadline", "30s")
	f.checkNoGaps("slow-0", "slow-1")
	f.awaitNoTraces(restoreTime, sizes)
	if report.EndedAt.After(report.Deadline) {
		t.Errorf("the drain ended at %s, after its deadline %s", report.EndedAt, report.Deadline)
	}
	for _, p := range report.Pods {
		if p.Namespace != f.ns {
			continue
		}
		switch {
		case p.Surge == nil:
			t.Errorf("the report says nothing of a successor of %s", p.Name)
		case strings.HasPrefix(p.Name, "fast-") && p.Removal != drain.Surged:
			t.Errorf("%s was %s: %+v", p.Name, p.Removal, p.Surge)
		case strings.HasPrefix(p.Name, "slow-") && (p.Surge.Decision.Verdict != surge.Refused || p.Surge.Decision.Detail == ""):
			t.Errorf("%s: %+v, want it refused for lack of time", p.Name, p.Surge)
		}
	}
}

// TestAgentSurgesBeforeSpotNotice gives the agent's node the notice of a Spot eviction, with the rights of the shipped
// manifests.
func TestAgentSurgesBeforeSpotNotice(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "noticed")
	f.checkSizes()
	all, sizes := f.singles(6, "web", "2")
	f.runAtHome(all...)
	a := f.agent(home)
	e := f.announce(azure.Announcement{Type: azure.Preempt, Notice: 45 * time.Second})
	f.awaitHomeEmpty()
	f.checkNoGaps()
	f.awaitNoTraces(restoreTime, sizes)
	_, err := f.AwaitNotice(f.ctx, e.EventID, "ended", func(r azure.EventRecord) bool { return !r.IsListed() })
	f.check(err)
	if a.HasLogged("pod gets no successor before it leaves") {
		t.Error("the agent refused a successor")
	}
	f.checkNoGaps()
}

// TestAgentKeepsAReplicationControllerServed has the real replication controller choose the pod to delete.
func TestAgentKeepsAReplicationControllerServed(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "controller")
	app := f.app("web", 1)
	app.MinAvailable, app.MaxUnavailable, app.StartSeconds = "1", "", "2"
	f.runAtHome(app.ReplicationController(), app.PodDisruptionBudget(), app.Service())
	f.checkAgentSurges(func() (metav1.Object, int64, error) {
		rc, err := f.Client().CoreV1().ReplicationControllers(f.ns).Get(f.ctx, app.Name, metav1.GetOptions{})
		f.check(err)
		return rc, int64(*rc.Spec.Replicas), nil
	})
}

// TestUnschedulableSuccessorIsTakenBack leaves no room for the successor.
func TestUnschedulableSuccessorIsTakenBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "no-room")
	f.checkSizes()
	app := f.app("web", 1)
	app.Node = f.node(home)
	f.runAtHome(objects(app)...)
	cmd := testbed.NewCommand(f.ctx, t, "slipway", "drain", f.node(home), "--kubeconfig", f.Kubeconfig(), "--surge=always", "--timeout", "25s")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Errorf("the drain of a pod with a PDB of maxUnavailable 0 succeeded:\n%s", out)
	}
	f.awaitNoTraces(restoreTime, map[string]int32{"web": 1})
	f.checkNoGaps()
	living := f.livingPods()
	if len(living) != 1 || living[0].Spec.NodeName != f.node(home) {
		t.Errorf("%d pods, want the old one alone", len(living))
	}
	if !strings.Contains(string(out), "nschedulable") {
		t.Errorf("the output does not name the reason:\n%s", out)
	}
}
