package replacement

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// newRetirementController returns the retirement controller, which deletes finished retirements.
func (s *sim) newRetirementController(t *testing.T, ttl time.Duration) *retirement.Controller {
	t.Helper()
	metrics, err := retirement.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
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
		if err := s.records.Delete(t.Context(), node); err != nil {
			t.Fatal(err)
		}
		now := metav1.Now()
		rt.Status.Phase, rt.Status.InstanceGone, rt.Status.Times.Finished = v1alpha1.Succeeded, true, &now
		if err := s.records.Status().Update(t.Context(), &rt); err != nil {
			t.Fatal(err)
		}
	}
}

// runBoth runs both controllers for a while, the retirement controller first.
func (s *sim) runBoth(ctx context.Context, t *testing.T, c *Controller, r *retirement.Controller, during time.Duration) {
	t.Helper()
	for end := time.Now().Add(during); time.Now().Before(end); time.Sleep(max(turns, during/200)) {
		for _, rt := range s.retirementByNode(t) {
			if _, err := r.Reconcile(ctx, reconcile.Request{NamespacedName: types.NamespacedName{Name: rt.Name}}); err != nil {
				t.Fatal(err)
			}
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
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := newSim(t, 3)
				c, r := s.newController(t), s.newRetirementController(t, tt.ttl)
				s.addNotice(t, "vm-0", "Preempt")
				if _, err := (NoticeReconciler{c}).Reconcile(ctx, reconcile.Request{NamespacedName: types.NamespacedName{Name: "vm-0"}}); err != nil {
					t.Fatal(err)
				}
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
				if left := s.retirementByNode(t); len(left) > 0 || s.grown != tt.grown {
					t.Fatalf("%d instances are launched, want %d; the records left are %+v", s.grown, tt.grown, left)
				}
				told := false
				for len(s.events.Events) > 0 {
					told = strings.Contains(<-s.events.Events, "ReplacementAbandoned") || told
				}
				if told != tt.told {
					t.Errorf("recorded that it is deleted: %t, want %t", told, tt.told)
				}
			})
		})
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
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := newSim(t, 2)
				s.unschedulable, s.slow = tt.unschedulable, 30*time.Second
				s.addNotice(t, "vm-0", "Preempt")
				s.run(ctx, s.newController(t), 10*time.Second)
				rt := s.retirementByNode(t)["vm-0"]
				rt.Finalizers = []string{retirement.Finalizer}
				if err := errors.Join(s.records.Update(ctx, &rt), s.records.Delete(ctx, &rt)); err != nil {
					t.Fatal(err)
				}
				for range 3 {
					r, c := s.newRetirementController(t, time.Hour), s.newController(t)
					for range 20 {
						if _, err := r.Reconcile(ctx, reconcile.Request{NamespacedName: types.NamespacedName{Name: rt.Name}}); err != nil {
							t.Fatal(err)
						}
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
			})
		})
	}
}

// TestI5RetirementIsKeptWhileItsNoticeIsCurrent has a replaced node with a gone instance. Other processes handle it
// again long after the time to live of its retirement.
func TestI5RetirementIsKeptWhileItsNoticeIsCurrent(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := newSim(t, 2)
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
		if err := s.records.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "vm-0"}}); err != nil {
			t.Fatal(err)
		}
		if s.runBoth(ctx, t, c, r, time.Hour); s.countNoticeRetirements(t) != 0 {
			t.Error("the record outlives its Node")
		}
	})
}
