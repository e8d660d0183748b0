// Package cli_test runs commands of slipway on clusters where parts of Slipway are missing.
package cli_test

import (
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
	"github.com/slipway-dev/slipway/internal/placement/planner"
)

type fixture struct {
	*testbed.Testbed
	t   *testing.T
	ctx context.Context
}

func (f *fixture) check(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// slipway returns what a command prints. The command must succeed.
func (f *fixture) slipway(line string) string {
	f.t.Helper()
	out, err := f.command(line).Output()
	if exit, ok := err.(*exec.ExitError); ok { //nolint:errorlint // Output returns it as it is
		f.t.Fatalf("slipway %s: %v: %s", line, err, exit.Stderr)
	}
	f.check(err)
	return string(out)
}

func (f *fixture) command(line string) *exec.Cmd {
	return testbed.NewCommand(f.ctx, f.t, "slipway", append(strings.Fields(line), "--kubeconfig", f.Kubeconfig())...)
}

// complete returns the completions of a command line.
func (f *fixture) complete(words ...string) string {
	f.t.Helper()
	args := append([]string{"__completeNoDesc", words[0], "--kubeconfig", f.Kubeconfig()}, words[1:]...)
	out, err := testbed.NewCommand(f.ctx, f.t, "slipway", args...).Output()
	f.check(err)
	offered, _, _ := strings.Cut(string(out), ":")
	return strings.Join(strings.Fields(offered), " ")
}

func (f *fixture) expect(text string, parts ...string) {
	f.t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			f.t.Errorf("want %q in\n%s", p, text)
		}
	}
}

func (f *fixture) patchNode(name, patch string) {
	f.t.Helper()
	_, err := f.Client().CoreV1().Nodes().Patch(f.ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	f.check(err)
}

// plan returns the nodes that slipway plan removes, and the reasons of the nodes with the rule being-removed.
func (f *fixture) plan(arguments string) (remove []string, beingRemoved map[string]string) {
	f.t.Helper()
	var p planner.Plan
	f.check(json.Unmarshal([]byte(f.slipway("plan -o json"+arguments)), &p))
	beingRemoved = map[string]string{}
	for _, v := range p.Remove.Victims {
		remove = append(remove, v.Node)
		for _, m := range v.Moves {
			if m.To != "free" {
				f.t.Errorf("pod %s would move to %s", m.Pod, m.To)
			}
		}
	}
	for _, s := range p.Remove.Skipped {
		if s.Refusals[0].Rule == "being-removed" {
			beingRemoved[s.Node] = s.Refusals[0].Message
		}
	}
	return remove, beingRemoved
}

func TestCommandsWorkWithoutPartsOfSlipway(t *testing.T) {
	ctx := testbed.TestContext(t)
	f := &fixture{testbed.StartForTest(t, testbed.Options{}), t, ctx}
	f.expect(f.slipway("status"), "NODES   READY", "0       0")
	if out := f.slipway("plan -o name"); out != "" {
		t.Errorf("a cluster without nodes: %q", out)
	}

	f.check(f.AddNodes(ctx, controlplane.NodeSpec{Name: "busy"}))
	f.check(workload.CreateAndAwait(ctx, f.Client(), workload.App{Namespace: "default", Name: "web", Replicas: 1}.Deployment()))
	f.check(f.AddNodes(ctx, controlplane.NodeSpec{Name: "cordoned.eu.internal"}, controlplane.NodeSpec{Name: "free"},
		controlplane.NodeSpec{Name: "pending"}, controlplane.NodeSpec{Name: "tainted"}))
	agent := workload.App{Namespace: "default", Name: "slipway-agent-x"}.Pod()
	agent.Labels = map[string]string{"app.kubernetes.io/name": "slipway-agent"}
	agent.Spec.NodeName, agent.Spec.Containers[0].Image = "free", "registry.example/slipway-agent:v9.9.9@sha256:"+strings.Repeat("a", 64)
	f.check(workload.CreateAndAwait(ctx, f.Client(), agent))
	f.patchNode("cordoned.eu.internal", `{"metadata":{"annotations":{"cordon.slipway.dev/azure-E1":"{\"owner\":\"azure-E1\",`+
		`\"reason\":\"azure Preempt (E1)\",\"since\":\"2026-03-01T12:00:00Z\",\"cordon\":\"own\"}"}}}`)
	f.patchNode("tainted", `{"spec":{"taints":[{"key":"ToBeDeletedByClusterAutoscaler","effect":"NoSchedule"}]}}`)

	f.expect(f.slipway("status"), "5       5       2             1/1            none", "cordoned.eu.internal   is cordoned by Slipway: azure Preempt (E1)",
		"tainted                is being removed by cluster-autoscaler", "Slipway's CRDs are not installed (nodegroups, noderetirements)",
		"no pod of a manager was found")
	f.expect(f.slipway("version"), "devel", "agent        v9.9.9 (1 pod)", f.kubernetesVersion())
	if got, _ := f.plan(""); !slices.Equal(got, []string{"pending", "busy"}) {
		t.Errorf("without CRDs: removes %v", got)
	}
	f.checkWithOneCRD()

	f.check(f.InstallCRDs(ctx))
	name := strings.TrimSpace(f.slipway("retire pending -o name"))
	f.check(f.CreateNodeGroup(ctx, "ci", nil, testbed.ScaleSetNodeGroupSpec("ci", "aks-ci-12345678-vmss")+"minSize: 0\nmaxSize: 3\n"))
	file := filepath.Join(t.TempDir(), "cluster.snapshot")
	f.slipway("snapshot save " + file)
	for _, arguments := range []string{"", " --snapshot " + file} {
		remove, beingRemoved := f.plan(arguments)
		want := map[string]string{
			"cordoned.eu.internal": "is cordoned by Slipway: azure Preempt (E1)",
			"pending":              "is being retired by NodeRetirement " + strings.TrimPrefix(name, "noderetirement.slipway.dev/"),
			"tainted":              "is being removed by cluster-autoscaler (taint ToBeDeletedByClusterAutoscaler:NoSchedule)",
		}
		for node, reason := range want {
			if beingRemoved[node] != reason || slices.Contains(remove, node) {
				t.Errorf("%s: %q, want %q; removes %v", node, beingRemoved[node], reason, remove)
			}
		}
		if !slices.Equal(remove, []string{"busy"}) {
			t.Errorf("removes %v", remove)
		}
	}
	f.expect(f.slipway("why pending"), "pending cannot be removed", "is being retired by NodeRetirement")
	if got, want := f.slipway("status -o name"), "nodegroup.slipway.dev/ci\n"+name+"\n"; got != want {
		t.Errorf("status -o name: %q, want %q", got, want)
	}
	if got := f.slipway("status ci -o name"); got != "nodegroup.slipway.dev/ci\n" {
		t.Errorf("status ci: %q", got)
	}
	if out, err := f.command("status ci other").CombinedOutput(); err == nil || string(out) != "Error from server (NotFound): nodegroups.slipway.dev \"other\" not found\n" {
		t.Errorf("status of an unknown group: %v, %s", err, out)
	}
	for want, words := range map[string][]string{
		"busy":                 {"drain", "b"},
		"cordoned.eu.internal": {"retire", "c"},
		"ci":                   {"status", ""},
		"kube-public":          {"why", "--namespace", "kube-p"},
	} {
		if got := f.complete(words...); got != want {
			t.Errorf("completed %v to %q, want %q", words, got, want)
		}
	}
}

func (f *fixture) kubernetesVersion() string {
	f.t.Helper()
	v, err := f.Client().Discovery().ServerVersion()
	f.check(err)
	return "Kubernetes   " + v.GitVersion
}

// checkWithOneCRD checks status while only the CRD of NodeRetirements is installed.
func (f *fixture) checkWithOneCRD() {
	f.t.Helper()
	root, err := testbed.RepositoryRoot()
	f.check(err)
	f.check(f.ApplyFile(f.ctx, filepath.Join(root, "api", "crds", "slipway.dev_noderetirements.yaml")))
	f.check(testbed.PollUntil(f.ctx, "NodeRetirements are served", func() bool {
		return strings.Contains(f.slipway("status"), "Slipway's CRDs are not installed (nodegroups)")
	}))
}
