package chart_test

import (
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// front is the namespace, and the release, of a cloudpool whose token somebody has stolen.
const front = "front"

const frontValues = `
image: {registry: registry.example.com/slipway}
crds: {by: none}
agent: {enabled: false}
manager: {nodeGroups: {spot: {nodeSelector: {matchLabels: {pool: spot}}, cloud: {provider: azure, group: spot}}}}
cloudpool: {enabled: true, nodeGroups: [builders], tls: {secretName: tls}}
`

// attempt is one of whoever has a token, and what is refused of it; "" is nothing.
type attempt struct {
	name  string
	try   func(as kubernetes.Interface) error
	words string
}

// TestACloudpoolsTokenWritesNothingButWhatIsOfPools: the manager's NodeGroups and its Lease are in the same namespace.
func TestACloudpoolsTokenWritesNothingButWhatIsOfPools(t *testing.T) {
	t.Parallel()
	b := ready(t)
	b.restricted(front)
	for _, o := range objects(t, manifest(t, slipwayChart, release(front, front), frontValues)) {
		if podOf(t, o) == nil { // the accounts alone are of interest, and not who runs under them
			b.apply([]*unstructured.Unstructured{o})
		}
	}
	label := map[string]string{"slipway.dev/cloudpool": "record"}
	create := func(name string, labels map[string]string) func(kubernetes.Interface) error {
		return func(as kubernetes.Interface) error {
			_, err := as.CoreV1().ConfigMaps(front).Create(b.ctx, configMap(name, labels), metav1.CreateOptions{})
			return err
		}
	}
	change := func(name string, labels map[string]string) func(kubernetes.Interface) error {
		return func(as kubernetes.Interface) error {
			_, err := as.CoreV1().ConfigMaps(front).Update(b.ctx, configMap(name, labels), metav1.UpdateOptions{})
			return err
		}
	}
	lead := func(name string) func(kubernetes.Interface) error {
		return func(as kubernetes.Interface) error {
			_, err := as.CoordinationV1().Leases(front).Create(b.ctx, lease(name), metav1.CreateOptions{})
			return err
		}
	}
	take := func(name string) func(kubernetes.Interface) error {
		return func(as kubernetes.Interface) error {
			l, err := b.Client().CoordinationV1().Leases(front).Get(b.ctx, name, metav1.GetOptions{})
			b.check(err)
			_, err = as.CoordinationV1().Leases(front).Update(b.ctx, l, metav1.UpdateOptions{})
			return err
		}
	}
	const files, leader, pool = "slipway-cloudpool-files", "slipway-manager", "slipway-cloudpool-builders"
	b.check(create(files, nil)(b.Client()))
	b.check(lead(leader)(b.Client()))
	kubeconfig, err := b.ServiceAccountKubeconfig(b.ctx, front, front+"-slipway-cloudpool", controlplane.TokenOptions{})
	b.check(err)
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	b.check(err)
	stolen := kubernetes.NewForConfigOrDie(config)
	const leases, made = "writes no Leases and ConfigMaps but those of pools", "but those that it made"
	b.check(testbed.Poll(b.ctx, "the policy is in force", func() bool { return kept(take(leader)(stolen), leases) }))
	for _, a := range []attempt{
		{"change the manager's NodeGroups", change(front+"-slipway-manager", label), leases},
		{"take the manager's Lease", take(leader), leases},
		{"take a turn of the agents'", lead("slipway-drain-0"), leases},
		{"make a ConfigMap of another's", create("anything", label), leases},
		{"change its own files", change(files, label), made},
		{"make what it could not change", create("slipway-cloudpool-other", nil), made},
		{"take a pool", lead(pool + "-0"), ""},
		{"keep a pool", take(pool + "-0"), ""},
		{"begin a pool's record", create(pool, label), ""},
		{"go on with a pool's record", change(pool, label), ""},
	} {
		err := a.try(stolen)
		if a.words == "" && err != nil || a.words != "" && !kept(err, a.words) {
			t.Errorf("%s: %v, want it refused with %q", a.name, err, a.words)
		}
	}
}

// kept reports that the API server answered no, in words of a policy.
func kept(err error, words string) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy") && strings.Contains(err.Error(), words)
}

func configMap(name string, labels map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Data: map[string]string{"updates": "{}"}}
}

func lease(name string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}
}
