package retirement

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

func recordOf(name, version string, phase v1alpha1.Phase) *v1alpha1.NodeRetirement {
	rt := &v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: version}}
	rt.Spec.NodeName = "node-" + name
	rt.Status.Phase = phase
	rt.Status.Captured = &v1alpha1.Captured{Group: "ci", NodeUID: types.UID("uid-of-" + rt.Spec.NodeName)}
	return rt
}

// Found by schedule 302 of dev/e2e/retirement: two nodes were retired at once although the budget was one, since the list
// of retirements was of before the first one's admission.
func TestI5ARetirementThatWasAdmittedCountsThoughTheAPIServerLagsBehind(t *testing.T) {
	k := newKnowledge()
	a, b := recordOf("a", "10", v1alpha1.Pending), recordOf("b", "11", v1alpha1.Pending)
	k.admit(a)
	if got := k.leaving(b); len(got) != 1 || got[0].node != "node-a" || got[0].group != "ci" {
		t.Errorf("leaving %v, want node-a of group ci", got)
	}
	if got := k.leaving(a); len(got) != 0 {
		t.Errorf("%v keeps the one that asks waiting, which is itself", got)
	}
	k.read(recordOf("a", "12", v1alpha1.Draining))
	if len(k.leaving(b)) != 1 {
		t.Error("a retirement under way does not count any more")
	}
	k.wrote(recordOf("a", "13", v1alpha1.Succeeded))
	if got := k.leaving(b); len(got) != 0 {
		t.Errorf("%v counts, and is over", got)
	}
	k.admit(b)
	k.forget("b")
	if got := k.leaving(a); len(got) != 0 {
		t.Errorf("%v counts, and its record is gone", got)
	}
}

func TestI5ANodeThatWeDeletedDoesNotMakeItsGroupLargerThoughACacheHasIt(t *testing.T) {
	k := newKnowledge()
	k.depart("uid-of-ours")
	gone := k.gone([]v1alpha1.NodeRetirement{
		*recordOf("draining", "1", v1alpha1.Draining), *recordOf("deleted", "2", v1alpha1.NodeDeleted),
		*recordOf("done", "3", v1alpha1.Succeeded), *recordOf("aborted", "4", v1alpha1.Aborted),
	})
	for uid, want := range map[types.UID]bool{
		"uid-of-ours": true, "uid-of-node-deleted": true, "uid-of-node-done": true,
		"uid-of-node-draining": false, "uid-of-node-aborted": false, "uid-of-another": false,
	} {
		if gone[uid] != want {
			t.Errorf("%s is taken for gone: %t, want %t", uid, gone[uid], want)
		}
	}
}

func TestI8ARecordOlderThanOneMetBeforeIsNotActedOn(t *testing.T) {
	k := newKnowledge()
	for _, step := range []struct {
		version string
		fresh   bool
	}{{"9", true}, {"10", true}, {"9", false}, {"10", true}, {"not a number", true}} {
		if got := k.read(recordOf("a", step.version, v1alpha1.Draining)); got != step.fresh {
			t.Errorf("version %s after 10 is fresh: %t, want %t", step.version, got, step.fresh)
		}
	}
	k.wrote(recordOf("a", "20", v1alpha1.Aborted))
	if k.read(recordOf("a", "19", v1alpha1.Draining)) {
		t.Error("a record of before our own write is acted on")
	}
}

// listed answers every list with none, of one version.
type listed struct {
	client.Reader
	version string
}

func (l listed) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.SetResourceVersion(l.version)
	return nil
}

func TestI7AListOlderThanOurOwnLastWriteIsNoAnswer(t *testing.T) {
	for version, fresh := range map[string]bool{"41": false, "42": true, "43": true, "": true} {
		c := New(Options{Live: listed{version: version}})
		c.known.wrote(recordOf("other", "42", v1alpha1.Draining))
		_, err := (&passage{c: c, rt: recordOf("a", "40", v1alpha1.Pending)}).allRecords(t.Context())
		if (err == nil) != fresh {
			t.Errorf("a list of version %q: %v, want it taken: %t", version, err, fresh)
		}
		if err != nil && isWaiting(err) == nil {
			t.Errorf("%v is a failure, want another look soon", err)
		}
	}
}

// TestARecordThatStaysOlderThanItWasIsLookedAtSeldomAndSaidOnce sets the API server back, as a restored etcd does.
func TestARecordThatStaysOlderThanItWasIsLookedAtSeldomAndSaidOnce(t *testing.T) {
	s := ci(t)
	s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
	c := s.controller(t)
	var said bytes.Buffer
	c.o.Log = slog.New(slog.NewTextHandler(&said, nil))
	c.known.read(recordOf("r", "1000000", v1alpha1.Pending))
	var pauses []time.Duration
	for range 30 {
		result, err := c.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "r"}})
		if err != nil {
			t.Fatal(err)
		}
		pauses = append(pauses, result.RequeueAfter)
	}
	if pauses[0] != freshLook || pauses[29] != c.o.Pace.Poll || !slices.IsSorted(pauses) {
		t.Errorf("pauses %v", pauses)
	}
	if n := strings.Count(said.String(), "retirement=r"); n != 1 {
		t.Errorf("said %d times: %s", n, said.String())
	}
}
