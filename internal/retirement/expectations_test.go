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

func newRecord(name, version string, phase v1alpha1.Phase) *v1alpha1.NodeRetirement {
	rt := &v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: version}}
	rt.Spec.NodeName = "node-" + name
	rt.Status.Phase = phase
	rt.Status.Captured = &v1alpha1.Captured{Group: "ci", NodeUID: types.UID("uid-of-" + rt.Spec.NodeName)}
	return rt
}

// Found by schedule 302 of dev/e2e/retirement: two nodes were retired at once although the disruption budget was one.
// The list of retirements was older than the first admission.
func TestI5AdmissionCountsDespiteStaleAPIServer(t *testing.T) {
	k := newExpectations()
	a, b := newRecord("a", "10", v1alpha1.Pending), newRecord("b", "11", v1alpha1.Pending)
	k.addAdmission(a)
	if got := k.otherAdmissions(b); len(got) != 1 || got[0].node != "node-a" || got[0].group != "ci" {
		t.Errorf("admissions %v, want node-a of group ci", got)
	}
	if got := k.otherAdmissions(a); len(got) != 0 {
		t.Errorf("%v blocks the retirement itself", got)
	}
	k.recordReadUnlessStale(newRecord("a", "12", v1alpha1.Draining))
	if len(k.otherAdmissions(b)) != 1 {
		t.Error("an unfinished retirement does not count any more")
	}
	k.recordWrite(newRecord("a", "13", v1alpha1.Succeeded))
	if got := k.otherAdmissions(b); len(got) != 0 {
		t.Errorf("%v counts, and is finished", got)
	}
	k.addAdmission(b)
	k.forgetRetirement("b")
	if got := k.otherAdmissions(a); len(got) != 0 {
		t.Errorf("%v counts, and its record is deleted", got)
	}
}

func TestI5DeletedNodeInCacheIsNotCounted(t *testing.T) {
	k := newExpectations()
	k.recordNodeDeleted("uid-of-ours")
	gone := k.deletedNodeUIDs([]v1alpha1.NodeRetirement{
		*newRecord("draining", "1", v1alpha1.Draining), *newRecord("deleted", "2", v1alpha1.NodeDeleted),
		*newRecord("done", "3", v1alpha1.Succeeded), *newRecord("aborted", "4", v1alpha1.Aborted),
	})
	for uid, want := range map[types.UID]bool{
		"uid-of-ours": true, "uid-of-node-deleted": true, "uid-of-node-done": true,
		"uid-of-node-draining": false, "uid-of-node-aborted": false, "uid-of-another": false,
	} {
		if gone[uid] != want {
			t.Errorf("%s counts as gone: %t, want %t", uid, gone[uid], want)
		}
	}
}

func TestI8OlderRecordVersionIsIgnored(t *testing.T) {
	k := newExpectations()
	for _, step := range []struct {
		version string
		fresh   bool
	}{{"9", true}, {"10", true}, {"9", false}, {"10", true}, {"not a number", true}} {
		if got := k.recordReadUnlessStale(newRecord("a", step.version, v1alpha1.Draining)); got != step.fresh {
			t.Errorf("version %s after 10 is fresh: %t, want %t", step.version, got, step.fresh)
		}
	}
	k.recordWrite(newRecord("a", "20", v1alpha1.Aborted))
	if k.recordReadUnlessStale(newRecord("a", "19", v1alpha1.Draining)) {
		t.Error("a record older than our own write is used")
	}
}

// emptyListReader answers every list with an empty one of the same version.
type emptyListReader struct {
	client.Reader
	version string
}

func (l emptyListReader) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.SetResourceVersion(l.version)
	return nil
}

func TestI7ListOlderThanOwnWriteIsRejected(t *testing.T) {
	for version, fresh := range map[string]bool{"41": false, "42": true, "43": true, "": true} {
		c := New(Options{LiveReader: emptyListReader{version: version}})
		c.expectations.recordWrite(newRecord("other", "42", v1alpha1.Draining))
		_, err := (&retirementScope{controller: c, rt: newRecord("a", "40", v1alpha1.Pending)}).listRetirementsLive(t.Context())
		if (err == nil) != fresh {
			t.Errorf("a list of version %q: %v, want it accepted: %t", version, err, fresh)
		}
		if err != nil && asWaitError(err) == nil {
			t.Errorf("%v is a failure, want a requeue soon", err)
		}
	}
}

// TestPersistentlyStaleRecordIsPolledRarelyAndWarnedOnce sets the API server back, as a restored etcd does.
func TestPersistentlyStaleRecordIsPolledRarelyAndWarnedOnce(t *testing.T) {
	s := newGroupOfTwo(t)
	s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
	c := s.newController(t)
	var said bytes.Buffer
	c.options.Log = slog.New(slog.NewTextHandler(&said, nil))
	c.expectations.recordReadUnlessStale(newRecord("r", "1000000", v1alpha1.Pending))
	var pauses []time.Duration
	for range 30 {
		result, err := c.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "r"}})
		if err != nil {
			t.Fatal(err)
		}
		pauses = append(pauses, result.RequeueAfter)
	}
	if pauses[0] != requeueSoon || pauses[29] != c.options.Intervals.Poll || !slices.IsSorted(pauses) {
		t.Errorf("pauses %v", pauses)
	}
	if n := strings.Count(said.String(), "retirement=r"); n != 1 {
		t.Errorf("warned %d times: %s", n, said.String())
	}
}
