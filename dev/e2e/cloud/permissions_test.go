package cloud_test

import (
	"slices"
	"strings"
	"testing"

	emulator "github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/internal/cloud"
)

// These permissions allow Slipway to read, delete, and grow the tests' VMs.
const (
	setRead      = "Microsoft.Compute/virtualMachineScaleSets/read"
	setWrite     = "Microsoft.Compute/virtualMachineScaleSets/write"
	setDelete    = "Microsoft.Compute/virtualMachineScaleSets/delete/action"
	instanceRead = "Microsoft.Compute/virtualMachineScaleSets/virtualMachines/read"
	vmRead       = "Microsoft.Compute/virtualMachines/read"
	vmDelete     = "Microsoft.Compute/virtualMachines/delete"
	poolDelete   = "Microsoft.ContainerService/managedClusters/agentPools/deleteMachines/action"
	machinesRead = "Microsoft.ContainerService/managedClusters/agentPools/machines/read"
	poolRead     = "Microsoft.ContainerService/managedClusters/agentPools/read"
)

// permissionsOf returns the permissions for deletions and growth of a kind. Each permission has the last segments of its scope.
func permissionsOf(k kind) (toDelete, ofGroup, toGrow []string) {
	const set, pool, rg = " on …/virtualMachineScaleSets/" + setName, " on …/agentPools/" + poolName, " on …/resourceGroups/" + emulator.DefaultResourceGroup
	switch k {
	case uniform:
		return []string{instanceRead + set, setDelete + set}, []string{setRead + set, instanceRead + set, setDelete + set},
			[]string{setWrite + set}
	case flexible:
		return []string{vmRead + " on the machine", setDelete + set}, []string{setRead + set, setDelete + set, vmRead + rg},
			[]string{setWrite + set}
	case agentPool:
		return []string{instanceRead + set, machinesRead + pool, poolDelete + pool},
			[]string{poolRead + pool, machinesRead + pool, poolDelete + pool}, []string{poolWrite + pool}
	}
	return []string{vmRead + " on the machine", vmDelete + " on the machine"}, nil, nil
}

// shortenScopes shortens each scope to its last two segments.
func shortenScopes(rights cloud.Permissions, machine string) []string {
	var all []string
	for _, r := range rights {
		where := "the machine"
		if !strings.EqualFold("azure://"+r.Scope, machine) {
			segments := strings.Split(r.Scope, "/")
			where = "…/" + strings.Join(segments[len(segments)-2:], "/")
		}
		all = append(all, r.Name+" on "+where)
	}
	return all
}

// TestMissingPermissionsAreNamed denies each permission.
func TestMissingPermissionsAreNamed(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		t.Run(string(k), func(t *testing.T) {
			c := newAzure(t, k)
			id := c.ProviderIDs()[0]
			toDelete, ofGroup, toGrow := permissionsOf(k)
			check := func(denied string) {
				t.Helper()
				has := func(all []string) (lacking []string) {
					for _, right := range all {
						if denied != "" && strings.HasPrefix(right, denied+" on ") {
							lacking = append(lacking, right)
						}
					}
					return lacking
				}
				p := c.provider(t, c.config()) // a new provider has an empty cache
				if _, err := p.Instances(t.Context(), c.Group()); k == agentPool && err != nil {
					t.Fatal(err) // the provider now knows the pool of each VM
				}
				if denied != "" {
					if err := c.ARM.InjectFaults(emulator.ARMFault{Kind: emulator.ARMDenied, Action: denied}); err != nil {
						t.Fatal(err)
					}
					defer c.ARM.ClearFaults()
				}
				missing, err := p.MissingDeletePermissions(t.Context(), id)
				if got := shortenScopes(missing, id); err != nil && !needsRead(denied, k) || err == nil && !slices.Equal(got, has(toDelete)) {
					t.Errorf("without %q: to delete, %q is missing, %v; want %q", denied, got, err, has(toDelete))
				}
				if k == singleVMs {
					return
				}
				of, err := p.MissingGroupPermissions(t.Context(), c.Group())
				if err != nil && denied == setRead {
					return // the group is also unreadable, and that error names the permission too
				}
				if got, grow := shortenScopes(of.ToDelete, id), shortenScopes(of.ToGrow, id); err != nil || !slices.Equal(got, has(ofGroup)) ||
					!slices.Equal(grow, has(toGrow)) {
					t.Errorf("without %q: of the group %q is missing, to grow %q, %v; want %q and %q", denied, got, grow, err,
						has(ofGroup), has(toGrow))
				}
			}
			check("")
			for _, right := range slices.Concat(toDelete, ofGroup, toGrow) {
				action, _, _ := strings.Cut(right, " on ")
				check(action)
			}
		})
	}
}

// needsRead reports whether the provider must read a VM to know its deletion request.
func needsRead(denied string, k kind) bool {
	return denied == vmRead && (k == flexible || k == singleVMs)
}

// TestPermissionListMatchesDeniedRequests compares denied requests with the list of permissions.
func TestPermissionListMatchesDeniedRequests(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		t.Run(string(k), func(t *testing.T) {
			c := newAzure(t, k)
			toDelete, _, _ := permissionsOf(k)
			action, _, _ := strings.Cut(toDelete[len(toDelete)-1], " on ")
			p, id := c.provider(t, c.config()), c.ProviderIDs()[0]
			if err := c.ARM.InjectFaults(emulator.ARMFault{Kind: emulator.ARMDenied, Action: action}); err != nil {
				t.Fatal(err)
			}
			missing, err := p.MissingDeletePermissions(t.Context(), id)
			if err != nil || len(missing) != 1 {
				t.Fatalf("missing %v, %v", missing, err)
			}
			_, refused := p.Delete(t.Context(), id)
			checkPermissionError(t, refused, "the credential lacks "+missing[0].Name+" on "+"/subscriptions/")
			c.ARM.ClearFaults()
			if _, err := p.Delete(t.Context(), id); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestI7UnreadablePermissionsAreNotMissing makes the permissions request fail: refused, garbled, and truncated.
func TestI7UnreadablePermissionsAreNotMissing(t *testing.T) {
	t.Parallel()
	const asking = "Microsoft.Authorization/permissions/read"
	for _, fault := range []emulator.ARMFault{
		{Kind: emulator.ARMDenied, Action: asking},
		{Kind: emulator.ARMStatus, Status: 404, Code: "InvalidResourceType", Action: asking},
		{Kind: emulator.ARMStatus, Status: 500, Action: asking},
		{Kind: emulator.ARMThrottled, Action: asking},
		{Kind: emulator.ARMHTML, Action: asking},
		{Kind: emulator.ARMHalf, Action: asking},
		{Kind: emulator.ARMReset, Action: asking},
		{Kind: emulator.ARMOtherHost, Message: "127.0.0.1:1", Action: asking},
	} {
		t.Run(string(fault.Kind), func(t *testing.T) {
			t.Parallel()
			c := newAzureWithPages(t, uniform, 1)
			if err := c.ARM.InjectFaults(fault); err != nil {
				t.Fatal(err)
			}
			p := c.provider(t, c.config())
			if missing, err := p.MissingDeletePermissions(t.Context(), c.ProviderIDs()[0]); err == nil || len(missing) > 0 {
				t.Errorf("missing %v, %v; want only an error", missing, err)
			}
			if missing, err := p.MissingGroupPermissions(t.Context(), setName); err == nil || len(missing.ToDelete)+len(missing.ToGrow) > 0 {
				t.Errorf("of the group %v is missing, %v; want only an error", missing, err)
			}
		})
	}
}

func TestPermissionsOfAllPagesAreRead(t *testing.T) {
	t.Parallel()
	c := newAzureWithPages(t, uniform, 1)
	p := c.provider(t, c.config())
	for range 2 { // the second time from the cache
		if missing, err := p.MissingDeletePermissions(t.Context(), c.ProviderIDs()[0]); err != nil || len(missing) > 0 {
			t.Errorf("missing %v, %v", missing, err)
		}
	}
	asked := 0
	for _, r := range c.Requests() {
		if strings.HasSuffix(r.Path, "/permissions") {
			asked++
		}
	}
	if asked != 2 {
		t.Errorf("%d requests for permissions, want one for each of two pages", asked)
	}
}
