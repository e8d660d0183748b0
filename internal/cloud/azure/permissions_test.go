package azure

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/virtual"
)

func TestPermissionNeedsOneRoleThatGrantsIt(t *testing.T) {
	for _, tc := range []struct {
		name   string
		grants []roleGrant
		held   bool
	}{
		{"none", nil, false},
		{"everything", []roleGrant{{actions: []string{"*"}}}, true},
		{"itself", []roleGrant{{actions: []string{actionDeleteInstances}}}, true},
		{"itself, in upper case", []roleGrant{{actions: []string{strings.ToUpper(actionDeleteInstances)}}}, true},
		{"its namespace", []roleGrant{{actions: []string{"Microsoft.Compute/*"}}}, true},
		{"its type", []roleGrant{{actions: []string{"Microsoft.Compute/virtualMachineScaleSets/*"}}}, true},
		{"actions of any type", []roleGrant{{actions: []string{"*/delete/action"}}}, true},
		{"a wildcard in the middle", []roleGrant{{actions: []string{"Microsoft.Compute/*/action"}}}, true},
		{"two wildcards", []roleGrant{{actions: []string{"*/virtualMachineScaleSets/*"}}}, true},
		{"a wildcard that matches nothing", []roleGrant{{actions: []string{actionDeleteInstances + "*"}}}, true},
		{"reading", []roleGrant{{actions: []string{"*/read"}}}, false},
		{"deleting another kind", []roleGrant{{actions: []string{"*/delete"}}}, false},
		{"another namespace", []roleGrant{{actions: []string{"Microsoft.Computes/*", "Microsoft.ContainerService/*"}}}, false},
		{"a prefix without wildcard", []roleGrant{{actions: []string{"Microsoft.Compute"}}}, false},
		{"a wildcard whose ends overlap", []roleGrant{{actions: []string{actionDeleteInstances + "*/action"}}}, false},
		{"empty", []roleGrant{{actions: []string{""}}}, false},
		{"excluded", []roleGrant{{actions: []string{"*"}, notActions: []string{actionDeleteInstances}}}, false},
		{"excluded by a wildcard", []roleGrant{{actions: []string{"*"}, notActions: []string{"microsoft.compute/*/DELETE/action"}}}, false},
		{"another one excluded", []roleGrant{{actions: []string{"*"}, notActions: []string{"Microsoft.Authorization/*/Delete", "*/write"}}}, true},
		{"excluded by one role, granted by another", []roleGrant{
			{actions: []string{"*"}, notActions: []string{actionDeleteInstances}}, {actions: []string{"Microsoft.Compute/virtualMachineScaleSets/*"}},
		}, true},
		{"not granted by either of two roles", []roleGrant{{actions: []string{"*/read"}}, {notActions: []string{"*/write"}}}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k := cachedGrants{grants: tc.grants}
			missing := k.missingActions(requiredActions{scope{id: "/s"}, []string{actionDeleteInstances}})
			check.Is(t, tc.held, len(missing) == 0)
			if !tc.held && missing.String() != actionDeleteInstances+" on /s" {
				t.Errorf("missing %q", missing)
			}
		})
	}
}

// fakePermissions returns permissions that a test changes.
type fakePermissions struct {
	grants []roleGrant
	err    error
	asked  int
}

func (a *fakePermissions) ask(context.Context, scope) ([]roleGrant, error) {
	a.asked++
	return a.grants, a.err
}

func TestCachedPermissionsExpire(t *testing.T) {
	all := []roleGrant{{actions: []string{"*"}}}
	for _, tc := range []struct {
		name    string
		before  fakePermissions
		missing bool
		held    time.Duration
	}{
		{"granted", fakePermissions{grants: all}, false, grantedTTL},
		{"missing", fakePermissions{grants: []roleGrant{{actions: []string{"*/read"}}}}, true, missingTTL},
		{"read failed", fakePermissions{err: errors.New("timeout")}, false, missingTTL},
	} {
		t.Run(tc.name, virtual.InVirtualTime(func(t *testing.T) {
			azure := tc.before
			c := &permissionCache{list: azure.ask, timeout: time.Minute, scopes: map[string]*cachedGrants{}}
			n := requiredActions{scope{id: "/S"}, []string{actionDeleteInstances}}
			look := func(calls int) {
				t.Helper()
				missing, err := c.missingActions(t.Context(), n)
				if (len(missing) > 0) != tc.missing || (err == nil) != (tc.before.err == nil) || azure.asked != calls {
					t.Errorf("missing %v, %v, after %d requests; want %d", missing, err, azure.asked, calls)
				}
			}
			look(1)
			azure.grants, azure.err = nil, nil
			if tc.missing || tc.before.err != nil {
				azure.grants = all
			}
			time.Sleep(tc.held - 1)
			n.scope.id = "/s" // differs only in case
			look(1)
			time.Sleep(time.Nanosecond)
			missing, err := c.missingActions(t.Context(), n)
			if changed := tc.name == "granted"; err != nil || (len(missing) > 0) != changed || azure.asked != 2 {
				t.Errorf("missing %v, %v after %v and %d requests", missing, err, tc.held, azure.asked)
			}
			time.Sleep(grantedTTL)
			c.getOrCreateGrants(scope{id: "/other"})
			if len(c.scopes) != 1 {
				t.Errorf("%d cached scopes, want only the new one", len(c.scopes))
			}
		}))
	}
}

func TestCancelledReadIsNotCached(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	leave()
	azure := fakePermissions{err: context.Canceled}
	c := &permissionCache{list: azure.ask, timeout: time.Minute, scopes: map[string]*cachedGrants{}}
	n := requiredActions{scope{id: "/s"}, []string{actionReadVM}}
	if _, err := c.missingActions(ctx, n); !errors.Is(err, context.Canceled) {
		t.Errorf("the cancelled caller got %v", err)
	}
	azure = fakePermissions{grants: []roleGrant{{actions: []string{"*/read"}}}}
	if missing, err := c.missingActions(t.Context(), n); err != nil || len(missing) > 0 {
		t.Errorf("missing %v, %v", missing, err)
	}
}
