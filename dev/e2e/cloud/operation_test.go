package cloud_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"

	emulator "github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/azure"
	"github.com/slipway-dev/slipway/internal/cloud/conformance"
)

// unreadable returns permanent errors of an operation's address. It also says whether the first error ends the
// operation.
func unreadable() map[string]struct {
	fault emulator.ARMFault
	ends  bool
} {
	status := func(code int, name string) emulator.ARMFault {
		return emulator.ARMFault{Kind: emulator.ARMStatus, Status: code, Code: name}
	}
	return map[string]struct {
		fault emulator.ARMFault
		ends  bool
	}{
		"400":                         {status(http.StatusBadRequest, "InternalExecutionError"), true},
		"422":                         {status(http.StatusUnprocessableEntity, "InternalExecutionError"), true},
		"409 of another operation":    {status(http.StatusConflict, "OperationPreempted"), true},
		"500":                         {status(http.StatusInternalServerError, "InternalExecutionError"), false},
		"404 of a proxy":              {emulator.ARMFault{Kind: emulator.ARMHTML, Status: http.StatusNotFound}, false},
		"200 of a proxy":              {emulator.ARMFault{Kind: emulator.ARMHTML}, false},
		"403 without a right to read": {emulator.ARMFault{Kind: emulator.ARMDenied}, false},
		"429":                         {emulator.ARMFault{Kind: emulator.ARMThrottled, RetryAfter: time.Second}, false},
	}
}

// TestADeletionWhoseOperationAnswersWithAnErrorEnds makes the operation's address return a permanent error.
func TestADeletionWhoseOperationAnswersWithAnErrorEnds(t *testing.T) {
	for name, answer := range unreadable() {
		for _, machine := range []string{"gone", "being deleted", "there"} {
			t.Run(name+", the machine is "+machine, func(t *testing.T) {
				t.Parallel()
				c := newAzure(t, uniform)
				p := c.Provider(t)
				victim := c.ProviderIDs()[0]
				switch machine {
				case "being deleted":
					inject(t, c, emulator.ARMFault{Kind: emulator.ARMDeletionHangs, Resource: c.resource(victim)})
				case "there":
					inject(t, c, emulator.ARMFault{Kind: emulator.ARMDeletionFails, Resource: c.resource(victim)})
				}
				op, err := p.Delete(t.Context(), victim)
				if err != nil {
					t.Fatal(err)
				}
				awaitDeletion(t, c, victim, machine)
				fault := answer.fault
				fault.Action = "Microsoft.Compute/locations/operations/read"
				inject(t, c, fault)
				status, err := p.Status(t.Context(), op)
				long, longErr := p.Status(t.Context(), cloud.Operation{ID: op.ID, Started: op.Started.Add(-time.Hour)})
				switch {
				case machine == "gone" && (longErr != nil || !long.Done || long.Err != nil):
					t.Errorf("after an hour: %+v, %v; want it done", long, longErr)
				case machine == "being deleted" && (longErr != nil || long.Done):
					t.Errorf("after an hour: %+v, %v; want it under way", long, longErr)
				case machine == "there" && (longErr != nil || !long.Done || long.Err == nil):
					t.Errorf("after an hour: %+v, %v; want it done, and failed", long, longErr)
				case answer.ends && (err != nil || status.Done != (machine != "being deleted") || (status.Err != nil) != (machine == "there")):
					t.Errorf("%+v, %v; want what the machine says at once", status, err)
				case !answer.ends && machine == "there" && err == nil:
					t.Errorf("%+v; want the error of the server, as the operation may be under way", status)
				}
			})
		}
	}
}

func TestAScaleUpWhoseOperationCannotBeReadEnds(t *testing.T) {
	for name, answer := range unreadable() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newAzure(t, uniform)
			p := c.Provider(t)
			op, err := p.Grow(t.Context(), c.Group(), cloud.LaunchRequest{Count: 1})
			if err != nil {
				t.Fatal(err)
			}
			answer.fault.Action = "Microsoft.Compute/locations/operations/read"
			inject(t, c, answer.fault)
			for age, ends := range map[time.Duration]bool{0: answer.ends, 2 * time.Hour: true} {
				status, err := p.Status(t.Context(), cloud.Operation{ID: op.ID, Started: op.Started.Add(-age)})
				if ends != status.Done || ends != (status.Err != nil) || ends != (err == nil) {
					t.Errorf("after %s: %+v, %v; want it failed: %t", age, status, err, ends)
				}
			}
		})
	}
}

func TestI7A404OfSomethingElseIsNotGone(t *testing.T) {
	for name, fault := range map[string]emulator.ARMFault{
		"an operation":          {Code: "NotFound", Message: "The operation 'f00' was not found."},
		"an operation, by code": {Code: "OperationNotFound", Message: "The entity was not found."},
		"a location":            {Code: "LocationNotAvailableForResourceType", Message: "The provided location is not available."},
		"a resource provider":   {Code: "MissingSubscriptionRegistration", Message: "The subscription is not registered."},
		"a subscription":        {Code: "SubscriptionNotFound", Message: "The subscription could not be found."},
		"a resource group":      {Code: "ResourceGroupNotFound", Message: "Resource group 'mc_demo' could not be found."},
		"a tenant":              {Code: "InvalidTenant", Message: "The tenant was not found."},
		"an API version":        {Code: "NotFound", Message: "No registered resource provider found for API version '2025-04-01'."},
	} {
		t.Run(name, func(t *testing.T) {
			c := newAzure(t, uniform)
			fault.Kind, fault.Status = emulator.ARMStatus, http.StatusNotFound
			inject(t, c, fault)
			p := c.Provider(t)
			if m, err := p.Instance(t.Context(), c.ProviderIDs()[0]); err == nil || cloud.IsNotFound(err) {
				t.Errorf("Instance = %+v, %v; want an error that is not NotFound", m, err)
			}
			if g, err := p.Group(t.Context(), c.Group()); err == nil || cloud.IsNotFound(err) {
				t.Errorf("Group = %+v, %v; want an error that is not NotFound", g, err)
			}
			if _, err := p.Delete(t.Context(), c.ProviderIDs()[0]); err == nil || cloud.IsNotFound(err) {
				t.Errorf("Delete: %v; want an error that is not NotFound", err)
			}
		})
	}
}

func TestAPoolThatKeepsItsOwnCountHealsWithinItsMaximum(t *testing.T) {
	c := newAzureLike(t, agentPool, emulator.ARMOptions{}, emulator.ScaleSetSpec{},
		emulator.AgentPoolSpec{SeparateCount: true, AutoScaling: true, Min: 0, Max: 7})
	p := c.Provider(t)
	c.LoseInstance(t, c.ProviderIDs()[0]) // AKS still counts it
	if g, err := p.Group(t.Context(), poolName); err != nil || g.Size != 6 || c.GroupSize() != 5 {
		t.Fatalf("the group is %+v, %v, and its scale set has a capacity of %d", g, err, c.GroupSize())
	}
	if _, err := p.Grow(t.Context(), poolName, cloud.LaunchRequest{Count: 1}); err != nil {
		t.Fatal(err)
	}
	if pool, _ := c.AgentPool(clusterName, poolName); pool.Count != 7 || c.GroupSize() != 7 {
		t.Errorf("the pool counts %d, its scale set %d; want 7", pool.Count, c.GroupSize())
	}
	if _, err := p.Grow(t.Context(), poolName, cloud.LaunchRequest{Count: 1}); cloud.RefusalOf(err) != cloud.AtLimit {
		t.Errorf("at the maximum: %v, want the refusal %s", err, cloud.AtLimit)
	}
}

func inject(t *testing.T, c *azureCloud, faults ...emulator.ARMFault) {
	t.Helper()
	if err := c.ARM.InjectFaults(faults...); err != nil {
		t.Fatal(err)
	}
}

// awaitDeletion waits until a VM reaches the wanted state.
func awaitDeletion(t *testing.T, c *azureCloud, machine, want string) {
	t.Helper()
	if err := c.AwaitVMs(t.Context(), func([]emulator.VM) bool {
		vm, there := c.VM(c.resource(machine))
		switch want {
		case "gone":
			return !there
		case "there":
			return there && vm.State == emulator.Failed
		}
		return there && vm.State == emulator.Deleting
	}); err != nil {
		t.Fatal(err)
	}
}

func TestAPoolThatDeallocatesIsRefusedBeforeAnythingIsDone(t *testing.T) {
	c := newAzureLike(t, agentPool, emulator.ARMOptions{}, emulator.ScaleSetSpec{}, emulator.AgentPoolSpec{ScaleDownMode: "Deallocate"})
	p := c.Provider(t)
	list, err := p.Instances(t.Context(), poolName)
	if err != nil || len(list) != conformance.MinInstances {
		t.Fatalf("%d machines, %v", len(list), err)
	}
	for _, listed := range list {
		read, err := p.Instance(t.Context(), listed.ProviderID)
		if err != nil || !read.DeletionProtected || !listed.DeletionProtected || !strings.Contains(read.DeletionProtectionReason, "scaleDownMode Deallocate") {
			t.Errorf("%+v, %v; want it kept, with the reason", read, err)
		}
	}
	if _, err := p.Delete(t.Context(), list[0].ProviderID); cloud.RefusalOf(err) != cloud.Protected || c.DeletionRequests() != 0 {
		t.Errorf("Delete: %v after %d requests; want the refusal %s", err, c.DeletionRequests(), cloud.Protected)
	}
	if _, err := p.Grow(t.Context(), poolName, cloud.LaunchRequest{Count: 1}); cloud.RefusalOf(err) != cloud.Invalid || c.sizings() != 0 {
		t.Errorf("Grow: %v; want the refusal %s", err, cloud.Invalid)
	}
	if _, err := p.Templates(t.Context(), poolName); cloud.RefusalOf(err) != cloud.Invalid {
		t.Errorf("Templates: %v; want the refusal %s", err, cloud.Invalid)
	}
}

func TestAPoolOfSingleVMsLosesMachinesAndDoesNotGrow(t *testing.T) {
	c := newAzureLike(t, agentPool, emulator.ARMOptions{}, emulator.ScaleSetSpec{Flexible: true}, emulator.AgentPoolSpec{Type: "VirtualMachines"})
	p := c.Provider(t)
	if g, err := p.Group(t.Context(), poolName); err != nil || g.Size != conformance.MinInstances {
		t.Errorf("the group is %+v, %v; want %d machines", g, err, conformance.MinInstances)
	}
	victim := c.ProviderIDs()[0]
	op, err := p.Delete(t.Context(), victim)
	if err != nil {
		t.Fatal(err)
	}
	c.AwaitGone(t, victim)
	if status, err := p.Status(t.Context(), op); err != nil || status.Err != nil {
		t.Errorf("the deletion: %+v, %v", status, err)
	}
	if g, err := p.Group(t.Context(), poolName); err != nil || g.Size != conformance.MinInstances-1 {
		t.Errorf("afterwards the group is %+v, %v", g, err)
	}
	if _, err := p.Grow(t.Context(), poolName, cloud.LaunchRequest{Count: 1}); cloud.RefusalOf(err) != cloud.Invalid || !strings.Contains(err.Error(), "VirtualMachines") {
		t.Errorf("Grow: %v; want the refusal %s", err, cloud.Invalid)
	}
	if _, err := p.Templates(t.Context(), poolName); cloud.RefusalOf(err) != cloud.Invalid {
		t.Errorf("Templates: %v; want the refusal %s", err, cloud.Invalid)
	}
}

func TestAScaleUpThatFailsLaterSaysWhy(t *testing.T) {
	for code, want := range map[string]cloud.Refusal{
		"AllocationFailed": cloud.NoCapacity, "ZonalAllocationFailed": cloud.NoCapacity, "SkuNotAvailable": cloud.NoCapacity,
		"QuotaExceeded": cloud.NoQuota, "ErrCode_InsufficientVCPUQuota": cloud.NoQuota, "InvalidTemplateDeployment": cloud.NoQuota,
		"VMExtensionProvisioningError": "",
	} {
		for _, k := range []kind{uniform, agentPool} {
			for _, follow := range []emulator.OperationHeaders{"", emulator.AsyncOperationHeader, emulator.LocationHeader} {
				t.Run(fmt.Sprintf("%s, %s, by %q", k, code, follow), func(t *testing.T) {
					t.Parallel()
					c := newAzureLike(t, k, emulator.ARMOptions{OperationHeaders: follow}, emulator.ScaleSetSpec{}, emulator.AgentPoolSpec{})
					inject(t, c, emulator.ARMFault{Kind: emulator.ARMCreationFails, Code: code, Message: "It has none."})
					p := c.Provider(t)
					op, err := p.Grow(t.Context(), c.Group(), cloud.LaunchRequest{Count: 2})
					if err != nil {
						t.Fatal(err)
					}
					status, err := p.Status(t.Context(), op)
					for err == nil && !status.Done {
						time.Sleep(10 * time.Millisecond)
						status, err = p.Status(t.Context(), op)
					}
					if err != nil || status.Err == nil || cloud.RefusalOf(status.Err) != want || !strings.Contains(status.Err.Error(), code) {
						t.Errorf("the scale-up ended with %+v, %v; want %s, the refusal %q", status, err, code, want)
					}
					list, err := p.Instances(t.Context(), c.Group())
					failed := 0
					for _, m := range list {
						if m.State == cloud.Failed && m.Refusal == want && strings.Contains(m.Message, code) {
							failed++
						}
					}
					unmade := map[bool]int{true: 0, false: 2}[code == "VMExtensionProvisioningError"] // the extension fails in a running VM
					if err != nil || failed != unmade {
						t.Errorf("%d machines failed for the reason, %v; want %d of %+v", failed, err, unmade, list)
					}
				})
			}
		}
	}
}

func TestAnAgentPoolSaysWhatItsNodesWillBeLike(t *testing.T) {
	c := newAzureLike(t, agentPool, emulator.ARMOptions{}, emulator.ScaleSetSpec{}, emulator.AgentPoolSpec{
		Labels: map[string]string{"team": "red", "tier": "batch"}, Taints: []string{"sku=gpu:NoSchedule", "dedicated:NoExecute"}, MaxPods: 30,
	})
	config := c.config()
	config.Groups[0].Nodes = cloud.NodeShape{
		Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("16")},
		Labels:   map[string]string{"team": "blue"},
		Taints:   []corev1.Taint{{Key: "sku", Value: "declared", Effect: corev1.TaintEffectNoSchedule}},
	}
	got, err := c.provider(t, config).Templates(t.Context(), poolName)
	if err != nil || len(got) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	want := cloud.NodeShape{
		Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("16"), corev1.ResourcePods: resource.MustParse("30")},
		Labels: map[string]string{
			"team": "blue", "tier": "batch", "agentpool": poolName, "kubernetes.azure.com/agentpool": poolName, "kubernetes.io/os": "linux",
			"kubernetes.azure.com/mode": "user", "kubernetes.azure.com/scalesetpriority": "spot",
		},
		Taints: []corev1.Taint{
			{Key: "sku", Value: "declared", Effect: corev1.TaintEffectNoSchedule},
			{Key: "kubernetes.azure.com/scalesetpriority", Value: "spot", Effect: corev1.TaintEffectNoSchedule},
			{Key: "dedicated", Effect: corev1.TaintEffectNoExecute},
		},
	}
	if !equality.Semantic.DeepEqual(got[0].NodeShape, want) {
		t.Errorf("the shape is\n%+v\nwant\n%+v", got[0].NodeShape, want)
	}
}

// TestWhatAMachineLeavesBehindIsSaid makes Azure keep the resources with a deleteOption other than Delete.
func TestWhatAMachineLeavesBehindIsSaid(t *testing.T) {
	c := newAzure(t, singleVMs)
	vm := c.AddVM("vm-z",
		emulator.Attachment{Kind: "OSDisk", Name: "os-z", DeleteOption: "Delete"}, emulator.Attachment{Kind: "DataDisk", Name: "data-z"},
		emulator.Attachment{Kind: "NetworkInterface", Name: "nic-z", DeleteOption: "Delete"},
		emulator.Attachment{Kind: "NetworkInterface", Name: "nic-y", DeleteOption: "Detach"})
	var said strings.Builder
	p, err := azure.New(c.config(), azure.Options{Credential: token(c.IssueToken()), Log: slog.New(slog.NewTextHandler(&said, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Delete(t.Context(), vm.ProviderID); err != nil {
		t.Fatal(err)
	}
	c.AwaitGone(t, vm.ProviderID)
	for _, left := range c.DetachedResources() {
		if !strings.Contains(said.String(), left.Name) {
			t.Errorf("that %s stays is not said in %s", left.Name, said.String())
		}
	}
	if len(c.DetachedResources()) != 2 || strings.Contains(said.String(), "os-z") || strings.Contains(said.String(), "nic-z") {
		t.Errorf("left behind is %+v, said is %s", c.DetachedResources(), said.String())
	}
	if _, err := p.Delete(t.Context(), c.ProviderIDs()[0]); err != nil || strings.Count(said.String(), "Azure keeps") != 1 {
		t.Errorf("of a machine without anything attached: %v, %s", err, said.String())
	}
}
