package openstack_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	openstackdev "github.com/slipway-dev/slipway/dev/openstack"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
	"github.com/slipway-dev/slipway/internal/cloud/openstack"
)

// podCount is the number of pods. Each fits on its own m.2c4g server. None fits on t.1c512m, which the group prefers.
const podCount = 4

// joined makes the servers of a group of this cluster join a control plane until the test ends.
func joined(t *testing.T, c *openstackdev.Cloud, bed *testbed.Testbed, metadata, labels map[string]string) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.SyncNodes(ctx, bed, metadata, labels) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// createGroup creates the NodeGroup of a group of servers.
func createGroup(ctx context.Context, t *testing.T, bed *testbed.Testbed, name string) {
	t.Helper()
	err := bed.CreateNodeGroup(ctx, name, nil, fmt.Sprintf(`
nodeSelector: {matchLabels: {pool: %[1]s}}
cloud: {provider: openstack, group: %[1]s}
maxSize: %[2]d
scaleUp: {policy: Priority, joinTimeout: 10m}
scaleDown: {underutilized: {cooldown: 1s}}
cooldowns: {afterFailure: 1s}
disruptionBudgets: [{nodes: "100%%"}]
`, name, podCount+2))
	if err != nil {
		t.Fatal(err)
	}
}

// manage starts a manager with the permissions of its shipped manifests.
func manage(ctx context.Context, t *testing.T, bed *testbed.Testbed, config openstack.Config) {
	t.Helper()
	p, err := bed.StartManager(ctx, "manager-of-openstack", map[string]any{openstack.Name: config},
		"--poll-interval", "500ms", "--cloud-poll-interval", "500ms", "--group-poll-interval", "1s", "--scale-poll-interval", "1s",
		"--log-level", "debug")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Kill()
		if t.Failed() {
			raw, _ := os.ReadFile(p.LogFile())
			t.Logf("log of the manager:\n%s", raw)
		}
	})
}

func TestServersAreLaunchedForPodsAndRetiredAfterwards(t *testing.T) {
	c := openstackdev.RequireForTest(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	bed := testbed.StartShared(t)
	if err := errors.Join(bed.ApplyManifests(ctx, testbed.ManagerManifests...), bed.InstallCRDs(ctx)); err != nil {
		t.Fatal(err)
	}
	name := newGroupName(t)
	t.Cleanup(func() { removeGroup(t, c, name) })
	g := groupOf(name)
	g.Nodes.Labels = map[string]string{"pool": name}
	joined(t, c, bed, map[string]string{openstack.GroupKey: name}, g.Nodes.Labels)
	createGroup(ctx, t, bed, name)
	manage(ctx, t, bed, configOf(c, g))

	app := workload.App{
		Namespace: name, Name: "web", Replicas: podCount, CPU: resource.MustParse("1500m"), StopSeconds: "0.1", NodeSelector: g.Nodes.Labels,
	}
	if err := workload.Create(ctx, bed.Client(), workload.NewNamespace(name), app.Deployment()); err != nil {
		t.Fatal(err)
	}
	err := testbed.PollUntil(ctx, "all pods run", func() bool {
		d, err := bed.Client().AppsV1().Deployments(name).Get(ctx, "web", metav1.GetOptions{})
		return err == nil && d.Status.ReadyReplicas == podCount
	})
	if err != nil {
		t.Fatal(err)
	}
	all := serversOf(t, c, name)
	if len(all) != podCount {
		t.Errorf("%d servers run %d pods, want one pod per server", len(all), podCount)
	}
	for _, s := range all {
		if s.Flavor["original_name"] != "m.2c4g" || !strings.HasPrefix(s.Name, name) {
			t.Errorf("server %s is of flavor %v, want m.2c4g", s.Name, s.Flavor["original_name"])
		}
	}

	_, err = bed.Client().AppsV1().Deployments(name).Patch(ctx, "web", types.MergePatchType, []byte(`{"spec":{"replicas":1}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	last := ""
	err = testbed.PollUntil(ctx, "one server is left", func() bool {
		nodes, err := bed.Client().CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "pool=" + name})
		if err != nil {
			return false
		}
		left := serversOf(t, c, name)
		last = fmt.Sprintf("%d nodes, %d servers", len(nodes.Items), len(left))
		return len(nodes.Items) == 1 && len(left) == 1 && left[0].Name == nodes.Items[0].Name
	})
	if err != nil {
		t.Fatalf("%v: %s", err, last)
	}
	d, err := bed.Client().AppsV1().Deployments(name).Get(ctx, "web", metav1.GetOptions{})
	if err != nil || d.Status.ReadyReplicas != 1 {
		t.Errorf("the deployment is %+v, %v", d.Status, err)
	}
}
