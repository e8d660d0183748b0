package cordon

import (
	"slices"
	"testing"

	"github.com/slipway-dev/slipway/internal/kubeapi"
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

func TestANodeThatWasJustSeenIsNotReadAgain(t *testing.T) {
	f := newFixture(t)
	f.keeper.See(f.server.read())
	f.asked()
	f.hold(alice, everything())
	f.wantAsked("seen", patch, patchStatus)
	f.release(alice)
	f.wantAsked("not seen since", get, patchStatus, patch)
}

func TestWhatWasSeenIsNeverBelievedAgainstTheAPIServer(t *testing.T) {
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

func TestI3ConditionsThatComeLaterAreClaimedAtOnceAndTakenAwayInTheEnd(t *testing.T) {
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
