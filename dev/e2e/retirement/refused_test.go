package retirement_test

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// shortDrain is the spec of a NodeGroup.
const shortDrain = "drain: {timeout: 3m}"

// awaitEventNote waits for an Event about a NodeRetirement, and returns its note.
func (f *fixture) awaitEventNote(name, reason string) string {
	f.t.Helper()
	note, err := f.AwaitEventNote(f.ctx, "NodeRetirement", name, reason, "")
	f.check(err)
	return note
}

func TestI10RefusedRetirementsChangeNothing(t *testing.T) {
	t.Parallel()
	const instances = 2
	f := newFixture(t, "refused", instances, shortDrain)
	protected := f.app("protected", 1, 1)
	protected.Annotations = map[string]string{"slipway.dev/do-not-evict": "true"}
	f.run(protected.Deployment())
	const subscription = "00000000-0000-0000-0000-0000000000ff"
	foreign := controlplane.NodeSpec{
		Name: "refused-foreign", ProviderID: "azure:///subscriptions/" + subscription +
			"/resourceGroups/mc_demo/providers/Microsoft.Compute/virtualMachineScaleSets/" + f.pool.ScaleSetName() + "/virtualMachines/0",
	}
	f.check(f.AddNodes(f.ctx, foreign))
	f.manage("", faultproxy.New(kindOf))
	for node, want := range map[string]struct{ code, message string }{
		f.pool.NodeName(1): {retirement.ProtectedPod, "protected"},
		foreign.Name:       {retirement.UnknownCloud, subscription},
	} {
		f.create("NodeRetirement", node, "nodeName: "+node)
		t.Cleanup(func() {
			_ = f.objects().Delete(f.Background(), &v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: node}})
		})
		rt := f.awaitPhase(node, v1alpha1.Refused)
		if retirement.EarlyEndCode(rt) != want.code || !strings.Contains(rt.Status.Message, want.message) {
			t.Errorf("%s: %s, %q; want %s with %q", node, retirement.EarlyEndCode(rt), rt.Status.Message, want.code, want.message)
		}
		if note := f.awaitEventNote(node, "RetirementRefused"); !strings.HasPrefix(note, want.code+": ") {
			t.Errorf("%s: the note of the Event is %q", node, note)
		}
	}
	f.checkRemaining(instances)
	node, err := f.Client().CoreV1().Nodes().Get(f.ctx, foreign.Name, metav1.GetOptions{})
	f.check(err)
	f.checkRestored(node)
}

// awaitBlocked waits until a retirement is blocked for a reason, and returns its message.
func (f *fixture) awaitBlocked(name, code string) string {
	f.t.Helper()
	rt := &v1alpha1.NodeRetirement{}
	if err := testbed.PollUntil(f.ctx, name+" is blocked by "+code, func() bool {
		f.check(f.objects().Get(f.ctx, client.ObjectKey{Name: name}, rt))
		c := meta.FindStatusCondition(rt.Status.Conditions, v1alpha1.RetirementBlocked)
		return c != nil && c.Status == metav1.ConditionTrue && c.Reason == code
	}); err != nil {
		f.t.Fatalf("%v: %s: %s, %+v", err, rt.Status.Phase, rt.Status.Message, rt.Status.Reasons)
	}
	if note := f.awaitEventNote(name, "RetirementBlocked"); !strings.HasPrefix(note, code+": ") {
		f.t.Errorf("the note of the Event is %q", note)
	}
	return rt.Status.Message
}

// TestI10MissingDeletePermissionIsNamed checks the message of the group and of the retirement.
func TestI10MissingDeletePermissionIsNamed(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "no-permission", 1, shortDrain)
	const permission = "Microsoft.Compute/virtualMachineScaleSets/delete/action"
	lacks := "the credential lacks " + permission + " on /subscriptions/" + azure.DefaultSubscription + "/resourceGroups/"
	f.check(f.ARM.InjectFaults(azure.ARMFault{Kind: azure.ARMDenied, Action: permission, Resource: f.pool.ScaleSetName()}))
	f.manage("", faultproxy.New(kindOf))
	group := &v1alpha1.NodeGroup{}
	f.check(testbed.PollUntil(f.ctx, "the group is refused", func() bool {
		f.check(f.objects().Get(f.ctx, client.ObjectKey{Name: f.name}, group))
		is := meta.FindStatusCondition(group.Status.Conditions, v1alpha1.GroupAccepted)
		return is != nil && is.Reason == v1alpha1.CloudRightsMissing && strings.Contains(is.Message, lacks)
	}))
	node := f.retire(0)
	if says := f.awaitBlocked(node, retirement.CloudRights); !strings.Contains(says, lacks) ||
		!strings.HasSuffix(strings.ToLower(says), "/"+strings.ToLower(f.pool.ScaleSetName())) {
		t.Errorf("the message is %q", says)
	}
	if note := f.awaitEventNote(node, "RetirementBlocked"); !strings.Contains(note, lacks) {
		t.Errorf("the note of the Event is %q", note)
	}
	f.checkRemaining(1)
	if slices.ContainsFunc(f.ARM.Requests(), func(r azure.ARMRequest) bool {
		return r.Action == permission && strings.Contains(r.Path, f.pool.ScaleSetName())
	}) {
		t.Error("a deletion was requested")
	}
}
