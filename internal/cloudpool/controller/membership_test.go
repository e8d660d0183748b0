package controller

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// memoryPool is a pool in memory that supports memberships and sizes only.
type memoryPool struct {
	Backend
	pool    api.Pool
	size    api.Size
	fails   map[string]error
	changes []string
}

// Pool returns a newer observation with each call.
func (m *memoryPool) Pool(context.Context) (api.Pool, error) {
	m.pool.Timestamp = m.pool.Timestamp.Add(time.Millisecond)
	return m.pool, m.fails["pool"]
}

func (m *memoryPool) Size(context.Context) (api.Size, error) { return m.size, m.fails["size"] }

func (m *memoryPool) SetDesiredSize(_ context.Context, n int) error {
	if err := m.fails["desired"]; err != nil {
		return err
	}
	m.size.Desired = n
	m.changes = append(m.changes, "desired")
	return nil
}

func (m *memoryPool) SetMembershipStatus(_ context.Context, s api.SetMembershipStatus) error {
	for i := range m.pool.Machines {
		if m.pool.Machines[i].ID == s.MachineID {
			m.pool.Machines[i].Membership = &s.MembershipStatus
		}
	}
	m.changes = append(m.changes, "membership")
	return m.fails["membership"]
}

// newMemoryPool returns a pool with one machine for each membership.
func newMemoryPool(desired int, memberships ...api.MembershipStatus) *memoryPool {
	m := &memoryPool{size: api.Size{Desired: desired}, fails: map[string]error{}}
	for i := range memberships {
		m.pool.Machines = append(m.pool.Machines, api.Machine{ID: string(rune('a' + i)), State: api.Running, Membership: &memberships[i]})
	}
	return m
}

var (
	evictableMember = api.MembershipStatus{Active: true, Evictable: true}
	protectedMember = api.MembershipStatus{Active: true}
	inactiveMember  = api.MembershipStatus{}
)

func TestMembershipChangeNeverRaisesSize(t *testing.T) {
	for name, tt := range map[string]struct {
		desired     int
		memberships []api.MembershipStatus
		machine     string
		want        api.MembershipStatus
		refused     bool
		warns       bool
	}{
		"activated above desired size": {2, []api.MembershipStatus{evictableMember, evictableMember, inactiveMember}, "c", evictableMember, false, true},
		"activated up to desired size": {3, []api.MembershipStatus{evictableMember, evictableMember, inactiveMember}, "c", evictableMember, false, false},
		"evictable above desired size": {2, []api.MembershipStatus{evictableMember, evictableMember, protectedMember}, "c", evictableMember, true, false},
		"evictable at desired size":    {3, []api.MembershipStatus{evictableMember, evictableMember, protectedMember}, "c", evictableMember, false, false},
		"deactivated":                  {3, []api.MembershipStatus{evictableMember, evictableMember, evictableMember}, "c", inactiveMember, false, false},
		"made non-evictable":           {2, []api.MembershipStatus{evictableMember, evictableMember, evictableMember}, "c", protectedMember, false, false},
		"not a member":                 {3, []api.MembershipStatus{evictableMember, evictableMember, evictableMember}, "x", evictableMember, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			pool := newMemoryPool(tt.desired, tt.memberships...)
			var log strings.Builder
			u := &Updater{opts: UpdaterOptions{Backend: pool}, log: slog.New(slog.NewTextHandler(&log, nil))}
			err := u.forwardMembershipIfSafe(t.Context(), api.SetMembershipStatus{MachineID: tt.machine, MembershipStatus: tt.want}, "")
			asked := "membership"
			if tt.refused {
				asked = ""
			}
			if got := strings.Join(pool.changes, ","); (ToResult(err) == NotPossible) != tt.refused || err != nil && !tt.refused ||
				got != asked || pool.size.Desired != tt.desired || log.Len() > 0 != tt.warns {
				t.Errorf("%v, asked %q, desired size %d, log %q", err, got, pool.size.Desired, &log)
			}
		})
	}
}

func TestMembershipIsNotSetIfPoolIsUnreadable(t *testing.T) {
	for _, what := range []string{"pool", "size"} {
		pool := newMemoryPool(2, evictableMember, inactiveMember)
		pool.fails[what] = errors.New("away")
		u := &Updater{opts: UpdaterOptions{Backend: pool}, log: slog.New(slog.DiscardHandler)}
		err := u.forwardMembershipIfSafe(t.Context(), api.SetMembershipStatus{MachineID: "b", MembershipStatus: evictableMember}, "")
		check.Not(t, !errors.Is(err, pool.fails[what]) || len(pool.changes) > 0, "%s: %v, asked %q", what, err, pool.changes)
	}
}

// TestDeletedFinishedRetirementIsNotCancelled deletes a succeeded retirement before the update reads it.
func TestDeletedFinishedRetirementIsNotCancelled(t *testing.T) {
	for name, unread := range map[string]bool{"at once": false, "while the pool cannot be read": true} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				a := s.startReplica("a")
				submitted := mustSubmit(t, a, Update{Kind: Terminate, MachineID: newUUID(1)})
				s.advance(5 * time.Second)
				if unread {
					s.pool.setFailure("pool", errors.New("away"))
				}
				rt := s.listRetirements()[0]
				err := s.kube.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{})
				if err = errors.Join(err, s.objects.Delete(t.Context(), &rt)); err != nil {
					t.Fatal(err)
				}
				s.pool.removeMachine(newUUID(1), cloud.DeleteOptions{KeepSize: rt.Spec.KeepSize})
				s.advance(30 * time.Second)
				s.pool.setFailure("pool", nil)
				result, err := submitted.WaitForOutcome(t.Context())
				if err != nil || result.Outcome.Result != Done || result.Outcome.Removed != 1 || s.pool.size != 3 {
					t.Errorf("%+v, %v, a desired size of %d; want Done, and the machine replaced", result, err, s.pool.size)
				}
			})
		})
	}
}

// TestRetirementThatNeverStartsTimesOut has a retirement that waits without being blocked, for example for a notice.
func TestRetirementThatNeverStartsTimesOut(t *testing.T) {
	simulate(t, 4, func(t *testing.T, s *sim) {
		a := s.startReplica("a")
		s.createForeignRetirement(2, "n2")
		s.updateRetirementStatus("others-n2", func(rt *v1alpha1.NodeRetirement) {
			rt.Status.Phase, rt.Status.Message = v1alpha1.Pending, "awaits its notice"
		})
		submitted := mustSubmit(t, a, Update{Kind: SetSize, DesiredSize: 2})
		s.advance(4 * time.Minute)
		if nodes := s.retiringNodes(); len(nodes) != 1 {
			t.Errorf("%v are retired before --admission-wait is result", nodes)
		}
		s.advance(2 * time.Minute)
		if nodes := s.retiringNodes(); len(nodes) != 2 {
			t.Fatalf("%v are retired, want one more than n2", nodes)
		}
		is, err := a.FindUpdate(t.Context(), submitted.ID)
		if err != nil || !strings.Contains(is.object.FindMachineExceptPlanned(newUUID(2)).Reason, "others-n2, which this update did not create, waits: awaits its notice") {
			t.Errorf("%+v, %v", is, err)
		}
	})
	simulate(t, 2, func(t *testing.T, s *sim) {
		a := s.startReplica("a")
		submitted := mustSubmit(t, a, Update{Kind: Terminate, MachineID: newUUID(1)})
		s.advance(5 * time.Second)
		s.updateRetirementStatus(s.listRetirements()[0].Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase, rt.Status.Message = v1alpha1.Pending, "waits" })
		s.advance(6 * time.Minute)
		if is, err := a.FindUpdate(t.Context(), submitted.ID); err != nil || is.Outcome == nil || is.Outcome.Result != NotPossible || len(s.listRetirements()) != 0 {
			t.Errorf("%+v, %v, %v; want its own retirement cancelled", is, err, s.retiringNodes())
		}
	})
}

// TestProtectionOfKeptMachineIsRestored lets the server refuse memberships for a while.
func TestProtectionOfKeptMachineIsRestored(t *testing.T) {
	for name, gone := range map[string]bool{"machine stays": false, "machine disappears": true} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 2, func(t *testing.T, s *sim) {
				s.pool.machines[0].Membership = &api.MembershipStatus{Active: true}
				a := s.startReplica("a")
				submitted := mustSubmit(t, a, Update{Kind: Dispose, MachineID: newUUID(1)})
				s.advance(5 * time.Second)
				s.pool.setFailure("membership", errors.New("away"))
				s.updateRetirementStatus(s.listRetirements()[0].Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase = v1alpha1.Aborted })
				s.advance(5 * time.Minute)
				result, err := submitted.WaitForOutcome(t.Context())
				if err != nil || result.Outcome.Result != BackendUnavailable || !strings.Contains(result.Outcome.Detail, "not evictable again") {
					t.Errorf("%+v, %v; want an error for the client meanwhile", result, err)
				}
				if gone {
					s.pool.removeMachine(newUUID(1), cloud.DeleteOptions{})
				} else {
					s.pool.setFailure("membership", nil)
				}
				s.advance(10 * time.Second)
				if !gone && s.pool.machines[0].Membership.Evictable {
					t.Errorf("the machine is evictable after %q", s.pool.changeRequests())
				}
				is, err := a.FindUpdate(t.Context(), submitted.ID)
				check.Not(t, err != nil || is.Outcome == nil || is.Outcome.Result != NotPossible, "%+v, %v; want the update finished", is, err)
			})
		})
	}
}

// TestUnchangedMembershipStaysProtected lets the server refuse memberships from the start.
func TestUnchangedMembershipStaysProtected(t *testing.T) {
	simulate(t, 2, func(t *testing.T, s *sim) {
		s.pool.machines[0].Membership = &api.MembershipStatus{Active: true}
		s.pool.setFailure("membership", errors.New("away"))
		a := s.startReplica("a")
		up := Update{Kind: Dispose, MachineID: newUUID(1)}
		checkUpdateEnds(t, a, up, 5*time.Minute, BackendUnavailable, "continues until machine "+newUUID(1)+" is not evictable again")
		s.pool.setFailure("membership", nil)
		s.advance(10 * time.Second)
		busy, err := getUnfinishedUpdate(t.Context(), a)
		if is := s.pool.machines[0].Membership; err != nil || busy != nil || is.Evictable || len(s.listRetirements()) > 0 {
			t.Errorf("%+v after %q, busy with %v, %v; want it protected as before, and the pool free", is, s.pool.changeRequests(), busy, err)
		}
	})
}

// serverError returns an error answer of the pool's server.
func serverError(code int) error {
	return &api.StatusError{Code: code, FromServer: true, ErrorMessage: api.ErrorMessage{Message: "no"}}
}

// TestKeepingMachineCancelsForeignRetirement detaches a machine, or makes it non-evictable, while another client's
// retirement of it is unfinished.
func TestKeepingMachineCancelsForeignRetirement(t *testing.T) {
	detach := []string{"/pool/detach", `{"machineId": "` + newUUID(2) + `", "decrementDesiredSize": true}`}
	keep := []string{"/pool/membershipStatus", `{"machineId": "` + newUUID(2) + `", "membershipStatus": {"active": true, "evictable": false}}`}
	for name, tt := range map[string]struct {
		phase       v1alpha1.Phase
		notice      bool
		finalizer   bool // the manager does not run
		request     []string
		code        int
		text        string
		retirements int
	}{
		"detached before start":        {v1alpha1.Pending, false, false, detach, http.StatusOK, "", 0},
		"detached with notice":         {v1alpha1.Pending, true, false, detach, http.StatusOK, "", 1},
		"detached while draining":      {v1alpha1.Draining, false, false, detach, http.StatusOK, "", 0},
		"detached, not restored yet":   {v1alpha1.Draining, false, true, detach, http.StatusConflict, "NodeRetirement others-n2 of its node n2 was cancelled", 1},
		"detached after drain":         {v1alpha1.Drained, false, false, detach, http.StatusConflict, "can no longer be kept: NodeRetirement others-n2 of its node n2 is Drained", 1},
		"detached after node deletion": {v1alpha1.NodeDeleted, false, false, detach, http.StatusConflict, "can no longer be kept", 1},
		"not evictable before start":   {v1alpha1.Pending, false, false, keep, http.StatusOK, "", 1},
		"not evictable while draining": {v1alpha1.Draining, false, false, keep, http.StatusOK, "", 0},
		"not evictable after drain":    {v1alpha1.Drained, false, false, keep, http.StatusConflict, "can no longer be kept", 1},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				front := s.newFrontServer(s.startReplica("a"))
				s.createForeignRetirement(2, "n2")
				rt := s.listRetirements()[0]
				if tt.notice {
					rt.Spec.Notice = &v1alpha1.NoticeReference{Source: "azure", ID: "1", Type: "Preempt"}
				}
				if tt.finalizer {
					rt.Finalizers = []string{"slipway.dev/retirement"}
				}
				must.NoError(t, s.objects.Update(t.Context(), &rt))
				s.updateRetirementStatus(rt.Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase = tt.phase })
				if tt.phase == v1alpha1.NodeDeleted {
					s.deleteNode("n2")
				}
				s.advance(0)
				w := post(t, front, tt.request[0], tt.request[1])
				check.Not(t, w.Code != tt.code || !strings.Contains(w.Body.String(), tt.text), "%d %s; want %d, and %q", w.Code, w.Body, tt.code, tt.text)
				if asked := s.pool.changeRequests(); len(asked) > 0 != (tt.code == http.StatusOK) {
					t.Errorf("the pool's server was asked for %q", asked)
				}
				if n := len(s.listRetirements()); n != tt.retirements {
					t.Errorf("%d retirements, want %d", n, tt.retirements)
				}
			})
		})
	}
}

// createPodWithEmptyDir creates a running pod with local storage on a node.
func (s *sim) createPodWithEmptyDir(namespace, node string) {
	s.t.Helper()
	yes := true
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: "web-" + node, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "o", Controller: &yes,
		}},
	}}
	p.Spec.NodeName, p.Status.Phase = node, corev1.PodRunning
	p.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	must.NoError(s.t, check.Err(s.kube.CoreV1().Pods(namespace).Create(s.t.Context(), p, metav1.CreateOptions{})))
}

// allowPods sets the node's allocatable pods.
func (s *sim) allowPods(node string) {
	s.t.Helper()
	n, err := s.kube.CoreV1().Nodes().Get(s.t.Context(), node, metav1.GetOptions{})
	if err == nil {
		n.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("10")}
		_, err = s.kube.CoreV1().Nodes().Update(s.t.Context(), n, metav1.UpdateOptions{})
	}
	must.NoError(s.t, err)
}

func TestSystemLocalStorageOptionAllowsRemoval(t *testing.T) {
	for name, tt := range map[string]struct {
		namespace string
		option    bool
		removable bool
	}{
		"kube-system":                    {metav1.NamespaceSystem, true, true},
		"kube-system without the option": {metav1.NamespaceSystem, false, false},
		"another namespace":              {"shop", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 2, func(t *testing.T, s *sim) {
				for _, node := range []string{"n1", "n2"} {
					s.allowPods(node)
					s.createPodWithEmptyDir(tt.namespace, node)
				}
				a := s.startReplica("a", func(o *UpdaterOptions) { o.SystemLocalStorage = tt.option })
				d, err := a.PlanShrinkTo(t.Context(), 1)
				check.Not(t, err != nil || (len(d.Victims) == 1) != tt.removable, "%+v, %v; want a victim: %t", d, err, tt.removable)
			})
		})
	}
}
