// Package drain_test runs `slipway drain` against a real control plane, as a person does. It compares the output with
// the API server's audit log.
package drain_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/recording"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
	"github.com/slipway-dev/slipway/internal/drain"
)

func TestMain(m *testing.M) { os.Exit(testbed.RunTestsAndStopShared(m)) }

// These are the exit codes, as `slipway drain --help` lists them.
const (
	exitDrained     = 0
	exitError       = 1
	exitRefused     = 2
	exitTimeout     = 3
	exitInterrupted = 130
)

// fixture holds a test's own node and namespace, both with the same name.
type fixture struct {
	*testbed.Testbed
	t    *testing.T
	ctx  context.Context
	node string
	ns   string
}

func newFixture(t *testing.T, name string) *fixture {
	t.Helper()
	return newFixtureOn(t, testbed.StartShared(t), name)
}

func newFixtureOn(t *testing.T, bed *testbed.Testbed, name string) *fixture {
	t.Helper()
	ctx := testbed.TestContext(t)
	f := &fixture{Testbed: bed, t: t, ctx: ctx, node: name, ns: name}
	f.check(bed.AddNodes(ctx, controlplane.NodeSpec{
		Name: name, Labels: map[string]string{"example.com/test": name},
		Annotations: map[string]string{"example.com/note": "not Slipway's"},
	}))
	f.check(workload.Create(ctx, bed.Client(), workload.NewNamespace(f.ns)))
	return f
}

func (f *fixture) check(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// app returns an App on the test's node.
func (f *fixture) app(name string, replicas int32) workload.App {
	return workload.App{Namespace: f.ns, Name: name, Replicas: replicas, Node: f.node}
}

func (f *fixture) run(objects ...runtime.Object) {
	f.t.Helper()
	f.check(workload.CreateAndAwait(f.ctx, f.Client(), objects...))
}

// runBlocked runs pods with a PDB that allows no eviction.
func (f *fixture) runBlocked(replicas int32, grace time.Duration) {
	f.t.Helper()
	app := f.app("blocked", replicas)
	app.MinAvailable, app.GracePeriod = "100%", grace
	f.run(app.Deployment(), app.PodDisruptionBudget())
}

// createPod runs a pod without a controller.
func (f *fixture) createPod(app workload.App) {
	f.t.Helper()
	f.check(testbed.PollUntil(f.ctx, "the namespace has its ServiceAccount", func() bool {
		_, err := f.Client().CoreV1().ServiceAccounts(f.ns).Get(f.ctx, "default", metav1.GetOptions{})
		return err == nil
	}))
	f.run(app.Pod())
}

// result describes one run of the program.
type result struct {
	code           int
	stdout, stderr string
	took           time.Duration
}

// command returns the program, ready to run as the administrator.
func (f *fixture) command(args ...string) (*exec.Cmd, *bytes.Buffer, *bytes.Buffer) {
	f.t.Helper()
	cmd := testbed.NewCommand(f.ctx, f.t, "slipway", append([]string{"drain", "--kubeconfig", f.Kubeconfig()}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	return cmd, &stdout, &stderr
}

// drain runs `slipway drain` to its end and checks its exit code.
func (f *fixture) drain(want int, args ...string) result {
	f.t.Helper()
	cmd, stdout, stderr := f.command(args...)
	began := time.Now()
	err := cmd.Run()
	var exited *exec.ExitError
	if err != nil && !errors.As(err, &exited) {
		f.t.Fatal(err)
	}
	r := result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String(), time.Since(began)}
	if r.code != want {
		f.t.Fatalf("slipway drain %v: exit code %d, want %d\n%s%s", args, r.code, want, r.stdout, r.stderr)
	}
	return r
}

// checkOutput checks that the program's output contains all of the words.
func (f *fixture) checkOutput(r result, words ...string) {
	f.t.Helper()
	for _, w := range words {
		if !strings.Contains(r.stdout+r.stderr, w) {
			f.t.Errorf("the output lacks %q:\n%s%s", w, r.stdout, r.stderr)
		}
	}
}

// parseReport parses the output of `-o json`.
func (f *fixture) parseReport(r result) drain.Report {
	f.t.Helper()
	var report drain.Report
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil {
		f.t.Fatalf("drain report: %v\n%s", err, r.stdout)
	}
	return report
}

// agentOf is the prefix of the program's user agent. It separates the program's requests from the administrator's other
// requests.
const agentOf = "slipway-drain/"

// requests returns the program's requests about the test's own pods.
func (f *fixture) requests(verb, resource string) []auditv1.Event {
	f.t.Helper()
	events, err := f.ReadAuditLog(controlplane.AuditFilter{UserAgent: agentOf, Verb: verb, Resource: resource, Namespace: f.ns})
	f.check(err)
	return events
}

// uidOf returns the precondition UID of an eviction or a deletion.
func (f *fixture) uidOf(e auditv1.Event) string {
	f.t.Helper()
	var body struct {
		Preconditions struct{ UID string }
		DeleteOptions struct{ Preconditions struct{ UID string } }
	}
	if e.RequestObject == nil {
		f.t.Fatalf("%s %s: the audit log has no body", e.Verb, e.RequestURI)
	}
	f.check(json.Unmarshal(e.RequestObject.Raw, &body))
	return body.Preconditions.UID + body.DeleteOptions.Preconditions.UID
}

func accepted(e auditv1.Event) bool { return e.ResponseStatus != nil && e.ResponseStatus.Code < 300 }

// pods returns the test's bound pods that are not terminating, by name.
func (f *fixture) pods() map[string]corev1.Pod {
	f.t.Helper()
	list, err := f.Client().CoreV1().Pods(f.ns).List(f.ctx, metav1.ListOptions{})
	f.check(err)
	pods := map[string]corev1.Pod{}
	for _, p := range list.Items {
		if p.Spec.NodeName != "" && p.DeletionTimestamp == nil {
			pods[p.Name] = p
		}
	}
	return pods
}

func (f *fixture) marks() string {
	f.t.Helper()
	n, err := f.Client().CoreV1().Nodes().Get(f.ctx, f.node, metav1.GetOptions{})
	f.check(err)
	delete(n.Annotations, corev1.ObjectTTLAnnotationKey)
	taints := slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { // the node lifecycle controller syncs it with spec.unschedulable later
		return t.Key == corev1.TaintNodeUnschedulable
	})
	return fmt.Sprint(n.Spec.Unschedulable, taints, n.Labels, n.Annotations, len(n.Status.Conditions))
}

func (f *fixture) cordoned() bool { return strings.HasPrefix(f.marks(), "true") }

// checkPodsUnchanged checks that the pods are unchanged. The drain evicted no pod, and no pod has a replacement.
func (f *fixture) checkPodsUnchanged(before map[string]corev1.Pod) {
	f.t.Helper()
	now := f.pods()
	for name, p := range before {
		if now[name].UID != p.UID {
			f.t.Errorf("pod %s was replaced or deleted", name)
		}
	}
	if len(now) != len(before) {
		f.t.Errorf("%d pods, want %d", len(now), len(before))
	}
}

func TestI2BlockedDrainTimesOutAndRestoresNode(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "times-out")
	f.runBlocked(2, time.Minute)
	f.run(f.app("web", 2).Deployment())
	before, was := f.pods(), f.marks()
	const timeout = 15 * time.Second // for a busy host, to request an eviction of each pod
	r := f.drain(exitTimeout, f.node, "--timeout", timeout.String())
	f.checkOutput(r, "gave-up", f.ns+"/blocked", "disruption-budget", "budget blocked allows 0 disruptions", "uncordoned again")
	for name := range before {
		if strings.HasPrefix(name, "blocked-") {
			f.checkOutput(r, f.ns+"/"+name)
			if f.pods()[name].UID != before[name].UID {
				t.Errorf("%s was evicted despite its PodDisruptionBudget", name)
			}
		}
	}
	if r.took < timeout {
		t.Errorf("the drain ended after %s, want at least %s", r.took, timeout)
	}
	if is := f.marks(); is != was {
		t.Errorf("node is  %s\nit was %s", is, was)
	}
	if n := len(f.requests("delete", "pods")); n != 0 {
		t.Errorf("%d deletions", n)
	}
	for _, e := range f.requests("create", "pods/eviction") {
		if strings.HasPrefix(e.ObjectRef.Name, "blocked-") && accepted(e) {
			t.Errorf("the eviction of %s was accepted", e.ObjectRef.Name)
		}
	}
}

func TestDrainIsRefusedForProtectedPods(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "refused")
	protected := f.app("protected", 1)
	protected.Annotations = map[string]string{"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
	f.run(f.app("web", 2).Deployment(), protected.Deployment())
	f.createPod(f.app("unmanaged", 1))
	before, was := f.pods(), f.marks()
	for _, flags := range [][]string{nil, {"--force"}} {
		r := f.drain(exitRefused, append(flags, f.node)...)
		f.checkOutput(r, "protected-", "safe-to-evict", "refused", "uncordoned again")
		if refusesUnmanaged := strings.Contains(r.stdout+r.stderr, "has no controller"); refusesUnmanaged != (flags == nil) {
			t.Errorf("with the flags %q, the unmanaged pod is refused: %v", flags, refusesUnmanaged)
		}
		f.checkPodsUnchanged(before)
		if is := f.marks(); is != was {
			t.Errorf("node is  %s\nit was %s", is, was)
		}
	}
	if n := len(f.requests("create", "pods/eviction")); n != 0 {
		t.Errorf("%d evictions in a refused drain", n)
	}
}

func TestI2BlockedPodIsDeletedBeforeTheDeadline(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "deadline")
	const grace = 15 * time.Second
	f.runBlocked(1, grace)
	f.run(f.app("web", 2).Deployment())
	before := f.pods()
	r := f.drain(exitDrained, f.node, "--deadline", "30s", "-o", "json")
	report := f.parseReport(r)
	if report.Outcome != drain.Drained || !report.EndedAt.Before(report.Deadline) {
		t.Errorf("outcome %s at %s, deadline %s", report.Outcome, report.EndedAt, report.Deadline)
	}
	for _, p := range report.Pods {
		forced := strings.HasPrefix(p.Name, "blocked-")
		if (p.Removal == drain.ForceDeleted) != forced || p.End != drain.Stopped || forced && len(p.Delays) == 0 {
			t.Errorf("%s: removal %s, end %s, delays %v", p.Name, p.Removal, p.End, p.Delays)
		}
	}
	deletions := f.requests("delete", "pods")
	if len(deletions) == 0 {
		t.Fatal("no deletion in the audit log")
	}
	for _, e := range deletions {
		if p := before[e.ObjectRef.Name]; !strings.HasPrefix(p.Name, "blocked-") || f.uidOf(e) != string(p.UID) {
			t.Errorf("deletion of %s with UID %q", e.ObjectRef.Name, f.uidOf(e))
		}
		if left := report.Deadline.Sub(e.RequestReceivedTimestamp.Time); left > grace+5*time.Second || left < 5*time.Second {
			t.Errorf("deleted %s before the deadline, want the grace of %s and little more", left, grace)
		}
	}
}

func TestDryRunChangesNothing(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"--dry-run", "--dry-run=server"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, "dry"+strings.ReplaceAll(strings.TrimPrefix(how, "--dry-run"), "=", "-"))
			f.runBlocked(1, time.Minute)
			f.run(f.app("web", 2).Deployment())
			f.createPod(f.app("unmanaged", 1))
			before, was := f.pods(), f.marks()
			r := f.drain(exitDrained, f.node, how, "--force")
			for name := range before {
				f.checkOutput(r, name)
			}
			f.checkPodsUnchanged(before)
			if is := f.marks(); is != was {
				t.Errorf("node is  %s\nit was %s", is, was)
			}
			events, err := f.ReadAuditLog(controlplane.AuditFilter{UserAgent: agentOf})
			f.check(err)
			for _, e := range events {
				mine := e.ObjectRef != nil && (e.ObjectRef.Namespace == f.ns || e.ObjectRef.Name == f.node)
				reads := slices.Contains([]string{"get", "list", "watch"}, e.Verb)
				dry := e.RequestObject != nil && strings.Contains(string(e.RequestObject.Raw), `"dryRun":["All"]`)
				if mine && !reads && (!dry || how != "--dry-run=server") {
					t.Errorf("%s %s", e.Verb, e.RequestURI)
				}
			}
		})
	}
}

// TestCommandsExplainSurgesWithOneDecision checks that the preview of a drain, why and plan print the same decision.
func TestCommandsExplainSurgesWithOneDecision(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "surgewords")
	f.runBlocked(1, time.Minute)
	before := f.pods()
	explain := func(args ...string) string {
		t.Helper()
		out, err := testbed.NewCommand(f.ctx, t, "slipway", append(args, "--kubeconfig", f.Kubeconfig(), "--surge")...).CombinedOutput()
		if err != nil {
			t.Errorf("slipway %v: %v:\n%s", args, err, out)
		}
		return string(out)
	}
	for _, c := range []struct {
		verdict string
		flags   []string
		end     string // of the decision; other tests may change the room
	}{{"  needed: ", nil, "; room: "}, {"  refused: ", []string{"--deadline", "10s"}, "\n"}} {
		r := f.drain(exitDrained, append([]string{f.node, "--surge", "--dry-run=server"}, c.flags...)...)
		_, decision, found := strings.Cut(r.stdout, c.verdict)
		decision, _, ended := strings.Cut(decision, c.end)
		if !found || !ended {
			t.Fatalf("no decision:\n%s%s", r.stdout, r.stderr)
		}
		if out := explain(append([]string{"why", "node/" + f.node}, c.flags...)...); !strings.Contains(out, c.verdict+decision+c.end) {
			t.Errorf("slipway why, want %q in:\n%s", c.verdict+decision+c.end, out)
		}
	}
	explain("plan")
	r := f.drain(exitError, f.node, "--surge", "--surge-namespace", "missing")
	f.checkOutput(r, `namespace "missing" does not exist`, "kubectl create namespace missing")
	f.checkPodsUnchanged(before)
	if f.cordoned() {
		t.Error("the node is cordoned")
	}
}

// TestI11InterruptedDrainRestoresTheOwner interrupts a drain while a successor has no node.
func TestI11InterruptedDrainRestoresTheOwner(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "surgestop")
	f.runBlocked(1, time.Minute)
	before := f.pods()
	cmd, stdout, stderr := f.command(f.node, "--surge", "--surge-namespace", f.ns)
	f.check(cmd.Start())
	size := func() int32 {
		d, err := f.Client().AppsV1().Deployments(f.ns).Get(f.ctx, "blocked", metav1.GetOptions{})
		f.check(err)
		return *d.Spec.Replicas
	}
	f.check(testbed.PollUntil(f.ctx, "the size is raised", func() bool { return size() == 2 }))
	f.check(cmd.Process.Signal(syscall.SIGINT))
	_ = cmd.Wait() // the exit code is checked
	r := result{code: cmd.ProcessState.ExitCode(), stdout: stdout.String(), stderr: stderr.String()}
	if r.code != exitInterrupted || size() != 1 || f.cordoned() {
		t.Errorf("exit code %d, size %d, cordoned: %t\n%s%s", r.code, size(), f.cordoned(), r.stdout, r.stderr)
	}
	f.checkOutput(r, "interrupted: restoring the size of 1 owner", "needed: ", "cancelled: ")
	leases, err := f.Client().CoordinationV1().Leases(f.ns).List(f.ctx, metav1.ListOptions{})
	f.check(err)
	if len(leases.Items) > 0 {
		t.Errorf("%d records are left", len(leases.Items))
	}
	for name := range before {
		p, err := f.Client().CoreV1().Pods(f.ns).Get(f.ctx, name, metav1.GetOptions{})
		f.check(err)
		if p.DeletionTimestamp != nil || len(p.Annotations) != len(before[name].Annotations) {
			t.Errorf("pod %s: deleted at %v, annotations %v", name, p.DeletionTimestamp, p.Annotations)
		}
	}
}

func TestSelectorsSelectNodesAndPods(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "by-label")
	f.run(f.app("web", 2).Deployment(), f.app("db", 2).StatefulSet())
	before := f.pods()
	f.drain(exitDrained, "--selector", "example.com/test="+f.node, "--pod-selector", workload.AppLabel+"=web")
	now := f.pods()
	if len(now) != 2 || now["db-0"].UID != before["db-0"].UID || now["db-1"].UID != before["db-1"].UID || !f.cordoned() {
		t.Errorf("%d pods left, want the 2 of db; cordoned: %v", len(now), f.cordoned())
	}
}

// TestI3ExistingCordonStays drains a node that another drain has kept cordoned.
func TestI3ExistingCordonStays(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "kept-cordoned")
	f.runBlocked(1, time.Minute)
	for _, flags := range [][]string{{"--keep-cordoned"}, nil} {
		f.drain(exitTimeout, append(flags, f.node, "--timeout", "2s")...)
		if !f.cordoned() {
			t.Errorf("with the flags %q, the node was uncordoned", flags)
		}
	}
}

func TestI3InterruptedDrainRestoresTheNode(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "interrupted")
	f.runBlocked(2, time.Minute)
	before, was := f.pods(), f.marks()
	cmd, stdout, stderr := f.command(f.node)
	f.check(cmd.Start())
	_, err := f.AwaitNode(f.ctx, f.node, "cordoned", func(n *corev1.Node) bool { return n.Spec.Unschedulable })
	f.check(err)
	f.check(testbed.PollUntil(f.ctx, "an eviction was denied", func() bool {
		return len(f.requests("create", "pods/eviction")) > 0
	}))
	f.check(cmd.Process.Signal(syscall.SIGTERM))
	_ = cmd.Wait() // the test checks its exit code
	r := result{code: cmd.ProcessState.ExitCode(), stdout: stdout.String(), stderr: stderr.String()}
	if r.code != exitInterrupted {
		t.Errorf("exit code %d, want %d", r.code, exitInterrupted)
	}
	f.checkOutput(r, "cancelled", "uncordoned again")
	f.checkPodsUnchanged(before)
	if is := f.marks(); is != was {
		t.Errorf("node is  %s\nit was %s", is, was)
	}
}

func TestTerminalShowsPodsAndInterruptExplainsState(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "on-terminal")
	f.runBlocked(2, time.Minute)
	stubborn := f.app("stubborn", 1)
	stubborn.StopSeconds, stubborn.GracePeriod = "40", time.Minute
	f.run(stubborn.Deployment())
	program, err := testbed.EnsureBinary("slipway")
	f.check(err)
	s, err := recording.Start(f.ctx, 100, 20, "", []string{"TERM=xterm-256color", "LC_ALL=C.UTF-8", "NO_COLOR=1"}, program, "drain",
		"--kubeconfig", f.Kubeconfig(), f.node, "--timeout", "10m")
	f.check(err)
	for _, text := range []string{"timeout in 9:", "0 of 3 gone, 1 terminating, 2 waiting", "for PDB " + f.ns + "/blocked: ", "terminating 0:02 of 1:00"} {
		f.check(s.AwaitText(f.ctx, text))
	}
	f.check(s.Press("\x03")) // Ctrl-C
	f.check(s.AwaitText(f.ctx, "nothing else has to be undone"))
	cast, err := s.Finish()
	var exited *exec.ExitError
	if !errors.As(err, &exited) || exited.ExitCode() != exitInterrupted {
		t.Errorf("ended with %v, want exit code %d", err, exitInterrupted)
	}
	screen := cast.LastScreen()
	for _, text := range []string{
		f.node + ": interrupted: 0 evicted pods gone, 1 still terminating, 2 not evicted", "cannot be undone: " + f.ns + "/stubborn-",
		"the node is not cordoned", "0 gone, 3 remaining",
	} {
		if !strings.Contains(screen, text) {
			t.Errorf("%q is not on the screen:\n%s", text, screen)
		}
	}
	if strings.Contains(screen, "timeout in") || strings.Contains(screen, "terminating 0:") {
		t.Errorf("the view is still on the screen:\n%s", screen)
	}
}

func TestI10ErrorsNameTheBadInput(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "bad-input")
	was := f.marks()
	for _, tc := range []struct{ args, words []string }{
		{[]string{"--selector", "example.com/test=none"}, []string{"--selector", "no node"}},
		{[]string{f.node, "--context", "elsewhere"}, []string{"elsewhere"}},
	} {
		r := f.drain(exitError, tc.args...)
		f.checkOutput(r, append(tc.words, "error:")...)
	}
	f.checkOutput(f.drain(exitError, "no-such-node"), `Error from server (NotFound): nodes "no-such-node" not found`)
	f.checkOutput(f.drain(exitError, f.node, "--server", "https://127.0.0.1:1"), "The connection to the server 127.0.0.1:1 was refused")
	if is := f.marks(); is != was {
		t.Errorf("node is  %s\nit was %s", is, was)
	}
}

// TestGroupIsEvictedWholeOrNotAtAll drains a node with three pods of one Job of a JobSet. Their PDB first allows one
// disruption, and so each dry run alone.
func TestGroupIsEvictedWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "grouped")
	train := f.app("train", 3)
	train.Labels = map[string]string{
		"jobset.sigs.k8s.io/jobset-name": "train", "jobset.sigs.k8s.io/replicatedjob-name": "workers", "jobset.sigs.k8s.io/job-index": "0",
	}
	train.MinAvailable = "2"
	f.run(train.StatefulSet(), train.PodDisruptionBudget(), f.app("web", 2).Deployment())
	before := f.pods()
	isMember := func(name string) bool { return strings.HasPrefix(name, "train-") }
	const group = "JobSet/train/workers/0"

	f.checkOutput(f.drain(exitDrained, f.node, "--dry-run=server"), "GROUP", group, "asks for all pods of "+group+" or for none")
	f.checkOutput(f.drain(exitTimeout, f.node, "--timeout", "12s"), group, "the 3 pods of "+group+" need 3")
	for name, was := range f.pods() {
		if isMember(name) && was.UID != before[name].UID {
			t.Errorf("%s was evicted without its group", name)
		}
	}
	for _, e := range f.requests("create", "pods/eviction") {
		if dry := strings.Contains(string(e.RequestObject.Raw), `"dryRun":["All"]`); isMember(e.ObjectRef.Name) && !dry {
			t.Errorf("the drain asked to evict %s alone", e.ObjectRef.Name)
		}
	}

	f.check(f.Client().PolicyV1().PodDisruptionBudgets(f.ns).Delete(f.ctx, "train", metav1.DeleteOptions{}))
	report := f.parseReport(f.drain(exitDrained, f.node, "-o", "json"))
	members := 0
	for _, p := range report.Pods {
		if p.Namespace != f.ns || p.Removal != drain.Evicted {
			continue
		}
		if isMember(p.Name) != (p.Group == group) || isMember(p.Name) && p.UID != string(before[p.Name].UID) {
			t.Errorf("%s: group %q, UID %s", p.Name, p.Group, p.UID)
		}
		if isMember(p.Name) {
			members++
		}
	}
	if members != 3 {
		t.Errorf("%d pods of the group were evicted, want 3", members)
	}
}

// TestPodGroupModeIsReadFromTheAPIServer drains a node with two PodGroups. The eviction of one pod of one is denied.
func TestPodGroupModeIsReadFromTheAPIServer(t *testing.T) {
	t.Parallel()
	bed := testbed.StartForTest(t, testbed.Options{Cluster: controlplane.Options{Flags: map[string][]string{
		controlplane.APIServer: {"--feature-gates=GenericWorkload=true", "--runtime-config=scheduling.k8s.io/v1beta1=true"},
	}}})
	f := newFixtureOn(t, bed, "podgroups")
	for name, mode := range map[string]schedulingv1beta1.DisruptionMode{
		"together": {All: &schedulingv1beta1.AllDisruptionMode{}}, "single": {Single: &schedulingv1beta1.SingleDisruptionMode{}},
	} {
		group := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: schedulingv1beta1.PodGroupSpec{
			SchedulingPolicy: schedulingv1beta1.PodGroupSchedulingPolicy{Basic: &schedulingv1beta1.BasicSchedulingPolicy{}}, DisruptionMode: &mode,
		}}
		_, err := f.Client().SchedulingV1beta1().PodGroups(f.ns).Create(f.ctx, group, metav1.CreateOptions{})
		f.check(err)
		pods := f.app(name, 2).StatefulSet()
		pods.Spec.Template.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &name}
		f.run(pods)
	}
	blocked := f.app("together", 2)
	blocked.MinAvailable = "1"
	pdb := blocked.PodDisruptionBudget()
	pdb.Spec.Selector.MatchLabels = map[string]string{"statefulset.kubernetes.io/pod-name": "together-0"}
	f.run(pdb)
	why, err := testbed.NewCommand(f.ctx, t, "slipway", "why", "node/"+f.node, "--kubeconfig", f.Kubeconfig()).CombinedOutput()
	if out := string(why); err != nil || !strings.Contains(out, f.ns+"/PodGroup/together") || strings.Contains(out, "PodGroup/single") {
		t.Errorf("slipway why: %v, want only the PodGroup together in:\n%s", err, out)
	}
	r := f.drain(exitTimeout, f.node, "--timeout", "10s")
	f.checkOutput(r, "asks for all pods of PodGroup/together or for none, and pod "+f.ns+"/together-0 cannot be evicted")
	evicted := map[string]int{}
	for _, e := range f.requests("create", "pods/eviction") {
		if dry := strings.Contains(string(e.RequestObject.Raw), `"dryRun":["All"]`); !dry {
			evicted[e.ObjectRef.Name]++
		} else if strings.HasPrefix(e.ObjectRef.Name, "single-") {
			t.Errorf("a dry run for %s", e.ObjectRef.Name)
		}
	}
	if len(evicted) != 2 || evicted["single-0"] != 1 || evicted["single-1"] != 1 {
		t.Errorf("evicted %v, want single-0 and single-1 once", evicted)
	}
}

// TestDrainReportMatchesTheAuditLog compares every pod of a drain report with the API server's audit log.
func TestDrainReportMatchesTheAuditLog(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "report")
	noSIGTERM := f.app("no-sigterm", 1)
	noSIGTERM.StopSeconds, noSIGTERM.GracePeriod = controlplane.Never, 2*time.Second
	f.run(f.app("web", 6).Deployment(), f.app("db", 2).StatefulSet(), noSIGTERM.Deployment(), f.app("collector", 1).DaemonSet())
	before := f.pods()
	report := f.parseReport(f.drain(exitDrained, f.node, "-o", "json"))

	answered := map[string]auditv1.Event{} // accepted evictions by their precondition UID
	for _, e := range f.requests("create", "pods/eviction") {
		uid := f.uidOf(e)
		if _, twice := answered[uid]; twice && accepted(e) {
			t.Errorf("%s was evicted twice", e.ObjectRef.Name)
		}
		if accepted(e) {
			answered[uid] = e
		}
	}
	if n := len(f.requests("delete", "pods")); n != 0 {
		t.Errorf("%d deletions that the report lacks", n)
	}
	mine := 0
	for _, p := range report.Pods {
		if p.Namespace != f.ns {
			continue
		}
		mine++
		was, e := before[p.Name], answered[p.UID]
		delete(answered, p.UID)
		if string(was.UID) != p.UID {
			t.Errorf("%s: UID %s, it was %s", p.Name, p.UID, was.UID)
		}
		if p.Action == podrules.Skip {
			if p.Removal != drain.NotRemoved || p.Decision.Rule != podrules.RuleDaemonSet {
				t.Errorf("%s: %+v", p.Name, p)
			}
			continue
		}
		if p.Removal != drain.Evicted || e.ObjectRef == nil || e.ObjectRef.Name != p.Name {
			t.Errorf("%s: removal %q, the audit log has %+v", p.Name, p.Removal, e.ObjectRef)
			continue
		}
		if p.RemovalRequestedAt.After(e.StageTimestamp.Time) || p.RemovalRequestedAt.Before(e.RequestReceivedTimestamp.Add(-10*time.Second)) {
			t.Errorf("%s: requested at %s, received at %s", p.Name, p.RemovalRequestedAt, e.RequestReceivedTimestamp)
		}
		want := drain.Stopped
		if strings.HasPrefix(p.Name, "no-sigterm-") {
			want = drain.Killed
		}
		if p.End != want || p.EndedAt.Before(p.RemovalRequestedAt) || p.WasCutShort() {
			t.Errorf("%s ended %s, want %s", p.Name, p.End, want)
		}
	}
	if mine != len(before) || len(answered) != 0 {
		t.Errorf("%d pods in the report, want %d; evictions that it lacks: %v", mine, len(before), answered)
	}
}

// TestJobDoesNotCountAForcedDeletion has a Job that fails at its first failure, except for disruptions. Its pod does
// not stop when asked, and a PDB blocks its eviction.
func TestJobDoesNotCountAForcedDeletion(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "job")
	app := f.app("batch", 1)
	app.MinAvailable, app.GracePeriod, app.StopSeconds = "1", 5*time.Second, controlplane.Never
	job, none := app.Job(), int32(0)
	job.Spec.BackoffLimit = &none
	job.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
		Action:          batchv1.PodFailurePolicyActionIgnore,
		OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}},
	}}}
	f.run(job, app.PodDisruptionBudget())
	before := f.pods()
	r := f.drain(exitDrained, f.node, "--deadline", "25s", "-o", "json")
	for _, p := range f.parseReport(r).Pods {
		if p.Removal != drain.ForceDeleted || p.End != drain.Killed {
			t.Errorf("%s: removal %s, end %s; want it forced and killed", p.Name, p.Removal, p.End)
		}
	}
	writes := f.requests("patch", "pods/status")
	own := 0
	for _, e := range writes {
		if _, ours := before[e.ObjectRef.Name]; ours && strings.HasPrefix(e.UserAgent, "slipway") && accepted(e) {
			own++
		}
	}
	if own != len(before) {
		t.Errorf("%d conditions of %d pods were written", own, len(before))
	}
	var is *batchv1.Job
	f.check(testbed.PollUntil(f.ctx, "the Job has another pod, or failed", func() bool {
		var err error
		is, err = f.Client().BatchV1().Jobs(f.ns).Get(f.ctx, job.Name, metav1.GetOptions{})
		if err != nil || is.Status.Failed > 0 {
			return err == nil
		}
		pods, err := f.Client().CoreV1().Pods(f.ns).List(f.ctx, metav1.ListOptions{}) // the node is cordoned, so its replacement has no node
		return err == nil && slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool {
			_, old := before[p.Name]
			return !old
		})
	}))
	if is.Status.Failed != 0 || len(is.Status.Conditions) > 0 {
		t.Errorf("the Job counts %d failures, conditions %+v; want the deletion ignored", is.Status.Failed, is.Status.Conditions)
	}
}

// TestI2DenialWith403HasDisruptionBudgetCause has a PDB with more uncounted evictions than the API server allows.
func TestI2DenialWith403HasDisruptionBudgetCause(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "uncounted")
	app := f.app("web", 1)
	app.MinAvailable = "0"
	f.run(app.Deployment(), app.PodDisruptionBudget())
	budgets := f.Client().PolicyV1().PodDisruptionBudgets(f.ns)
	full := map[string]metav1.Time{}
	for i := range 2001 {
		full[fmt.Sprintf("gone-%d", i)] = metav1.Now()
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"disruptedPods": full}})
	f.check(err)
	var answer error
	f.check(testbed.PollUntil(f.ctx, "an eviction is answered with 403", func() bool {
		for name, p := range f.pods() { // the disruption controller empties the list at once
			_, err := budgets.Patch(f.ctx, app.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
			f.check(err)
			answer = f.Client().PolicyV1().Evictions(f.ns).Evict(f.ctx, &policyv1.Eviction{
				ObjectMeta:    metav1.ObjectMeta{Namespace: f.ns, Name: name},
				DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}, Preconditions: &metav1.Preconditions{UID: &p.UID}},
			})
		}
		return apierrors.IsForbidden(answer)
	}))
	if cause, has := apierrors.StatusCause(answer, policyv1.DisruptionBudgetCause); !has || !strings.Contains(cause.Message, "disruption budget") {
		t.Errorf("%v: cause %+v, want %s", answer, cause, policyv1.DisruptionBudgetCause)
	}
}
