// Package guard_test checks the rights of an agent's token on a real API server with the shipped manifests.
package guard_test

import (
	"context"
	"maps"
	"math"
	"os"
	"strings"
	"sync"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

func TestMain(m *testing.M) { os.Exit(testbed.RunTestsAndStopShared(m)) }

// namespace contains the pods of the tests.
const namespace = "guard"

// own and other are the instances of a pool. Tests use the token of own's agent.
const (
	own   = 0
	other = 1
)

// fixture holds a pool of two instances and provides the tokens of their agents.
type fixture struct {
	*testbed.Testbed
	t    *testing.T
	ctx  context.Context
	pool controlplane.AKSPool
}

var shared struct {
	sync.Once
	agentPod string // on the own node; empty if the setup failed
}

// newFixture returns a fixture with the pool of the package. Tests send dry runs, and therefore share its nodes.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{Testbed: testbed.StartShared(t), t: t, ctx: testbed.TestContext(t), pool: controlplane.AKSPool{Name: "guard"}}
	shared.Do(func() {
		specs := f.pool.Nodes(2)
		for i := range specs {
			specs[i].Labels["example.com/team"] = "blue"
			specs[i].Annotations = map[string]string{"example.com/note": "foreign"}
			specs[i].Taints = []corev1.Taint{{Key: "example.com/team", Value: "blue", Effect: corev1.TaintEffectPreferNoSchedule}}
		}
		f.check(f.AddNodes(f.ctx, specs...))
		f.check(workload.Create(f.ctx, f.Client(), workload.NewNamespace(namespace)))
		f.awaitPolicies()
		pod, err := f.CreateAgentPod(f.ctx, f.node(own))
		f.check(err)
		shared.agentPod = pod
	})
	if shared.agentPod == "" {
		t.Fatal("the shared nodes and policies could not be set up")
	}
	return f
}

func (f *fixture) check(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) node(i int) string { return f.pool.NodeName(i) }

// as returns a client with a token of the agents' account.
func (f *fixture) as(o controlplane.TokenOptions) kubernetes.Interface {
	f.t.Helper()
	return f.clientOf(testbed.AgentNamespace, testbed.AgentAccount, o)
}

// clientOf returns a client with a token of an account.
func (f *fixture) clientOf(namespace, account string, o controlplane.TokenOptions) kubernetes.Interface {
	f.t.Helper()
	path, err := f.ServiceAccountKubeconfig(f.ctx, namespace, account, o)
	f.check(err)
	client, err := testbed.NewClient(path)
	f.check(err)
	return client
}

// agent returns a client with the token in the agent's pod on the own node, as the kubelet mounts it.
func (f *fixture) agent() kubernetes.Interface {
	f.t.Helper()
	return f.as(controlplane.TokenOptions{Pod: shared.agentPod})
}

// pod runs a pod on an instance. change may change it before.
func (f *fixture) pod(i int, name string, change func(*corev1.Pod)) *corev1.Pod {
	f.t.Helper()
	pod := workload.App{Namespace: namespace, Name: name}.Pod()
	pod.Spec.NodeName = f.node(i)
	if change != nil {
		change(pod)
	}
	f.check(testbed.PollUntil(f.ctx, "the namespace has its ServiceAccount", func() bool {
		_, err := f.Client().CoreV1().ServiceAccounts(namespace).Get(f.ctx, "default", metav1.GetOptions{})
		return err == nil
	}))
	f.check(workload.CreateAndAwait(f.ctx, f.Client(), pod))
	pod, err := f.Client().CoreV1().Pods(namespace).Get(f.ctx, name, metav1.GetOptions{})
	f.check(err)
	return pod
}

func withLabels(labels map[string]string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { maps.Copy(p.Labels, labels) }
}

func withoutGrace(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(0)) }

// finished returns a pod on the own node that has already succeeded.
func (f *fixture) finished(name string) *corev1.Pod {
	f.t.Helper()
	pod := f.pod(own, name, nil)
	pod.Status.Phase = corev1.PodSucceeded
	pod, err := f.Client().CoreV1().Pods(namespace).UpdateStatus(f.ctx, pod, metav1.UpdateOptions{})
	f.check(err)
	return pod
}

// attempt is one use of a token.
type attempt func(ctx context.Context, client kubernetes.Interface) error

// try makes a request a dry run, so it changes nothing.
var try = []string{metav1.DryRunAll}

func patchNode(node, patch string, subresources ...string) attempt {
	return func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, []byte(patch),
			metav1.PatchOptions{DryRun: try}, subresources...)
		return err
	}
}

func deletePod(name string, uid *types.UID) attempt { return deletePodWithin(name, uid, nil) }

// deletePodWithin deletes a pod with a grace period in seconds. A nil grace means the pod's own.
func deletePodWithin(name string, uid *types.UID, grace *int64) attempt {
	return func(ctx context.Context, c kubernetes.Interface) error {
		return c.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{
			DryRun: try, Preconditions: &metav1.Preconditions{UID: uid}, GracePeriodSeconds: grace,
		})
	}
}

// disrupted is the patch that an agent writes before a forced deletion.
const disrupted = `{"status":{"conditions":[{"type":"DisruptionTarget","status":"True","reason":"DeletionByNodeTermination",` +
	`"message":"m","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`

func patchPodStatus(name, patch string) attempt {
	return func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.CoreV1().Pods(namespace).Patch(ctx, name, types.StrategicMergePatchType, []byte(patch),
			metav1.PatchOptions{DryRun: try}, "status")
		return err
	}
}

func evict(name string, uid *types.UID) attempt { return evictWithin(name, uid, nil) }

// evictWithin evicts a pod with a grace period in seconds. A nil grace means the pod's own.
func evictWithin(name string, uid *types.UID, grace *int64) attempt {
	return func(ctx context.Context, c kubernetes.Interface) error {
		return c.PolicyV1().Evictions(namespace).Evict(ctx, &policyv1.Eviction{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			DeleteOptions: &metav1.DeleteOptions{
				DryRun: try, Preconditions: &metav1.Preconditions{UID: uid}, GracePeriodSeconds: grace,
			},
		})
	}
}

// createLease creates a Lease in the agents' namespace that another process holds for 68 years.
func createLease(name string) attempt { return createLeaseOf(name, "stolen-token", math.MaxInt32) }

// createLeaseOf creates a Lease in the agents' namespace. A holder has it for this many seconds.
func createLeaseOf(name, holder string, seconds int32) attempt {
	return func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.CoordinationV1().Leases(testbed.AgentNamespace).Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds},
		}, metav1.CreateOptions{DryRun: try})
		return err
	}
}

func report(kind, name string) attempt {
	return func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.CoreV1().Events(metav1.NamespaceDefault).Create(ctx, &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{GenerateName: "guard-", Namespace: metav1.NamespaceDefault},
			InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: kind, Name: name},
			Reason:         "Cordoned", Message: "sent by the test", Type: corev1.EventTypeNormal,
		}, metav1.CreateOptions{DryRun: try})
		return err
	}
}

// attempter makes attempts with one client.
type attempter struct {
	f      *fixture
	client kubernetes.Interface
}

// expect checks that an attempt is refused with these words. Empty words mean that it must succeed.
func (a attempter) expect(t *testing.T, try attempt, words string) {
	t.Helper()
	err := try(a.f.ctx, a.client)
	switch {
	case words == "" && err != nil:
		t.Errorf("refused: %v", err)
	case words != "" && !refused(err, words):
		t.Errorf("%v, want a refusal with %q", err, words)
	}
}

// refused reports whether a policy refused the request with these words.
func refused(err error, words string) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy") &&
		strings.Contains(err.Error(), words)
}

// unbound is the refusal of a token that is bound to no node.
const unbound = "does not say which node it is of"

// drainCondition is a patch that every agent may apply to the status of its own node.
const drainCondition = `{"status":{"conditions":[{"type":"DrainInProgress","status":"True","reason":"Slipway","message":"m",` +
	`"lastTransitionTime":"2026-01-01T00:00:00Z","lastHeartbeatTime":"2026-01-01T00:00:00Z"}]}}`

// cordoning is a patch that every agent may apply to its own node.
const cordoning = `{"metadata":{"annotations":{"cordon.slipway.dev/azure-1":"{}"}},"spec":{"unschedulable":true}}`

// awaitPolicies waits until the API server enforces the policies, which takes a moment after the write. It is also the test
// that a token without a node changes nothing. Such a token may belong to anyone, on any host.
func (f *fixture) awaitPolicies() {
	f.t.Helper()
	client := f.as(controlplane.TokenOptions{})
	pod := f.pod(own, "policies", nil)
	for _, a := range []attempt{
		patchNode(f.node(own), cordoning), patchNode(f.node(own), drainCondition, "status"), deletePod(pod.Name, &pod.UID), patchPodStatus(pod.Name, disrupted),
		evict(pod.Name, &pod.UID), report("Node", f.node(own)),
		createLease("slipway-drain-0"),
	} {
		f.check(testbed.PollUntil(f.ctx, "the policies are in force", func() bool { return refused(a(f.ctx, client), unbound) }))
	}
}
