package surge_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
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
	a := f.agent(home)
	f.announce(azure.Announcement{Type: azure.Preempt, Notice: 45 * time.Second})
	f.awaitHomeEmpty()
	f.checkNoGaps()
	f.awaitNoTraces(restoreTime, nil)
	f.awaitRestored(func() (metav1.Object, int64, error) {
		rc, err := f.Client().CoreV1().ReplicationControllers(f.ns).Get(f.ctx, app.Name, metav1.GetOptions{})
		f.check(err)
		return rc, int64(*rc.Spec.Replicas), nil
	})
	if a.HasLogged("pod gets no successor before it leaves") {
		t.Error("the agent refused a successor")
	}
	f.checkNoGaps()
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
	pods, err := f.Client().CoreV1().Pods(f.ns).List(f.ctx, metav1.ListOptions{})
	f.check(err)
	living := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
	if len(living) != 1 || living[0].Spec.NodeName != f.node(home) {
		t.Errorf("%d pods, want the old one alone", len(living))
	}
	if !strings.Contains(string(out), "nschedulable") {
		t.Errorf("the output does not name the reason:\n%s", out)
	}
}
