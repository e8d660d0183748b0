package manager_test

import (
	"bufio"
	"errors"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/slipway-dev/slipway/dev/testbed"
)

// deployment reads the shipped Deployment.
func (b bed) deployment() *appsv1.Deployment {
	b.t.Helper()
	root, err := testbed.RepositoryRoot()
	b.check(err)
	f, err := os.Open(filepath.Join(root, "deploy", "manager", "deployment.yaml"))
	b.check(err)
	defer func() { _ = f.Close() }() // read only
	d := &appsv1.Deployment{}
	b.check(yaml.NewYAMLOrJSONDecoder(bufio.NewReader(f), 4096).Decode(d))
	return d
}

func TestDeploymentPodsMeetRestrictedPodSecurity(t *testing.T) {
	t.Parallel()
	b := ready(t)
	b.deploy("deployment.yaml", "service.yaml")
	t.Cleanup(func() {
		_ = b.Client().AppsV1().Deployments(namespace).Delete(t.Context(), account, metav1.DeleteOptions{})
	})
	// This is the strictest level of Pod Security: https://kubernetes.io/docs/concepts/security/pod-security-standards/
	const strict = "manager-restricted"
	_, err := b.Client().CoreV1().Namespaces().Create(b.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: strict, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}, metav1.CreateOptions{})
	b.check(err)
	b.check(testbed.PollUntil(b.ctx, "the namespace has its ServiceAccount", func() bool {
		_, err := b.Client().CoreV1().ServiceAccounts(strict).Get(b.ctx, "default", metav1.GetOptions{})
		return err == nil
	}))
	d := b.deployment()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "manager", Labels: d.Spec.Template.Labels}, Spec: d.Spec.Template.Spec}
	pod.Spec.ServiceAccountName = "default"
	// System priority classes are only allowed in the system's own namespaces.
	pod.Spec.PriorityClassName = ""
	if _, err := b.Client().CoreV1().Pods(strict).Create(b.ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Errorf("the restricted namespace refuses the pod: %v", err)
	}
	pod.Spec.SecurityContext.RunAsNonRoot = nil
	if _, err := b.Client().CoreV1().Pods(strict).Create(b.ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err == nil {
		t.Error("the namespace accepts a pod that may run as root, so it enforces nothing")
	}
	c := d.Spec.Template.Spec.Containers[0]
	if root := c.SecurityContext.ReadOnlyRootFilesystem; root == nil || !*root {
		t.Error("the root file system is writable")
	}
	if *d.Spec.Replicas < 2 || c.LivenessProbe == nil || c.ReadinessProbe == nil || c.Resources.Limits.Memory().IsZero() {
		t.Errorf("%d replicas, probes %v and %v, limits %v", *d.Spec.Replicas, c.LivenessProbe, c.ReadinessProbe, c.Resources.Limits)
	}
}

// TestManagerAcceptsTheArgumentsOfTheDeployment runs the binary with the arguments of the manifest. It checks the paths and
// the port of the probes. The manager has to take over a Lease of 68 years, as a stolen token could have created it without the
// admission policy.
func TestManagerAcceptsTheArgumentsOfTheDeployment(t *testing.T) {
	t.Parallel()
	b := ready(t)
	c := b.deployment().Spec.Template.Spec.Containers[0]
	if c.Args[0] != "manager" {
		t.Fatalf("the first argument is %q", c.Args[0])
	}
	port := c.Ports[0]
	if !slices.Contains(c.Args, "--listen=:9819") || port.ContainerPort != 9819 || c.ReadinessProbe.HTTPGet.Port.StrVal != port.Name ||
		c.LivenessProbe.HTTPGet.Port.StrVal != port.Name {
		t.Errorf("arguments %v, port %+v", c.Args, port)
	}
	now := metav1.NowMicro()
	_, err := b.Client().CoordinationV1().Leases(namespace).Create(b.ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "slipway-manager"},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("stolen-token"), LeaseDurationSeconds: new(int32(math.MaxInt32)), AcquireTime: &now, RenewTime: &now,
		},
	}, metav1.CreateOptions{})
	b.check(err)
	clouds := b.clouds(nil)
	args := []string{"--kubeconfig", b.credentials(), "--selector", "e2e.slipway.dev/shard=deploy"}
	for _, arg := range c.Args[1:] {
		switch name, _, _ := strings.Cut(arg, "="); name {
		case "--listen": // the test sets its own address
		case "--cloud-config":
			args = append(args, name+"="+clouds)
		default:
			args = append(args, arg)
		}
	}
	p := b.start("deploy", args...)
	p.awaitReady()
	p.await("/metrics", "shows the leader", func(status int, body string) bool {
		return status == http.StatusOK && strings.Contains(body, `leader_election_master_status{name="slipway-manager"} 1`)
	})
	if log := p.log(); !strings.Contains(log, "claims a longer duration than allowed") {
		t.Errorf("the log does not report the Lease:\n%s", log)
	}
	for _, path := range []string{c.LivenessProbe.HTTPGet.Path, c.ReadinessProbe.HTTPGet.Path, "/metrics"} {
		if status, body := p.get(path); status != 200 {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	_, metrics := p.get("/metrics")
	for _, name := range []string{"controller_runtime_max_concurrent_reconciles", "process_resident_memory_bytes"} {
		if !strings.Contains(metrics, name) {
			t.Errorf("no metric %s", name)
		}
	}
}

// TestKustomizationListsEveryManifest excludes the files that are optional for the user.
func TestKustomizationListsEveryManifest(t *testing.T) {
	t.Parallel()
	root, err := testbed.RepositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "deploy", "manager")
	f, err := os.Open(filepath.Join(dir, "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // read only
	var k struct {
		Resources []string `json:"resources"`
	}
	if err := yaml.NewYAMLOrJSONDecoder(f, 4096).Decode(&k); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	left := []string{"kustomization.yaml", "install-crds.yaml", "bootstrap.yaml"}
	for _, file := range files {
		name := filepath.Base(file)
		if !slices.Contains(left, name) && !slices.Contains(k.Resources, name) {
			t.Errorf("%s is not in the kustomization", name)
		}
	}
}
