package replacement

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/cloudtest"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/retirement"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// newRetirementController returns the retirement controller, which deletes finished retirements.
func (s *sim) newRetirementController(t *testing.T, ttl time.Duration) *retirement.Controller {
	t.Helper()
	metrics := must.Get(retirement.NewMetrics(prometheus.NewRegistry()))(t)
	return retirement.New(retirement.Options{
		Client: s.newClient(), LiveReader: s.newClient(), API: nodeGetter{s: s}, Groups: s, Clouds: map[string]cloud.Provider{"sim": s},
		Events: s.events, Metrics: metrics, Log: slog.New(slog.DiscardHandler), TTL: ttl,
	})
}

// finishRetirements ends the retirements like those of instances that are gone, after their Nodes.
func (s *sim) finishRetirements(t *testing.T) {
	t.Helper()
	for _, rt := range s.retirementByNode(t) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: rt.Spec.NodeName}}
		must.NoError(t, s.records.Delete(t.Context(), node))
		now := metav1.Now()
		rt.Status.Phase, rt.Status.InstanceGone, rt.Status.Times.Finished = v1alpha1.Succeeded, true, &now
		must.NoError(t, s.records.Status().Update(t.Context(), &rt))
	}
}

// runBoth runs both controllers for a while, the retirement controller first.
func (s *sim) runBoth(ctx context.Context, t *testing.T, c *Controller, r *retirement.Controller, during time.Duration) {
	t.Helper()
	for end := time.Now().Add(during); time.Now().Before(end); time.Sleep(max(turns, during/200)) {
		for _, rt := range s.retirementByNode(t) {
			must.NoError(t, check.Err(r.Reconcile(ctx, reconcile.Request{NamespacedName: types.NamespacedName{Name: rt.Name}})))
		}
		s.reconcileAll(ctx, c)
	}
}

// TestRetirementIsKeptUntilItsReplacementIsFinal checks that it is deleted afterwards, or after its time to live.
func TestRetirementIsKeptUntilItsReplacementIsFinal(t *testing.T) {
	noQuota := &cloud.RefusedError{Reason: cloud.NoQuota, Err: errors.New("quota of 20 cores is used up")}
	for name, tt := range map[string]struct {
		ttl   time.Duration
		world func(s *sim)
		kept  time.Duration // the retirement must exist for this time
		then  func(s *sim)
		gone  time.Duration // the retirement must be deleted within this time after that
		grown int
		told  bool
	}{
		"it is not launched yet": {world: func(*sim) {}, gone: time.Minute, grown: 1},
		"it is provisioning": {
			world: func(s *sim) { s.slow = 10 * time.Minute }, kept: 9 * time.Minute, gone: 2 * time.Minute, grown: 1,
		},
		"its cloud refuses it beyond the retention": {
			ttl: time.Hour, world: func(s *sim) { s.refuse = noQuota }, kept: 2 * time.Hour,
			then: func(s *sim) { s.refuse = nil }, gone: 70 * time.Minute, grown: 1,
		},
		"its cloud always refuses it": {
			ttl: time.Hour, world: func(s *sim) { s.refuse = noQuota }, kept: 7*24*time.Hour - time.Minute, gone: 2 * time.Minute, told: true,
		},
		"no replacement is wanted": {world: func(s *sim) { s.group.Spec.Replacement = v1alpha1.ReplaceNever }, gone: time.Minute},
		"the retention is longer": {
			ttl: 24 * time.Hour, world: func(*sim) {}, kept: 23 * time.Hour, gone: 2 * time.Hour, grown: 1,
		},
		"its group is deleted": {
			world: func(s *sim) { s.refuse = noQuota }, kept: time.Hour, then: func(s *sim) { s.group.Name = "another" }, gone: time.Minute,
		},
	} {
		t.Run(name, simOf(3, func(t *testing.T, ctx context.Context, s *sim) {
			c, r := s.newController(t), s.newRetirementController(t, tt.ttl)
			s.addNotice(t, "vm-0", "Preempt")
			must.NoError(t, check.Err((NoticeRetirementReconciler{c}).Reconcile(ctx, reconcile.Request{NamespacedName: types.NamespacedName{Name: "vm-0"}})))
			s.evictInstance(t, "vm-0")
			tt.world(s)
			s.finishRetirements(t)
			s.runBoth(ctx, t, c, r, tt.kept)
			if tt.kept > 0 && len(s.retirementByNode(t)) != 1 {
				t.Fatalf("after %s the record is gone, and %d instances launched", tt.kept, s.grown)
			}
			if tt.then != nil {
				tt.then(s)
			}
			s.runBoth(ctx, t, c, r, tt.gone)
			left := s.retirementByNode(t)
			must.Not(t, len(left) > 0 || s.grown != tt.grown, "%d instances are launched, want %d; the records left are %+v", s.grown, tt.grown, left)
			told := false
			for len(s.events.Events) > 0 {
				told = strings.Contains(<-s.events.Events, "ReplacementAbandoned") || told
			}
			check.Not(t, told != tt.told, "recorded that it is deleted: %t, want %t", told, tt.told)
		}))
	}
}

// nodeGetter is the part of an API server that a cancellation needs.
type nodeGetter struct {
	retirement.API
	s *sim
}

func (n nodeGetter) GetNode(ctx context.Context, name string) (*kubeapi.Node, error) {
	is := &corev1.Node{}
	if err := n.s.records.Get(ctx, client.ObjectKey{Name: name}, is); err != nil {
		return nil, &kubeapi.StatusError{Code: http.StatusNotFound, Reason: "NotFound", Message: err.Error()}
	}
	return &kubeapi.Node{ObjectMeta: kubeapi.ObjectMeta{Name: name, UID: string(is.UID), Labels: is.Labels, Annotations: is.Annotations}}, nil
}

// TestI5CancelledNoticeLaunchesNothingAgain deletes the retirement of the notice with and without a provisioning
// instance. Other processes continue before and after the instance is gone.
func TestI5CancelledNoticeLaunchesNothingAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		unschedulable []UnschedulablePod
		grown         int
		state         v1alpha1.ReplacementState
	}{
		"an instance is provisioning": {[]UnschedulablePod{{Pod: "shop/web-1", Why: "fits on no other node"}}, 1, v1alpha1.ReplacementReady},
		"no instance is launched":     {nil, 0, v1alpha1.ReplacementNotNeeded},
	} {
		t.Run(name, simOf(2, func(t *testing.T, ctx context.Context, s *sim) {
			s.unschedulable, s.slow = tt.unschedulable, 30*time.Second
			s.addNotice(t, "vm-0", "Preempt")
			s.run(ctx, s.newController(t), 10*time.Second)
			rt := s.retirementByNode(t)["vm-0"]
			rt.Finalizers = []string{retirement.Finalizer}
			must.NoError(t, errors.Join(s.records.Update(ctx, &rt), s.records.Delete(ctx, &rt)))
			for range 3 {
				r, c := s.newRetirementController(t, time.Hour), s.newController(t)
				for range 20 {
					must.NoError(t, check.Err(r.Reconcile(ctx, reconcile.Request{NamespacedName: types.NamespacedName{Name: rt.Name}})))
					s.run(ctx, c, turns)
				}
				if _, there := s.machines["vm-0"]; there {
					s.evictInstance(t, "vm-0")
				}
			}
			is := s.retirementByNode(t)["vm-0"]
			if s.grown != tt.grown || s.countNoticeRetirements(t) != 1 || is.UID != rt.UID || retirement.EarlyEndCode(&is) != retirement.Cancelled ||
				replacementState(&is) != tt.state {
				t.Errorf("%d instances launched, %d records: %s, %s, %q; want %d, and the one, cancelled, that says %s", s.grown, s.countNoticeRetirements(t),
					is.Status.Phase, is.Status.Message, replacementState(&is), tt.grown, tt.state)
			}
		}))
	}
}

// TestI5RetirementIsKeptWhileItsNoticeIsCurrent has a replaced node with a gone instance. Other processes handle it
// again long after the time to live of its retirement.
func TestI5RetirementIsKeptWhileItsNoticeIsCurrent(t *testing.T) {
	withSim(t, 2, func(t *testing.T, ctx context.Context, s *sim) {
		c, r := s.newController(t), s.newRetirementController(t, time.Hour)
		s.addNotice(t, "vm-0", "Preempt")
		s.reconcileAll(ctx, c)
		s.refuseRetirement(t, "vm-0", retirement.NotConfirmed)
		s.evictInstance(t, "vm-0")
		for range 3 {
			s.runBoth(ctx, t, c, r, 3*time.Hour)
			c = s.newController(t)
		}
		if s.grown != 1 || s.countNoticeRetirements(t) != 1 {
			t.Errorf("%d instances launched, %d records, want one of each", s.grown, s.countNoticeRetirements(t))
		}
		must.NoError(t, s.records.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "vm-0"}}))
		if s.runBoth(ctx, t, c, r, time.Hour); s.countNoticeRetirements(t) != 0 {
			t.Error("the record outlives its Node")
		}
	})
}

// countingReader counts the uncached reads.
type countingReader struct {
	client.Reader
	reads int
}

func (p *countingReader) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	p.reads++
	return p.Reader.Get(ctx, key, o, opts...)
}

// TestHangingCloudBlocksNoOtherCloud has two nodes in the hanging cloud, and one in another.
func TestHangingCloudBlocksNoOtherCloud(t *testing.T) {
	withSim(t, 3, func(t *testing.T, ctx context.Context, s *sim) {
		s.beside = []v1alpha1.NodeGroup{{
			ObjectMeta: metav1.ObjectMeta{Name: "stuck"},
			Spec: v1alpha1.NodeGroupSpec{
				NodeSelector: metav1.LabelSelector{MatchLabels: map[string]string{"pool": "stuck"}},
				Cloud:        v1alpha1.CloudGroup{Provider: "hung", Group: "set"}, Replacement: v1alpha1.ReplaceAlways,
			},
		}}
		c := s.newController(t)
		c.options.Clouds["hung"] = cloudtest.HangingProvider{}
		got := c.controllerOptions().MaxConcurrentReconciles
		must.Not(t, got < 2, "%d workers for two clouds, want one for each", got)
		for _, name := range []string{"first", "second"} {
			rt := &v1alpha1.NodeRetirement{
				ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
				Spec: v1alpha1.NodeRetirementSpec{
					NodeName: name, NodeUID: types.UID(name), ProviderID: "sim://" + name, Group: "stuck", Reason: v1alpha1.Notice,
					Notice: &v1alpha1.NoticeReference{Source: "azure", ID: name, Type: "Preempt"},
				},
			}
			must.NoError(t, s.records.Create(ctx, rt))
		}
		began := time.Now()
		request := func(name string) reconcile.Request {
			return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
		}
		ended := make(chan time.Duration, 1)
		go func() {
			_, _ = c.Reconcile(ctx, request("first"))
			ended <- time.Since(began)
		}()
		synctest.Wait()
		past := &countingReader{Reader: c.options.APIReader}
		c.options.APIReader = past
		result, err := c.Reconcile(ctx, request("second"))
		if took := time.Since(began); err != nil || took > 0 || result.RequeueAfter != cloud.WorkerRetryDelay {
			t.Errorf("the second record of the hung cloud: %+v, %v after %s; want it requeued at once", result, err, took)
		}
		check.Not(t, past.reads > 0, "the second record was read %d times past the caches, want none before it has a slot", past.reads)
		s.preemptInstance(t, "vm-0")
		for range 3 {
			_, _ = NoticeRetirementReconciler{c}.Reconcile(ctx, request("vm-0"))
			_, _ = c.Reconcile(ctx, request(s.retirementByNode(t)["vm-0"].Name))
		}
		if took := time.Since(began); s.grown != 1 || took > 0 {
			t.Errorf("%d launched in the other cloud after %s, want 1 at once", s.grown, took)
		}
		if took := <-ended; took > cloud.ReadTimeout {
			t.Errorf("the hung call took %s, want at most %s", took, cloud.ReadTimeout)
		}
	})
}

// hangingCloud is a cloud with one call that blocks until its context ends.
type hangingCloud struct {
	*sim
	call string
}

func (h hangingCloud) wait(ctx context.Context, call string) error {
	if call != h.call {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (h hangingCloud) Group(ctx context.Context, name string) (cloud.Group, error) {
	if err := h.wait(ctx, "Group"); err != nil {
		return cloud.Group{}, err
	}
	return h.sim.Group(ctx, name)
}

func (h hangingCloud) Instances(ctx context.Context, group string) ([]cloud.Instance, error) {
	if err := h.wait(ctx, "Instances"); err != nil {
		return nil, err
	}
	return h.sim.Instances(ctx, group)
}

func (h hangingCloud) Instance(ctx context.Context, id string) (cloud.Instance, error) {
	if err := h.wait(ctx, "Instance"); err != nil {
		return cloud.Instance{}, err
	}
	return h.sim.Instance(ctx, id)
}

func (h hangingCloud) Grow(ctx context.Context, group string, o cloud.LaunchRequest) (cloud.Operation, error) {
	if err := h.wait(ctx, "Grow"); err != nil {
		return cloud.Operation{}, err
	}
	return h.sim.Grow(ctx, group, o)
}

func (h hangingCloud) Status(ctx context.Context, op cloud.Operation) (cloud.OperationStatus, error) {
	if err := h.wait(ctx, "Status"); err != nil {
		return cloud.OperationStatus{}, err
	}
	return h.sim.Status(ctx, op)
}

// TestEveryCloudCallTimesOut has a cloud that hangs in one of its calls, and then answers again.
func TestEveryCloudCallTimesOut(t *testing.T) {
	for _, call := range []string{"Group", "Instances", "Instance", "Grow", "Status"} {
		t.Run(call, simOf(3, func(t *testing.T, ctx context.Context, s *sim) {
			s.slow = 5 * time.Minute
			c := s.newController(t)
			c.options.Clouds["sim"] = hangingCloud{s, call}
			s.preemptInstance(t, "vm-0")
			for range 5 {
				began := time.Now()
				s.reconcileAll(ctx, c)
				took := time.Since(began)
				must.Not(t, took > cloud.ChangeTimeout+5*cloud.ReadTimeout, "a reconcile took %s", took)
			}
			c.options.Clouds["sim"] = s
			s.run(ctx, c, 15*time.Minute)
			s.expect(t, "vm-0", v1alpha1.ReplacementReady, "", 1)
		}))
	}
}
