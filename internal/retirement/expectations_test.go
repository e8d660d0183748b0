package retirement

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
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
	check.Len(t, 0, k.otherAdmissions(a))
	k.recordReadUnlessStale(newRecord("a", "12", v1alpha1.Draining))
	check.Is(t, 1, len(k.otherAdmissions(b)))
	k.recordWrite(newRecord("a", "13", v1alpha1.Succeeded))
	check.Len(t, 0, k.otherAdmissions(b))
	k.addAdmission(b)
	k.forgetRetirement("b")
	check.Len(t, 0, k.otherAdmissions(a))
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
		check.Is(t, want, gone[uid], uid)
	}
}

func TestI8OlderRecordVersionIsIgnored(t *testing.T) {
	k := newExpectations()
	for _, step := range []struct {
		version string
		fresh   bool
	}{{"9", true}, {"10", true}, {"9", false}, {"10", true}, {"not a number", true}} {
		got := k.recordReadUnlessStale(newRecord("a", step.version, v1alpha1.Draining))
		check.Not(t, got != step.fresh, "version %s after 10 is fresh: %t, want %t", step.version, got, step.fresh)
	}
	k.recordWrite(newRecord("a", "20", v1alpha1.Aborted))
	check.Not(t, k.recordReadUnlessStale(newRecord("a", "19", v1alpha1.Draining)), "a record older than our own write is used")
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
		check.Not(t, (err == nil) != fresh, "a list of version %q: %v, want it accepted: %t", version, err, fresh)
		check.Not(t, err != nil && asWaitError(err) == nil, "%v is a failure, want a requeue soon", err)
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
		result := must.Get(c.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "r"}}))(t)
		pauses = append(pauses, result.RequeueAfter)
	}
	check.Not(t, pauses[0] != requeueSoon || pauses[29] != c.options.Intervals.Poll || !slices.IsSorted(pauses), "pauses %v", pauses)
	if n := strings.Count(said.String(), "retirement=r"); n != 1 {
		t.Errorf("warned %d times: %s", n, said.String())
	}
}

// freezeCachedNode keeps the current state of the Node a in the cache.
func (s *sim) freezeCachedNode() {
	was := s.getNode("a")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.staleNode = func(n *corev1.Node) *corev1.Node {
		if n != nil && n.Name == "a" {
			return was
		}
		return n
	}
}

// unfreezeCache makes the cache up to date again.
func (s *sim) unfreezeCache() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.staleNode = nil
}

func TestI6OtherToolMissingInCacheKeepsNode(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.addPod("a", "web", nil)
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		s.interceptRequests(func(moment, request string) error {
			if moment == "after" && request == "evict" {
				s.freezeCachedNode()
				s.changeNode("a", withTaint("ToBeDeletedByClusterAutoscaler"))
				time.AfterFunc(time.Minute, s.unfreezeCache)
			}
			return nil
		})
		rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Aborted || EarlyEndCode(rt) != BeingRemoved || len(s.violations) > 0 {
			t.Errorf("%s: %s, %v", rt.Status.Phase, rt.Status.Message, s.violations)
		}
	})
}

func TestI7UnreadyCachedNodeIsNoProof(t *testing.T) {
	for name, drains := range map[string]bool{"at first": false, "while it is drained": true} {
		t.Run(name, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			s.addPod("a", "web", func(p *simPod) { p.evictionDenied = drains })
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
			c := s.newController(t)
			if drains {
				s.reconcileUntilDone(ctx, c, "r", time.Minute)
			}
			s.makeNodeUnready("a")
			s.freezeCachedNode()
			s.reviveNode("a")
			lost := s.instances["sim://a"]
			s.removeInstance("a") // its cloud does not find it for a while
			s.reconcileUntilDone(ctx, c, "r", time.Minute)
			if rt := s.getRetirement("r"); rt.Status.InstanceGone {
				t.Errorf("counts as gone: %s: %s", rt.Status.Phase, rt.Status.Message)
			}
			s.mu.Lock()
			s.instances["sim://a"] = lost
			s.allowEvictions()
			s.mu.Unlock()
			s.unfreezeCache()
			if rt := s.reconcileUntilDone(ctx, c, "r", 3*time.Hour); hasOutOfServiceTaint(mustToKubeapi(s.getNodeOrEmpty("a"))) || len(s.violations) > 0 {
				t.Errorf("%s: %s, %v", rt.Status.Phase, rt.Status.Message, s.violations)
			}
		}))
	}
}

func (s *sim) getNodeOrEmpty(name string) *corev1.Node {
	if n := s.getNode(name); n != nil {
		return n
	}
	return &corev1.Node{}
}

// TestI7NodeMissingInCacheIsNotGone uses an empty cache, and one with the Node's predecessor.
func TestI7NodeMissingInCacheIsNotGone(t *testing.T) {
	for name, stale := range map[string]func(*corev1.Node) *corev1.Node{
		"nothing": func(*corev1.Node) *corev1.Node { return nil },
		"another Node of the same name": func(n *corev1.Node) *corev1.Node {
			if n == nil {
				return nil
			}
			n = n.DeepCopy()
			n.UID, n.Spec.ProviderID = "earlier", "sim://earlier"
			return n
		},
	} {
		t.Run(name, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			s.addPod("a", "web", nil)
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", NodeUID: s.getNode("a").UID})
			s.staleNode = stale
			rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
			requirePhase(t, rt, v1alpha1.Succeeded)
			s.checkRetired(t, "a")
		}))
	}
}

// TestChangedRecordStopsIrreversibleSteps cancels a retirement while the cache lags.
func TestChangedRecordStopsIrreversibleSteps(t *testing.T) {
	s := newGroupOfTwo(t)
	s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
	c := s.newController(t)
	read := s.getRetirement("r")
	if err := c.newScope(read).confirmRetirementUnchanged(t.Context()); err != nil {
		t.Errorf("it has not changed: %v", err)
	}
	changed := read.DeepCopy()
	changed.Annotations = map[string]string{"by": "user"}
	must.NoError(t, s.retirements.Update(t.Context(), changed))
	if err := c.newScope(read).confirmRetirementUnchanged(t.Context()); !apierrors.IsConflict(err) {
		t.Errorf("it has changed: %v", err)
	}
	must.NoError(t, s.retirements.Delete(t.Context(), changed))
	if err := c.newScope(changed).confirmRetirementUnchanged(t.Context()); !apierrors.IsConflict(err) {
		t.Errorf("it is gone: %v", err)
	}
}

func TestI6OtherToolDuringCordonKeepsNode(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.removeInstance("a")
		s.makeNodeUnready("a")
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		var once sync.Once
		s.interceptRequests(func(moment, request string) error {
			if moment == "before" && request == "patch node" {
				once.Do(func() { s.changeNode("a", withTaint("ToBeDeletedByClusterAutoscaler")) })
			}
			return nil
		})
		rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Aborted || EarlyEndCode(rt) != BeingRemoved || len(s.violations) > 0 {
			t.Errorf("%s: %s, %v", rt.Status.Phase, rt.Status.Message, s.violations)
		}
	})
}

// TestI3LateCancellationKeepsNode hides the cancellation in the cache right before the Node is deleted.
func TestI3LateCancellationKeepsNode(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		changed, cancelled := false, false
		s.interceptRequests(func(moment, request string) error {
			switch {
			case moment == "before" && request == "delete node" && !changed: // ends the reconcile that wrote Drained
				changed = true
				s.changeNode("a", addAnnotation("example.com/by", "user"))
			case moment == "after" && request == "cached get *v1alpha1.NodeRetirement" && changed && !cancelled:
				cancelled = true
				return s.retirements.Delete(ctx, s.getRetirement("r"))
			}
			return nil
		})
		rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
		n := s.getNode("a")
		must.Not(t, !cancelled || rt != nil || n == nil || n.Spec.Unschedulable, "cancelled: %t, record %+v, Node %+v", cancelled, rt, n)
		check.NoError(t, checkRestored(n))
	})
}

func TestI1ProtectedPodAfterDrainKeepsNode(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.addPod("a", "web", nil)
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		var once sync.Once
		s.interceptRequests(func(moment, request string) error {
			if moment == "after" && request == "evict" { // the drain ends after 5 s, and its result is read 10 s after its start
				once.Do(func() { time.AfterFunc(7*time.Second, func() { s.addPod("a", "precious", protectedPod) }) })
			}
			return nil
		})
		rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
		requirePhase(t, rt, v1alpha1.Aborted, ProtectedPod)
		s.checkNodeRestored(t, "a")
	})
}

func TestI5DeletedNodeInCacheIsUnavailable(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.groups[0].Spec.MinSize = 1
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.newController(t)
		c.expectations.recordNodeDeleted(string(s.getNode("b").UID)) // the list of Nodes still has it
		rt := s.reconcileUntilDone(ctx, c, "r", time.Minute)
		check.Not(t, rt.Status.Phase != v1alpha1.Pending || IsInFlight(rt), "%s: %s", rt.Status.Phase, rt.Status.Message)
	})
}

// TestI5PendingAdmissionCountsAgainstBudget starts a second retirement while the pods of the first node are listed. The
// first is then refused for one of them.
func TestI5PendingAdmissionCountsAgainstBudget(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.addPod("a", "precious", protectedPod)
		s.createRetirement(t, "first", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Idle})
		s.createRetirement(t, "second", v1alpha1.NodeRetirementSpec{NodeName: "b", Reason: v1alpha1.Idle})
		c := s.newController(t)
		var once sync.Once
		var lists atomic.Int32 // the drains list pods too
		s.interceptRequests(func(moment, request string) error {
			if moment == "before" && request == "list pods" {
				lists.Add(1)
				once.Do(func() {
					s.reconcileOnce(ctx, c, "second")
					if rt := s.getRetirement("second"); rt.Status.Phase != v1alpha1.Pending || rt.Status.Reasons[0].Code != "DisruptionBudget" || lists.Load() != 1 {
						t.Errorf("the second is %s: %+v, after %d lists of pods; want it to wait for the budget", rt.Status.Phase, rt.Status.Reasons, lists.Load())
					}
				})
			}
			return nil
		})
		requirePhase(t, s.reconcileUntilDone(ctx, c, "first", time.Hour), v1alpha1.Refused)
		requirePhase(t, s.reconcileUntilDone(ctx, c, "second", time.Hour), v1alpha1.Succeeded)
	})
}
