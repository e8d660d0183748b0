package autoscale_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/workload"
)

func TestSixtyPodsComeAndTheirMachinesAndTheLoadGoesAndTheMachinesGo(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "load")
	set := f.pool.ScaleSet()
	f.group("load", set, `maximum: 10
scaleUp: {joinTimeout: 5m}
scaleDown: {underused: {cooldown: 2s}}
cooldowns: {afterFailure: 1s}
disruptionBudgets: [{nodes: "100%"}]`)
	f.manage(set)
	app := workload.App{
		Namespace: f.name, Name: "web", Replicas: 60, CPU: resource.MustParse("1"), Stop: "0.1",
		NodeSelector: map[string]string{"kubernetes.azure.com/agentpool": f.name},
	}
	if err := workload.Create(f.ctx, f.Client(), app.Deployment()); err != nil {
		t.Fatal(err)
	}
	f.await("all pods run", func() (string, bool) {
		d, err := f.Client().AppsV1().Deployments(f.name).Get(f.ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err.Error(), false
		}
		return fmt.Sprintf("%d are ready, on %d machines", d.Status.ReadyReplicas, f.machines(set)), d.Status.ReadyReplicas == 60
	})
	// A machine of 16 cores has room for 15 pods of one, as long as nobody has seen what its kubelet keeps.
	if n := f.machines(set); n < 4 || n > 5 {
		t.Errorf("%d machines of 16 cores run 60 pods of one core each, want 4", n)
	}
	f.event("NodeGroup", "MachineOrdered", "load", "pods wait for room")
	f.event("Pod", "MachineOrdered", "web-")

	if _, err := f.Client().AppsV1().Deployments(f.name).Patch(f.ctx, "web", "application/merge-patch+json",
		[]byte(`{"spec":{"replicas":1}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	f.await("one machine is left", func() (string, bool) {
		nodes, err := f.nodes()
		return fmt.Sprintf("%d machines, %d nodes, %v; %s", f.machines(set), len(nodes), err, f.leaving()), err == nil && len(nodes) == 1 &&
			f.machines(set) == 1
	})
	d, err := f.Client().AppsV1().Deployments(f.name).Get(f.ctx, "web", metav1.GetOptions{})
	if err != nil || d.Status.Replicas != 1 {
		t.Errorf("the deployment is %+v, %v", d.Status, err)
	}
}

func TestAPodThatNothingHelpsIsToldWhy(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "helpless")
	f.group("helpless", f.pool.ScaleSet(), "maximum: 1\nscaleUp: {}")
	f.manage(f.pool.ScaleSet())
	app := workload.App{
		Namespace: f.name, Name: "huge", CPU: resource.MustParse("100"), NodeSelector: map[string]string{"kubernetes.azure.com/agentpool": f.name},
	}
	if err := workload.Create(f.ctx, f.Client(), app.Pod()); err != nil {
		t.Fatal(err)
	}
	f.event("Pod", "NoMachineHelps", "huge", "DoesNotFit", "insufficient cpu")
	if n := f.machines(f.pool.ScaleSet()); n != 0 {
		t.Errorf("%d machines were ordered for nothing", n)
	}
}

func TestAMachineThatNeverJoinsIsDeletedAndItsKindLeftAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "mute")
	// Azure makes the machines of this scale set, and no Node comes of them.
	const set = "mute-machines"
	f.ARM.AddScaleSet(azure.ScaleSetSpec{Name: set, Size: "Standard_D16ds_v5"}, 0)
	f.group("mute", set, "maximum: 2\nscaleUp: {joinTimeout: 10s}")
	f.manage(set)
	app := workload.App{
		Namespace: f.name, Name: "waits", CPU: resource.MustParse("1"), NodeSelector: map[string]string{"kubernetes.azure.com/agentpool": f.name},
	}
	if err := workload.Create(f.ctx, f.Client(), app.Pod()); err != nil {
		t.Fatal(err)
	}
	f.await("a machine is made", func() (string, bool) { return "none", f.machines(set) == 1 })
	f.event("NodeGroup", "MachineGivenUp", "mute", "NeverJoined")
	f.await("the machine is gone", func() (string, bool) {
		return fmt.Sprint(f.machines(set)), f.machines(set) == 0
	})
	f.event("Pod", "NoMachineHelps", "waits", "BackedOff", "NeverJoined")
	nodes, err := f.nodes()
	if err != nil || len(nodes) != 0 {
		t.Errorf("%d nodes, %v", len(nodes), err)
	}
	pods, err := f.Client().CoreV1().Pods(f.name).List(f.ctx, metav1.ListOptions{})
	if err != nil || len(pods.Items) != 1 || pods.Items[0].Status.Phase != corev1.PodPending || strings.Contains(pods.Items[0].Spec.NodeName, set) {
		t.Errorf("the pod is %+v, %v", pods.Items, err)
	}
}
