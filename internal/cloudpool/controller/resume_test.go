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

// leave creates an update as a process leaves it that ends before it creates the retirement of n1.
func (s *sim) leave(want Update) {
	s.t.Helper()
	up := &v1alpha1.PoolUpdate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "slipway", Name: "workers-1", UID: "left", Labels: map[string]string{PoolLabel: "workers"}},
		Spec:       want.spec("workers"),
	}
	if err := s.objects.Create(s.t.Context(), up); err != nil {
		s.t.Fatal(err)
	}
	s.rewrite(*up, func(st *v1alpha1.PoolUpdateStatus) {
		st.StartedAt, st.ObservedAt, st.SizeBefore = toMicro(time.Now()), toMicro(time.Now()), 3
		st.Machines = []v1alpha1.PoolMachine{{
			ID: uuid(1), Node: "n1", NodeUID: "uid-n1", ProviderID: "openstack:///" + uuid(1), Retirement: retirementName("left", "n1"),
			State: v1alpha1.MachineLeaving, Since: toMicro(time.Now()),
		}}
	})
}

// annotate writes on a node, as somebody else does.
func (s *sim) annotate(node, key, value string) {
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

// retiring are the nodes of the retirements.
func (s *sim) retiring() []string {
	nodes := []string{}
	for _, rt := range s.retirements() {
		nodes = append(nodes, rt.Spec.NodeName)
	}
	slices.Sort(nodes)
	return nodes
}

// TestATurnThatWasNotBegunIsJudgedAgain has a process end between writing a turn down and making its retirement.
func TestATurnThatWasNotBegunIsJudgedAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		left Update
		held bool
		want []string
	}{
		"a size, and nothing has changed":        {Update{Kind: SetSize, DesiredSize: 2}, false, []string{"n1"}},
		"a size, and another one has to go":      {Update{Kind: SetSize, DesiredSize: 2}, true, []string{"n2"}},
		"one machine, and nothing has changed":   {Update{Kind: Terminate, MachineID: uuid(1)}, false, []string{"n1"}},
		"one machine, and it is held since then": {Update{Kind: Terminate, MachineID: uuid(1)}, true, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				if tt.held {
					s.annotate("n1", drainability.DoNotEvict, "true")
				}
				s.leave(tt.left)
				a := s.replica("a")
				s.passes(30 * time.Second)
				if got := s.retiring(); !slices.Equal(got, tt.want) {
					t.Errorf("%v are retired, want %v", got, tt.want)
				}
				up, err := a.Find(t.Context(), "workers-1")
				if err != nil || up == nil || len(tt.want) == 0 && (up.Outcome == nil || up.Outcome.Result != NotPossible) {
					t.Errorf("%+v, %v", up, err)
				}
			})
		})
	}
}

// TestARetirementThatWasCalledOffWhileNobodyLookedIsNotMadeAgain has somebody delete it between two processes.
func TestARetirementThatWasCalledOffWhileNobodyLookedIsNotMadeAgain(t *testing.T) {
	simulate(t, 2, func(t *testing.T, s *sim) {
		a := s.replica("a")
		ticket, err := a.Submit(t.Context(), Update{Kind: Terminate, MachineID: uuid(1)}, a.JudgeMachine)
		if err != nil {
			t.Fatal(err)
		}
		s.passes(5 * time.Second)
		rts := s.retirements()
		if len(rts) != 1 {
			t.Fatalf("%d retirements, want 1", len(rts))
		}
		s.leases.cutOff("a", true)
		s.passes(20 * time.Second) // it has noticed
		if err := s.objects.Delete(t.Context(), &rts[0]); err != nil {
			t.Fatal(err)
		}
		b := s.replica("b")
		s.passes(time.Minute)
		up, err := b.Find(t.Context(), ticket.ID)
		if err != nil || up.Outcome == nil || up.Outcome.Result != NotPossible || len(s.retirements()) != 0 {
			t.Errorf("%+v, %v, %v; want it to be called off", up, err, s.retiring())
		}
	})
}

// TestWhoWaitsElsewhereForAnUpdateThatCannotBeSeenIsToldSo asks a process that does not work on it, and cannot read of it, or that
// nothing is written down of it any more.
func TestWhoWaitsElsewhereForAnUpdateThatCannotBeSeenIsToldSo(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		want Result
		says string
	}{
		"the API server is away": {errors.New("away"), ClusterUnavailable, "goes on as soon as that can be read"},
		"it is deleted":          {nil, Failed, "was deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				up := Update{Kind: SetSize, DesiredSize: 2, Pool: "workers"}
				begun(t, s.replica("a"), up)
				ticket := begun(t, s.replica("b"), up)
				s.passes(5 * time.Second)
				s.away.Store(tt.err != nil)
				if tt.err == nil {
					for _, up := range s.updates() {
						if err := s.objects.Delete(t.Context(), &up); err != nil {
							t.Error(err)
						}
					}
				}
				ctx, leave := context.WithTimeout(t.Context(), 5*time.Minute)
				defer leave()
				is, err := ticket.Wait(ctx)
				if err != nil || is.Outcome.Result != tt.want || !strings.Contains(is.Outcome.Detail, tt.says) {
					t.Errorf("%+v, %v; want %s, and %q", is, err, tt.want, tt.says)
				}
			})
		})
	}
}
