package azure

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
	"github.com/slipway-dev/slipway/internal/testing/virtual"
)

// slowStatus returns a numbered status or an error after 300 ms.
type slowStatus struct {
	questions int
	err       error
}

func (s *slowStatus) ask(ctx context.Context, _ string) (cloud.OperationStatus, bool, error) {
	s.questions++
	answer := cloud.OperationStatus{RetryAfter: time.Duration(s.questions)}
	select {
	case <-time.After(300 * time.Millisecond):
		return answer, false, s.err
	case <-ctx.Done():
		return cloud.OperationStatus{}, false, context.Cause(ctx)
	}
}

// readConcurrently reads a status with ten concurrent callers and returns how many got an error.
func readConcurrently(ctx context.Context, reads *statusCache, s *slowStatus) (failed int) {
	var group sync.WaitGroup
	errs := make([]error, 10)
	for i := range errs {
		group.Go(func() { _, _, errs[i] = reads.get(ctx, "operation", s.ask) })
	}
	group.Wait()
	for _, err := range errs {
		if err != nil {
			failed++
		}
	}
	return failed
}

func TestConcurrentReadsOfAnOperationShareAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowStatus{}
		reads := &statusCache{maxAge: maxStatusAge}
		want := func(questions int) {
			t.Helper()
			must.Not(t, s.questions != questions, "%d requests, want %d", s.questions, questions)
		}
		if failed := readConcurrently(t.Context(), reads, s); failed > 0 {
			t.Fatalf("%d of the callers failed", failed)
		}
		want(1)
		time.Sleep(maxStatusAge / 2)
		if got, _, err := reads.get(t.Context(), "operation", s.ask); err != nil || got.RetryAfter != 1 {
			t.Fatalf("%v, %v", got, err)
		}
		want(1)
		if _, _, err := reads.get(t.Context(), "another operation", s.ask); err != nil {
			t.Fatal(err)
		}
		want(2)
		time.Sleep(maxStatusAge / 2)
		if got, _, err := reads.get(t.Context(), "operation", s.ask); err != nil || got.RetryAfter != 3 {
			t.Fatalf("%v, %v: want a new response after %s", got, err, maxStatusAge)
		}

		s.err = errors.New("unavailable")
		time.Sleep(maxStatusAge)
		if failed := readConcurrently(t.Context(), reads, s); failed != 10 {
			t.Fatalf("%d of 10 callers failed, want all that waited for the failed read", failed)
		}
		want(4)
		s.err = nil
		if failed := readConcurrently(t.Context(), reads, s); failed > 0 {
			t.Fatalf("%d callers got an error of an earlier read", failed)
		}
		want(5)
	})
}

func TestCancelledCallerFailsNoOtherRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowStatus{}
		reads := &statusCache{maxAge: maxStatusAge}
		leaves, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		var group sync.WaitGroup
		group.Go(func() {
			if _, _, err := reads.get(leaves, "operation", s.ask); err == nil {
				t.Error("the cancelled caller got a result")
			}
		})
		synctest.Wait()
		group.Go(func() {
			if _, _, err := reads.get(leaves, "operation", s.ask); err == nil {
				t.Error("a waiting caller got a result after its deadline")
			}
		})
		failed := readConcurrently(t.Context(), reads, s)
		check.Not(t, failed > 0, "%d callers got the error of a cancelled one", failed)
		group.Wait()
		check.Is(t, 2, s.questions)

		time.Sleep(statusEntryTTL)
		if reads.getOrCreateEntry("another operation", time.Now()); len(reads.byURL) != 1 {
			t.Errorf("%d cached URLs, want 1", len(reads.byURL))
		}
	})
}

func TestInstancesOfOneDeletionShareItsStatus(t *testing.T) {
	questions := 0
	p := newTestProvider(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/operation" {
			questions++
			fmt.Fprint(w, `{"status":"Succeeded"}`)
			return
		}
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"error":{"code":"ResourceNotFound","message":"gone"}}`)
	})
	p.statuses.maxAge = maxStatusAge
	for i := range 3 {
		id := fmt.Sprintf("azure:///subscriptions/%s/resourceGroups/demo/providers/Microsoft.Compute/virtualMachineScaleSets/ci/virtualMachines/%d",
			subscriptionID, i)
		op := operation{URL: "https://" + p.clients.armHost + "/operation", Machine: id}.toCloudOperation(time.Now())
		status, err := p.Status(t.Context(), op)
		must.Not(t, err != nil || !status.Done || status.Err != nil, "%+v, %v", status, err)
	}
	check.Not(t, questions != 1, "the operation was read %d times, want once", questions)
}

func TestDeletionReusesARecentReadOnce(t *testing.T) {
	const id = "/subscriptions/" + subscriptionID + "/resourceGroups/demo/providers/Microsoft.Compute/virtualMachineScaleSets/ci/virtualMachines/0"
	reads, gone := 0, false
	p := newTestProvider(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			w.WriteHeader(http.StatusOK)
			return
		}
		if strings.HasSuffix(r.URL.Path, "/virtualMachines/0") {
			reads++
		}
		w.Header().Set("Content-Type", "application/json")
		if gone {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"error":{"code":"ResourceNotFound","message":"gone"}}`)
			return
		}
		fmt.Fprintf(w, `{"id":%q,"name":"ci_0","instanceId":"0","properties":{"provisioningState":"Succeeded","vmId":"v",
			"timeCreated":"2026-01-02T03:04:05Z","osProfile":{"computerName":"ci000000"}}}`, id)
	})
	begin := func(want int, doing string) {
		t.Helper()
		before := reads
		if _, err := p.Delete(t.Context(), "azure://"+id); err != nil || reads-before != want {
			t.Errorf("%s: %d reads, %v; want %d", doing, reads-before, err, want)
		}
	}
	look := func() {
		t.Helper()
		must.NoError(t, check.Err(p.Instance(t.Context(), "azure://"+id)))
	}
	begin(1, "not read before")
	look()
	begin(0, "read recently")
	begin(1, "read already used")
	look()
	expire := func() {
		for key, r := range p.recentReads {
			r.readAt = time.Now().Add(-maxReadAge)
			p.recentReads[key] = r
		}
	}
	expire()
	begin(1, "read expired")

	findGone := func() {
		t.Helper()
		gone = true
		if status, err := p.deletionStatus(t.Context(), "azure://"+id, nil); err != nil || !status.Done || status.Err != nil {
			t.Fatalf("%+v, %v", status, err)
		}
	}
	before := reads
	findGone()
	for _, want := range []int{1, 2} { // the cached error is used once
		if _, err := p.Instance(t.Context(), "azure://"+id); !cloud.IsNotFound(err) || reads-before != want {
			t.Errorf("%d reads, %v; want %d", reads-before, err, want)
		}
	}

	findGone()
	expire()
	gone = false // another instance has the same ID
	look()
}

func TestI7DeallocateModeIsReadAgain(t *testing.T) {
	const id = "/subscriptions/" + subscriptionID + "/resourceGroups/demo/providers/Microsoft.Compute/virtualMachineScaleSets/ci/virtualMachines/0"
	mode := "Delete"
	p := newTestProvider(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasSuffix(r.URL.Path, "/machines"):
			fmt.Fprintf(w, `{"value":[{"name":"ci-0","properties":{"resourceId":%q}}]}`, id)
		case strings.HasSuffix(r.URL.Path, "/agentPools/ci"):
			fmt.Fprintf(w, `{"properties":{"count":1,"scaleDownMode":%q}}`, mode)
		default:
			fmt.Fprintf(w, `{"id":%q,"name":"ci_0","instanceId":"0","properties":{"provisioningState":"Succeeded","vmId":"v"}}`, id)
		}
	}, GroupConfig{Name: "ci", ResourceGroup: "demo", Cluster: "demo", AgentPool: "ci"})
	want := func(protected bool) {
		t.Helper()
		m, err := p.Instance(t.Context(), "azure://"+id)
		check.Not(t, err != nil || m.DeletionProtected != protected, "%+v, %v; want it protected: %t", m, err, protected)
	}
	want(false)
	mode = "Deallocate"
	want(false) // from the cache
	for key, r := range p.poolProtections {
		r.readAt = time.Now().Add(-poolProtectionTTL)
		p.poolProtections[key] = r
	}
	want(true)
}

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
			check.Not(t, !tc.held && missing.String() != actionDeleteInstances+" on /s", "missing %q", missing)
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
			check.Is(t, 1, len(c.scopes))
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
