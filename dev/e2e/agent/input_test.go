package agent_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// exit runs one of Slipway's programs to its end. It returns the exit code and the standard error.
func exit(t *testing.T, program string, args ...string) (int, string) {
	t.Helper()
	cmd := testbed.NewCommand(t.Context(), t, program, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err := cmd.Run()
	var exited *exec.ExitError
	if err != nil && !errors.As(err, &exited) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), stderr.String()
}

func TestI10ABadFlagIsRefusedWithItsNameItsValueAndWhatIsAllowed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, flag string
		says       []string
	}{
		{"unknown", "--no-such-flag", []string{"--no-such-flag"}},
		{"misspelt duration", "--poll-interval=1 second", []string{"poll-interval", "1 second"}},
		{"duration out of range", "--poll-interval=1h", []string{"--poll-interval", "1h0m0s", "100ms to 1m"}},
		{"negative margin", "--deadline-margin=-1s", []string{"--deadline-margin", "-1s", "0 to 1m"}},
		{"unknown action", "--on-reboot=panic", []string{"--on-reboot", "panic", "drain, cordon or ignore"}},
		{"unknown effect", "--taint-effect=Sometimes", []string{"--taint-effect", "Sometimes", "NoExecute"}},
		{"endpoint", "--endpoint=ftp://169.254.169.254/x", []string{"--endpoint", "ftp", "http"}},
		{"no node", "--node-name=", []string{"--node-name"}},
		{"kubeconfig", "--kubeconfig=/does/not/exist", []string{"/does/not/exist"}},
		{"address", "--listen=9818", []string{"--listen", "9818", "host:port"}},
		{"log level", "--log-level=chatty", []string{"--log-level", "chatty", "debug, info, warn or error"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for _, program := range [][]string{{"slipway-agent"}, {"slipway", "agent"}} {
				args := slices.Concat(program[1:], []string{
					"--node-name=n", "--kubeconfig=" + testbed.StartShared(t).Kubeconfig(), tc.flag,
				})
				code, words := exit(t, program[0], args...)
				if code != 1 {
					t.Errorf("%v %s: exit code %d, want 1", program, tc.flag, code)
				}
				for _, want := range tc.says {
					if !strings.Contains(words, want) {
						t.Errorf("%v %s: %q does not say %q", program, tc.flag, words, want)
					}
				}
			}
		})
	}
}

// launch starts an agent that may never become ready.
func (f *fixture) launch(i int, flags ...string) *testbed.Agent {
	f.t.Helper()
	a, err := f.StartAgentNoWait(f.ctx, f.pool, i, flags...)
	f.check(err)
	f.t.Cleanup(func() { f.end(a) })
	return a
}

// awaitWords waits until one line of the agent's log contains all words.
func (f *fixture) awaitWords(a *testbed.Agent, words ...string) {
	f.t.Helper()
	f.check(testbed.PollUntil(f.ctx, fmt.Sprintf("the log says %q", words), func() bool {
		raw, _ := os.ReadFile(a.LogFile())
		for line := range strings.Lines(string(raw)) {
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
				return true
			}
		}
		return false
	}))
}

// awaitNotReady waits until the agent is alive and says why it is not ready.
func (f *fixture) awaitNotReady(a *testbed.Agent, words string) {
	f.t.Helper()
	f.check(testbed.PollUntil(f.ctx, "the agent is alive and not ready: "+words, func() bool {
		ready, said := a.IsReady(f.ctx)
		return !ready && strings.Contains(said, words) && a.IsHealthy(f.ctx)
	}))
}

func (f *fixture) awaitReady(a *testbed.Agent) {
	f.t.Helper()
	f.check(testbed.PollUntil(f.ctx, "the agent is ready", func() bool {
		ready, _ := a.IsReady(f.ctx)
		return ready
	}))
}

func TestI10AnEndpointThatIsNotThereIsSaidAndAskedAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "nowhere", 1)
	a := f.launch(0, brisk, "--endpoint=http://127.0.0.1:1/metadata/scheduledevents?api-version=2020-07-01")
	f.awaitMetric(a, `slipway_agent_polls_total{result="unreachable"}`, atLeast(3))
	f.awaitNotReady(a, "the notices have not been read yet")
	f.awaitWords(a, "WARN", "cannot read notices", "127.0.0.1:1", "unreachable")
}

func TestI10AnAPIServerThatIsNotThereIsWaitedFor(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "no-api", 1)
	config, err := clientcmd.LoadFromFile(f.Kubeconfig())
	f.check(err)
	for _, cluster := range config.Clusters {
		cluster.Server = "https://127.0.0.1:1"
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	f.check(clientcmd.WriteToFile(*config, path))
	a := f.launch(0, brisk, "--kubeconfig", path)
	f.awaitNotReady(a, "has not been read yet")
	f.awaitWords(a, "WARN", "waiting for the node", "127.0.0.1:1", "connection refused")
}

func TestI10ANodeThatIsNotThereYetIsWaitedFor(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "unborn", 0)
	a := f.launch(0, brisk)
	f.awaitNotReady(a, "has not been read yet")
	f.awaitWords(a, "WARN", "waiting for the node", f.node(0), "not found")
	f.check(f.AddNodes(f.ctx, f.pool.Node(0)))
	f.awaitReady(a)
}

func TestI10AMachineOfAnotherCloudIsRefusedByName(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "other-cloud", 0)
	spec := f.pool.Node(0)
	spec.ProviderID = "aws:///eu-west-1a/i-0123456789abcdef0"
	f.check(f.AddNodes(f.ctx, spec))
	a := f.launch(0, brisk)
	f.check(testbed.PollUntil(f.ctx, "the agent has ended", func() bool { return !a.IsAlive() }))
	f.awaitWords(a, "error:", f.node(0), spec.ProviderID, "is not an Azure ID", "--resource-name")
}

// TestI7AnAPIServerThatStallsStopsNoDrain has its own control plane, because it pauses the API server.
func TestI7AnAPIServerThatStallsStopsNoDrain(t *testing.T) {
	t.Parallel()
	bed := testbed.StartForTest(t, testbed.Options{Azure: azure.Options{Outage: time.Second}})
	f := newFixtureOn(t, bed, "stalls", 1)
	web := f.app("web", 6)
	web.StopSeconds = "3"
	f.run(web.Deployment())
	was := f.marksOf(0)
	server := f.Process(controlplane.APIServer)

	a := f.launch(0, brisk)
	f.awaitReady(a)
	e := f.announce(azure.Announcement{Type: azure.Reboot, Notice: 5 * time.Minute})
	f.awaitEvent(0, "Draining")
	f.check(server.Pause(f.ctx))
	f.awaitPolls(a, 15)
	if ready, words := a.IsReady(f.ctx); !ready || !a.IsHealthy(f.ctx) {
		t.Errorf("ready: %v (%s), healthy: %v", ready, words, a.IsHealthy(f.ctx))
	}
	f.check(server.Resume())
	if over := f.awaitOver(e.EventID); over.StartedBy != azure.ByApproval {
		t.Errorf("started %s, want it acknowledged", over.StartedBy)
	}
	f.drainedInTime(e.EventID, 6)
	f.awaitAsItWas(0, was)
	f.awaitPods(0, 6)

	// The agent also waits at its start.
	f.check(a.KillIfAlive())
	f.check(server.Pause(f.ctx))
	f.check(a.RestartIfDead(f.ctx))
	f.awaitNotReady(a, "has not been read yet")
	f.check(server.Resume())
	f.awaitReady(a)
}

// account creates a ServiceAccount with the agent's rights, except some. It returns a kubeconfig for the account.
func (f *fixture) account(without func(rbacv1.PolicyRule) bool) string {
	f.t.Helper()
	rules := slices.DeleteFunc(f.shippedRules(), without)
	client := f.Client()
	_, err := client.CoreV1().ServiceAccounts(f.ns).Create(f.ctx, &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: "limited"},
	}, metav1.CreateOptions{})
	f.check(err)
	_, err = client.RbacV1().ClusterRoles().Create(f.ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: f.ns}, Rules: rules,
	}, metav1.CreateOptions{})
	f.check(err)
	_, err = client.RbacV1().ClusterRoleBindings().Create(f.ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: f.ns},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: f.ns},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: f.ns, Name: "limited"}},
	}, metav1.CreateOptions{})
	f.check(err)
	f.check(f.AwaitPermissions(f.ctx, f.ns, "limited", f.ns))
	path, err := f.ServiceAccountKubeconfig(f.ctx, f.ns, "limited", controlplane.TokenOptions{})
	f.check(err)
	return path
}

// shippedRules returns the applied ClusterRole rules of deploy/agent/rbac.yaml.
func (f *fixture) shippedRules() []rbacv1.PolicyRule {
	f.t.Helper()
	role, err := f.Client().RbacV1().ClusterRoles().Get(f.ctx, testbed.AgentAccount, metav1.GetOptions{})
	f.check(err)
	return role.Rules
}

// namespaceRules returns the rules for the agents' own namespace.
func (f *fixture) namespaceRules() []rbacv1.PolicyRule {
	f.t.Helper()
	role, err := f.Client().RbacV1().Roles(testbed.AgentNamespace).Get(f.ctx, testbed.AgentAccount, metav1.GetOptions{})
	f.check(err)
	return role.Rules
}

func grants(verb, resource string) func(rbacv1.PolicyRule) bool {
	return func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.Verbs, verb) && slices.Contains(r.Resources, resource)
	}
}

func TestI10WithoutTheRightToDeletePodsABlockedPodIsLeftAndItIsSaid(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "no-delete", 1)
	f.blocked(5 * time.Second)
	f.run(f.app("web", 2).Deployment())
	a := f.agent(0, brisk, "--kubeconfig", f.account(grants("delete", "pods")))
	e := f.announce(azure.Announcement{Type: azure.Redeploy, Notice: 24 * time.Second})
	f.awaitWords(a, "drain is blocked", "forbidden", `cannot delete resource \"pods\"`)
	f.awaitPods(0, 1)
	f.neverApproved(e)
}

// TestI3WithoutTheRightToSetConditionsAllElseIsDoneAndItIsSaidOnce checks that conditions only inform. Nothing waits
// for them.
func TestI3WithoutTheRightToSetConditionsAllElseIsDoneAndItIsSaidOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "no-status", 1)
	f.run(f.app("web", 2).Deployment())
	was := f.marksOf(0)
	a := f.agent(0, brisk, "--kubeconfig", f.account(grants("patch", "nodes/status")))
	e := f.announce(azure.Announcement{Type: azure.Freeze, DurationSeconds: new(60), Notice: 5 * time.Minute, Outage: time.Second})
	f.awaitWords(a, "cannot write the node's conditions", "forbidden", "nodes/status")
	if over := f.awaitOver(e.EventID); over.StartedBy != azure.ByApproval {
		t.Errorf("started %s, want it acknowledged", over.StartedBy)
	}
	f.awaitAsItWas(0, was)
	f.awaitMetric(a, "slipway_agent_failed_conditions_total", atLeast(2))
	f.awaitMetric(a, "slipway_agent_failed_steps_total", func(n float64) bool { return n == 0 })
	said := 0
	for _, l := range a.ReadLog() {
		if l["level"] == "ERROR" {
			said++
		}
	}
	if said != 1 {
		t.Errorf("said %d times", said)
	}
}

func TestWithoutTheRightToWriteEventsADrainGoesOnAndTheyAreCounted(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "no-events", 1)
	f.run(f.app("web", 2).Deployment())
	was := f.marksOf(0)
	a := f.agent(0, brisk, "--kubeconfig", f.account(grants("create", "events")))
	e := f.announce(azure.Announcement{Type: azure.Freeze, DurationSeconds: new(60), Outage: time.Second})
	if over := f.awaitOver(e.EventID); over.StartedBy != azure.ByApproval {
		t.Errorf("started %s, want it acknowledged", over.StartedBy)
	}
	f.awaitAsItWas(0, was)
	f.awaitMetric(a, "slipway_agent_failed_kubernetes_events_total", atLeast(5))
}

func TestI10WithoutAnyRightTheAgentEndsAndSaysSo(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "no-right", 1)
	a := f.launch(0, brisk, "--kubeconfig", f.account(func(rbacv1.PolicyRule) bool { return true }))
	f.check(testbed.PollUntil(f.ctx, "the agent has ended", func() bool { return !a.IsAlive() }))
	f.awaitWords(a, "error:", f.node(0), "forbidden", `cannot get resource "nodes"`)
}

// used returns what the agents have requested from the API server so far, as verb and resource.
func (f *fixture) used() map[string]bool {
	f.t.Helper()
	events, err := f.ReadAuditLog(controlplane.AuditFilter{User: agentUser})
	f.check(err)
	used := map[string]bool{}
	for _, e := range events {
		if e.ResponseStatus != nil && e.ResponseStatus.Code == http.StatusForbidden {
			f.t.Errorf("forbidden: %s %s", e.Verb, e.RequestURI)
		}
		if e.ObjectRef == nil {
			f.t.Errorf("not about an object: %s %s", e.Verb, e.RequestURI)
			continue
		}
		everywhere := e.ObjectRef.Resource == "pods" && e.ObjectRef.Name == "" && !strings.Contains(e.RequestURI, "spec.nodeName")
		if everywhere {
			f.t.Errorf("the pods of all nodes were asked for: %s", e.RequestURI)
		}
		used[e.Verb+" "+strings.TrimSuffix(e.ObjectRef.Resource+"/"+e.ObjectRef.Subresource, "/")] = true
	}
	return used
}

// TestTheAgentNeedsEveryRightThatItIsGivenAndNoOther makes one agent use all of its rights. It compares the audit log
// with deploy/agent/rbac.yaml.
func TestTheAgentNeedsEveryRightThatItIsGivenAndNoOther(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "rights", 2)
	const grace = 2 * time.Minute // for a busy host: the agent deletes the pod when this much is left, and the pod stops in a second
	f.blocked(grace)
	f.withVolume("data")
	turns := []string{brisk, "--max-concurrent-drains=2", "--namespace=" + testbed.AgentNamespace}
	f.agent(0, append(turns, "--wait-for-detach")...)
	f.agent(1, turns...)
	e := f.announce(azure.Announcement{Type: azure.Redeploy, Resources: f.resources(0, 1), Notice: grace + 14*time.Second})
	if over := f.awaitOver(e.EventID); over.StartedBy != azure.ByApproval {
		t.Errorf("started %s, want it acknowledged", over.StartedBy)
	}
	f.awaitEvent(0, "Uncordoned")

	granted := map[string]bool{}
	for _, rule := range append(f.shippedRules(), f.namespaceRules()...) {
		for _, verb := range rule.Verbs {
			for _, resource := range rule.Resources {
				granted[verb+" "+resource] = true
			}
		}
	}
	used := f.used()
	for right := range used {
		if !granted[right] {
			t.Errorf("used and not granted: %s", right)
		}
	}
	for right := range granted {
		if !used[right] {
			t.Errorf("granted and never used: %s", right)
		}
	}
	f.holdsNothingElse(granted)
}

// holdsNothingElse asks the API server for all rights of the agent's account.
func (f *fixture) holdsNothingElse(granted map[string]bool) {
	f.t.Helper()
	path, err := f.ServiceAccountKubeconfig(f.ctx, testbed.AgentNamespace, testbed.AgentAccount, controlplane.TokenOptions{})
	f.check(err)
	config, err := clientcmd.BuildConfigFromFlags("", path)
	f.check(err)
	client, err := kubernetes.NewForConfig(config)
	f.check(err)
	review, err := client.AuthorizationV1().SelfSubjectRulesReviews().Create(f.ctx,
		&authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: f.ns}},
		metav1.CreateOptions{})
	f.check(err)
	for _, rule := range review.Status.ResourceRules {
		for _, verb := range rule.Verbs {
			for _, resource := range rule.Resources {
				// Kubernetes 1.37 lets every ServiceAccount read ClusterTrustBundles.
				everybody := strings.HasPrefix(resource, "selfsubject") || resource == "clustertrustbundles"
				if !granted[verb+" "+resource] && !everybody {
					f.t.Errorf("the account may also %s %s", verb, resource)
				}
			}
		}
	}
}

// withVolume runs a pod with its own PersistentVolume.
func (f *fixture) withVolume(name string) {
	f.t.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	once := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	volume := f.ns + "-" + name
	_, err := f.Client().CoreV1().PersistentVolumes().Create(f.ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: volume},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: once,
			ClaimRef: &corev1.ObjectReference{Namespace: f.ns, Name: name},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: "/data"},
			},
		},
	}, metav1.CreateOptions{})
	f.check(err)
	_, err = f.Client().CoreV1().PersistentVolumeClaims(f.ns).Create(f.ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: once, VolumeName: volume, StorageClassName: new(""),
			Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	}, metav1.CreateOptions{})
	f.check(err)
	set := f.app(name, 1).StatefulSet()
	set.Spec.Template.Spec.Volumes = append(set.Spec.Template.Spec.Volumes, corev1.Volume{
		Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		},
	})
	f.run(set)
}
