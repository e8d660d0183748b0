package retirement_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/internal/retirement"
)

const inputGroup = "drain: {timeout: 3m}"

// heard waits for an Event about a NodeRetirement, and returns its note.
func (f *fixture) heard(name, reason string) string {
	f.t.Helper()
	note := ""
	f.check(testbed.PollUntil(f.ctx, fmt.Sprintf("there is an Event %s about %s", reason, name), func() bool {
		list, err := f.Client().EventsV1().Events(metav1.NamespaceDefault).List(f.ctx, metav1.ListOptions{FieldSelector: "reason=" + reason})
		f.check(err)
		i := slices.IndexFunc(list.Items, func(e eventsv1.Event) bool {
			return e.Regarding.Kind == "NodeRetirement" && e.Regarding.Name == name
		})
		if i >= 0 {
			note = list.Items[i].Note
		}
		return i >= 0
	}))
	return note
}

// TestI10ARetirementThatCannotBeIsRefusedWithTheReasonAndNothingIsDone uses one manager for all refusals.
func TestI10ARetirementThatCannotBeIsRefusedWithTheReasonAndNothingIsDone(t *testing.T) {
	t.Parallel()
	const machines = 4
	f := newFixture(t, "input", machines, inputGroup)
	protected := f.app("kept", 1, 1)
	protected.Annotations = map[string]string{"slipway.dev/do-not-evict": "true"}
	f.run(protected.Deployment())
	foreign := controlplane.NodeSpec{
		Name: "input-foreign", Labels: map[string]string{"input": "foreign"},
		ProviderID: "azure:///subscriptions/00000000-0000-0000-0000-0000000000ff/resourceGroups/mc_demo/providers/Microsoft.Compute/" +
			"virtualMachineScaleSets/" + f.pool.ScaleSetName() + "/virtualMachines/0",
	}
	f.check(f.AddNodes(f.ctx, foreign))
	f.manage("", faultproxy.New(kindOf))
	for name, tt := range map[string]struct {
		spec, code, says string
	}{
		"input-nobody":  {"nodeName: input-nobody", retirement.NodeNotFound, "there is no Node input-nobody"},
		"input-keeps":   {"nodeName: " + f.pool.NodeName(1), retirement.ProtectedPod, "kept"},
		"input-renewed": {"nodeName: " + f.pool.NodeName(2) + "\nnodeUID: 11111111-2222-3333-4444-555555555555", retirement.NodeReplaced, "another Node of the same name"},
		"input-abroad":  {"nodeName: input-foreign", retirement.UnknownCloud, "00000000-0000-0000-0000-0000000000ff"},
		"input-mixed": {
			"nodeName: " + f.pool.NodeName(2) + "\nproviderID: " + f.pool.ProviderID(3), retirement.ProviderMismatch, "spec.providerID names",
		},
		"input-elsewhere": {"nodeName: " + f.pool.NodeName(2) + "\ngroup: nowhere", retirement.GroupNotFound, "there is no NodeGroup nowhere"},
	} {
		f.create("NodeRetirement", name, tt.spec)
		t.Cleanup(func() {
			_ = f.objects().Delete(f.Background(), &v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: name}})
		})
		rt := f.awaitPhase(name, v1alpha1.Refused)
		if retirement.EarlyEndCode(rt) != tt.code || !strings.Contains(rt.Status.Message, tt.says) {
			t.Errorf("%s: %s, %q; want %s, which says %q", name, retirement.EarlyEndCode(rt), rt.Status.Message, tt.code, tt.says)
		}
		if note := f.heard(name, "RetirementRefused"); !strings.HasPrefix(note, tt.code+": ") {
			t.Errorf("%s: the Event says %q", name, note)
		}
	}
	f.left(machines)
	node, err := f.Client().CoreV1().Nodes().Get(f.ctx, foreign.Name, metav1.GetOptions{})
	f.check(err)
	f.untouched(node)
}

// blockedBy waits until a retirement is blocked for a reason, and returns its message.
func (f *fixture) blockedBy(name, code string) string {
	f.t.Helper()
	rt := &v1alpha1.NodeRetirement{}
	if err := testbed.PollUntil(f.ctx, name+" is held up by "+code, func() bool {
		f.check(f.objects().Get(f.ctx, client.ObjectKey{Name: name}, rt))
		c := meta.FindStatusCondition(rt.Status.Conditions, v1alpha1.RetirementBlocked)
		return c != nil && c.Status == metav1.ConditionTrue && c.Reason == code
	}); err != nil {
		f.t.Fatalf("%v: %s: %s, %+v", err, rt.Status.Phase, rt.Status.Message, rt.Status.Reasons)
	}
	if note := f.heard(name, "RetirementBlocked"); !strings.HasPrefix(note, code+": ") {
		f.t.Errorf("the Event says %q", note)
	}
	return rt.Status.Message
}

func TestI5ANodeBelowTheMinimumStaysUntilTheMinimumIsLower(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "least", 2, inputGroup)
	f.patchGroup(`{"spec":{"minSize":2}}`)
	f.manage("", faultproxy.New(kindOf))
	node := f.retire(0)
	if says := f.blockedBy(node, "MinSize"); !strings.Contains(says, "the group's minSize is 2") {
		t.Errorf("it says %q", says)
	}
	f.left(2)
	f.patchGroup(`{"spec":{"minSize":1}}`)
	f.awaitPhase(node, v1alpha1.Succeeded)
	f.left(2, 0)
}

// TestI10ACredentialWithoutARightHoldsARetirementUpWithTheRightsName revokes the credential's permission to read
// instances, and grants it again.
func TestI10ACredentialWithoutARightHoldsARetirementUpWithTheRightsName(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "rights", 2, inputGroup)
	const read = "Microsoft.Compute/virtualMachineScaleSets/virtualMachines/read"
	f.check(f.ARM.InjectFaults(azure.ARMFault{Kind: azure.ARMDenied, Action: read, Resource: f.pool.ScaleSetName()}))
	f.manage("", faultproxy.New(kindOf))
	node := f.retire(0)
	if says := f.blockedBy(node, retirement.CloudRefused); !strings.Contains(says, "the credential lacks "+read+" on /subscriptions/") {
		t.Errorf("it says %q", says)
	}
	there, err := f.Client().CoreV1().Nodes().Get(f.ctx, node, metav1.GetOptions{})
	f.check(err)
	f.untouched(there)
	f.ARM.ClearResourceFaults(f.pool.ScaleSetName())
	f.awaitPhase(node, v1alpha1.Succeeded)
	f.left(2, 0)
}

// TestI10ANodeWhoseMachineTheCredentialMayNotDeleteIsLeftAloneAndTheRightIsNamed checks the message of the group and of
// the retirement.
func TestI10ANodeWhoseMachineTheCredentialMayNotDeleteIsLeftAloneAndTheRightIsNamed(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "undeletable", 1, inputGroup)
	const right = "Microsoft.Compute/virtualMachineScaleSets/delete/action"
	lacks := "the credential lacks " + right + " on /subscriptions/" + azure.DefaultSubscription + "/resourceGroups/"
	f.check(f.ARM.InjectFaults(azure.ARMFault{Kind: azure.ARMDenied, Action: right, Resource: f.pool.ScaleSetName()}))
	f.manage("", faultproxy.New(kindOf))
	group := &v1alpha1.NodeGroup{}
	f.check(testbed.PollUntil(f.ctx, "the group is refused", func() bool {
		f.check(f.objects().Get(f.ctx, client.ObjectKey{Name: f.name}, group))
		is := meta.FindStatusCondition(group.Status.Conditions, v1alpha1.GroupAccepted)
		return is != nil && is.Reason == v1alpha1.CloudRightsMissing && strings.Contains(is.Message, lacks)
	}))
	node := f.retire(0)
	if says := f.blockedBy(node, retirement.CloudRights); !strings.Contains(says, lacks) ||
		!strings.HasSuffix(strings.ToLower(says), "/"+strings.ToLower(f.pool.ScaleSetName())) {
		t.Errorf("it says %q", says)
	}
	if note := f.heard(node, "RetirementBlocked"); !strings.Contains(note, lacks) {
		t.Errorf("the Event says %q", note)
	}
	f.left(1)
	if slices.ContainsFunc(f.ARM.Requests(), func(r azure.ARMRequest) bool {
		return r.Action == right && strings.Contains(r.Path, f.pool.ScaleSetName())
	}) {
		t.Error("the deletion was asked for")
	}
}

// patchGroup patches the test's NodeGroup.
func (f *fixture) patchGroup(patch string) {
	f.t.Helper()
	group := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: f.name}}
	f.check(f.objects().Patch(f.ctx, group, client.RawPatch(types.MergePatchType, []byte(patch))))
}
