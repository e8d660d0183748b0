package cloud_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	emulator "github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/azure"
	"github.com/slipway-dev/slipway/internal/cloud/conformance"
)

// operationFaults returns permanent errors of an operation's address. It also says whether the first error ends the
// operation.
func operationFaults() map[string]struct {
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
		"409":            {status(http.StatusConflict, "OperationPreempted"), true},
		"500":            {status(http.StatusInternalServerError, "InternalExecutionError"), false},
		"404 of a proxy": {emulator.ARMFault{Kind: emulator.ARMHTML, Status: http.StatusNotFound}, false},
		"200 of a proxy": {emulator.ARMFault{Kind: emulator.ARMHTML}, false},
	}
}

// TestDeletionWithFailingOperationEnds makes the operation's address return a permanent error.
func TestDeletionWithFailingOperationEnds(t *testing.T) {
	t.Parallel()
	for name, answer := range operationFaults() {
		for _, machine := range []string{"gone", "being deleted", "running"} {
			t.Run(name+", the machine is "+machine, func(t *testing.T) {
				t.Parallel()
				c := newAzure(t, uniform)
				p := c.Provider(t)
				victim := c.ProviderIDs()[0]
				switch machine {
				case "being deleted":
					inject(t, c, emulator.ARMFault{Kind: emulator.ARMDeletionHangs, Resource: c.resource(victim)})
				case "running":
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
					t.Errorf("after an hour: %+v, %v; want it in progress", long, longErr)
				case machine == "running" && (longErr != nil || !long.Done || long.Err == nil):
					t.Errorf("after an hour: %+v, %v; want it done, and failed", long, longErr)
				case answer.ends && (err != nil || status.Done != (machine != "being deleted") || (status.Err != nil) != (machine == "running")):
					t.Errorf("%+v, %v; want the state of the machine at once", status, err)
				case !answer.ends && machine == "running" && err == nil:
					t.Errorf("%+v; want the error of the server, because the operation may be in progress", status)
				}
			})
		}
	}
}

// TestScaleUpWithUnreadableOperationEnds makes the operation's address return a permanent error. A launch that a newer
// operation has preempted is no failure, because the group's size still counts its instances.
func TestScaleUpWithUnreadableOperationEnds(t *testing.T) {
	t.Parallel()
	for name, answer := range operationFaults() {
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
				failed := ends && name != "409"
				if ends != status.Done || failed != (status.Err != nil) || ends != (err == nil) {
					t.Errorf("after %s: %+v, %v; want it ended: %t, failed: %t", age, status, err, ends, failed)
				}
			}
		})
	}
}

func TestI7NotFoundOfOtherResourceIsNotGone(t *testing.T) {
	t.Parallel()
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

func TestSeparatePoolCountStaysWithinMaximum(t *testing.T) {
	t.Parallel()
	c := newAzureWith(t, agentPool, emulator.ARMOptions{}, emulator.ScaleSetSpec{},
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
		case "running":
			return there && vm.State == emulator.Failed
		}
		return there && vm.State == emulator.Deleting
	}); err != nil {
		t.Fatal(err)
	}
}

func TestDeallocatingPoolIsRefused(t *testing.T) {
	t.Parallel()
	c := newAzureWith(t, agentPool, emulator.ARMOptions{}, emulator.ScaleSetSpec{}, emulator.AgentPoolSpec{ScaleDownMode: "Deallocate"})
	p := c.Provider(t)
	list, err := p.Instances(t.Context(), poolName)
	if err != nil || len(list) != conformance.MinInstances {
		t.Fatalf("%d machines, %v", len(list), err)
	}
	for _, listed := range list {
		read, err := p.Instance(t.Context(), listed.ProviderID)
		if err != nil || !read.DeletionProtected || !listed.DeletionProtected || !strings.Contains(read.DeletionProtectionReason, "scaleDownMode Deallocate") {
			t.Errorf("%+v, %v; want it protected, with the reason", read, err)
		}
	}
	if _, err := p.Delete(t.Context(), list[0].ProviderID); cloud.RefusalOf(err) != cloud.Protected || c.DeletionRequests() != 0 {
		t.Errorf("Delete: %v after %d requests; want the refusal %s", err, c.DeletionRequests(), cloud.Protected)
	}
	if _, err := p.Grow(t.Context(), poolName, cloud.LaunchRequest{Count: 1}); cloud.RefusalOf(err) != cloud.Invalid || c.countSizeChanges() != 0 {
		t.Errorf("Grow: %v; want the refusal %s", err, cloud.Invalid)
	}
	if _, err := p.Templates(t.Context(), poolName); cloud.RefusalOf(err) != cloud.Invalid {
		t.Errorf("Templates: %v; want the refusal %s", err, cloud.Invalid)
	}
}

func TestVirtualMachinesPoolOnlyShrinks(t *testing.T) {
	t.Parallel()
	c := newAzureWith(t, agentPool, emulator.ARMOptions{}, emulator.ScaleSetSpec{Flexible: true}, emulator.AgentPoolSpec{Type: "VirtualMachines"})
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

func TestFailedScaleUpReportsItsReason(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]cloud.Refusal{
		"AllocationFailed": cloud.NoCapacity, "QuotaExceeded": cloud.NoQuota, "VMExtensionProvisioningError": "",
	} {
		for _, k := range []kind{uniform, agentPool} {
			for _, follow := range []emulator.OperationHeaders{"", emulator.AsyncOperationHeader, emulator.LocationHeader} {
				t.Run(fmt.Sprintf("%s, %s, by %q", k, code, follow), func(t *testing.T) {
					t.Parallel()
					c := newAzureWith(t, k, emulator.ARMOptions{OperationHeaders: follow}, emulator.ScaleSetSpec{}, emulator.AgentPoolSpec{})
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
					missing := map[bool]int{true: 0, false: 2}[code == "VMExtensionProvisioningError"] // the extension fails in a running VM
					if err != nil || failed != missing {
						t.Errorf("%d machines failed for this reason, %v; want %d of %+v", failed, err, missing, list)
					}
				})
			}
		}
	}
}

// TestResourcesKeptAfterDeletionAreLogged makes Azure keep the resources with a deleteOption other than Delete.
func TestResourcesKeptAfterDeletionAreLogged(t *testing.T) {
	t.Parallel()
	c := newAzure(t, singleVMs)
	vm := c.AddVM("vm-z",
		emulator.Attachment{Kind: "OSDisk", Name: "os-z", DeleteOption: "Delete"}, emulator.Attachment{Kind: "DataDisk", Name: "data-z"},
		emulator.Attachment{Kind: "NetworkInterface", Name: "nic-z", DeleteOption: "Delete"},
		emulator.Attachment{Kind: "NetworkInterface", Name: "nic-y", DeleteOption: "Detach"})
	var log strings.Builder
	p, err := azure.New(c.config(), azure.Options{Credential: token(c.IssueToken()), Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Delete(t.Context(), vm.ProviderID); err != nil {
		t.Fatal(err)
	}
	c.AwaitGone(t, vm.ProviderID)
	for _, left := range c.DetachedResources() {
		if !strings.Contains(log.String(), left.Name) {
			t.Errorf("the log does not name the kept %s: %s", left.Name, log.String())
		}
	}
	if len(c.DetachedResources()) != 2 || strings.Contains(log.String(), "os-z") || strings.Contains(log.String(), "nic-z") {
		t.Errorf("kept %+v, logged %s", c.DetachedResources(), log.String())
	}
	if _, err := p.Delete(t.Context(), c.ProviderIDs()[0]); err != nil || strings.Count(log.String(), "Azure keeps") != 1 {
		t.Errorf("a machine without attachments: %v, %s", err, log.String())
	}
}

// TestNotFoundProvesDeletionOutsideGroups checks a VM outside the configured groups. Azure still finds it, and so
// also proves that a VM is gone.
func TestNotFoundProvesDeletionOutsideGroups(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		t.Run(string(k), func(t *testing.T) {
			c := newAzure(t, k)
			config := c.config()
			config.Groups = nil
			p := c.provider(t, config)
			id := c.ProviderIDs()[0]
			if m, err := p.Instance(t.Context(), id); err != nil || !p.NotFoundMeansDeleted(id) {
				t.Errorf("Instance = %+v, %v; NotFoundMeansDeleted %t", m, err, p.NotFoundMeansDeleted(id))
			}
			c.LoseInstance(t, id)
			c.AwaitGone(t, id)
			if _, err := p.Instance(t.Context(), id); !cloud.IsNotFound(err) {
				t.Errorf("a deleted machine: %v", err)
			}
			for what, id := range map[string]string{
				"another subscription": c.ForeignID(), "another cloud": "openstack:///x",
			} {
				if p.NotFoundMeansDeleted(id) {
					t.Errorf("%s: NotFound counts as proof that %s is deleted", what, id)
				}
			}
			elsewhere := strings.Replace(strings.ToLower(id), strings.ToLower(emulator.DefaultResourceGroup), "never-was", 1)
			if _, err := p.Instance(t.Context(), elsewhere); err == nil || cloud.IsNotFound(err) {
				t.Errorf("a machine of a missing resource group: %v", err)
			}
		})
	}
}
