package chart_test

import (
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// cloudpoolRelease is the namespace and the release of a cloudpool with a stolen token.
const cloudpoolRelease = "front"

const cloudpoolReleaseValues = `
image: {registry: registry.example.com/slipway}
crds: {by: none}
agent: {enabled: false}
manager: {enabled: true, nodeGroups: {spot: {nodeSelector: {matchLabels: {pool: spot}}, cloud: {provider: azure, group: spot}}}}
cloudpool: {enabled: true, nodeGroups: [builders], tls: {secretName: tls}}
`

// attempt is one request with a token, and the words of its refusal. Empty words mean no refusal.
type attempt struct {
	name  string
	try   func(as kubernetes.Interface) error
	words string
}

// clientWithCloudpoolToken returns a client with the token of a release's cloudpool. The release has the name of its namespace.
func (b bed) clientWithCloudpoolToken(in string) kubernetes.Interface {
	t := b.t
	t.Helper()
	b.createRestrictedNamespace(in)
	for _, o := range objects(t, manifest(t, slipwayChart, release(in, in), cloudpoolReleaseValues)) {
		if podOf(t, o) == nil { // only the accounts matter, not their pods
			b.apply([]*unstructured.Unstructured{o})
		}
	}
	kubeconfig, err := b.ServiceAccountKubeconfig(b.ctx, in, in+"-slipway-cloudpool", controlplane.TokenOptions{})
	b.check(err)
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	b.check(err)
	return kubernetes.NewForConfigOrDie(config)
}

// TestCloudpoolTokenWritesOnlyPoolObjects protects the manager's NodeGroups and Lease. They are in the same
// namespace.
func TestCloudpoolTokenWritesOnlyPoolObjects(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	stolen := b.clientWithCloudpoolToken(cloudpoolRelease)
	label := map[string]string{"slipway.dev/cloudpool": "record"}
	create := func(name string, labels map[string]string) func(kubernetes.Interface) error {
		return func(as kubernetes.Interface) error {
			_, err := as.CoreV1().ConfigMaps(cloudpoolRelease).Create(b.ctx, configMap(name, labels), metav1.CreateOptions{})
			return err
		}
	}
	change := func(name string, labels map[string]string) func(kubernetes.Interface) error {
		return func(as kubernetes.Interface) error {
			_, err := as.CoreV1().ConfigMaps(cloudpoolRelease).Update(b.ctx, configMap(name, labels), metav1.UpdateOptions{})
			return err
		}
	}
	lead := func(name string) func(kubernetes.Interface) error {
		return func(as kubernetes.Interface) error {
			_, err := as.CoordinationV1().Leases(cloudpoolRelease).Create(b.ctx, lease(name), metav1.CreateOptions{})
			return err
		}
	}
	take := func(name string) func(kubernetes.Interface) error {
		return func(as kubernetes.Interface) error {
			l, err := b.Client().CoordinationV1().Leases(cloudpoolRelease).Get(b.ctx, name, metav1.GetOptions{})
			b.check(err)
			_, err = as.CoordinationV1().Leases(cloudpoolRelease).Update(b.ctx, l, metav1.UpdateOptions{})
			return err
		}
	}
	const files, leader, pool = "slipway-cloudpool-files", "slipway-manager", "slipway-cloudpool-builders"
	b.check(create(files, nil)(b.Client()))
	b.check(lead(leader)(b.Client()))
	const leases, made = "writes no Leases and ConfigMaps but those of pools", "but those that it made"
	b.check(testbed.PollUntil(b.ctx, "the policy is enforced", func() bool { return isRefusedByPolicy(take(leader)(stolen), leases) }))
	for _, a := range []attempt{
		{"change the manager's NodeGroups", change(cloudpoolRelease+"-slipway-manager", label), leases},
		{"take the manager's Lease", take(leader), leases},
		{"take a drain slot of the agents", lead("slipway-drain-0"), leases},
		{"create a ConfigMap with a foreign name", create("anything", label), leases},
		{"change its own files", change(files, label), made},
		{"create an object that it could not change", create("slipway-cloudpool-other", nil), made},
		{"lock a pool", lead(pool + "-0"), ""},
		{"renew the lock of a pool", take(pool + "-0"), ""},
		{"create the record of a pool", create(pool, label), ""},
		{"update the record of a pool", change(pool, label), ""},
	} {
		a.check(t, stolen)
	}
}

func (a attempt) check(t *testing.T, stolen kubernetes.Interface) {
	t.Helper()
	err := a.try(stolen)
	if a.words == "" && err != nil || a.words != "" && !isRefusedByPolicy(err, a.words) {
		t.Errorf("%s: %v, want it refused with %q", a.name, err, a.words)
	}
}

func TestCloudpoolTokenChangesOnlyNodeAnnotations(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	stolen := b.clientWithCloudpoolToken("builders")
	const node = "builder-0"
	_, err := b.Client().CoreV1().Nodes().Create(b.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: node, Labels: map[string]string{"example.com/team": "blue"}, Annotations: map[string]string{"example.com/note": "kept"},
	}}, metav1.CreateOptions{})
	b.check(err)
	patch := func(body string) func(kubernetes.Interface) error {
		return func(as kubernetes.Interface) error {
			_, err := as.CoreV1().Nodes().Patch(b.ctx, node, types.MergePatchType, []byte(body), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		}
	}
	const annotations, nothing = "no annotations of nodes but those under cloudpool.slipway.dev", "changes nothing of nodes but annotations"
	taint := patch(`{"spec":{"taints":[{"key":"gone","effect":"NoExecute"}]}}`)
	b.check(testbed.PollUntil(b.ctx, "the policy is enforced", func() bool { return isRefusedByPolicy(taint(stolen), nothing) }))
	for _, a := range []attempt{
		{"evict every pod", taint, nothing},
		{"cordon", patch(`{"spec":{"unschedulable":true}}`), nothing},
		{"claim another instance", patch(`{"spec":{"providerID":"azure:///another"}}`), nothing},
		{"change a label", patch(`{"metadata":{"labels":{"example.com/team":"red"}}}`), nothing},
		{"remove a label", patch(`{"metadata":{"labels":{"example.com/team":null}}}`), nothing},
		{"add a role", patch(`{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`), nothing},
		{"add a finalizer", patch(`{"metadata":{"finalizers":["example.com/forever"]}}`), nothing},
		{"change an annotation", patch(`{"metadata":{"annotations":{"example.com/note":"changed"}}}`), annotations},
		{"remove an annotation", patch(`{"metadata":{"annotations":{"example.com/note":null}}}`), annotations},
		{"uncordon by Slipway's record", patch(`{"metadata":{"annotations":{"cordon.slipway.dev/azure-1":"{}"}}}`), annotations},
		{"record a membership", patch(`{"metadata":{"annotations":{"cloudpool.slipway.dev/membership-status":"{}"}}}`), ""},
		{"record a service state", patch(`{"metadata":{"annotations":{"cloudpool.slipway.dev/service-state":"IN_SERVICE"}}}`), ""},
	} {
		a.check(t, stolen)
	}
}

// isRefusedByPolicy reports whether a policy refused the request with these words.
func isRefusedByPolicy(err error, words string) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy") && strings.Contains(err.Error(), words)
}

func configMap(name string, labels map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Data: map[string]string{"updates": "{}"}}
}

func lease(name string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}
}
