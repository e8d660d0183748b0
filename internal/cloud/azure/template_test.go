package azure

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v8"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/containerservice/armcontainerservice/v6"
	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/check"
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
		check.Not(t, err == nil && taint.Key == "", "%q is read as %+v", text, taint)
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
	check.Not(t, !maps.Equal(shape.Labels, want), "labels %v, want %v", shape.Labels, want)
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
	want := []string{"data disk data", "data disk unsaid", "network interface nic-a"}
	check.Not(t, !slices.Equal(got, want), "%q, want %q", got, want)
}

// TestI7InstanceFailedOnlyIfKnownStopped reads instances with a failed last operation. On a running instance, an
// extension may have failed.
func TestI7InstanceFailedOnlyIfKnownStopped(t *testing.T) {
	const prefix = "/subscriptions/" + subscriptionID + "/resourceGroups/demo/providers/Microsoft.Compute/"
	view := func(codes ...string) string {
		statuses := ""
		for i, code := range codes {
			if i > 0 {
				statuses += ","
			}
			statuses += fmt.Sprintf(`{"code": %q, "message": "Why."}`, code)
		}
		return `, "instanceView": {"statuses": [` + statuses + `]}`
	}
	const failed = "ProvisioningState/failed/"
	for name, c := range map[string]struct {
		view    string
		want    cloud.State
		refusal cloud.Refusal
	}{
		"no instance view":                     {"", cloud.Unknown, ""},
		"an empty instance view":               {view(), cloud.Unknown, ""},
		"a view without code or power state":   {view("ProvisioningState/failed"), cloud.Unknown, ""},
		"an extension, no power state":         {view(failed + "VMExtensionProvisioningError"), cloud.Unknown, ""},
		"the operating system, no power state": {view(failed + "OSProvisioningTimedOut"), cloud.Unknown, ""},
		"the agent, no power state":            {view(failed + "VMAgentStatusCommunicationError"), cloud.Unknown, ""},
		"an extension, running":                {view(failed+"VMExtensionProvisioningError", "PowerState/running"), cloud.Running, ""},
		"an unknown power state":               {view(failed+"InternalExecutionError", "PowerState/unknown"), cloud.Unknown, ""},
		"an extension, stopped":                {view(failed+"VMExtensionProvisioningError", "PowerState/stopped"), cloud.Failed, ""},
		"deallocated":                          {view(failed+"InternalExecutionError", "PowerState/deallocated"), cloud.Failed, ""},
		"no capacity, never created":           {view(failed + "AllocationFailed"), cloud.Failed, cloud.NoCapacity},
		"an internal error, never created":     {view(failed + "InternalExecutionError"), cloud.Failed, ""},
		"no power state, other letter case":    {view("provisioningState/Failed/vmextensionprovisioningerror"), cloud.Unknown, ""},
	} {
		for _, resource := range []string{prefix + "virtualMachineScaleSets/pool/virtualMachines/1", prefix + "virtualMachines/alone"} {
			t.Run(name, func(t *testing.T) {
				p := newTestProvider(t, func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", "application/json")
					_, _ = fmt.Fprintf(w, `{"id": %q, "name": "n", "properties": {"provisioningState": "Failed"%s}}`, resource, c.view)
				})
				m, err := p.Instance(t.Context(), "azure://"+resource)
				if err != nil || m.State != c.want || m.Refusal != c.refusal || (m.Message != "") != (c.want == cloud.Failed) {
					t.Errorf("%s: %s, %q, %q, %v; want %s", resource, m.State, m.Refusal, m.Message, err, c.want)
				}
			})
		}
	}
}
