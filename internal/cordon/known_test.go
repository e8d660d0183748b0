package cordon

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

const (
	get         = "GET /api/v1/nodes/" + nodeName
	patch       = "PATCH /api/v1/nodes/" + nodeName
	patchStatus = patch + "/status"
)

// requestsSince returns the requests since the last call.
func (f *fixture) requestsSince() []string {
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	all := f.server.requests
	f.server.requests = nil
	return all
}

func (f *fixture) wantRequests(situation string, want ...string) {
	f.t.Helper()
	if got := f.requestsSince(); !slices.Equal(got, want) {
		f.t.Errorf("%s: requests %q, want %q", situation, got, want)
	}
}

func TestRecentlySeenNodeIsNotReadAgain(t *testing.T) {
	f := newFixture(t)
	f.claimWriter.ObserveNode(f.server.currentNode())
	f.requestsSince()
	f.writeClaim(alice, fullRequest())
	f.wantRequests("seen", patch, patchStatus)
	f.removeClaim(alice)
	f.wantRequests("not seen since", get, patchStatus, patch)
}

func TestCachedNodeNeverOverridesTheAPIServer(t *testing.T) {
	t.Run("when it is old", func(t *testing.T) {
		f := newFixture(t)
		old := f.server.currentNode()
		f.server.foreignTaint("example.com/team", "NoExecute", "blue")
		f.claimWriter.ObserveNode(old)
		f.requestsSince()
		f.writeClaim(alice, fullRequest())
		f.wantRequests("an old state", patch, get, patch, patchStatus)
		if n := f.server.currentNode(); len(n.Spec.Taints) != 2 {
			t.Errorf("taints %v: want the foreign taint and ours", n.Spec.Taints)
		}
	})
	t.Run("when nothing seems left to do", func(t *testing.T) {
		f := newFixture(t)
		f.writeClaim(alice, fullRequest())
		held := f.server.currentNode()
		f.server.foreignCordon(false)
		f.claimWriter.ObserveNode(held)
		if o := f.writeClaim(alice, fullRequest()); !o.WasUncordoned || !f.server.currentNode().Spec.Unschedulable {
			t.Errorf("%+v: want it cordoned again", o)
		}
	})
	t.Run("when there seems to be no record", func(t *testing.T) {
		f := newFixture(t)
		was := f.server.currentNode()
		f.writeClaim(alice, fullRequest())
		f.claimWriter.ObserveNode(was)
		f.removeClaim(alice)
		f.wantUnchanged(was)
	})
	t.Run("when it is another node", func(t *testing.T) {
		f := newFixture(t)
		f.claimWriter.ObserveNode(&kubeapi.Node{ObjectMeta: kubeapi.ObjectMeta{Name: nodeName, UID: "another"}})
		f.requestsSince()
		f.writeClaim(alice, fullRequest())
		f.wantRequests("another", get, patch, patchStatus)
	})
}

func TestI3DeferredConditionsAreRecordedAndRemoved(t *testing.T) {
	f := newFixture(t)
	was := f.server.currentNode()
	later := fullRequest()
	later.DeferConditions = true
	f.requestsSince()
	f.writeClaim(alice, later)
	f.wantRequests("later", get, patch)
	records, _ := ListRecords(f.server.currentNode())
	if len(records) != 1 || len(records[0].Conditions) != 1 || len(f.server.currentNode().Status.Conditions) != 1 {
		t.Fatalf("records %+v: want the condition recorded but not set", records)
	}
	f.writeClaim(alice, later)
	f.wantRequests("later, again", get)
	f.writeClaim(alice, fullRequest())
	f.wantRequests("now", get, patchStatus)
	if c := f.server.currentNode().Status.Conditions; len(c) != 2 || c[1].Type != DrainInProgress {
		t.Errorf("conditions %+v", c)
	}
	f.removeClaim(alice)
	f.wantUnchanged(was)
}

// staleAPI answers a few reads with an earlier state of the node.
type staleAPI struct {
	API
	old  *kubeapi.Node
	left int
}

func (a *staleAPI) GetNode(ctx context.Context, name string) (*kubeapi.Node, error) {
	if a.left == 0 {
		return a.API.GetNode(ctx, name)
	}
	a.left--
	return a.old, nil
}

func TestI3StaleReadLeavesNoClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		was := f.server.currentNode()
		held := f.writeClaim(alice, fullRequest()).Node
		f.server.foreignTaint("example.com/team", "NoExecute", "blue") // so the cached node conflicts
		api := &staleAPI{API: f.claimWriter.api, old: was, left: 3}
		f.claimWriter.api = api
		f.claimWriter.ObserveNode(held)
		f.removeClaim(alice)
		if records, _ := ListRecords(f.server.currentNode()); len(records) != 0 || f.server.currentNode().Spec.Unschedulable {
			t.Errorf("records %+v on a node that is cordoned: %t, want none", records, f.server.currentNode().Spec.Unschedulable)
		}
		f.writeClaim(alice, fullRequest())
		api.left = 1000
		f.claimWriter.ObserveNode(f.server.currentNode())
		f.server.foreignTaint("example.com/team", "NoSchedule", "red")
		check.ErrorContains(t, check.Err(f.claimWriter.RemoveClaim(t.Context(), alice)), "seen before")
	})
}
