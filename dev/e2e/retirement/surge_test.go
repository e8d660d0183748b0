package retirement_test

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/workload"
)

// raised reports whether a surge has changed the size of a Deployment.
func (f *fixture) raised(name string) bool {
	f.t.Helper()
	d, err := f.Client().AppsV1().Deployments(f.name).Get(f.ctx, name, metav1.GetOptions{})
	f.check(err)
	if *d.Spec.Replicas != 1 {
		f.t.Errorf("Deployment %s has %d replicas, want 1", name, *d.Spec.Replicas)
	}
	return slices.ContainsFunc(d.ManagedFields, func(m metav1.ManagedFieldsEntry) bool { return m.Manager == "slipway-surge" })
}

func (f *fixture) podsOf(app string) []corev1.Pod {
	f.t.Helper()
	pods, err := f.Client().CoreV1().Pods(f.name).List(f.ctx, metav1.ListOptions{LabelSelector: workload.AppLabel + "=" + app})
	f.check(err)
	return pods.Items
}

// TestRetirementStartsSuccessorWherePlacementSeesRoom retires a node with two pods whose PDBs never allow an eviction, with the
// rights of the shipped manifests. One pod fits on the other node, and one fits on no other node.
func TestRetirementStartsSuccessorWherePlacementSeesRoom(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "surging", 2, "minSize: 0\ndrain: {surge: Always, timeout: 40s}\n")
	f.check(f.ApplyManifests(f.ctx, "manager/surge/rbac.yaml", "manager/surge/admission.yaml"))
	f.check(f.AwaitPermissions(f.ctx, managerNamespace, managerAccount, "slipway-manager-surge"))
	bound := f.app("bound", 0, 1)
	bound.MaxUnavailable, bound.GracePeriod = "0", 2*time.Second
	free := workload.App{
		Namespace: f.name, Name: "free", Replicas: 1, StopSeconds: "0.5", MaxUnavailable: "0", GracePeriod: 2 * time.Second,
		NodeSelector: map[string]string{"kubernetes.azure.com/agentpool": f.pool.Name},
	}
	f.setUnschedulable(1, true) // so that both pods start on the first node
	f.run(bound.Deployment(), bound.PodDisruptionBudget(), free.Deployment(), free.PodDisruptionBudget())
	f.setUnschedulable(1, false)

	p := f.manage("", faultproxy.New(kindOf), "--leader-election-namespace="+managerNamespace)
	f.awaitPhase(f.retire(0), v1alpha1.Aborted) // the pod that fits nowhere else stays
	if !f.raised("free") || f.raised("bound") {
		t.Error("want a surge of free, and none of bound")
	}
	for app, node := range map[string]string{"free": f.pool.NodeName(1), "bound": f.pool.NodeName(0)} {
		if pods := f.podsOf(app); len(pods) != 1 || pods[0].Spec.NodeName != node {
			t.Errorf("%s has %d pods %v, want one on %s", app, len(pods), pods, node)
		}
	}
	leases, err := f.Client().CoordinationV1().Leases(managerNamespace).List(f.ctx, metav1.ListOptions{LabelSelector: "slipway.dev/surge=true"})
	f.check(err)
	if len(leases.Items) > 0 {
		t.Errorf("the record %s is left", leases.Items[0].Name)
	}
	log, err := os.ReadFile(p.LogFile())
	f.check(err)
	if !strings.Contains(string(log), `fits on no other node`) {
		t.Errorf("the log does not say why the pod of bound got no successor:\n%s", log)
	}
}
