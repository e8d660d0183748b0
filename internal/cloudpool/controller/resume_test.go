package controller

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/drainability"
)

// createInterruptedUpdate creates an update as left by a process that ended before it created the retirement of n1.
func (s *sim) createInterruptedUpdate(want Update) {
	s.t.Helper()
	up := &v1alpha1.PoolUpdate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "slipway", Name: "workers-1", UID: "left", Labels: map[string]string{PoolLabel: "workers"}},
		Spec:       want.toSpec("workers"),
	}
	if err := s.objects.Create(s.t.Context(), up); err != nil {
		s.t.Fatal(err)
	}
	s.rewriteStatus(*up, func(st *v1alpha1.PoolUpdateStatus) {
		st.StartedAt, st.ObservedAt, st.SizeBefore = toMicroTime(time.Now()), toMicroTime(time.Now()), 3
		st.Machines = []v1alpha1.PoolMachine{{
			ID: newUUID(1), Node: "n1", NodeUID: "uid-n1", ProviderID: "openstack:///" + newUUID(1), Retirement: retirementName("left", "n1"),
			State: v1alpha1.MachineRemoving, Since: toMicroTime(time.Now()),
		}}
	})
}

// annotateNode sets an annotation of a node, as another client does.
func (s *sim) annotateNode(node, key, value string) {
	s.t.Helper()
	n, err := s.kube.CoreV1().Nodes().Get(s.t.Context(), node, metav1.GetOptions{})
	if err == nil {
		n.Annotations = map[string]string{key: value}
		_, err = s.kube.CoreV1().Nodes().Update(s.t.Context(), n, metav1.UpdateOptions{})
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// retiringNodes returns the names of the nodes with a retirement.
func (s *sim) retiringNodes() []string {
	nodes := []string{}
	for _, rt := range s.listRetirements() {
		nodes = append(nodes, rt.Spec.NodeName)
	}
	slices.Sort(nodes)
	return nodes
}

// TestUncreatedRetirementIsChosenAgain ends a process after it recorded a removal and before it created the retirement.
func TestUncreatedRetirementIsChosenAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		update    Update
		protected bool
		want      []string
	}{
		"size, nothing changed":                {Update{Kind: SetSize, DesiredSize: 2}, false, []string{"n1"}},
		"size, first machine is now protected": {Update{Kind: SetSize, DesiredSize: 2}, true, []string{"n2"}},
		"one machine, nothing changed":         {Update{Kind: Terminate, MachineID: newUUID(1)}, false, []string{"n1"}},
		"one machine, now protected":           {Update{Kind: Terminate, MachineID: newUUID(1)}, true, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				if tt.protected {
					s.annotateNode("n1", drainability.DoNotEvict, "true")
				}
				s.createInterruptedUpdate(tt.update)
				a := s.startReplica("a")
				s.advance(30 * time.Second)
				if got := s.retiringNodes(); !slices.Equal(got, tt.want) {
					t.Errorf("%v are retired, want %v", got, tt.want)
				}
				up, err := a.FindUpdate(t.Context(), "workers-1")
				if err != nil || up == nil || len(tt.want) == 0 && (up.Outcome == nil || up.Outcome.Result != NotPossible) {
					t.Errorf("%+v, %v", up, err)
				}
			})
		})
	}
}

// TestCancelledRetirementIsNotCreatedAgain deletes the retirement between two processes.
func TestCancelledRetirementIsNotCreatedAgain(t *testing.T) {
	simulate(t, 2, func(t *testing.T, s *sim) {
		a := s.startReplica("a")
		submitted, err := a.SubmitOrFindEqual(t.Context(), Update{Kind: Terminate, MachineID: newUUID(1)}, a.CheckCanRemoveMachine)
		if err != nil {
			t.Fatal(err)
		}
		s.advance(5 * time.Second)
		rts := s.listRetirements()
		if len(rts) != 1 {
			t.Fatalf("%d retirements, want 1", len(rts))
		}
		s.leases.setUnreachable("a", true)
		s.advance(20 * time.Second) // until it knows that it lost the Lease
		if err := s.objects.Delete(t.Context(), &rts[0]); err != nil {
			t.Fatal(err)
		}
		b := s.startReplica("b")
		s.advance(time.Minute)
		up, err := b.FindUpdate(t.Context(), submitted.ID)
		if err != nil || up.Outcome == nil || up.Outcome.Result != NotPossible || len(s.listRetirements()) != 0 {
			t.Errorf("%+v, %v, %v; want it cancelled", up, err, s.retiringNodes())
		}
	})
}

// TestWaiterLearnsThatUpdateIsUnreadable waits in another process while the update is unreadable or deleted.
func TestWaiterLearnsThatUpdateIsUnreadable(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		want Result
		text string
	}{
		"unreadable": {errors.New("away"), ClusterUnavailable, "continues as soon as it can be read"},
		"deleted":    {nil, Failed, "was deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				up := Update{Kind: SetSize, DesiredSize: 2, Pool: "workers"}
				mustSubmit(t, s.startReplica("a"), up)
				submitted := mustSubmit(t, s.startReplica("b"), up)
				s.advance(5 * time.Second)
				s.updatesUnreadable.Store(tt.err != nil)
				if tt.err == nil {
					for _, up := range s.listUpdates() {
						if err := s.objects.Delete(t.Context(), &up); err != nil {
							t.Error(err)
						}
					}
				}
				ctx, leave := context.WithTimeout(t.Context(), 5*time.Minute)
				defer leave()
				is, err := submitted.WaitForOutcome(ctx)
				if err != nil || is.Outcome.Result != tt.want || !strings.Contains(is.Outcome.Detail, tt.text) {
					t.Errorf("%+v, %v; want %s, and %q", is, err, tt.want, tt.text)
				}
			})
		})
	}
}
