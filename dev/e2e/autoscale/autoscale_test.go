package autoscale_test

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/workload"
)

func TestSixtyPodsScaleUpAndScaleDown(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "load")
	set := f.pool.ScaleSetName()
	f.group("load", set, `maxSize: 10
scaleUp: {joinTimeout: 5m}
scaleDown: {underutilized: {cooldown: 2s}}
cooldowns: {afterFailure: 1s}
disruptionBudgets: [{nodes: "100%"}]`)
	f.startAzureManager(set)
	app := workload.App{
		Namespace: f.name, Name: "web", Replicas: 60, CPU: resource.MustParse("1"), StopSeconds: "0.1",
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
		return fmt.Sprintf("%d are ready, on %d instances", d.Status.ReadyReplicas, f.countInstances(set)), d.Status.ReadyReplicas == 60
	})
	// An instance of 16 cores has room for 15 pods of one core each, until a node shows the capacity that its kubelet
	// reserves.
	if n := f.countInstances(set); n < 4 || n > 5 {
		t.Errorf("%d instances of 16 cores run 60 pods of one core each, want 4 or 5", n)
	}
	f.event("NodeGroup", "LaunchRequested", "load", "pods are unschedulable")
	f.event("Pod", "LaunchRequested", "web-")

	if _, err := f.Client().AppsV1().Deployments(f.name).Patch(f.ctx, "web", "application/merge-patch+json",
		[]byte(`{"spec":{"replicas":1}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	f.await("one instance remains", func() (string, bool) {
		nodes, err := f.nodes()
		return fmt.Sprintf("%d instances, %d nodes, %v; %s", f.countInstances(set), len(nodes), err, f.describeRetirements()), err == nil && len(nodes) == 1 &&
			f.countInstances(set) == 1
	})
	d, err := f.Client().AppsV1().Deployments(f.name).Get(f.ctx, "web", metav1.GetOptions{})
	if err != nil || d.Status.Replicas != 1 {
		t.Errorf("the deployment is %+v, %v", d.Status, err)
	}
}
