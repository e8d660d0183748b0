package cloud_test

import (
	"testing"
	"time"

	emulator "github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/conformance"
)

// scaleUp launches instances and waits for the operation's end.
func scaleUp(t *testing.T, p cloud.Provider, group string, request cloud.LaunchRequest) error {
	t.Helper()
	op, err := p.Grow(t.Context(), group, request)
	if err != nil {
		t.Fatal(err)
	}
	status, err := p.Status(t.Context(), op)
	for err == nil && !status.Done {
		time.Sleep(10 * time.Millisecond)
		status, err = p.Status(t.Context(), op)
	}
	if err != nil {
		t.Fatal(err)
	}
	return status.Err
}

// awaitIdle returns the group once no operation changes it.
func awaitIdle(t *testing.T, p cloud.Provider, group string) cloud.Group {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		g, err := p.Group(t.Context(), group)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%+v, %v; want a group without operations", g, err)
		}
		if g.CanRetryFailed {
			return g
		}
	}
}

func TestI5FailedInstancesAreRetriedWithinSize(t *testing.T) {
	t.Parallel()
	for _, k := range []kind{uniform, flexible, agentPool} {
		t.Run(string(k), func(t *testing.T) {
			t.Parallel()
			c := newAzure(t, k)
			p := c.Provider(t)
			inject(t, c, emulator.ARMFault{Kind: emulator.ARMAllocationFails})
			for i := range 3 {
				request := cloud.LaunchRequest{Count: 1, RetryFailed: min(i, 1)}
				if err := scaleUp(t, p, c.Group(), request); cloud.RefusalOf(err) != cloud.NoCapacity {
					t.Fatalf("the scale-up ended with %v, want the refusal %s", err, cloud.NoCapacity)
				}
				if g := awaitIdle(t, p, c.Group()); g.Size != conformance.MinInstances+1 {
					t.Fatalf("the group is %+v, want a size of %d", g, conformance.MinInstances+1)
				}
				if n := len(c.ProviderIDs()); n != conformance.MinInstances {
					t.Fatalf("there are %d machines, want %d", n, conformance.MinInstances)
				}
			}
			c.ARM.ClearFaults()
			if err := scaleUp(t, p, c.Group(), cloud.LaunchRequest{Count: 3, RetryFailed: 1}); err != nil {
				t.Fatal(err)
			}
			if g := awaitIdle(t, p, c.Group()); g.Size != conformance.MinInstances+3 || len(c.ProviderIDs()) != g.Size {
				t.Errorf("the group is %+v with %d machines, want %d", g, len(c.ProviderIDs()), conformance.MinInstances+3)
			}
		})
	}
}

func TestI5RetryIsRefusedIfGroupChanged(t *testing.T) {
	t.Parallel()
	for _, k := range []kind{uniform, flexible, agentPool} {
		t.Run(string(k), func(t *testing.T) {
			t.Parallel()
			c := newAzureWith(t, k, emulator.ARMOptions{BootTime: 2 * time.Second}, emulator.ScaleSetSpec{}, emulator.AgentPoolSpec{})
			p := c.Provider(t)
			refused := func(when string) {
				t.Helper()
				before := c.countSizeChanges()
				if _, err := p.Grow(t.Context(), c.Group(), cloud.LaunchRequest{Count: 1, RetryFailed: 1}); !cloud.IsThrottled(err) || c.countSizeChanges() != before {
					t.Errorf("%s: Grow: %v, and %d changes more; want Throttled", when, err, c.countSizeChanges()-before)
				}
			}
			refused("no instance is missing")
			if _, err := p.Grow(t.Context(), c.Group(), cloud.LaunchRequest{Count: 1}); err != nil {
				t.Fatal(err)
			}
			refused("a scale-up is running")
			if k != agentPool { // AKS makes one change at a time
				if _, err := p.Grow(t.Context(), c.Group(), cloud.LaunchRequest{Count: 1}); err != nil || c.GroupSize() != conformance.MinInstances+2 {
					t.Errorf("a concurrent scale-up: %v, and a size of %d; want %d", err, c.GroupSize(), conformance.MinInstances+2)
				}
			}
			awaitIdle(t, p, c.Group())
			refused("the scale-up has ended")
		})
	}
}

func TestIncompleteListNeverLowersSize(t *testing.T) {
	t.Parallel()
	for _, k := range []kind{uniform, agentPool} {
		t.Run(string(k), func(t *testing.T) {
			t.Parallel()
			c := newAzure(t, k)
			p := c.Provider(t)
			inject(t, c, emulator.ARMFault{Kind: emulator.ARMStale})
			if err := scaleUp(t, p, c.Group(), cloud.LaunchRequest{Count: 2}); err != nil {
				t.Fatal(err)
			}
			size := awaitIdle(t, p, c.Group()).Size
			for _, request := range []cloud.LaunchRequest{{Count: 1, RetryFailed: 1}, {Count: 2, RetryFailed: 2}} {
				if err := scaleUp(t, p, c.Group(), request); err != nil || c.GroupSize() != size || len(c.VMs()) != size {
					t.Errorf("%+v: %v, %d machines, and a size of %d; want %d", request, err, len(c.VMs()), c.GroupSize(), size)
				}
			}
		})
	}
}
