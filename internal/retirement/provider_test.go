package retirement

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/cloudtest"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// otherCloud recognizes every ID of the sim, as a pool without a scope does, but has its own instances.
type otherCloud struct {
	simCloud
	name      string
	machines  map[string]cloud.Instance
	err       error // instead of any answer
	normalize error
	deleted   []string
}

func (c *otherCloud) Name() string { return c.name }

func (c *otherCloud) Normalize(id string) (string, error) { return id, c.normalize }

func (c *otherCloud) Instance(_ context.Context, id string) (cloud.Instance, error) {
	i, ok := c.machines[id]
	switch {
	case c.err != nil:
		return cloud.Instance{}, c.err
	case !ok:
		return cloud.Instance{}, &cloud.NotFoundError{Kind: "instance", Name: id}
	}
	return i, nil
}

func (c *otherCloud) Delete(ctx context.Context, id string) (cloud.Operation, error) {
	c.deleted = append(c.deleted, id)
	delete(c.machines, id)
	return c.simCloud.Delete(ctx, id)
}

// addOtherClouds adds two clouds that recognize the sim's IDs, one before it in the order of names and one after.
func addOtherClouds(s *sim, c *Controller) (before, after *otherCloud) {
	before = &otherCloud{simCloud: simCloud{s}, name: "pool"}
	after = &otherCloud{simCloud: simCloud{s}, name: "yonder"}
	c.options.Clouds[before.name], c.options.Clouds[after.name] = before, after
	return before, after
}

// newUngroupedSim returns a sim with node a in no group.
func newUngroupedSim(t *testing.T) *sim {
	t.Helper()
	s := newSim(t)
	s.addNode("a", nil)
	return s
}

func TestI7InstanceInOneCloudIsNotGone(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newUngroupedSim(t)
		s.changeNode("a", setUnready)
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		c := s.newController(t)
		addOtherClouds(s, c)
		rt := s.reconcileUntilDone(ctx, c, "r", 3*time.Hour)
		if captured := rt.Status.Captured; captured == nil || captured.Provider != "sim" || captured.InstanceName != "vm-a" || rt.Status.InstanceGone {
			t.Fatalf("captured %+v, gone: %t", captured, rt.Status.InstanceGone)
		}
		if rt.Status.Phase != v1alpha1.Succeeded || !s.deletionRequested["sim://a"] {
			t.Errorf("%s: %s; instance deleted: %t", rt.Status.Phase, rt.Status.Message, s.deletionRequested["sim://a"])
		}
	})
}

func TestI7InstanceIsGoneIfAllMatchingCloudsAgree(t *testing.T) {
	for name, tt := range map[string]struct {
		unsure func(before, after *otherCloud)
		gone   bool
	}{
		"all clouds agree":                        {func(_, _ *otherCloud) {}, true},
		"the first fails":                         {func(b, _ *otherCloud) { b.err = errors.New("502 Bad Gateway") }, false},
		"the last fails":                          {func(_, a *otherCloud) { a.err = errors.New("502 Bad Gateway") }, false},
		"one cloud may recognize the ID later":    {func(_, a *otherCloud) { a.normalize = &cloud.ProviderUnavailableError{Err: errors.New("does not run")} }, false},
		"another cloud does not recognize the ID": {func(_, a *otherCloud) { a.normalize = errors.New("want yonder://NAME") }, true},
		"the last cloud throttles":                {func(_, a *otherCloud) { a.err = &cloud.ThrottledError{RetryAfter: time.Minute, Err: errors.New("429")} }, false},
	} {
		t.Run(name, inVirtualTime(func(t *testing.T, ctx context.Context) {
			s := newUngroupedSim(t)
			s.addPod("a", "web-1", nil)
			s.changeNode("a", setUnready)
			delete(s.instances, "sim://a")
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
			c := s.newController(t)
			before, after := addOtherClouds(s, c)
			tt.unsure(before, after)
			rt := s.reconcileUntilDone(ctx, c, "r", time.Hour)
			must.Not(t, rt.Status.InstanceGone != tt.gone, "gone: %t, %s: %s", rt.Status.InstanceGone, rt.Status.Phase, rt.Status.Message)
			if !tt.gone && (s.nodes["a"] == nil || len(s.listPodsOn("a")) != 1) {
				t.Errorf("the Node or its pod was taken away: %s", rt.Status.Message)
			}
		}))
	}
}

// TestI7DetachedInstanceIsNotGone detaches the instance from its pool after it was captured.
func TestI7DetachedInstanceIsNotGone(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newUngroupedSim(t)
		s.addPod("a", "web-1", func(p *simPod) { p.evictionDenied = true })
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		c := s.newController(t)
		pool, _ := addOtherClouds(s, c)
		pool.machines = map[string]cloud.Instance{"sim://a": s.instances["sim://a"].Instance}
		rt := s.reconcileUntilDone(ctx, c, "r", time.Minute)
		if rt.Status.Captured == nil || rt.Status.Captured.Provider != "pool" || rt.Status.Phase != v1alpha1.Draining {
			t.Fatalf("%s: %s, %+v", rt.Status.Phase, rt.Status.Message, rt.Status.Captured)
		}
		pool.machines = nil
		s.changeNode("a", setUnready)
		rt = s.reconcileUntilDone(ctx, c, "r", 5*time.Minute)
		if rt.Status.InstanceGone || s.nodes["a"] == nil || len(s.listPodsOn("a")) != 1 {
			t.Fatalf("gone: %t, %s: %s", rt.Status.InstanceGone, rt.Status.Phase, rt.Status.Message)
		}
		if len(rt.Status.Reasons) != 1 || rt.Status.Reasons[0].Code != Disagreement || !strings.Contains(rt.Status.Message, "the cloud sim has it") {
			t.Errorf("%s: %+v", rt.Status.Message, rt.Status.Reasons)
		}
	})
}

func TestOwningCloudIsPreferredToKeepingCloud(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newUngroupedSim(t)
		kept := s.instances["sim://a"].Instance
		s.instances["sim://a"].DeletionProtected = true
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		c := s.newController(t)
		_, after := addOtherClouds(s, c)
		after.err = errors.New("502 Bad Gateway")
		if rt := s.reconcileUntilDone(ctx, c, "r", 10*time.Minute); rt.Status.Captured != nil {
			t.Fatalf("captured %+v while it is not known whose it is", rt.Status.Captured)
		}
		after.err, after.machines = nil, map[string]cloud.Instance{"sim://a": kept}
		rt := s.reconcileUntilDone(ctx, c, "r", 3*time.Hour)
		if rt.Status.Captured == nil || rt.Status.Captured.Provider != "yonder" || len(after.deleted) != 1 {
			t.Errorf("%s: %s, %+v, deleted %v", rt.Status.Phase, rt.Status.Message, rt.Status.Captured, after.deleted)
		}
	})
}

func TestI7UnreadableCloudsConfirmNoInstanceGone(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newUngroupedSim(t)
		s.addPod("a", "web-1", func(p *simPod) { p.evictionDenied = true })
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		c := s.newController(t)
		pool, last := addOtherClouds(s, c)
		pool.machines = map[string]cloud.Instance{"sim://a": s.instances["sim://a"].Instance}
		s.reconcileUntilDone(ctx, c, "r", time.Minute)
		pool.machines, last.err = nil, errors.New("502 Bad Gateway")
		s.removeInstance("a")
		s.makeNodeUnready("a")
		rt := s.reconcileUntilDone(ctx, c, "r", 5*time.Minute)
		if rt.Status.Phase != v1alpha1.Draining || rt.Status.InstanceGone || len(s.listPodsOn("a")) != 1 {
			t.Errorf("%s: %s, gone: %t", rt.Status.Phase, rt.Status.Message, rt.Status.InstanceGone)
		}
	})
}

// markingCloud marks instances with the tag cluster as the cluster's.
type markingCloud struct{ simCloud }

func (c markingCloud) ClusterInstances(context.Context) (all []cloud.Instance, err error) {
	err = c.serveRequest("cloud ours", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, m := range c.instances {
			if m.Tags["cluster"] == "this" {
				all = append(all, m.Instance)
			}
		}
		return nil
	})
	return all, err
}

func TestI4InstanceWithoutNodeIsDeletedOnlyIfOwned(t *testing.T) {
	refused := func(s *sim) {
		s.groups[0].Status.Conditions[0].Status, s.groups[0].Status.Conditions[0].Reason = "False", v1alpha1.InvalidSpec
	}
	for name, c := range map[string]struct {
		change func(s *sim)
		group  string // of the spec
		marks  bool
		want   v1alpha1.Phase
		code   string
	}{
		"its group's cloud group owns it":                {func(*sim) {}, "ci", false, v1alpha1.Succeeded, ""},
		"a group owns it, and spec.group is empty":       {func(*sim) {}, "", false, v1alpha1.Succeeded, ""},
		"it is in no cloud group":                        {func(s *sim) { s.instances["sim://a"].Group = "" }, "", false, v1alpha1.Refused, InstanceNotOwned},
		"it is in no cloud group, and spec.group is set": {func(s *sim) { s.instances["sim://a"].Group = "" }, "ci", false, v1alpha1.Refused, InstanceNotOwned},
		"it is in a cloud group without a NodeGroup":     {func(s *sim) { s.instances["sim://a"].Group = "db" }, "", false, v1alpha1.Refused, InstanceNotOwned},
		"there is no NodeGroup":                          {func(s *sim) { s.groups = nil }, "", false, v1alpha1.Refused, InstanceNotOwned},
		"its NodeGroup is refused":                       {refused, "", false, v1alpha1.Refused, InstanceNotOwned},
		"its NodeGroup is in another cloud":              {func(s *sim) { s.groups[0].Spec.Cloud.Provider = "other" }, "", false, v1alpha1.Refused, InstanceNotOwned},
		"its group has only adopted it":                  {func(s *sim) { s.instances["sim://a"].OwnerUncertain = true }, "", false, v1alpha1.Refused, InstanceNotOwned},
		"it has the cluster's mark": {func(s *sim) {
			s.instances["sim://a"].Group, s.instances["sim://a"].Tags = "", map[string]string{"cluster": "this"}
		}, "", true, v1alpha1.Succeeded, ""},
		"it has another cluster's mark": {func(s *sim) {
			s.instances["sim://a"].Group, s.instances["sim://a"].Tags = "", map[string]string{"cluster": "other"}
		}, "", true, v1alpha1.Refused, InstanceNotOwned},
	} {
		t.Run(name, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			s.deleteNodeAsUser("a")
			c.change(s)
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", ProviderID: "sim://a", Group: c.group})
			controller := s.newController(t)
			if c.marks {
				controller.options.Clouds = map[string]cloud.Provider{"sim": markingCloud{simCloud{s}}}
			}
			rt := s.reconcileUntilDone(ctx, controller, "r", time.Hour)
			requirePhase(t, rt, c.want, c.code)
			touched := s.deletionRequested["sim://a"]
			check.Not(t, touched != (c.want == v1alpha1.Succeeded), "the instance's deletion was requested: %t", touched)
			if c.code != "" && !strings.Contains(rt.Status.Message, "sim://a") {
				t.Errorf("the message is %q, want it to name the instance", rt.Status.Message)
			}
		}))
	}
}

func TestI7InstanceWithUnreadableOwnerIsNotDeleted(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.deleteNodeAsUser("a")
		s.interceptRequests(func(moment, request string) error {
			if moment == "before" && request == "cloud instances" {
				return errors.New("503")
			}
			return nil
		})
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", ProviderID: "sim://a"})
		c := s.newController(t)
		if rt := s.reconcileUntilDone(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Pending || s.deletionRequested["sim://a"] {
			t.Fatalf("%s: %s, want it to wait; deletion requested: %t", rt.Status.Phase, rt.Status.Message, s.deletionRequested["sim://a"])
		}
		s.interceptRequests(func(string, string) error { return nil })
		requirePhase(t, s.reconcileUntilDone(ctx, c, "r", time.Hour), v1alpha1.Succeeded)
	})
}

// TestI4InstanceRemovedFromGroupIsNotDeleted removes it after the retirement was admitted.
func TestI4InstanceRemovedFromGroupIsNotDeleted(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.deleteNodeAsUser("a")
		reads := 0
		s.interceptRequests(func(moment, request string) error {
			if moment == "after" && request == "cloud instances" {
				s.mu.Lock()
				defer s.mu.Unlock()
				if reads++; reads == 1 {
					s.instances["sim://a"].Group = ""
				}
			}
			return nil
		})
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", ProviderID: "sim://a"})
		rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
		if rt.Status.Phase != v1alpha1.Failed || EarlyEndCode(rt) != InstanceNotOwned || s.deletionRequested["sim://a"] {
			t.Errorf("%s: %s, deletion requested: %t", rt.Status.Phase, rt.Status.Message, s.deletionRequested["sim://a"])
		}
	})
}

// checkingCloud knows which permissions its credential lacks.
type checkingCloud struct {
	simCloud
	missing cloud.Permissions
	err     error
	asked   []string
}

func (c *checkingCloud) MissingDeletePermissions(_ context.Context, id string) (cloud.Permissions, error) {
	c.asked = append(c.asked, id)
	return c.missing, c.err
}

func (c *checkingCloud) MissingGroupPermissions(context.Context, string) (cloud.GroupPermissions, error) {
	return cloud.GroupPermissions{}, errors.New("not asked for")
}

func TestI10RetirementWaitsForDeletePermission(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		// The group already lacks the permission: the retirement still has to wait for it.
		s.groups[0].Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.GroupAccepted, Status: metav1.ConditionFalse, Reason: v1alpha1.CloudRightsMissing, Message: "lacks it",
		}}
		s.addPod("a", "web-1", nil)
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		c := s.newController(t)
		from := &checkingCloud{simCloud: simCloud{s}, missing: cloud.Permissions{{Name: "sets/delete/action", Scope: "/sets/ci"}}}
		c.options.Clouds["sim"] = from
		rt := s.reconcileUntilDone(ctx, c, "r", time.Hour)
		blocked := meta.FindStatusCondition(rt.Status.Conditions, v1alpha1.RetirementBlocked)
		if rt.Status.Phase != v1alpha1.Pending || blocked == nil || blocked.Reason != CloudRights ||
			!strings.Contains(rt.Status.Message, "the credential lacks sets/delete/action on /sets/ci") {
			t.Fatalf("%s: %s, %+v", rt.Status.Phase, rt.Status.Message, blocked)
		}
		a := meta.FindStatusCondition(rt.Status.Conditions, v1alpha1.RetirementAdmitted)
		check.Not(t, a == nil || a.Reason != CloudRights, "admitted: %+v", a)
		s.checkNodeRestored(t, "a")
		on := s.listPodsOn("a")
		check.Not(t, len(on) != 1 || on[0].DeletionTimestamp != nil, "of its pods there is %+v", on)
		from.missing = nil
		requirePhase(t, s.reconcileUntilDone(ctx, c, "r", time.Hour), v1alpha1.Succeeded)
		s.checkRetired(t, "a")
		for _, id := range from.asked {
			check.Not(t, id != "sim://a", "asked about %s", id)
		}
	})
}

func TestRetirementWaitsForDeletionProtection(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.addPod("a", "web-1", nil)
		s.instances["sim://a"].DeletionProtected, s.instances["sim://a"].DeletionProtectionReason = true, "it is locked"
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		c := s.newController(t)
		rt := s.reconcileUntilDone(ctx, c, "r", time.Hour)
		blocked := meta.FindStatusCondition(rt.Status.Conditions, v1alpha1.RetirementBlocked)
		if rt.Status.Phase != v1alpha1.Pending || blocked == nil || blocked.Reason != CloudRefused || !strings.Contains(rt.Status.Message, "sim://a") ||
			!strings.Contains(rt.Status.Message, "it is locked") {
			t.Fatalf("%s: %s, %+v", rt.Status.Phase, rt.Status.Message, blocked)
		}
		s.checkNodeRestored(t, "a")
		on := s.listPodsOn("a")
		check.Not(t, len(on) != 1 || on[0].DeletionTimestamp != nil, "of its pods there is %+v", on)
		s.instances["sim://a"].DeletionProtected = false
		requirePhase(t, s.reconcileUntilDone(ctx, c, "r", time.Hour), v1alpha1.Succeeded)
		s.checkRetired(t, "a")
	})
}

// TestDeletionProtectionAfterCaptureStopsRetirement also counts reads: a reconcile that captured the instance does not
// read it again for the admission.
func TestDeletionProtectionAfterCaptureStopsRetirement(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		s.makeNodeUnready("b") // it uses up the disruption budget
		c := s.newController(t)
		s.reconcileUntilDone(ctx, c, "r", time.Minute)
		s.mu.Lock()
		s.instances["sim://a"].DeletionProtected = true
		s.mu.Unlock()
		s.reviveNode("b")
		rt := s.reconcileUntilDone(ctx, c, "r", time.Hour)
		if rt.Status.Captured == nil || rt.Status.Phase != v1alpha1.Pending || rt.Status.Reasons[0].Code != CloudRefused {
			t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
		}
		s.checkNodeRestored(t, "a")
	})
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		reads, readsAtCordon := 0, -1
		s.interceptRequests(func(moment, request string) error {
			switch {
			case moment == "before" && request == "cloud instance":
				reads++
			case request == "patch node" && readsAtCordon < 0:
				readsAtCordon = reads
			}
			return nil
		})
		if s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour); readsAtCordon != 1 {
			t.Errorf("the instance was read %d times before its node was cordoned, want once", readsAtCordon)
		}
	})
}

func TestI7UnknownPermissionsDelayNothing(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		c := s.newController(t)
		from := &checkingCloud{simCloud: simCloud{s}, err: &cloud.RefusedError{Reason: cloud.NoRight, Err: errors.New("not to be asked")}}
		c.options.Clouds["sim"] = from
		if rt := s.reconcileUntilDone(ctx, c, "r", time.Hour); rt.Status.Phase != v1alpha1.Succeeded || len(from.asked) == 0 {
			t.Fatalf("%s: %s, asked %d times", rt.Status.Phase, rt.Status.Message, len(from.asked))
		}
		s.checkRetired(t, "a")
	})
}

func TestGoneInstanceNeedsNoDeletePermission(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		delete(s.instances, "sim://a")
		s.changeNode("a", setUnready)
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Requested})
		c := s.newController(t)
		c.options.Clouds["sim"] = &checkingCloud{simCloud: simCloud{s}, missing: cloud.Permissions{{Name: "sets/delete/action", Scope: "/sets/ci"}}}
		requirePhase(t, s.reconcileUntilDone(ctx, c, "r", time.Hour), v1alpha1.Succeeded)
	})
}

// countingReader counts the live reads.
type countingReader struct {
	client.Reader
	reads *atomic.Int32
}

func (c countingReader) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if _, record := o.(*v1alpha1.NodeRetirement); record {
		c.reads.Add(1)
	}
	return c.Reader.Get(ctx, key, o, opts...)
}

// TestHungCloudDelaysNoOtherCloud has more retirements in a hanging cloud than workers, half of them not captured yet,
// and then one in another cloud.
func TestHungCloudDelaysNoOtherCloud(t *testing.T) {
	for name, inGroup := range map[string]string{"they name their group": "stuck", "they name no group": ""} {
		t.Run(name, inVirtualTime(func(t *testing.T, ctx context.Context) {
			s, c, reads := newSimWithHungCloud(t)
			returned := atomic.Int32{}
			const all = 4 * maxConcurrentReconciles
			for i := range all {
				node := fmt.Sprintf("stuck-%d", i)
				s.addNode(node, map[string]string{pool: "stuck"})
				s.createRetirement(t, node, v1alpha1.NodeRetirementSpec{NodeName: node, Group: inGroup})
				if i%2 == 0 {
					rt := s.getRetirement(node)
					rt.Status.Phase = v1alpha1.Drained
					rt.Status.Conditions = []metav1.Condition{{Type: v1alpha1.RetirementAdmitted, Status: metav1.ConditionTrue}}
					rt.Status.Captured = &v1alpha1.Captured{
						NodeUID: s.nodes[node].UID, ProviderID: "sim://" + node, Provider: "hung", Group: "stuck",
					}
					must.NoError(t, s.retirements.Status().Update(ctx, rt))
				}
			}
			for i := range all {
				go func() {
					_, _ = c.Reconcile(ctx, newRequest(fmt.Sprintf("stuck-%d", i)))
					returned.Add(1)
				}()
			}
			began := time.Now()
			synctest.Wait()
			busy := all - int(returned.Load())
			check.Not(t, busy >= maxConcurrentReconciles, "the hanging cloud occupies %d workers of %d", busy, maxConcurrentReconciles)
			got := int(reads.Load())
			check.Not(t, got > busy, "%d records were read live for %d workers, want no read for one that is requeued", got, busy)
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Group: "ci"})
			result, err := c.Reconcile(ctx, newRequest("r"))
			if took := time.Since(began); err != nil || took > 0 || s.getRetirement("r").Status.Captured == nil {
				t.Errorf("the retirement in the other cloud: %+v, %v after %s; want it captured at once", result, err, took)
			}
			time.Sleep(cloud.ReadTimeout)
			synctest.Wait()
			left := all - int(returned.Load())
			check.Not(t, left > 0, "%d workers wait for the hanging cloud after %s", left, cloud.ReadTimeout)
		}))
	}
}

// hangingOnceCloud is the sim with a first call of Delete or Status that hangs for an hour, if its caller waits for so long.
type hangingOnceCloud struct {
	simCloud
	hangs string // the name of the call
	took  time.Duration
}

func (c *hangingOnceCloud) hang(ctx context.Context, call string) error {
	if call != c.hangs || c.took > 0 {
		return nil
	}
	began := time.Now()
	elapsed.Sleep(ctx, time.Hour)
	c.took = time.Since(began)
	return errors.New("no answer")
}

func (c *hangingOnceCloud) Delete(ctx context.Context, id string) (cloud.Operation, error) {
	if err := c.hang(ctx, "Delete"); err != nil {
		return cloud.Operation{}, err
	}
	return c.simCloud.Delete(ctx, id)
}

func (c *hangingOnceCloud) Status(ctx context.Context, op cloud.Operation) (cloud.OperationStatus, error) {
	if err := c.hang(ctx, "Status"); err != nil {
		return cloud.OperationStatus{}, err
	}
	return c.simCloud.Status(ctx, op)
}

func TestHangingDeletionIsTriedAgain(t *testing.T) {
	for call, timeout := range map[string]time.Duration{"Delete": cloud.ChangeTimeout, "Status": cloud.ReadTimeout} {
		t.Run(call, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			from := &hangingOnceCloud{simCloud: simCloud{s}, hangs: call}
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
			c := s.newController(t)
			c.options.Clouds["sim"] = from
			requirePhase(t, s.reconcileUntilDone(ctx, c, "r", 2*time.Hour), v1alpha1.Succeeded)
			check.Is(t, timeout, from.took)
			s.checkRetired(t, "a")
		}))
	}
}

// newSimWithHungCloud returns a sim with a group in a hanging cloud, and the count of live reads.
func newSimWithHungCloud(t *testing.T) (*sim, *Controller, *atomic.Int32) {
	s := newGroupOfTwo(t)
	stuck := newGroup()
	stuck.Name, stuck.Spec.NodeSelector.MatchLabels = "stuck", map[string]string{pool: "stuck"}
	stuck.Spec.Cloud = v1alpha1.CloudGroup{Provider: "hung", Group: "stuck"}
	s.groups = append(s.groups, stuck)
	o, reads := s.newController(t).options, &atomic.Int32{}
	o.Clouds = map[string]cloud.Provider{"sim": simCloud{s}, "hung": cloudtest.HangingProvider{}}
	o.LiveReader = countingReader{o.LiveReader, reads}
	return s, New(o), reads
}

func newRequest(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}
