package azure

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// newEvictionTest returns an ARM with a scale set of two machines that are evicted as soon as the eviction is announced.
func newEvictionTest(t *testing.T, spec ScaleSetSpec) *armClient {
	t.Helper()
	c := newARM(t, ARMOptions{}, Options{Notices: map[EventType]time.Duration{Preempt: time.Millisecond}})
	spec.Name = "pool"
	c.AddScaleSet(spec, 2)
	return c
}

// requestEviction requests an eviction, and returns the status and the error code of the response.
func (c *armClient) requestEviction(t *testing.T, machine string) (int, string) {
	t.Helper()
	head, answer := c.sendRequest(t, http.MethodPost, c.groupID()+"/providers/Microsoft.Compute"+machine+
		"/simulateEviction?api-version=2025-04-01", "")
	return head.StatusCode, errorCode(answer)
}

const firstMachine = "/virtualMachineScaleSets/pool/virtualMachines/0"

func TestSimulatedEvictionFollowsItsPolicy(t *testing.T) {
	for name, tt := range map[string]struct {
		spec     ScaleSetSpec
		capacity int
		exists   bool
		next     bool
	}{
		"deleted":              {ScaleSetSpec{Spot: true}, 1, false, false},
		"deallocated":          {ScaleSetSpec{Spot: true, EvictionPolicy: EvictionDeallocate}, 2, true, false},
		"deleted and restored": {ScaleSetSpec{Spot: true, RestoreEvicted: true}, 2, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newEvictionTest(t, tt.spec)
			if status, code := a.requestEviction(t, firstMachine); status != http.StatusNoContent {
				t.Fatalf("%d %s", status, code)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			err := a.AwaitVMs(ctx, func(all []VM) bool {
				first, exists := VM{}, false
				next := false
				for _, m := range all {
					if m.Resource == "pool_0" {
						first, exists = m, true
					}
					next = next || m.Resource == "pool_2" && m.Power == Running
				}
				return exists == tt.exists && (!exists || first.Power == Deallocated) && next == tt.next
			})
			if err != nil {
				t.Fatalf("%v: %+v", err, a.VMs())
			}
			check.Is(t, tt.capacity, a.Capacity("pool"))
		})
	}
}

func TestARMEvictsOnlyARunningSpotMachine(t *testing.T) {
	a := newEvictionTest(t, ScaleSetSpec{})
	for machine, want := range map[string]struct {
		status int
		code   string
	}{
		firstMachine: {http.StatusConflict, "OperationNotAllowed"},
		"/virtualMachineScaleSets/pool/virtualMachines/9": {http.StatusNotFound, "ResourceNotFound"},
		"/virtualMachines/nobody":                         {http.StatusNotFound, "ResourceNotFound"},
	} {
		if status, code := a.requestEviction(t, machine); status != want.status || code != want.code {
			t.Errorf("%s: %d %s, want %d %s", machine, status, code, want.status, want.code)
		}
	}
	must.NoError(t, a.InjectFaults(ARMFault{Kind: ARMDenied, Action: instanceEvict}))
	if status, code := a.requestEviction(t, firstMachine); status != http.StatusForbidden || code != "AuthorizationFailed" {
		t.Errorf("without permission: %d %s", status, code)
	}
	if len(a.emulator.State().Events) > 0 {
		t.Errorf("announced %+v", a.emulator.State().Events)
	}
}
