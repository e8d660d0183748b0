// Package nodegroup_test lets the real manager retire real nodes of a real control plane automatically. The manager has
// the permissions of its shipped manifests.
package nodegroup_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

func TestMain(m *testing.M) { os.Exit(testbed.RunTestsAndStopShared(m)) }

var (
	groups      = v1alpha1.GroupVersion.WithResource("nodegroups")
	retirements = v1alpha1.GroupVersion.WithResource("noderetirements")
)

const (
	// shard is the label that each test's manager selects its own groups with.
	shard = "e2e.slipway.dev/shard"
	// work is the label of the pods that keep nodes in service.
	work = "e2e.slipway.dev/work"

	since    = "nodegroup.slipway.dev/idle-since"
	used     = "nodegroup.slipway.dev/used"
	disabled = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
)

// fixture holds a pool of instances and a namespace for one test.
type fixture struct {
	*testbed.Testbed
	t    *testing.T
	ctx  context.Context
	pool controlplane.AKSPool
	name string
}

func newFixture(t *testing.T, name string, n int) *fixture {
	t.Helper()
	bed := testbed.StartShared(t) // this call and the next may be slow the first time
	if _, err := testbed.EnsureBinary("slipway"); err != nil {
		t.Fatal(err)
	}
	ctx := testbed.TestContext(t)
	f := &fixture{Testbed: bed, t: t, ctx: ctx, pool: controlplane.AKSPool{Name: name}, name: name}
	f.check(bed.InstallManagerOnce(ctx))
	f.check(f.AddPool(ctx, f.pool, n))
	f.check(workload.Create(ctx, f.Client(), workload.NewNamespace(name)))
	return f
}

func (f *fixture) check(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) objects(resource schema.GroupVersionResource) dynamic.ResourceInterface {
	return dynamic.NewForConfigOrDie(f.RESTConfig()).Resource(resource)
}

// group creates a NodeGroup of the test's pool. more is added to its spec.
func (f *fixture) group(name, more string) {
	f.t.Helper()
	f.create(name, testbed.ScaleSetNodeGroupSpec(f.name, f.pool.ScaleSetName())+more)
}

// idle returns the rule of a group that retires nodes without a pod of the test.
func (f *fixture) idle(cooldown, more string) string {
	return fmt.Sprintf("scaleDown: {idleByLabel: {podSelector: {matchLabels: {%s: %s}}, namespaces: [%[2]s], cooldown: %s%s}}\n",
		work, f.name, cooldown, more)
}

func (f *fixture) create(name, spec string) {
	f.t.Helper()
	f.check(f.CreateNodeGroup(f.ctx, name, map[string]string{shard: f.name}, spec))
}

// awaitGroup waits for a state of a NodeGroup.
func (f *fixture) awaitGroup(name, what string, is func(*v1alpha1.NodeGroup) bool) *v1alpha1.NodeGroup {
	f.t.Helper()
	g := &v1alpha1.NodeGroup{}
	err := testbed.PollUntil(f.ctx, "NodeGroup "+name+" is "+what, func() bool {
		o, err := f.objects(groups).Get(f.ctx, name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		*g = v1alpha1.NodeGroup{}
		return runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, g) == nil && is(g)
	})
	if err != nil {
		f.t.Fatalf("%v: %+v", err, g.Status)
	}
	return g
}

func acceptedAs(g *v1alpha1.NodeGroup) metav1.Condition {
	c := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.GroupAccepted)
	if c == nil || c.ObservedGeneration != g.Generation {
		return metav1.Condition{}
	}
	return *c
}

func (f *fixture) awaitAccepted(name string) {
	f.t.Helper()
	f.awaitGroup(name, "accepted", func(g *v1alpha1.NodeGroup) bool { return acceptedAs(g).Status == metav1.ConditionTrue })
}

// node returns the name of one of the pool's nodes.
func (f *fixture) node(i int) string { return f.pool.NodeName(i) }

// awaitNode waits for a state of one of the pool's nodes.
func (f *fixture) awaitNode(i int, what string, is func(*corev1.Node) bool) *corev1.Node {
	f.t.Helper()
	n, err := f.AwaitNode(f.ctx, f.node(i), what, is)
	f.check(err)
	return n
}

func marked(n *corev1.Node) bool { return n.Annotations[since] != "" }

// awaitGone waits until nodes of the pool and their instances are gone.
func (f *fixture) awaitGone(instances ...int) {
	f.t.Helper()
	f.check(testbed.PollUntil(f.ctx, fmt.Sprintf("instances %v and their nodes are gone", instances), func() bool {
		for _, i := range instances {
			if _, there := f.ARM.VM(f.pool.ResourceName(i)); there {
				return false
			}
			if _, err := f.Client().CoreV1().Nodes().Get(f.ctx, f.node(i), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return false
			}
		}
		return true
	}))
}

// here checks that instances and their nodes exist, and that nothing is removing them.
func (f *fixture) here(instances ...int) {
	f.t.Helper()
	for _, i := range instances {
		n, err := f.Client().CoreV1().Nodes().Get(f.ctx, f.node(i), metav1.GetOptions{})
		f.check(err)
		if vm, there := f.ARM.VM(f.pool.ResourceName(i)); !there || vm.State == "Deleting" || n.Spec.Unschedulable {
			f.t.Errorf("instance %d exists: %t (%s), its node is cordoned: %t", i, there, vm.State, n.Spec.Unschedulable)
		}
	}
}

// app returns an App that keeps its node in service.
func (f *fixture) app(name string, i int) workload.App {
	return workload.App{Namespace: f.name, Name: name, Node: f.node(i), Labels: map[string]string{work: f.name}, StopSeconds: "0.1"}
}

func (f *fixture) run(objects ...runtime.Object) {
	f.t.Helper()
	f.check(workload.CreateAndAwait(f.ctx, f.Client(), objects...))
}

func (f *fixture) deletePod(name string) {
	f.t.Helper()
	now := int64(0)
	f.check(f.Client().CoreV1().Pods(f.name).Delete(f.ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
}

func (f *fixture) awaitEvent(kind, name, reason, text string) {
	f.t.Helper()
	_, err := f.AwaitEventNote(f.ctx, kind, name, reason, text)
	f.check(err)
}

// record returns the NodeRetirement of one of the pool's nodes, or nil.
func (f *fixture) record(i int) *v1alpha1.NodeRetirement {
	f.t.Helper()
	list, err := f.objects(retirements).List(f.ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + f.node(i)})
	f.check(err)
	if len(list.Items) == 0 {
		return nil
	}
	if len(list.Items) > 1 {
		f.t.Fatalf("%d NodeRetirements of %s", len(list.Items), f.node(i))
	}
	rt := &v1alpha1.NodeRetirement{}
	f.check(runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[0].Object, rt))
	return rt
}

func (f *fixture) awaitPhase(i int, want v1alpha1.Phase) {
	f.t.Helper()
	f.check(testbed.PollUntil(f.ctx, fmt.Sprintf("the retirement of %s is %s", f.node(i), want), func() bool {
		rt := f.record(i)
		return rt != nil && rt.Status.Phase == want
	}))
}

// manage starts a manager with the permissions of the shipped manifests.
func (f *fixture) manage(flags ...string) *controlplane.Process {
	f.t.Helper()
	args := append([]string{"manager", "--selector", shard + "=" + f.name}, f.flags()...)
	return f.start("manager-"+f.name, nil, append(args, flags...)...)
}

// flags returns the flags that all managers of the test share.
func (f *fixture) flags() []string {
	f.t.Helper()
	raw, err := yaml.Marshal(map[string]any{"azure": f.AzureProviderConfig()})
	f.check(err)
	credentials, err := f.ServiceAccountKubeconfig(f.ctx, "slipway", "slipway-manager", controlplane.TokenOptions{})
	f.check(err)
	return []string{
		"--kubeconfig", credentials, "--cloud-config", testbed.WriteTempFile(f.t, "clouds.yaml", string(raw)), "--listen", "", "--leader-elect=false",
		"--poll-interval", "1s", "--cloud-poll-interval", "500ms", "--retry-interval", "1s", "--group-poll-interval", "1s",
		"--log-level", "debug",
	}
}

func (f *fixture) start(name string, env []string, args ...string) *controlplane.Process {
	f.t.Helper()
	path, err := testbed.EnsureBinary("slipway")
	f.check(err)
	return f.StartProcessForTest(f.ctx, f.t, controlplane.Command{Name: name, Path: path, Args: args, Env: env})
}

// slipway runs a command, and returns its output.
func (f *fixture) slipway(args ...string) string {
	f.t.Helper()
	out, err := f.RunSlipway(f.ctx, f.t, args...)
	f.check(err)
	return out
}

// shown is the entry of one group in slipway status.
type shown struct {
	Name     string `json:"name"`
	Accepted string `json:"accepted"`
	Refusal  string `json:"refusal"`
	Idle     []struct {
		Node      string    `json:"node"`
		Verdict   string    `json:"verdict"`
		IdleSince time.Time `json:"idleSince"`
		Reasons   []struct {
			Rule    string `json:"rule"`
			Message string `json:"message"`
		} `json:"reasons"`
	} `json:"idle"`
}

func (f *fixture) status(group string) shown {
	f.t.Helper()
	var all struct {
		Groups []shown `json:"groups"`
	}
	f.check(json.Unmarshal([]byte(f.slipway("status", "-o", "json")), &all))
	for _, g := range all.Groups {
		if g.Name == group {
			return g
		}
	}
	f.t.Fatalf("slipway status does not show %s", group)
	return shown{}
}

// awaitLog waits for a text in a process's log.
func (f *fixture) awaitLog(p *controlplane.Process, text string) error {
	return testbed.PollUntil(f.ctx, fmt.Sprintf("the log of %s has %q", p.Name(), text), func() bool {
		raw, _ := os.ReadFile(p.LogFile())
		return strings.Contains(string(raw), text)
	})
}

// awaitOneInstance waits until the pool has one instance and one node.
func (f *fixture) awaitOneInstance() {
	f.t.Helper()
	f.check(testbed.PollUntil(f.ctx, "one instance remains", func() bool {
		nodes, err := f.Client().CoreV1().Nodes().List(f.ctx, metav1.ListOptions{LabelSelector: "kubernetes.azure.com/agentpool=" + f.pool.Name})
		left := 0
		for _, vm := range f.ARM.VMs() {
			if strings.EqualFold(vm.ScaleSet, f.pool.ScaleSetName()) {
				left++
			}
		}
		return err == nil && len(nodes.Items) == 1 && left == 1
	}))
}
