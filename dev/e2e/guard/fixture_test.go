// Package guard_test checks the rights of an agent's token on a real API server with the shipped manifests.
package guard_test

import (
	"context"
	"math"
	"os"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

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

func newFixture(t *testing.T, pool string) *fixture {
	t.Helper()
	ctx := testbed.TestContext(t)
	f := &fixture{Testbed: testbed.StartShared(t), t: t, ctx: ctx, pool: controlplane.AKSPool{Name: pool}}
	specs := f.pool.Nodes(2)
	for i := range specs {
		specs[i].Labels["example.com/team"] = "blue"
		specs[i].Annotations = map[string]string{"example.com/note": "not Slipway's"}
		specs[i].Taints = []corev1.Taint{{Key: "example.com/team", Value: "blue", Effect: corev1.TaintEffectPreferNoSchedule}}
	}
	f.check(f.AddNodes(ctx, specs...))
	_, err := f.Client().CoreV1().Namespaces().Create(ctx, workload.NewNamespace(namespace), metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		f.check(err)
	}
	f.awaitPolicies()
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
	config, err := clientcmd.BuildConfigFromFlags("", path)
	f.check(err)
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	f.check(err)
	return client
}

// agent returns a client with the token in the agent's pod on an instance, as the kubelet mounts it.
func (f *fixture) agent(i int) kubernetes.Interface {
	f.t.Helper()
	pod, err := f.CreateAgentPod(f.ctx, f.node(i))
	f.check(err)
	return f.as(controlplane.TokenOptions{Pod: pod})
}

func (f *fixture) pod(i int, name string, labels map[string]string) *corev1.Pod {
	f.t.Helper()
	app := workload.App{Namespace: namespace, Name: name, Labels: labels}
	pod := app.Pod()
	pod.Spec.NodeName = f.node(i)
	f.check(testbed.PollUntil(f.ctx, "the namespace has its ServiceAccount", func() bool {
		_, err := f.Client().CoreV1().ServiceAccounts(namespace).Get(f.ctx, "default", metav1.GetOptions{})
		return err == nil
	}))
	f.check(workload.CreateAndAwait(f.ctx, f.Client(), pod))
	pod, err := f.Client().CoreV1().Pods(namespace).Get(f.ctx, name, metav1.GetOptions{})
	f.check(err)
	return pod
}

// withoutGrace runs a pod with a grace period of 0 on the own node.
func (f *fixture) withoutGrace(name string) *corev1.Pod {
	f.t.Helper()
	pod := workload.App{Namespace: namespace, Name: name}.Pod()
	pod.Spec.NodeName, pod.Spec.TerminationGracePeriodSeconds = f.node(own), new(int64(0))
	f.check(workload.CreateAndAwait(f.ctx, f.Client(), pod))
	pod, err := f.Client().CoreV1().Pods(namespace).Get(f.ctx, name, metav1.GetOptions{})
	f.check(err)
	return pod
}

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
func createLease(name string) attempt { return createLeaseOf(name, "thief", math.MaxInt32) }

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
			Reason:         "Cordoned", Message: "said by the test", Type: corev1.EventTypeNormal,
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
		t.Errorf("the answer is %v, want it refused with %q", err, words)
	}
}

// refused reports whether a policy refused the request with these words.
func refused(err error, words string) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy") &&
		strings.Contains(err.Error(), words)
}

// unbound is the refusal of a token that is bound to no node.
const unbound = "does not say which node it is of"

// cordoning is a patch that every agent may apply to its own node.
const cordoning = `{"metadata":{"annotations":{"cordon.slipway.dev/azure-1":"{}"}},"spec":{"unschedulable":true}}`

// awaitPolicies waits until the API server enforces the policies. This takes a moment after the write.
func (f *fixture) awaitPolicies() {
	f.t.Helper()
	client := f.as(controlplane.TokenOptions{})
	pod := f.pod(own, "awaits-"+f.pool.Name, nil)
	for _, a := range []attempt{
		patchNode(f.node(own), cordoning), deletePod(pod.Name, &pod.UID), patchPodStatus(pod.Name, disrupted),
		evict(pod.Name, &pod.UID), report("Node", f.node(own)),
		createLease("slipway-drain-0"),
	} {
		f.check(testbed.PollUntil(f.ctx, "the policies are in force", func() bool { return refused(a(f.ctx, client), unbound) }))
	}
}
