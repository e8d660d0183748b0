// Package autoscale_test adds emulated Azure instances for unschedulable pods on a real control plane. It removes the
// instances when no pod needs them. The real manager runs with the rights of its shipped manifests.
package autoscale_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

func TestMain(m *testing.M) { os.Exit(testbed.RunTestsAndStopShared(m)) }

// shard is the label that selects the groups of each test's manager.
const shard = "e2e.slipway.dev/shard"

// fixture holds a test's own pool, initially without instances, and its own namespace.
type fixture struct {
	*testbed.Testbed
	t    *testing.T
	ctx  context.Context
	pool controlplane.AKSPool
	name string
}

func newFixture(t *testing.T, name string) *fixture {
	t.Helper()
	bed := testbed.StartShared(t) // the first call of this and of Binary is slow
	if _, err := testbed.EnsureBinary("slipway"); err != nil {
		t.Fatal(err)
	}
	ctx := testbed.TestContext(t)
	f := &fixture{Testbed: bed, t: t, ctx: ctx, pool: controlplane.AKSPool{Name: name}, name: name}
	f.check(bed.InstallManagerOnce(ctx))
	f.check(f.AddPool(ctx, f.pool, 0))
	f.check(workload.Create(ctx, f.Client(), workload.NewNamespace(name)))
	return f
}

func (f *fixture) check(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// group creates a NodeGroup of a scale set.
func (f *fixture) group(name, scaleSet, spec string) {
	f.t.Helper()
	f.createGroup(name, testbed.ScaleSetNodeGroupSpec(f.name, scaleSet)+spec)
}

func (f *fixture) createGroup(name, spec string) {
	f.t.Helper()
	f.check(f.CreateNodeGroup(f.ctx, name, map[string]string{shard: f.name}, spec))
}

// startAzureManager starts a manager with the rights of the shipped manifests. Its configuration describes the nodes of
// the scale sets, because the groups grow from zero.
func (f *fixture) startAzureManager(scaleSets ...string) *controlplane.Process {
	f.t.Helper()
	config := f.AzureProviderConfig()
	for _, set := range scaleSets {
		config.Groups = append(config.Groups, testbed.EmptyGroupConfig(set))
	}
	raw, err := yaml.Marshal(map[string]any{"azure": config})
	f.check(err)
	return f.startManager(testbed.WriteTempFile(f.t, "clouds.yaml", string(raw)))
}

// startManager starts a manager with a file of clouds.
func (f *fixture) startManager(clouds string) *controlplane.Process {
	f.t.Helper()
	p, err := f.StartManagerWithFile(f.ctx, "manager-"+f.name, clouds, "--selector", shard+"="+f.name,
		"--poll-interval", "1s", "--cloud-poll-interval", "500ms", "--retry-interval", "1s",
		"--group-poll-interval", "1s", "--scale-poll-interval", "1s", "--log-level", "debug")
	f.check(err)
	testbed.KillAfterTest(f.t, p.Process)
	return p.Process
}

// countInstances counts the instances of a scale set. It does not count instances in state Deleting.
func (f *fixture) countInstances(scaleSet string) (n int) {
	for _, vm := range f.ARM.VMs() {
		if strings.EqualFold(vm.ScaleSet, scaleSet) && vm.State != "Deleting" {
			n++
		}
	}
	return n
}

// nodes returns the nodes of the test's pool.
func (f *fixture) nodes() ([]corev1.Node, error) {
	list, err := f.Client().CoreV1().Nodes().List(f.ctx, metav1.ListOptions{LabelSelector: "kubernetes.azure.com/agentpool=" + f.name})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// describeRetirements describes the retirements of the test's nodes.
func (f *fixture) describeRetirements() string {
	list, err := dynamic.NewForConfigOrDie(f.RESTConfig()).Resource(v1alpha1.GroupVersion.WithResource("noderetirements")).
		List(f.ctx, metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	text := fmt.Sprintf("%d retirements", len(list.Items))
	for _, rt := range list.Items {
		phase, _, _ := unstructured.NestedString(rt.Object, "status", "phase")
		message, _, _ := unstructured.NestedString(rt.Object, "status", "message")
		text += fmt.Sprintf("; %s is %s: %s", rt.GetName(), phase, message)
	}
	return text
}

// await waits until the condition holds. On a timeout, it prints the last state.
func (f *fixture) await(what string, is func() (string, bool)) {
	f.t.Helper()
	last := ""
	err := testbed.PollUntil(f.ctx, what, func() (done bool) {
		last, done = is()
		return done
	})
	if err != nil {
		f.t.Fatalf("%v: %s", err, last)
	}
}

// event waits for an Event about an object of this kind, with these texts in it.
func (f *fixture) event(kind, reason string, texts ...string) {
	f.t.Helper()
	f.await(fmt.Sprintf("Event %s about a %s has %q", reason, kind, texts), func() (string, bool) {
		list, err := f.Client().EventsV1().Events(metav1.NamespaceAll).List(f.ctx, metav1.ListOptions{FieldSelector: "regarding.kind=" + kind})
		if err != nil {
			return err.Error(), false
		}
		seen := ""
		for _, e := range list.Items {
			missing := errors.New("none")
			for _, text := range texts {
				if !strings.Contains(e.Regarding.Name+" "+e.Note, text) {
					missing = fmt.Errorf("no %q", text)
				}
			}
			if e.Reason == reason && missing.Error() == "none" {
				return "", true
			}
			seen += "\n" + e.Regarding.Name + ": " + e.Reason + ": " + e.Note
		}
		return seen, false
	})
}
