package cloud_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	emulator "github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/azure"
)

// lostResponseFaults returns faults: Azure processes the request, but its answer does not arrive.
func lostResponseFaults() map[string]emulator.ARMFault {
	return map[string]emulator.ARMFault{
		"500":              {Kind: emulator.ARMStatus, Status: http.StatusInternalServerError, Processed: true},
		"502 of a proxy":   {Kind: emulator.ARMHTML, Status: http.StatusBadGateway, Processed: true},
		"503, Retry-After": {Kind: emulator.ARMStatus, Status: http.StatusServiceUnavailable, RetryAfter: time.Second, Processed: true},
		"504":              {Kind: emulator.ARMStatus, Status: http.StatusGatewayTimeout, Processed: true},
		"408":              {Kind: emulator.ARMStatus, Status: http.StatusRequestTimeout, Processed: true},
		"reset":            {Kind: emulator.ARMReset, Processed: true},
		"timeout":          {Kind: emulator.ARMHang, Processed: true},
		"half a response":  {Kind: emulator.ARMHalf},
	}
}

// newAzureLosingResponses returns a cloud and its provider. The cloud processes the first request of an action and loses its
// response.
func newAzureLosingResponses(t *testing.T, k kind, action string, fault emulator.ARMFault) (*azureCloud, *azure.Provider) {
	t.Helper()
	c := newAzure(t, k)
	config := c.config()
	if fault.Kind == emulator.ARMHang {
		config.RequestTimeout = cloud.Duration(5 * time.Second) // the fault takes this long, and on a busy host any other answer may too
	}
	p := c.provider(t, config)
	fault.Action, fault.Times = action, 1
	inject(t, c, fault)
	return c, p
}

// sizeAction returns the action that changes the size of a group.
func sizeAction(k kind) string {
	if k == agentPool {
		return poolWrite
	}
	return setWrite
}

// countSizeChanges counts the requests that change the size of a group.
func (c *azureCloud) countSizeChanges() (n int) {
	for _, r := range c.Requests() {
		if strings.HasSuffix(r.Action, "/write") {
			n++
		}
	}
	return n
}

func TestI5LostScaleUpResponseLaunchesOnce(t *testing.T) {
	t.Parallel()
	for _, k := range []kind{uniform, flexible, agentPool} {
		for name, fault := range lostResponseFaults() {
			t.Run(string(k)+", "+name, func(t *testing.T) {
				t.Parallel()
				c, p := newAzureLosingResponses(t, k, sizeAction(k), fault)
				size := c.GroupSize()
				_, err := p.Grow(t.Context(), c.Group(), cloud.LaunchRequest{Count: 2})
				if err == nil || cloud.RefusalOf(err) != "" || cloud.IsThrottled(err) || cloud.IsNotFound(err) {
					t.Errorf("Grow: %v; want an error that leaves the result open", err)
				}
				if n := c.countSizeChanges(); n != 1 || c.GroupSize() != size+2 {
					t.Errorf("%d requests, and the size went from %d to %d; want 1 request, and %d", n, size, c.GroupSize(), size+2)
				}
				c.ClearFaults(t)
				if g, err := p.Group(t.Context(), c.Group()); err != nil || g.Size != size+2 {
					t.Errorf("the group is %+v, %v; want it to include the launch", g, err)
				}
			})
		}
	}
}

func TestI5ChangedSizeIsReportedToCaller(t *testing.T) {
	t.Parallel()
	for _, k := range []kind{uniform, agentPool} {
		t.Run(string(k), func(t *testing.T) {
			c := newAzure(t, k)
			p := c.Provider(t)
			size := c.GroupSize()
			inject(t, c, emulator.ARMFault{
				Kind: emulator.ARMStatus, Status: http.StatusPreconditionFailed, Code: "PreconditionFailed", Action: sizeAction(k),
			})
			_, err := p.Grow(t.Context(), c.Group(), cloud.LaunchRequest{Count: 1})
			if !cloud.IsThrottled(err) || !strings.Contains(err.Error(), "has changed since it was read") {
				t.Errorf("Grow: %v; want Throttled, and the changed size as the reason", err)
			}
			if n := c.countSizeChanges(); n != 1 || c.GroupSize() != size {
				t.Errorf("%d requests, and the size went from %d to %d", n, size, c.GroupSize())
			}
		})
	}
}

func TestLostDeletionResponseDeletesOneInstance(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		for name, fault := range lostResponseFaults() {
			t.Run(string(k)+", "+name, func(t *testing.T) {
				t.Parallel()
				action := setDelete
				switch k {
				case agentPool:
					action = poolDelete
				case singleVMs:
					action = vmDelete
				}
				c, p := newAzureLosingResponses(t, k, action, fault)
				before, size := c.ProviderIDs(), c.GroupSize()
				_, err := p.Delete(t.Context(), before[1])
				for err != nil && !cloud.IsNotFound(err) {
					if !cloud.IsThrottled(err) || t.Context().Err() != nil {
						t.Fatalf("Delete: %v", err)
					}
					_, err = p.Delete(t.Context(), before[1])
				}
				c.AwaitGone(t, before[1])
				if now := c.ProviderIDs(); len(now) != len(before)-1 || c.Group() != "" && c.GroupSize() != size-1 {
					t.Errorf("of %d machines %d are left, and the size went from %d to %d", len(before), len(now), size, c.GroupSize())
				}
			})
		}
	}
}

func TestLostEvictionResponseAnnouncesOneEvent(t *testing.T) {
	t.Parallel()
	for name, fault := range lostResponseFaults() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if fault.Kind == emulator.ARMHalf {
				fault.Kind, fault.Processed = emulator.ARMReset, true // its answer has no body
			}
			c, p := newAzureLosingResponses(t, uniform, "Microsoft.Compute/virtualMachineScaleSets/virtualMachines/simulateEviction/action", fault)
			if err := p.SimulateEviction(t.Context(), c.ProviderIDs()[0]); err == nil {
				t.Error("the response was lost, and the error is nil")
			}
			asked := 0
			for _, r := range c.Requests() {
				if strings.HasSuffix(r.Path, "/simulateEviction") {
					asked++
				}
			}
			if asked != 1 {
				t.Errorf("%d evictions requested, want 1", asked)
			}
		})
	}
}
