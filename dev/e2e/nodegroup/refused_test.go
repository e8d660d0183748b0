package nodegroup_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// TestI10AGroupThatCannotBeActedOnIsRefusedWithTheReasonAndNothingIsDone uses one manager, and one pool for each group.
func TestI10AGroupThatCannotBeActedOnIsRefusedWithTheReasonAndNothingIsDone(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "bad", 1)
	f.manage()
	for name, tt := range map[string]struct {
		prepare        func(t *testing.T, f *fixture)
		group          func(f *fixture) string
		provider, more string
		reason, text   string
	}{
		"master": {
			prepare: func(_ *testing.T, f *fixture) {
				_, err := f.Client().CoreV1().Nodes().Patch(f.ctx, f.node(0), types.MergePatchType,
					[]byte(`{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`), metav1.PatchOptions{})
				f.check(err)
			},
			reason: v1alpha1.SelectsControlPlane, text: "aks-master-12345678-vmss000000",
		},
		"overlap": {
			prepare: func(_ *testing.T, f *fixture) {
				// The name also decides, between groups that were created in the same second.
				f.create("earlier", "nodeSelector: {matchLabels: {kubernetes.azure.com/agentpool: overlap}}\n"+
					"cloud: {provider: azure, group: "+f.pool.ScaleSetName()+"}")
				f.awaitAccepted("earlier")
			},
			reason: v1alpha1.OverlapsGroup, text: "NodeGroup earlier, which is older: aks-overlap-12345678-vmss000000",
		},
		"moon": {
			more:   "disruptionBudgets: [{nodes: 1, schedule: '@daily', duration: 1h, timeZone: Moon}]\n",
			reason: v1alpha1.InvalidSpec, text: `spec.disruptionBudgets[0].timeZone: "Moon"`,
		},
		"elsewhere": {provider: "gcp", reason: v1alpha1.UnknownCloud, text: `"gcp" is not configured: want one of azure`},
		"nowhere": {
			group:  func(*fixture) string { return "aks-nowhere-00000000-vmss" },
			reason: v1alpha1.CloudGroupNotFound, text: "aks-nowhere-00000000-vmss: the cloud says it does not exist",
		},
		"denied": {
			prepare: func(_ *testing.T, f *fixture) {
				f.check(f.ARM.InjectFaults(azure.ARMFault{Kind: azure.ARMDenied, Resource: f.pool.ScaleSetName()}))
			},
			reason: v1alpha1.CloudRefused, text: "Microsoft.Compute/virtualMachineScaleSets/read",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := *f
			g.t, g.pool = t, controlplane.AKSPool{Name: name}
			g.check(g.AddPool(g.ctx, g.pool, 1))
			own := g
			own.name = name
			if tt.prepare != nil {
				tt.prepare(t, &g)
			}
			in := g.pool.ScaleSetName()
			if tt.group != nil {
				in = tt.group(&g)
			}
			provider := "azure"
			if tt.provider != "" {
				provider = tt.provider
			}
			g.create(name, "nodeSelector: {matchLabels: {kubernetes.azure.com/agentpool: "+name+"}}\ncloud: {provider: "+provider+
				", group: "+in+"}\nclusterAutoscalerScaleDownDisabled: true\n"+own.idle("0s", "")+tt.more)
			is := acceptedAs(g.awaitGroup(name, "refused", func(g *v1alpha1.NodeGroup) bool {
				return acceptedAs(g).Status == metav1.ConditionFalse
			}))
			if is.Reason != tt.reason || !strings.Contains(is.Message, tt.text) {
				t.Errorf("%s: %s, want %s with %q", is.Reason, is.Message, tt.reason, tt.text)
			}
			g.awaitEvent("NodeGroup", name, "GroupRefused", tt.text)
			if s := g.status(name); s.Accepted != "False" || !strings.Contains(s.Refusal, tt.text) {
				t.Errorf("slipway status: %+v", s)
			}
			untouched := g.awaitNode(0, "there", func(*corev1.Node) bool { return true })
			if untouched.Annotations[disabled] != "" || untouched.Spec.Unschedulable {
				t.Errorf("something was done to the node: %v", untouched.Annotations)
			}
			if rt := g.record(0); rt != nil {
				t.Errorf("a retirement was asked for: %+v", rt.Spec)
			}
		})
	}
}

func TestTheGroupsOfAFileAreActedOnAndRefusedAsOthersAre(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "file", 2)
	group := func(name, pool string) string {
		return "apiVersion: slipway.dev/v1alpha1\nkind: NodeGroup\nmetadata: {name: " + name + ", labels: {" + shard + ": file}}\nspec:\n" +
			"  nodeSelector: {matchLabels: {kubernetes.azure.com/agentpool: " + pool + "}}\n" +
			"  cloud: {provider: azure, group: " + f.pool.ScaleSetName() + "}\n  minSize: 1\n  " + f.idle("0s", "")
	}
	p := f.manage("--node-groups", testbed.WriteTempFile(f.t, "groups.yaml", group("file-a", "file")+"---\n"+group("file-b", "file")))
	f.check(f.awaitLog(p, `"group":"file-b","reason":"OverlapsGroup"`))
	f.awaitOne()
}
