package main

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/surge"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

// startingSurger says that every pod needs a successor. The successor is ready after startup, and the pod may be evicted
// then. Its owner is restored 3 s after the end of a context.
type startingSurger struct{ startup time.Duration }

func (startingSurger) Decide(context.Context, kubeapi.Pod, []*kubeapi.PodDisruptionBudget, bool, time.Time) (surge.Decision, error) {
	return surge.Decision{Verdict: surge.Needed, Reason: "last-ready", Detail: "no other pod of Deployment shop/web is ready"}, nil
}

func (s startingSurger) Run(ctx context.Context, r surge.Request) surge.Result {
	began := time.Now()
	r.OnProgress(surge.Progress{Step: surge.AwaitingReady, Since: began, Successor: "shop/web-2", Detail: "starts on node other"})
	select {
	case <-time.After(s.startup):
	case <-ctx.Done():
		time.Sleep(3 * time.Second)
		return surge.Result{StartedAt: began, EndedAt: time.Now(), Reason: surge.ReasonCancelled, Detail: "the drain has ended"}
	}
	ready := time.Now()
	r.OnProgress(surge.Progress{Step: surge.Evictable, Since: ready, Successor: "shop/web-2", Detail: "the pod may be evicted"})
	time.Sleep(time.Second)
	return surge.Result{PodLeft: true, Successor: "shop/web-2", StartedAt: began, ReadyAt: ready, EndedAt: time.Now()}
}

func TestDrainPrintsEachStepOfASurge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeDrainCluster(t, "n", "other")
		c.surger = startingSurger{10 * time.Second}
		c.runPod("web", "n")
		r := c.runDrain(t.Context(), "n")
		check.Is(t, 0, r.code, r.out, r.stderr)
		check.Contains(t, r.stderr, "n: waiting for shop/web: surge: awaiting-ready, successor shop/web-2: starts on node other\n")
		check.Contains(t, r.out, "1 after their successor was ready (10s of service gained)",
			"shop/web: successor needed: no other pod of Deployment shop/web is ready; successor shop/web-2 is ready\n")
	})
}

func TestI3InterruptWaitsForOwnersToBeRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeDrainCluster(t, "n", "other")
		c.surger = startingSurger{time.Minute}
		c.runPod("web", "n")
		ctx, interrupt := context.WithTimeout(t.Context(), 5*time.Second)
		defer interrupt()
		r := c.runDrain(ctx, "n")
		check.Is(t, exitInterrupted, r.code, r.out, r.stderr)
		check.Is(t, 8*time.Second, r.took.Round(100*time.Millisecond))
		check.Contains(t, r.stderr, "n: interrupted: restoring the size of 1 owner; a second Ctrl-C")
		check.Contains(t, r.out, "cancelled: the drain has ended")
		check.Is(t, false, c.isCordoned("n"))
	})
}

func TestPreviewPrintsWhoGetsASuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeDrainCluster(t, "n")
		c.surger = startingSurger{}
		c.runPod("web", "n")
		r := c.runDrain(t.Context(), "n", "--dry-run=client")
		check.Is(t, 0, r.code)
		check.Contains(t, r.out, "SUCCESSOR FIRST\n", "needed: no other pod of Deployment shop/web is ready\n")
	})
}

func TestI10SurgeWithoutNamespaceOrRightIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		namespace string
		denied    string
		says      []string
	}{
		"no namespace": {"none", "", []string{`namespace "none" does not exist`, "kubectl create namespace none"}},
		"no right":     {"slipway", "create", []string{"no right to create Leases in namespace slipway", "ask for a Role in namespace slipway"}},
		"all rights":   {"slipway", "", nil},
	} {
		core := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "slipway"}})
		core.PrependReactor("create", "selfsubjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
			review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview)
			review.Status.Allowed = review.Spec.ResourceAttributes.Verb != c.denied
			return true, review, nil
		})
		err := (&surgeFlags{mode: "always", namespace: c.namespace}).checkRecords(t.Context(), core)
		if len(c.says) == 0 {
			check.NoError(t, err)
			continue
		}
		t.Run(name, func(t *testing.T) { check.ErrorContains(t, err, c.says...) })
	}
}

func TestSurgesOfSeveralNodesNameTheNode(t *testing.T) {
	one := podSurge{"a", "shop", "web", &drain.SurgeReport{Decision: surge.Decision{Verdict: surge.Refused, Detail: "it is paused"}}}
	other := one
	other.Node = "b"
	for want, all := range map[string][]podSurge{
		"": nil, "\nPOD       SUCCESSOR FIRST\nshop/web  refused: it is paused\n" + surgeNote + "\n": {one},
		"\nNODE  POD       SUCCESSOR FIRST\na     shop/web  refused: it is paused\nb     shop/web  refused: it is paused\n" + surgeNote + "\n": {one, other},
	} {
		var out bytes.Buffer
		check.NoError(t, printSurges(&out, all))
		check.Is(t, want, out.String())
	}
}
