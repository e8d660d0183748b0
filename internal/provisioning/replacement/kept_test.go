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

// collector is the controller of retirements, which deletes the records of those that are over.
func (s *sim) collector(t *testing.T, ttl time.Duration) *retirement.Controller {
	t.Helper()
	metrics, err := retirement.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return retirement.New(retirement.Options{
		Client: s.client(), Live: s.client(), API: nodes{s: s}, Groups: s, Clouds: map[string]cloud.Provider{"sim": s},
		Events: s.events, Metrics: metrics, Log: slog.New(slog.DiscardHandler), TTL: ttl,
	})
}

// ends has the retirements end as those of machines that are gone do, after their Nodes.
func (s *sim) ends(t *testing.T) {
	t.Helper()
	for _, rt := range s.retirements(t) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: rt.Spec.NodeName}}
		if err := s.records.Delete(t.Context(), node); err != nil {
			t.Fatal(err)
		}
		now := metav1.Now()
		rt.Status.Phase, rt.Status.MachineGone, rt.Status.Times.Finished = v1alpha1.Succeeded, true, &now
		if err := s.records.Status().Update(t.Context(), &rt); err != nil {
			t.Fatal(err)
		}
	}
}

// runBoth lets both controllers work for a while, that of retirements first.
func (s *sim) runBoth(ctx context.Context, t *testing.T, c *Controller, r *retirement.Controller, during time.Duration) {
	t.Helper()
	for end := time.Now().Add(during); time.Now().Before(end); time.Sleep(max(turns, during/200)) {
		for _, rt := range s.retirements(t) {
			if _, err := r.Reconcile(ctx, reconcile.Request{NamespacedName: types.NamespacedName{Name: rt.Name}}); err != nil {
				t.Fatal(err)
			}
		}
		s.turn(ctx, c)
	}
}

// TestTheRecordOfARetirementIsKeptForAsLongAsItsReplacementIsOwed deletes it when it is not any more, or after its time.
func TestTheRecordOfARetirementIsKeptForAsLongAsItsReplacementIsOwed(t *testing.T) {
	noQuota := &cloud.RefusedError{Reason: cloud.NoQuota, Err: errors.New("quota of 20 cores is used up")}
	for name, tt := range map[string]struct {
		ttl   time.Duration
		world func(s *sim)
		kept  time.Duration // in which the record is not to go
		then  func(s *sim)
		gone  time.Duration // in which it is to go after that
		grown int
		told  bool
	}{
		"it is not ordered yet": {world: func(*sim) {}, gone: time.Minute, grown: 1},
		"it is on its way": {
			world: func(s *sim) { s.slow = 10 * time.Minute }, kept: 9 * time.Minute, gone: 2 * time.Minute, grown: 1,
		},
		"its cloud refuses it for longer than the record is kept": {
			ttl: time.Hour, world: func(s *sim) { s.refuse = noQuota }, kept: 2 * time.Hour,
			then: func(s *sim) { s.refuse = nil }, gone: 70 * time.Minute, grown: 1,
		},
		"its cloud refuses it for good": {
			ttl: time.Hour, world: func(s *sim) { s.refuse = noQuota }, kept: 7*24*time.Hour - time.Minute, gone: 2 * time.Minute, told: true,
		},
		"there is none to be": {world: func(s *sim) { s.group.Spec.Replacement = v1alpha1.ReplaceNever }, gone: time.Minute},
		"the record is to be kept for longer": {
			ttl: 24 * time.Hour, world: func(*sim) {}, kept: 23 * time.Hour, gone: 2 * time.Hour, grown: 1,
		},
		"its group is deleted": {
			world: func(s *sim) { s.refuse = noQuota }, kept: time.Hour, then: func(s *sim) { s.group.Name = "another" }, gone: time.Minute,
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := newSim(t, 3)
				c, r := s.process(t), s.collector(t, tt.ttl)
				s.notice(t, "vm-0", "Preempt")
				if _, err := (Notices{c}).Reconcile(ctx, reconcile.Request{NamespacedName: types.NamespacedName{Name: "vm-0"}}); err != nil {
					t.Fatal(err)
				}
				s.evict(t, "vm-0")
				tt.world(s)
				s.ends(t)
				s.runBoth(ctx, t, c, r, tt.kept)
				if tt.kept > 0 && len(s.retirements(t)) != 1 {
					t.Fatalf("after %s the record is gone, and %d machines ordered", tt.kept, s.grown)
				}
				if tt.then != nil {
					tt.then(s)
				}
				s.runBoth(ctx, t, c, r, tt.gone)
				if left := s.retirements(t); len(left) > 0 || s.grown != tt.grown {
					t.Fatalf("%d machines are ordered, want %d; the records left are %+v", s.grown, tt.grown, left)
				}
				told := false
				for len(s.events.Events) > 0 {
					told = strings.Contains(<-s.events.Events, "ReplacementAbandoned") || told
				}
				if told != tt.told {
					t.Errorf("told that it is given up: %t, want %t", told, tt.told)
				}
			})
		})
	}
}

// nodes is as much of an API server as calling off takes.
type nodes struct {
	retirement.API
	s *sim
}

func (n nodes) GetNode(ctx context.Context, name string) (*kubeapi.Node, error) {
	is := &corev1.Node{}
	if err := n.s.records.Get(ctx, client.ObjectKey{Name: name}, is); err != nil {
		return nil, &kubeapi.StatusError{Code: http.StatusNotFound, Reason: "NotFound", Message: err.Error()}
	}
	return &kubeapi.Node{ObjectMeta: kubeapi.ObjectMeta{Name: name, UID: string(is.UID), Labels: is.Labels, Annotations: is.Annotations}}, nil
}

// TestI5NothingIsOrderedAgainForANoticeThatIsCalledOff has somebody delete its record, be a machine on its way or not, and other
// processes take up the work before and after the machine is gone.
func TestI5NothingIsOrderedAgainForANoticeThatIsCalledOff(t *testing.T) {
	for name, tt := range map[string]struct {
		homeless []Homeless
		grown    int
		state    v1alpha1.ReplacementState
	}{
		"a machine is on its way": {[]Homeless{{Pod: "shop/web-1", Why: "fits on no other node"}}, 1, v1alpha1.ReplacementReady},
		"none is ordered":         {nil, 0, v1alpha1.ReplacementNotNeeded},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := newSim(t, 2)
				s.homeless, s.slow = tt.homeless, 30*time.Second
				s.notice(t, "vm-0", "Preempt")
				s.run(ctx, s.process(t), 10*time.Second)
				rt := s.retirements(t)["vm-0"]
				rt.Finalizers = []string{retirement.Finalizer}
				if err := errors.Join(s.records.Update(ctx, &rt), s.records.Delete(ctx, &rt)); err != nil {
					t.Fatal(err)
				}
				for range 3 {
					r, c := s.collector(t, time.Hour), s.process(t)
					for range 20 {
						if _, err := r.Reconcile(ctx, reconcile.Request{NamespacedName: types.NamespacedName{Name: rt.Name}}); err != nil {
							t.Fatal(err)
						}
						s.run(ctx, c, turns)
					}
					if _, there := s.machines["vm-0"]; there {
						s.evict(t, "vm-0")
					}
				}
				is := s.retirements(t)["vm-0"]
				if s.grown != tt.grown || s.ofNotices(t) != 1 || is.UID != rt.UID || retirement.EndedBy(&is) != retirement.CalledOff ||
					stateOf(&is) != tt.state {
					t.Errorf("%d machines ordered, %d records: %s, %s, %q; want %d, and the one, called off, that says %s", s.grown, s.ofNotices(t),
						is.Status.Phase, is.Status.Message, stateOf(&is), tt.grown, tt.state)
				}
			})
		})
	}
}

// TestI5TheRecordOfANoticeIsKeptForAsLongAsTheNoticeStands has a node be left alone whose machine went and was replaced, and processes
// look at it anew long after the record's time.
func TestI5TheRecordOfANoticeIsKeptForAsLongAsTheNoticeStands(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := newSim(t, 2)
		c, r := s.process(t), s.collector(t, time.Hour)
		s.notice(t, "vm-0", "Preempt")
		s.turn(ctx, c)
		s.refuseRetirement(t, "vm-0", retirement.NotConfirmed)
		s.evict(t, "vm-0")
		for range 3 {
			s.runBoth(ctx, t, c, r, 3*time.Hour)
			c = s.process(t)
		}
		if s.grown != 1 || s.ofNotices(t) != 1 {
			t.Errorf("%d machines ordered, %d records, want one of each", s.grown, s.ofNotices(t))
		}
		if err := s.records.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "vm-0"}}); err != nil {
			t.Fatal(err)
		}
		if s.runBoth(ctx, t, c, r, time.Hour); s.ofNotices(t) != 0 {
			t.Error("the record outlives its Node")
		}
	})
}
