package cloudpool

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/slipway-dev/slipway/internal/protection"
)

// leave writes an update down that a process has begun, and whose first turn is that of n1.
func (s *sim) leave(up Update) {
	s.t.Helper()
	up.ID, up.Pool, up.Began, up.Observed = "left", "workers", time.Now(), time.Now()
	up.Turns = []Turn{{
		Machine: uuid(1), Node: "n1", NodeUID: "uid-n1", ProviderID: "openstack:///" + uuid(1), Retirement: retirementName("left", "n1"),
		State: Leaving, Since: time.Now(),
	}}
	raw, err := json.Marshal(record{Current: &up})
	if err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	name := recordName("workers")
	s.keep(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{recordKey: string(raw)}})
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
		"a size, and nothing has changed":        {Update{Kind: SetSize, DesiredSize: 2, Decision: &Decision{Victims: []Victim{{Machine: uuid(1)}}}}, false, []string{"n1"}},
		"a size, and another one has to go":      {Update{Kind: SetSize, DesiredSize: 2, Decision: &Decision{Victims: []Victim{{Machine: uuid(1)}, {Machine: uuid(2)}}}}, true, []string{"n2"}},
		"one machine, and nothing has changed":   {Update{Kind: Terminate, MachineID: uuid(1)}, false, []string{"n1"}},
		"one machine, and it is held since then": {Update{Kind: Terminate, MachineID: uuid(1)}, true, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				if tt.held {
					s.annotate("n1", protection.DoNotEvict, "true")
				}
				s.leave(tt.left)
				a := s.replica("a")
				s.passes(30 * time.Second)
				if got := s.retiring(); !slices.Equal(got, tt.want) {
					t.Errorf("%v are retired, want %v", got, tt.want)
				}
				up, err := a.Find(t.Context(), "left")
				if err != nil || len(tt.want) == 0 && (up.Outcome == nil || up.Outcome.Result != NotPossible) {
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
		ticket, err := a.Submit(t.Context(), Update{Kind: Terminate, MachineID: uuid(1)}, a.judgeMachine)
		if err != nil {
			t.Fatal(err)
		}
		s.passes(time.Second)
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
		up, err := b.Find(t.Context(), ticket.Update.ID)
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
		"the API server is away": {errors.New("away"), ClusterAway, "goes on as soon as that can be read"},
		"its record is deleted":  {nil, Failed, "nothing is written down"},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, func(t *testing.T, s *sim) {
				up := Update{Kind: SetSize, DesiredSize: 2, Pool: "workers"}
				var gone atomic.Bool
				s.kube.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
					return gone.Load() && tt.err != nil, nil, tt.err
				})
				begun(t, s.replica("a"), up)
				ticket := begun(t, s.replica("b"), up)
				s.passes(5 * time.Second)
				gone.Store(true)
				if tt.err == nil {
					s.mu.Lock()
					clear(s.maps)
					s.mu.Unlock()
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
