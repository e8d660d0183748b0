package controller

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
)

// The tests of this file are named after faults of kubeaware-cloudpool-proxy; package kubeaware has the list of all.

// pod makes a pod on a node, which its owner may control.
func (s *sim) pod(name, node string, controller *bool) {
	s.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: name, Labels: map[string]string{"app": name},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Owner", Name: name, UID: "o", Controller: controller}},
	}}
	p.Spec.NodeName, p.Status.Phase = node, corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	p.Spec.Containers = []corev1.Container{{
		Name: "main", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
	}}
	if _, err := s.kube.CoreV1().Pods("default").Create(s.t.Context(), p, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// roomy gives a node something to allocate, which those of a simulation have not.
func (s *sim) roomy(name string) {
	s.t.Helper()
	n, err := s.kube.CoreV1().Nodes().Get(s.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourcePods: resource.MustParse("10")}
	if _, err := s.kube.CoreV1().Nodes().UpdateStatus(s.t.Context(), n, metav1.UpdateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// served is a replica's own server.
func (s *sim) served(u *Updater) FrontServer {
	return newServer("workers", u.o.Backend, nil, u, false)
}

// posted is what a client is answered within a minute.
func posted(t *testing.T, s FrontServer, path, body string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, path, strings.NewReader(body))
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	if ctx.Err() != nil {
		t.Errorf("POST %s %s: no answer within a minute", path, body)
	}
	return w
}

// panicking is a pool whose server's answer is the end of whoever reads it, as long as it is so.
type panicking struct {
	*server
	now atomic.Bool
}

func (p *panicking) Pool(ctx context.Context) (api.Pool, error) {
	if p.now.Load() {
		panic("no such thing as a controller")
	}
	return p.server.Pool(ctx)
}

func TestFaultAPanicLeavesThePoolLocked(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		s.pod("owned-somehow", "n1", nil)
		s.pod("owned", "n2", new(true))
		pool := &panicking{server: s.pool}
		a := s.replica("a", func(o *UpdaterOptions) { o.Backend = pool })
		front := s.served(a)
		s.passes(time.Second)
		// These were the panics: an owner that does not say whether it is the controller, and nodes with nothing to allocate.
		for id, reason := range map[string]string{uuid(1): "(unmanaged)", uuid(2): "(no-room)"} {
			if w := posted(t, front, "/pool/terminate", `{"machineId": "`+id+`"}`); w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), reason) {
				t.Errorf("terminate %s: %d %s, want 409 for %s", id, w.Code, w.Body, reason)
			}
		}
		// And whatever the next one is, net/http catches it, and nobody waits for what it held.
		for _, path := range []string{"/pool/size", "/pool/terminate"} {
			pool.now.Store(true)
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("POST %s: there was no panic", path)
					}
				}()
				posted(t, front, path, `{"desiredSize": 2, "machineId": "`+uuid(3)+`", "membershipStatus": {"active": true, "evictable": true}}`)
			}()
			pool.now.Store(false)
			if w := posted(t, front, "/pool/size", `{"desiredSize": 3}`); w.Code != http.StatusOK {
				t.Errorf("after a panic in POST %s: %d %s", path, w.Code, w.Body)
			}
		}
		if w := posted(t, front, "/pool/terminate", `{"machineId": "`+uuid(3)+`"}`, "Prefer: respond-async"); w.Code != http.StatusAccepted {
			t.Errorf("terminate %s: %d %s", uuid(3), w.Code, w.Body)
		}
		if w := posted(t, s.served(s.replica("b")), "/pool/size", `{"desiredSize": 1}`); w.Code != http.StatusTooManyRequests {
			t.Errorf("another process: %d %s, want it told of the update that is under way", w.Code, w.Body)
		}
	})
}

func TestFaultWithoutExternalIDsAllIsPassedOnUnguarded(t *testing.T) {
	for name, paired := range map[string]bool{"provider IDs": true, "nothing that says which machine it is": false} {
		simulate(t, 0, func(t *testing.T, s *sim) {
			s.pool.size = 2
			for i := 1; i <= 2; i++ {
				s.pool.add(machine(i, api.Running, ""))
				if paired {
					s.node(fmt.Sprint("n", i), i)
				} else {
					s.node(fmt.Sprint("worker-", i), 0)
				}
			}
			a := s.replica("a")
			front := s.served(a)
			s.passes(time.Second)
			w := posted(t, front, "/pool/size", `{"desiredSize": 1}`, "Prefer: respond-async")
			s.passes(5 * time.Second)
			retired := len(s.retirements())
			if paired && (w.Code != http.StatusAccepted || retired != 1) || !paired && (w.Code != http.StatusConflict || retired != 0) {
				t.Errorf("nodes with %s: %d %s, %d retirements", name, w.Code, w.Body, retired)
			}
			if asked := s.pool.requests(); len(asked) > 0 {
				t.Errorf("nodes with %s: the pool's server was asked for %q", name, asked)
			}
		})
	}
}

func TestFaultBudgetsAreReadInAVersionThatIsGone(t *testing.T) {
	simulate(t, 2, func(t *testing.T, s *sim) {
		s.pod("web", "n1", new(true))
		s.roomy("n2")
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
		budget.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
		budget.Status.CurrentHealthy, budget.Status.DesiredHealthy = 1, 1
		budgets := s.kube.PolicyV1().PodDisruptionBudgets("default")
		if _, err := budgets.Create(t.Context(), budget, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		front := s.served(s.replica("a"))
		s.passes(time.Second)
		terminate := func() *httptest.ResponseRecorder {
			return posted(t, front, "/pool/terminate", `{"machineId": "`+uuid(1)+`"}`, "Prefer: respond-async")
		}
		if w := terminate(); w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "(disruption-budget)") {
			t.Errorf("%d %s, want 409 for a budget of policy/v1", w.Code, w.Body)
		}
		budget.Status.DisruptionsAllowed = 1
		if _, err := budgets.UpdateStatus(t.Context(), budget, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		s.passes(time.Second)
		if w := terminate(); w.Code != http.StatusAccepted {
			t.Errorf("%d %s, want 202 once the budget allows it", w.Code, w.Body)
		}
		for _, action := range s.kube.Actions() {
			if r := action.GetResource(); r.Resource == "poddisruptionbudgets" && r.Version != "v1" {
				t.Errorf("%s of %s", action.GetVerb(), r)
			}
		}
	})
}
