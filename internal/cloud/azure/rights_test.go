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

func TestRightNeedsOneRoleThatGrantsIt(t *testing.T) {
	for _, tc := range []struct {
		name   string
		grants []grant
		held   bool
	}{
		{"none", nil, false},
		{"everything", []grant{{actions: []string{"*"}}}, true},
		{"itself", []grant{{actions: []string{deleteOfSet}}}, true},
		{"itself, in other letter case", []grant{{actions: []string{strings.ToUpper(deleteOfSet)}}}, true},
		{"its namespace", []grant{{actions: []string{"Microsoft.Compute/*"}}}, true},
		{"its type", []grant{{actions: []string{"Microsoft.Compute/virtualMachineScaleSets/*"}}}, true},
		{"actions of any type", []grant{{actions: []string{"*/delete/action"}}}, true},
		{"a wildcard in the middle", []grant{{actions: []string{"Microsoft.Compute/*/action"}}}, true},
		{"two wildcards", []grant{{actions: []string{"*/virtualMachineScaleSets/*"}}}, true},
		{"a wildcard for nothing", []grant{{actions: []string{deleteOfSet + "*"}}}, true},
		{"reading", []grant{{actions: []string{"*/read"}}}, false},
		{"deleting, which is no action of this kind", []grant{{actions: []string{"*/delete"}}}, false},
		{"another namespace", []grant{{actions: []string{"Microsoft.Computes/*", "Microsoft.ContainerService/*"}}}, false},
		{"no wildcard, though it begins so", []grant{{actions: []string{"Microsoft.Compute"}}}, false},
		{"a wildcard whose ends overlap", []grant{{actions: []string{deleteOfSet + "*/action"}}}, false},
		{"empty", []grant{{actions: []string{""}}}, false},
		{"left out", []grant{{actions: []string{"*"}, notActions: []string{deleteOfSet}}}, false},
		{"left out by a wildcard", []grant{{actions: []string{"*"}, notActions: []string{"microsoft.compute/*/DELETE/action"}}}, false},
		{"another left out", []grant{{actions: []string{"*"}, notActions: []string{"Microsoft.Authorization/*/Delete", "*/write"}}}, true},
		{"left out by one role, granted by another", []grant{
			{actions: []string{"*"}, notActions: []string{deleteOfSet}}, {actions: []string{"Microsoft.Compute/virtualMachineScaleSets/*"}},
		}, true},
		{"half of it by each of two roles", []grant{{actions: []string{"*/read"}}, {notActions: []string{"*/write"}}}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k := knownGrants{grants: tc.grants}
			missing := k.missing(need{scope{id: "/s"}, []string{deleteOfSet}})
			check.Is(t, tc.held, len(missing) == 0)
			if !tc.held && missing.String() != deleteOfSet+" on /s" {
				t.Errorf("it says %q", missing)
			}
		})
	}
}

// azureOf answers with permissions that a test changes.
type azureOf struct {
	grants []grant
	err    error
	asked  int
}

func (a *azureOf) ask(context.Context, scope) ([]grant, error) {
	a.asked++
	return a.grants, a.err
}

func TestRememberedRightsExpire(t *testing.T) {
	all := []grant{{actions: []string{"*"}}}
	for _, tc := range []struct {
		name    string
		before  azureOf
		missing bool
		held    time.Duration
	}{
		{"a right that is held", azureOf{grants: all}, false, grantsHeld},
		{"a right that is missing", azureOf{grants: []grant{{actions: []string{"*/read"}}}}, true, grantsLacking},
		{"no answer", azureOf{err: errors.New("timeout")}, false, grantsLacking},
	} {
		t.Run(tc.name, virtual.Time(func(t *testing.T) {
			azure := tc.before
			c := &grantCache{ask: azure.ask, limit: time.Minute, scopes: map[string]*knownGrants{}}
			n := need{scope{id: "/S"}, []string{deleteOfSet}}
			look := func(calls int) {
				t.Helper()
				missing, err := c.missing(t.Context(), n)
				if (len(missing) > 0) != tc.missing || (err == nil) != (tc.before.err == nil) || azure.asked != calls {
					t.Errorf("missing %v, %v, after %d questions; want %d", missing, err, azure.asked, calls)
				}
			}
			look(1)
			azure.grants, azure.err = nil, nil
			if tc.missing || tc.before.err != nil {
				azure.grants = all
			}
			time.Sleep(tc.held - 1)
			n.scope.id = "/s" // which is the same
			look(1)
			time.Sleep(time.Nanosecond)
			missing, err := c.missing(t.Context(), n)
			if changed := tc.name == "a right that is held"; err != nil || (len(missing) > 0) != changed || azure.asked != 2 {
				t.Errorf("missing %v, %v after %v and %d questions", missing, err, tc.held, azure.asked)
			}
			time.Sleep(grantsHeld)
			c.on(scope{id: "/other"})
			if len(c.scopes) != 1 {
				t.Errorf("%d scopes are remembered, want the new one alone", len(c.scopes))
			}
		}))
	}
}

func TestACallerWhoLeavesLeavesNoAnswerBehind(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	leave()
	azure := azureOf{err: context.Canceled}
	c := &grantCache{ask: azure.ask, limit: time.Minute, scopes: map[string]*knownGrants{}}
	n := need{scope{id: "/s"}, []string{readVM}}
	if _, err := c.missing(ctx, n); !errors.Is(err, context.Canceled) {
		t.Errorf("the caller who left was told %v", err)
	}
	azure = azureOf{grants: []grant{{actions: []string{"*/read"}}}}
	if missing, err := c.missing(t.Context(), n); err != nil || len(missing) > 0 {
		t.Errorf("missing %v, %v", missing, err)
	}
}
