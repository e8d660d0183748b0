package openstack_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/controlplane"
	openstackdev "github.com/slipway-dev/slipway/dev/openstack"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
	"github.com/slipway-dev/slipway/internal/cloud/openstack"
	"github.com/slipway-dev/slipway/internal/compat/openstackautoscaler"
)

func TestMain(m *testing.M) { os.Exit(testbed.RunTestsAndStopShared(m)) }

// conf is a configuration of the OpenStack autoscaler.
const conf = `CloudType: OpenStack
AuthOptions:
  IdentityEndpoint: %s
  Username: demo
  Password: %s
  TenantID: %s
  DomainName: Default
WorkerImageName: tiny
CoolDownTime: 600
MinNodeCount: 1
MaxNodeCount: 10
Network: {SecurityGroupName: demo-sg, NetworkUUID: %s}
OpenStackFlavours:
  DefaultFlavour: t.1c512m
  Flavours: [{Name: t.1c512m, VCPU: 1, Memory: 512}, {Name: m.2c4g, VCPU: 2, Memory: 4096}]
`

// Slipway retires a worker of the OpenStack autoscaler with that tool's own file. It drains and deletes the Node, and
// deletes the server from Nova. An unschedulable pod gets a server with the first sufficient flavour of the file.
func TestAutoscalerFileRetiresAndLaunchesServers(t *testing.T) {
	c := openstackdev.RequireForTest(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	bed := testbed.StartShared(t)
	const name = "kube-worker-a1b2" // the autoscaler's name format
	client := nova(t, c, openstackdev.DemoCloud)
	made, err := servers.Create(ctx, client, servers.CreateOpts{
		Name: name, ImageRef: c.IDs.Image, FlavorRef: c.IDs.Flavors["t.1c512m"], Networks: []servers.Network{{UUID: c.IDs.Network}},
	}, nil).Extract()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = servers.Delete(context.WithoutCancel(ctx), client, made.ID).ExtractErr() })
	for {
		s, err := servers.Get(ctx, client, made.ID).Extract()
		if err != nil {
			t.Fatal(err)
		}
		if s.Status == "ACTIVE" {
			break
		}
		look(t)
	}
	if err := bed.AddNodes(ctx, controlplane.NodeSpec{Name: name, ProviderID: idOf(made.ID)}, controlplane.NodeSpec{Name: "kube-worker-stays", CPU: "1", Memory: "512Mi"}); err != nil {
		t.Fatal(err)
	}
	run(ctx, t, bed, c)

	retirements := dynamic.NewForConfigOrDie(bed.RESTConfig()).Resource(v1alpha1.GroupVersion.WithResource("noderetirements"))
	retirement := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "NodeRetirement",
		"metadata": map[string]any{"name": name, "labels": map[string]any{openstackautoscaler.GroupLabel: openstackautoscaler.Group}},
		"spec":     map[string]any{"reason": "Requested", "nodeName": name},
	}}
	err = testbed.PollUntil(ctx, "the types are installed", func() bool {
		_, err := retirements.Create(ctx, retirement, metav1.CreateOptions{})
		return err == nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var phase, message string
	err = testbed.PollUntil(ctx, "the retirement is over", func() bool {
		now, err := retirements.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		phase, _, _ = unstructured.NestedString(now.Object, "status", "phase")
		message, _, _ = unstructured.NestedString(now.Object, "status", "message")
		return v1alpha1.Phase(phase).IsFinal()
	})
	if err != nil || v1alpha1.Phase(phase) != v1alpha1.Succeeded {
		t.Fatalf("%v: %s: %s", err, phase, message)
	}
	if err := servers.Get(ctx, client, made.ID).Err; !gophercloud.ResponseCodeIs(err, http.StatusNotFound) {
		t.Errorf("the server: %v, want it gone", err)
	}
	if _, err := bed.Client().CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the Node: %v, want it gone", err)
	}
	if n := portsOf(t, c, made.ID); n != 0 {
		t.Errorf("%d ports are left", n)
	}
	awaitNewServer(ctx, t, bed, c)
}

// awaitNewServer creates an unschedulable pod, and waits until it runs on a new server.
func awaitNewServer(ctx context.Context, t *testing.T, bed *testbed.Testbed, c *openstackdev.Cloud) {
	t.Helper()
	mark := map[string]string{openstack.GroupKey: openstackautoscaler.Group}
	client := nova(t, c, openstackdev.DemoCloud)
	t.Cleanup(func() {
		left, err := openstackdev.ListServers(context.WithoutCancel(ctx), client, mark)
		if err != nil {
			t.Error(err)
		}
		for _, s := range left {
			_ = servers.Delete(context.WithoutCancel(ctx), client, s.ID).ExtractErr()
		}
	})
	joined(t, c, bed, mark, nil)
	app := workload.App{Namespace: "waits", Name: "web", CPU: resource.MustParse("1500m"), StopSeconds: "0.1"}
	if err := workload.Create(ctx, bed.Client(), workload.NewNamespace("waits"), app.Pod()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = bed.Client().CoreV1().Namespaces().Delete(context.WithoutCancel(ctx), "waits", metav1.DeleteOptions{})
	})
	err := testbed.PollUntil(ctx, "the pod runs", func() bool {
		p, err := bed.Client().CoreV1().Pods("waits").Get(ctx, "web", metav1.GetOptions{})
		return err == nil && p.Status.Phase == corev1.PodRunning
	})
	if err != nil {
		t.Fatal(err)
	}
	made, err := openstackdev.ListServers(ctx, client, mark)
	if err != nil {
		t.Fatal(err)
	}
	if len(made) != 1 || made[0].Flavor["original_name"] != "m.2c4g" || !strings.HasPrefix(made[0].Name, openstackautoscaler.Group+"-") {
		t.Errorf("the new servers are %+v, want one of m.2c4g", made)
	}
}

// run starts slipway instead of the autoscaler.
func run(ctx context.Context, t *testing.T, bed *testbed.Testbed, c *openstackdev.Cloud) {
	t.Helper()
	path, err := testbed.EnsureBinary("slipway")
	if err != nil {
		t.Fatal(err)
	}
	password, err := c.Password()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "conf.yml")
	text := fmt.Sprintf(conf, c.IDs.Endpoints["identity"], password, c.IDs.Project, c.IDs.Network)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := bed.StartProcess(ctx, controlplane.Command{Name: "openstack-autoscaler", Path: path, Args: []string{
		"openstack-autoscaler", "-kubeconfig", bed.Kubeconfig(), "-config", file, "-listen", "",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Kill()
		if t.Failed() {
			raw, _ := os.ReadFile(p.LogFile())
			t.Logf("log of slipway:\n%s", raw)
		}
	})
}
