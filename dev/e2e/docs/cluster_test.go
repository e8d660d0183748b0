package docs_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

// These are the pools of make up.
var (
	spot    = controlplane.AKSPool{Name: "spot", Spot: true}
	general = controlplane.AKSPool{Name: "general"}
)

const (
	spotNodes    = 8
	generalNodes = 12
	// guarded is the number of Spot instances with an agent. No page causes an event on the others.
	guarded = 4
)

// start starts the same processes as make up. It omits the agents of instances that no page needs.
func start(t *testing.T) *testbed.Testbed {
	t.Helper()
	bed := testbed.StartForTest(t, testbed.Options{
		Azure: azure.Options{StartedAfterImpact: 5 * time.Second}, ARM: azure.ARMOptions{DeleteTime: time.Second},
	})
	ctx := testbed.TestContext(t)
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(bed.AddPool(ctx, spot, spotNodes))
	check(bed.AddPool(ctx, general, generalNodes))
	shop := workload.ShopObjects()
	for _, o := range shop {
		// The pod without a controller prevents the retirement of its node. It runs on a node that no page uses.
		if pod, is := o.(*corev1.Pod); is {
			pod.Spec.NodeName = spot.NodeName(spotNodes - 1)
		}
	}
	check(workload.CreateAndAwait(ctx, bed.Client(), shop...))
	for instance := range guarded {
		_, err := bed.StartAgent(ctx, spot, instance)
		check(err)
	}
	_, err := bed.WriteCloudConfig()
	check(err)
	return bed
}

// clients returns a PATH with slipway, kubectl, and helm. It does not use the host's kubectl, because that may have any
// version.
func clients(t *testing.T) string {
	t.Helper()
	built, err := controlplane.BuildClientBinaries(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	slipway, err := testbed.EnsureBinary("slipway")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, path := range map[string]string{
		"slipway": slipway, "kubectl-slipway": slipway, controlplane.Kubectl: built.Kubectl, controlplane.Helm: built.Helm,
	} {
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return strings.Join([]string{dir, filepath.Dir(slipway), os.Getenv("PATH")}, string(os.PathListSeparator))
}

// tidy removes Slipway's own objects of this page and the Leases of managers. The next page then starts clean.
func (r *reader) tidy() {
	ctx, cancel := context.WithTimeout(context.Background(), testbed.TestTimeout)
	defer cancel()
	client, err := dynamic.NewForConfig(r.bed.RESTConfig())
	if err != nil {
		r.t.Error(err)
		return
	}
	for _, kind := range []string{"noderetirements", "nodegroups"} {
		objects := client.Resource(v1alpha1.GroupVersion.WithResource(kind))
		list, err := objects.List(ctx, metav1.ListOptions{})
		if err != nil {
			continue // the types do not exist yet
		}
		for _, o := range list.Items {
			_, _ = objects.Patch(ctx, o.GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
			_ = objects.Delete(ctx, o.GetName(), metav1.DeleteOptions{}) // it may be gone
		}
	}
	// The tutorial allows no disruption of the web servers.
	budgets := r.bed.Client().PolicyV1().PodDisruptionBudgets(workload.ShopNamespace)
	_, _ = budgets.Patch(ctx, "web", types.MergePatchType, []byte(`{"spec":{"maxUnavailable":"25%"}}`), metav1.PatchOptions{})
	leases := r.bed.Client().CoordinationV1().Leases(testbed.AgentNamespace)
	if list, err := leases.List(ctx, metav1.ListOptions{}); err == nil {
		for _, l := range list.Items {
			_ = leases.Delete(ctx, l.Name, metav1.DeleteOptions{})
		}
	}
}
