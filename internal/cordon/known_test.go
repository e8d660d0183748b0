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

// asked gives the requests since the last call.
func (f *fixture) asked() []string {
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	all := f.server.requests
	f.server.requests = nil
	return all
}

func (f *fixture) wantAsked(situation string, want ...string) {
	f.t.Helper()
	if got := f.asked(); !slices.Equal(got, want) {
		f.t.Errorf("%s: asked %q, want %q", situation, got, want)
	}
}

func TestRecentlySeenNodeIsNotReadAgain(t *testing.T) {
	f := newFixture(t)
	f.keeper.See(f.server.read())
	f.asked()
	f.hold(alice, everything())
	f.wantAsked("seen", patch, patchStatus)
	f.release(alice)
	f.wantAsked("not seen since", get, patchStatus, patch)
}

func TestCachedNodeNeverOverridesTheAPIServer(t *testing.T) {
	t.Run("when it is old", func(t *testing.T) {
		f := newFixture(t)
		old := f.server.read()
		f.server.foreignTaint("example.com/team", "NoExecute", "blue")
		f.keeper.See(old)
		f.asked()
		f.hold(alice, everything())
		f.wantAsked("an old state", patch, get, patch, patchStatus)
		if n := f.server.read(); len(n.Spec.Taints) != 2 {
			t.Errorf("taints %v: want somebody's beside ours", n.Spec.Taints)
		}
	})
	t.Run("when nothing seems left to do", func(t *testing.T) {
		f := newFixture(t)
		f.hold(alice, everything())
		held := f.server.read()
		f.server.foreignCordon(false)
		f.keeper.See(held)
		if o := f.hold(alice, everything()); !o.Uncordoned || !f.server.read().Spec.Unschedulable {
			t.Errorf("%+v: want it cordoned again", o)
		}
	})
	t.Run("when there seems to be no record", func(t *testing.T) {
		f := newFixture(t)
		was := f.server.read()
		f.hold(alice, everything())
		f.keeper.See(was)
		f.release(alice)
		f.same(was)
	})
	t.Run("when it is another node", func(t *testing.T) {
		f := newFixture(t)
		f.keeper.See(&kubeapi.Node{ObjectMeta: kubeapi.ObjectMeta{Name: nodeName, UID: "another"}})
		f.asked()
		f.hold(alice, everything())
		f.wantAsked("another", get, patch, patchStatus)
	})
}

func TestI3LateConditionsAreClaimedAndRemoved(t *testing.T) {
	f := newFixture(t)
	was := f.server.read()
	later := everything()
	later.Later = true
	f.asked()
	f.hold(alice, later)
	f.wantAsked("later", get, patch)
	records, _ := List(f.server.read())
	if len(records) != 1 || len(records[0].Conditions) != 1 || len(f.server.read().Status.Conditions) != 1 {
		t.Fatalf("records %+v: want the condition claimed and not set", records)
	}
	f.hold(alice, later)
	f.wantAsked("later, again", get)
	f.hold(alice, everything())
	f.wantAsked("now", get, patchStatus)
	if c := f.server.read().Status.Conditions; len(c) != 2 || c[1].Type != DrainInProgress {
		t.Errorf("conditions %+v", c)
	}
	f.release(alice)
	f.same(was)
}

// oldAnswers answers a few reads with what the node was before.
type oldAnswers struct {
	API
	old  *kubeapi.Node
	left int
}

func (a *oldAnswers) GetNode(ctx context.Context, name string) (*kubeapi.Node, error) {
	if a.left == 0 {
		return a.API.GetNode(ctx, name)
	}
	a.left--
	return a.old, nil
}

func TestI3OldAnswerLeavesNoClaimOnTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		was := f.server.read()
		held := f.hold(alice, everything()).Node
		f.server.foreignTaint("example.com/team", "NoExecute", "blue") // so that what is known of the node conflicts
		api := &oldAnswers{API: f.keeper.api, old: was, left: 3}
		f.keeper.api = api
		f.keeper.See(held)
		f.release(alice)
		if records, _ := List(f.server.read()); len(records) != 0 || f.server.read().Spec.Unschedulable {
			t.Errorf("records %+v on a node that is cordoned: %t, want none", records, f.server.read().Spec.Unschedulable)
		}
		f.hold(alice, everything())
		api.left = 1000
		f.keeper.See(f.server.read())
		f.server.foreignTaint("example.com/team", "NoSchedule", "red")
		check.ErrorContains(t, check.Err(f.keeper.Release(t.Context(), alice)), "was seen before")
	})
}
