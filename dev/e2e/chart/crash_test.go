package chart_test

import (
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

const cacheNode = "e2e.slipway.dev/cache" // the label of nodes that may run the cache

// cache has two pods on the instance where the build ends. Its PDB allows one pod to be away. The second pod is evicted
// after the first is replaced.
var cache = workload.App{Namespace: shop, Name: "cache", Replicas: 2, StopSeconds: "0.5", NodeSelector: map[string]string{cacheNode: ""}}

// crash is the last chapter. It kills the leading manager during a retirement, while a PDB blocks the second pod. The
// pod waits until another manager leads. That manager finishes the retirement.
func (s *story) crash() {
	node := night.NodeName(0)
	s.check(s.Client().CoreV1().Pods(shop).Delete(s.ctx, buildOn(night, 0).Name, metav1.DeleteOptions{}))
	begun := s.awaitRetirement(node, "come to its middle", halfway)
	first := s.leader()
	s.check(first.Kill())
	second := s.leader()
	if still := s.awaitRetirement(node, "been read", func(*v1alpha1.NodeRetirement) bool { return true }); !halfway(still) {
		s.t.Errorf("when the second manager leads, the retirement is %s with %+v: want it to wait for the budget", still.Status.Phase, still.Status.Drain)
	}
	s.label(home.NodeName(0), cacheNode)
	done := s.retired(node)
	if done.UID != begun.UID || done.Spec.Reason != v1alpha1.Idle {
		s.t.Errorf("retirement %s for %s has ended, and %s for %s had begun", done.UID, done.Spec.Reason, begun.UID, begun.Spec.Reason)
	}
	if _, there := s.ARM.VM(night.ResourceName(0)); there {
		s.t.Error("the machine of the node that has left is there")
	}
	if first.IsAlive() || !second.IsLeader(s.ctx) {
		s.t.Error("the manager that was killed lives, or the other one does not lead")
	}
	if by := s.evictors(cache); !slices.Equal(by, []string{first.Name(), second.Name()}) {
		s.t.Errorf("pods of %s were evicted by %q, want one by %s and then one by %s", cache.Name, by, first.Name(), second.Name())
	}
	s.check(workload.AwaitSettled(s.ctx, s.Client(), cache.Deployment()))
}

// halfway reports whether one pod of a drain has gone and the other waits.
func halfway(rt *v1alpha1.NodeRetirement) bool {
	d := rt.Status.Drain
	return rt.Status.Phase == v1alpha1.Draining && d != nil && d.Gone == 1 && d.Waiting == 1
}

// leader waits until a manager leads.
func (s *story) leader() (leads *testbed.Manager) {
	s.t.Helper()
	s.check(testbed.PollUntil(s.ctx, "a manager leads", func() bool {
		i := slices.IndexFunc(s.managers, func(m *testbed.Manager) bool { return m.IsAlive() && m.IsLeader(s.ctx) })
		if i >= 0 {
			leads = s.managers[i]
		}
		return leads != nil
	}))
	return leads
}

// evictors returns the pods that evicted pods of an app, in the order of the successful evictions. The audit log
// identifies them by their tokens.
func (s *story) evictors(app workload.App) (by []string) {
	s.t.Helper()
	log, err := s.ReadAuditLog(controlplane.AuditFilter{Verb: "create", Resource: "pods/eviction", Namespace: app.Namespace})
	s.check(err)
	for _, e := range log {
		granted := e.ResponseStatus != nil && e.ResponseStatus.Code == http.StatusCreated
		if granted && strings.HasPrefix(e.ObjectRef.Name, app.Name+"-") {
			by = append(by, e.User.Extra["authentication.kubernetes.io/pod-name"]...)
		}
	}
	return by
}
