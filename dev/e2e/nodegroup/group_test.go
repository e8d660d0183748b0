package nodegroup_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/testbed"
)

func TestIdleNodesAreRetiredToMinSize(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "idle", 4)
	f.run(f.app("job", 3).Deployment())
	f.group("idle", "minSize: 2\ndisruptionBudgets: [{nodes: 100%}]\n"+f.idle("1s", ""))
	f.manage()
	g := f.awaitGroup("idle", "at minSize", func(g *v1alpha1.NodeGroup) bool {
		return g.Status.Nodes == 2 && g.Status.LastScaleDown != nil && g.Status.CloudSize != nil && *g.Status.CloudSize == 2 &&
			g.Status.Retiring == 0
	})
	if ready := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.GroupReady); ready == nil || ready.Status != metav1.ConditionTrue ||
		ready.ObservedGeneration != g.Generation {
		t.Errorf("the condition Ready is %+v", ready)
	}
	if g.Status.Ready != 2 || g.Status.LastScaleUp == nil || g.Status.AllowedDisruptions != 0 {
		t.Errorf("%+v", g.Status)
	}
	f.here(3)
	kept := ""
	for i := range 3 {
		if _, there := f.ARM.VM(f.pool.ResourceName(i)); there {
			kept = f.node(i)
		} else {
			f.awaitEvent("Node", f.node(i), "IdleNodeRetiring", "CooldownPassed: idle since")
		}
	}
	f.awaitEvent("Node", kept, "IdleNodeKept", "MinSize: retiring it would leave 1 of the 2 nodes that the group's minimum requires")
	f.awaitEvent("NodeGroup", "idle", "IdleNodeKept", kept)
	s := f.status("idle")
	if s.Accepted != "True" || len(s.Idle) != 1 || s.Idle[0].Node != kept || s.Idle[0].Verdict != "Blocked" ||
		s.Idle[0].Reasons[0].Rule != "MinSize" {
		t.Errorf("%+v", s)
	}
	if table := f.slipway("status"); !strings.Contains(table, "MinSize: retiring it would leave 1 of the 2 nodes that the group's minimum requires") {
		t.Errorf("%s", table)
	}
}

func TestI10RefusedGroupChangesNothing(t *testing.T) {
	t.Parallel()
	const name = "refused"
	f := newFixture(t, name, 1)
	f.patchNode(0, `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`)
	f.group(name, "clusterAutoscalerScaleDownDisabled: true\n"+f.idle("0s", ""))
	f.manage()
	is := acceptedAs(f.awaitGroup(name, "refused", func(g *v1alpha1.NodeGroup) bool { return acceptedAs(g).Status == metav1.ConditionFalse }))
	if is.Reason != v1alpha1.SelectsControlPlane || !strings.Contains(is.Message, f.node(0)) {
		t.Errorf("%s: %s, want %s with %q", is.Reason, is.Message, v1alpha1.SelectsControlPlane, f.node(0))
	}
	f.awaitEvent("NodeGroup", name, "GroupRefused", f.node(0))
	if s := f.status(name); s.Accepted != "False" || !strings.Contains(s.Refusal, f.node(0)) {
		t.Errorf("slipway status: %+v", s)
	}
	if n := f.awaitNode(0, "there", func(*corev1.Node) bool { return true }); n.Annotations[disabled] != "" || n.Spec.Unschedulable {
		t.Errorf("the node was changed: %v", n.Annotations)
	}
	if rt := f.record(0); rt != nil {
		t.Errorf("a retirement was created: %+v", rt.Spec)
	}
}

func TestFileGroupsRetireNodesOrAreRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "file", 2)
	group := func(name, pool string) string {
		return "apiVersion: slipway.dev/v1alpha1\nkind: NodeGroup\nmetadata: {name: " + name + ", labels: {" + shard + ": file}}\nspec:\n" +
			"  nodeSelector: {matchLabels: {kubernetes.azure.com/agentpool: " + pool + "}}\n" +
			"  cloud: {provider: azure, group: " + f.pool.ScaleSetName() + "}\n  minSize: 1\n  " + f.idle("0s", "")
	}
	p := f.manage("--node-groups", testbed.WriteTempFile(f.t, "groups.yaml", group("file-a", "file")+"---\n"+group("file-b", "file")))
	f.check(f.awaitLog(p, `"group":"file-b","reason":"OverlapsGroup"`))
	f.awaitOneInstance()
}
