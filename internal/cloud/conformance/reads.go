package conformance

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// normalizeID returns the canonical form of an ID.
func normalizeID(t *testing.T, p cloud.Provider, id string) string {
	t.Helper()
	normal, err := p.Normalize(id)
	if err != nil {
		t.Fatalf("Normalize(%q): %v", id, err)
	}
	return normal
}

func testNormalize(t *testing.T, c Cloud) {
	p := c.Provider(t)
	if p.Name() == "" {
		t.Error("the provider has no name")
	}
	seen := map[string]string{}
	for _, id := range c.ProviderIDs() {
		normal := normalizeID(t, p, id)
		if again := normalizeID(t, p, normal); again != normal {
			t.Errorf("%q normalizes to %q, and that to %q", id, normal, again)
		}
		if other, twice := seen[normal]; twice {
			t.Errorf("%q and %q both normalize to %q", id, other, normal)
		}
		seen[normal] = id
	}
	for _, id := range []string{"", "x", "kwok://node-1", c.ForeignID()} {
		if normal, err := p.Normalize(id); err == nil {
			t.Errorf("Normalize(%q) = %q, want an error", id, normal)
		}
		if _, err := p.Instance(t.Context(), id); err == nil || cloud.IsNotFound(err) {
			t.Errorf("I7: Instance(%q): error %v, want one that is not NotFound", id, err)
		}
		if _, err := p.Delete(t.Context(), id); err == nil || cloud.IsNotFound(err) {
			t.Errorf("I7: Delete(%q): error %v, want one that is not NotFound", id, err)
		}
	}
}

// listInstancesByID returns the instances of the group by ID.
func listInstancesByID(t *testing.T, p cloud.Provider, c Cloud) map[string]cloud.Instance {
	t.Helper()
	instances, err := p.Instances(t.Context(), c.Group())
	if err != nil {
		t.Fatal(err)
	}
	byID := map[string]cloud.Instance{}
	for _, i := range instances {
		if _, twice := byID[i.ProviderID]; twice {
			t.Errorf("%s is listed twice", i.ProviderID)
		}
		byID[i.ProviderID] = i
	}
	return byID
}

func testListedInstances(t *testing.T, c Cloud) {
	p := c.Provider(t)
	listed := listInstancesByID(t, p, c)
	for _, id := range c.ProviderIDs() {
		i, ok := listed[normalizeID(t, p, id)]
		if !ok {
			t.Errorf("%s is not listed", id)
			continue
		}
		if i.State != cloud.Running || i.Group != c.Group() || i.Name == "" || i.ComputerName == "" {
			t.Errorf("listed as %+v, want it running in group %s, with its names", i, c.Group())
		}
	}
	if len(listed) != len(c.ProviderIDs()) {
		t.Errorf("%d instances are listed, want %d", len(listed), len(c.ProviderIDs()))
	}
	group, err := p.Group(t.Context(), c.Group())
	if err != nil || group.Size != c.GroupSize() || group.Name != c.Group() {
		t.Errorf("group %+v, %v; want %s of size %d", group, err, c.Group(), c.GroupSize())
	}
}

func testReadMatchesList(t *testing.T, c Cloud) {
	p := c.Provider(t)
	for id, listed := range listInstancesByID(t, p, c) {
		read, err := p.Instance(t.Context(), id)
		if err != nil {
			t.Errorf("%s: %v", id, err)
			continue
		}
		if read.ProviderID != listed.ProviderID || read.Name != listed.Name || read.ComputerName != listed.ComputerName ||
			read.UniqueID != listed.UniqueID || read.State != listed.State || read.Group != listed.Group ||
			read.Zone != listed.Zone || read.Type != listed.Type {
			t.Errorf("read as %+v\nlisted as %+v", read, listed)
		}
	}
}

// maxCallTime limits a call while the cloud fails or throttles.
const maxCallTime = 20 * time.Second

func testFailedReadIsNotGone(t *testing.T, c Cloud) {
	p := c.Provider(t)
	machines := c.ProviderIDs()
	for _, m := range totalFaults() {
		t.Run("when the cloud "+string(m), func(t *testing.T) {
			skipUnlessFaultSupported(t, c, m)
			c.InjectFault(t, Fault{FaultKind: m, RetryAfter: 7 * time.Second})
			defer c.ClearFaults(t)
			ctx, cancel := context.WithTimeout(t.Context(), 4*maxCallTime)
			defer cancel()
			var all sync.WaitGroup // concurrent, because each may be retried
			for _, id := range []string{machines[0], c.MissingID()} {
				all.Go(func() {
					if i, err := p.Instance(ctx, id); err == nil || cloud.IsNotFound(err) {
						t.Errorf("Instance(%s) = %+v, %v; want an error that is not NotFound", id, i, err)
					}
				})
				all.Go(func() {
					if _, err := p.Delete(ctx, id); err == nil || cloud.IsNotFound(err) {
						t.Errorf("Delete(%s): %v; want an error that is not NotFound", id, err)
					}
				})
			}
			if c.Group() != "" {
				all.Go(func() {
					if l, err := p.Instances(ctx, c.Group()); err == nil || cloud.IsNotFound(err) || l != nil {
						t.Errorf("Instances = %d instances, %v; want none, and an error that is not NotFound", len(l), err)
					}
				})
				all.Go(func() {
					if g, err := p.Group(ctx, c.Group()); err == nil || cloud.IsNotFound(err) {
						t.Errorf("Group = %+v, %v; want an error that is not NotFound", g, err)
					}
				})
				all.Go(func() {
					if _, err := p.Grow(ctx, c.Group(), cloud.LaunchRequest{Count: 1}); err == nil || cloud.IsNotFound(err) {
						t.Errorf("Grow: %v; want an error that is not NotFound", err)
					}
				})
			}
			all.Wait()
		})
	}
	if now := c.ProviderIDs(); !slices.Equal(now, machines) {
		t.Errorf("the cloud had %d instances and now has %d", len(machines), len(now))
	}
}

func testTruncatedList(t *testing.T, c Cloud) {
	skipUnlessFaultSupported(t, c, ListFailsMidway)
	p := c.Provider(t)
	c.InjectFault(t, Fault{FaultKind: ListFailsMidway})
	if l, err := p.Instances(t.Context(), c.Group()); err == nil || l != nil {
		t.Errorf("Instances = %d instances, %v; want none, and an error", len(l), err)
	}
	c.ClearFaults(t)
	if l, err := p.Instances(t.Context(), c.Group()); err != nil || len(l) != len(c.ProviderIDs()) {
		t.Errorf("afterwards Instances = %d instances, %v", len(l), err)
	}
}

func testStaleList(t *testing.T, c Cloud) {
	skipUnlessFaultSupported(t, c, StaleLists)
	p := c.Provider(t)
	machines := c.ProviderIDs()
	c.InjectFault(t, Fault{FaultKind: StaleLists})
	deleteAndAwait(t, p, c, machines[0])
	if _, err := p.Instance(t.Context(), machines[0]); !cloud.IsNotFound(err) {
		t.Errorf("deleted instance: error %v, want NotFound although a list still has it", err)
	}
	if _, err := p.Grow(t.Context(), c.Group(), cloud.LaunchRequest{Count: 1}); err != nil {
		t.Fatal(err)
	}
	fresh := awaitNewInstance(t, c, machines)
	if i, err := p.Instance(t.Context(), fresh); err != nil || i.State != cloud.Running && i.State != cloud.Pending {
		t.Errorf("new instance = %+v, %v; want it although no list has it", i, err)
	}
}

// awaitNewInstance returns the first new instance.
func awaitNewInstance(t *testing.T, c Cloud, before []string) string {
	t.Helper()
	for t.Context().Err() == nil {
		for _, id := range c.ProviderIDs() {
			if !slices.Contains(before, id) {
				return id
			}
		}
		sleepOrFail(t, pollInterval)
	}
	t.Fatal("no new instance")
	return ""
}

func testMissingInstance(t *testing.T, c Cloud) {
	skipUnlessFaultSupported(t, c, ReportsMissing)
	p := c.Provider(t)
	if i, err := p.Instance(t.Context(), c.MissingID()); !cloud.IsNotFound(err) {
		t.Errorf("Instance = %+v, %v; want NotFound", i, err)
	}
	if op, err := p.Delete(t.Context(), c.MissingID()); !cloud.IsNotFound(err) {
		t.Errorf("Delete = %+v, %v; want NotFound", op, err)
	}
}

func testLostInstance(t *testing.T, c Cloud) {
	skipUnlessFaultSupported(t, c, LosesInstances)
	p := c.Provider(t)
	machine := c.ProviderIDs()[0]
	if _, err := p.Instance(t.Context(), machine); err != nil {
		t.Fatal(err)
	}
	if c.Group() != "" {
		listInstancesByID(t, p, c)
	}
	c.LoseInstance(t, machine)
	if i, err := p.Instance(t.Context(), machine); !cloud.IsNotFound(err) {
		t.Errorf("Instance = %+v, %v; want NotFound", i, err)
	}
	size := c.GroupSize()
	if op, err := p.Delete(t.Context(), machine); !cloud.IsNotFound(err) {
		t.Errorf("Delete = %+v, %v; want NotFound", op, err)
	}
	if c.GroupSize() != size {
		t.Errorf("deleting a gone instance changed the group's size from %d to %d", size, c.GroupSize())
	}
}

func testMissingGroup(t *testing.T, c Cloud) {
	p := c.Provider(t)
	var none *cloud.NotFoundError
	if g, err := p.Group(t.Context(), "no-such-group"); !errors.As(err, &none) || none.Kind != "group" {
		t.Errorf("Group = %+v, %v; want NotFound of a group", g, err)
	}
	if l, err := p.Instances(t.Context(), "no-such-group"); !errors.As(err, &none) || l != nil {
		t.Errorf("Instances = %d, %v; want NotFound of a group", len(l), err)
	}
	if _, err := p.Grow(t.Context(), "no-such-group", cloud.LaunchRequest{Count: 1}); !errors.As(err, &none) {
		t.Errorf("Grow: %v; want NotFound of a group", err)
	}
}

func testThrottledRead(t *testing.T, c Cloud) {
	skipUnlessFaultSupported(t, c, Throttled)
	p := c.Provider(t)
	const wants = 37 * time.Second
	c.InjectFault(t, Fault{FaultKind: Throttled, RetryAfter: wants})
	began := time.Now()
	_, err := p.Instance(t.Context(), c.ProviderIDs()[0])
	var throttled *cloud.ThrottledError
	if !errors.As(err, &throttled) || throttled.RetryAfter < 36*time.Second || throttled.RetryAfter > 38*time.Second {
		t.Errorf("error %v, want a retry delay of 37s", err)
	}
	if took := time.Since(began); took >= wants {
		t.Errorf("the call took %v, as long as the retry delay", took)
	}
}

func testMissingPermission(t *testing.T, c Cloud) {
	skipUnlessFaultSupported(t, c, PermissionDenied)
	p := c.Provider(t)
	c.InjectFault(t, Fault{FaultKind: PermissionDenied})
	if _, err := p.Instance(t.Context(), c.ProviderIDs()[0]); cloud.RefusalOf(err) != cloud.NoRight {
		t.Errorf("Instance: error %v, want the refusal %s", err, cloud.NoRight)
	}
}
