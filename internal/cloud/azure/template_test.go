package azure

import (
	"maps"
	"slices"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v8"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/containerservice/armcontainerservice/v6"
	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestTaintIsParsedInAKSFormat(t *testing.T) {
	for text, want := range map[string]corev1.Taint{
		"sku=gpu:NoSchedule":         {Key: "sku", Value: "gpu", Effect: corev1.TaintEffectNoSchedule},
		"a.b/c=:NoExecute":           {Key: "a.b/c", Effect: corev1.TaintEffectNoExecute},
		"dedicated:PreferNoSchedule": {Key: "dedicated", Effect: corev1.TaintEffectPreferNoSchedule},
	} {
		if got, err := parseTaint(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "a", "a=b", "a=b:Never", "=b:NoSchedule", ":NoSchedule"} {
		if got, err := parseTaint(text); err == nil {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
}

func FuzzParseTaint(f *testing.F) {
	f.Add("sku=gpu:NoSchedule")
	f.Add("a:b:NoSchedule")
	f.Fuzz(func(t *testing.T, text string) {
		taint, err := parseTaint(text)
		if err == nil && taint.Key == "" {
			t.Errorf("%q is read as %+v", text, taint)
		}
	})
}

func TestTemplateHasPoolLabelsTaintsAndMaxPods(t *testing.T) {
	pool := armcontainerservice.AgentPool{Properties: &armcontainerservice.ManagedClusterAgentPoolProfileProperties{
		Mode: to.Ptr(armcontainerservice.AgentPoolModeUser), OSType: to.Ptr(armcontainerservice.OSTypeWindows), MaxPods: to.Ptr(int32(30)),
		ScaleSetPriority: to.Ptr(armcontainerservice.ScaleSetPrioritySpot),
		NodeLabels:       map[string]*string{"disk": to.Ptr("fast"), "tier": to.Ptr("pool")}, NodeTaints: []*string{to.Ptr("gpu=yes:NoExecute")},
	}}
	declared := corev1.Taint{Key: "gpu", Value: "declared", Effect: corev1.TaintEffectNoExecute}
	shape := cloud.NodeShape{Labels: map[string]string{"tier": "declared"}, Taints: []corev1.Taint{declared}}
	must.NoError(t, addPoolShape(&shape, group{pool: "ci"}, pool))
	want := map[string]string{
		"agentpool": "ci", "kubernetes.azure.com/agentpool": "ci", "kubernetes.azure.com/mode": "user", "kubernetes.io/os": "windows",
		"kubernetes.azure.com/scalesetpriority": "spot", "disk": "fast", "tier": "declared",
	}
	if !maps.Equal(shape.Labels, want) {
		t.Errorf("labels %v, want %v", shape.Labels, want)
	}
	if len(shape.Taints) != 2 || shape.Taints[0] != declared || shape.Taints[1].Key != priorityLabel || shape.Capacity.Pods().Value() != 30 {
		t.Errorf("taints %v and %s pods, want the declared taint, and the others of the pool", shape.Taints, shape.Capacity.Pods())
	}
}

func TestResourcesKeptAfterDeletionAreListed(t *testing.T) {
	got := listResourcesKeptOnDelete(&armcompute.VirtualMachineProperties{
		StorageProfile: &armcompute.StorageProfile{
			OSDisk: &armcompute.OSDisk{Name: to.Ptr("os"), DeleteOption: to.Ptr(armcompute.DiskDeleteOptionTypesDelete)},
			DataDisks: []*armcompute.DataDisk{
				{Name: to.Ptr("data"), DeleteOption: to.Ptr(armcompute.DiskDeleteOptionTypesDetach)}, {Name: to.Ptr("unsaid")}, nil,
			},
		},
		NetworkProfile: &armcompute.NetworkProfile{NetworkInterfaces: []*armcompute.NetworkInterfaceReference{
			{ID: to.Ptr("/x/nic-a")}, nil, {ID: to.Ptr("/x/nic-b"), Properties: &armcompute.NetworkInterfaceReferenceProperties{
				DeleteOption: to.Ptr(armcompute.DeleteOptionsDelete),
			}},
		}},
	})
	if want := []string{"data disk data", "data disk unsaid", "network interface nic-a"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
