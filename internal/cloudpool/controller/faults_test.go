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
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// The tests of this file are named after faults of kubeaware-cloudpool-proxy. Package kubeaware lists all faults.

// createPod creates a running pod on a node with an owner, which may be the controller.
func (s *sim) createPod(name, node string, controller *bool) {
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
	must.NoError(s.t, check.Err(s.kube.CoreV1().Pods("default").Create(s.t.Context(), p, metav1.CreateOptions{})))
}

// setAllocatable sets the node's allocatable resources.
func (s *sim) setAllocatable(name string) {
	s.t.Helper()
	n := must.Get(s.kube.CoreV1().Nodes().Get(s.t.Context(), name, metav1.GetOptions{}))(s.t)
	n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourcePods: resource.MustParse("10")}
	must.NoError(s.t, check.Err(s.kube.CoreV1().Nodes().UpdateStatus(s.t.Context(), n, metav1.UpdateOptions{})))
}

// newFrontServer returns the HTTP server of a replica.
func (s *sim) newFrontServer(u *Updater) FrontServer {
	return newServer("workers", u.opts.Backend, nil, u, false)
}

// post sends a POST request and returns the answer. It fails the test if there is none within a minute.
func post(t *testing.T, s FrontServer, path, body string, headers ...string) *httptest.ResponseRecorder {
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
	check.Not(t, ctx.Err() != nil, "POST %s %s: no answer within a minute", path, body)
	return w
}

// panickingPool is a pool with reads that panic while panics is set.
type panickingPool struct {
	*fakeServer
	panics atomic.Bool
}

func (p *panickingPool) Pool(ctx context.Context) (api.Pool, error) {
	if p.panics.Load() {
		panic("no such thing as a controller")
	}
	return p.fakeServer.Pool(ctx)
}

func TestFaultPanicLeavesPoolLocked(t *testing.T) {
	simulate(t, 3, func(t *testing.T, s *sim) {
		s.createPod("owned-somehow", "n1", nil)
		s.createPod("owned", "n2", new(true))
		pool := &panickingPool{fakeServer: s.pool}
		a := s.startReplica("a", func(o *UpdaterOptions) { o.Backend = pool })
		front := s.newFrontServer(a)
		s.advance(time.Second)
		// The causes of the panics were an owner without the field controller, and nodes without allocatable resources.
		for id, reason := range map[string]string{newUUID(1): "(unmanaged)", newUUID(2): "(no-room)"} {
			if w := post(t, front, "/pool/terminate", `{"machineId": "`+id+`"}`); w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), reason) {
				t.Errorf("terminate %s: %d %s, want 409 for %s", id, w.Code, w.Body, reason)
			}
		}
		// net/http recovers from any other panic, and the pool is not locked afterwards.
		for _, path := range []string{"/pool/size", "/pool/terminate"} {
			pool.panics.Store(true)
			func() {
				defer func() {
					check.Not(t, recover() == nil, "POST %s: there was no panic", path)
				}()
				post(t, front, path, `{"desiredSize": 2, "machineId": "`+newUUID(3)+`", "membershipStatus": {"active": true, "evictable": true}}`)
			}()
			pool.panics.Store(false)
			if w := post(t, front, "/pool/size", `{"desiredSize": 3}`); w.Code != http.StatusOK {
				t.Errorf("after a panic in POST %s: %d %s", path, w.Code, w.Body)
			}
		}
		if w := post(t, front, "/pool/terminate", `{"machineId": "`+newUUID(3)+`"}`, "Prefer: respond-async"); w.Code != http.StatusAccepted {
			t.Errorf("terminate %s: %d %s", newUUID(3), w.Code, w.Body)
		}
		if w := post(t, s.newFrontServer(s.startReplica("b")), "/pool/size", `{"desiredSize": 1}`); w.Code != http.StatusTooManyRequests {
			t.Errorf("another replica: %d %s, want 429 for the unfinished update", w.Code, w.Body)
		}
	})
}

func TestFaultNodesWithoutExternalIDsAreUnguarded(t *testing.T) {
	for name, paired := range map[string]bool{"provider IDs": true, "no identity": false} {
		simulate(t, 0, func(t *testing.T, s *sim) {
			s.pool.size = 2
			for i := 1; i <= 2; i++ {
				s.pool.addMachine(newMachine(i, api.Running, ""))
				if paired {
					s.createNode(fmt.Sprint("n", i), i)
				} else {
					s.createNode(fmt.Sprint("worker-", i), 0)
				}
			}
			a := s.startReplica("a")
			front := s.newFrontServer(a)
			s.advance(time.Second)
			w := post(t, front, "/pool/size", `{"desiredSize": 1}`, "Prefer: respond-async")
			s.advance(5 * time.Second)
			retired := len(s.listRetirements())
			if paired && (w.Code != http.StatusAccepted || retired != 1) || !paired && (w.Code != http.StatusConflict || retired != 0) {
				t.Errorf("nodes with %s: %d %s, %d retirements", name, w.Code, w.Body, retired)
			}
			if asked := s.pool.changeRequests(); len(asked) > 0 {
				t.Errorf("nodes with %s: the pool's server was asked for %q", name, asked)
			}
		})
	}
}

func TestFaultPDBsAreReadInRemovedVersion(t *testing.T) {
	simulate(t, 2, func(t *testing.T, s *sim) {
		s.createPod("web", "n1", new(true))
		s.setAllocatable("n2")
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
		budget.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
		budget.Status.CurrentHealthy, budget.Status.DesiredHealthy = 1, 1
		budgets := s.kube.PolicyV1().PodDisruptionBudgets("default")
		must.NoError(t, check.Err(budgets.Create(t.Context(), budget, metav1.CreateOptions{})))
		front := s.newFrontServer(s.startReplica("a"))
		s.advance(time.Second)
		terminate := func() *httptest.ResponseRecorder {
			return post(t, front, "/pool/terminate", `{"machineId": "`+newUUID(1)+`"}`, "Prefer: respond-async")
		}
		if w := terminate(); w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "(disruption-budget)") {
			t.Errorf("%d %s, want 409 for a policy/v1 PDB", w.Code, w.Body)
		}
		budget.Status.DisruptionsAllowed = 1
		must.NoError(t, check.Err(budgets.UpdateStatus(t.Context(), budget, metav1.UpdateOptions{})))
		s.advance(time.Second)
		if w := terminate(); w.Code != http.StatusAccepted {
			t.Errorf("%d %s, want 202 once the PDB allows it", w.Code, w.Body)
		}
		for _, action := range s.kube.Actions() {
			if r := action.GetResource(); r.Resource == "poddisruptionbudgets" && r.Version != "v1" {
				t.Errorf("%s of %s", action.GetVerb(), r)
			}
		}
	})
}
