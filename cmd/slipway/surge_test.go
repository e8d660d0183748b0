package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/saved"
	"github.com/slipway-dev/slipway/internal/surge"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

// startingSurger says that every pod needs a successor. The successor is ready after startup, and the pod may be evicted
// then. Its owner is restored 3 s after the end of a context.
type startingSurger struct{ startup time.Duration }

func (startingSurger) Decide(context.Context, kubeapi.Pod, []*kubeapi.PodDisruptionBudget, time.Time, time.Time) (surge.Decision, error) {
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

// TestPreviewFindsRoomForAllSuccessorsTogether has room for one successor on the other node, and for one on the only further instance
// of the group.
func TestPreviewFindsRoomForAllSuccessorsTogether(t *testing.T) {
	newCluster := func(t *testing.T) *fakeDrainCluster {
		c := newFakeDrainCluster(t, "n", "other")
		c.surger = startingSurger{}
		c.room = &saved.Objects{Nodes: []*corev1.Node{placementtest.NewNode("n", "", 9, 9, 110), placementtest.NewNode("other", "", 3, 9, 110)}}
		for i, name := range []string{"a", "b", "c"} {
			c.runPod(name, "n")
			p := placementtest.NewPod(name, i, "n", 2000, 1024)
			p.Namespace, p.Name = drainTestNamespace, name
			c.room.Pods = append(c.room.Pods, p)
		}
		c.groups = []v1alpha1.NodeGroup{{
			ObjectMeta: metav1.ObjectMeta{Name: "spot"},
			Spec: v1alpha1.NodeGroupSpec{MaxSize: new(int32(3)), ScaleUp: &v1alpha1.ScaleUp{
				JoinTimeout: &metav1.Duration{Duration: 7 * time.Minute}, Templates: []v1alpha1.InstanceTemplate{{Name: "large"}},
			}},
			Status: v1alpha1.NodeGroupStatus{
				Conditions: []metav1.Condition{{Type: v1alpha1.GroupAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.AcceptedReason}},
				CloudSize:  new(int32(2)),
				Provisioning: &v1alpha1.ProvisioningStatus{Learned: []v1alpha1.LearnedTemplate{
					{Name: "large", Allocatable: placementtest.NewNode("", "", 3, 9, 110).Status.Allocatable},
				}},
			},
		}}
		return c
	}
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		r := c.runDrain(t.Context(), "n", "--dry-run=client")
		check.Is(t, 0, r.code, r.out, r.stderr)
		check.Contains(t, r.out, "; room: another node\n", "; room: needs one more instance of spot/large (up to 7m0s)\n",
			"; room: none: fits on no other node: ", "insufficient cpu", drainRoomNote+"\n")
		r = c.runDrain(t.Context(), "n", "--dry-run=client", "-o", "json")
		check.Contains(t, r.out, `"room":{"fits":true}`, `"room":{"fits":true,"launchSeconds":420,"detail":"needs one more`, `"room":{"fits":false,"detail":"fits on no`)
		c.groups[0].Spec.ScaleUp.Templates, c.groups[0].Status.Provisioning.Learned = nil, nil
		r = c.runDrain(t.Context(), "n", "--dry-run=client")
		check.Contains(t, r.out, "; room: unknown: fits on no other node: ", "not all instance templates of NodeGroup spot are known\n")
		r = c.runDrain(t.Context(), "n", "other", "--dry-run=client") // the other node is drained too
		check.Is(t, 0, strings.Count(r.out, "room: another node"), r.out)
		c.groups[0].Spec.ScaleUp = nil
		c.room.Nodes[1].Annotations = map[string]string{"nodegroup.slipway.dev/name": "of-a-file"}
		r = c.runDrain(t.Context(), "n", "--dry-run=client")
		check.Contains(t, r.out, "; room: unknown: fits on no other node: ", "NodeGroup of-a-file is not on the API server")
		c.room = nil
		r = c.runDrain(t.Context(), "n", "--dry-run=client")
		check.Is(t, 0, r.code)
		check.Is(t, 1, strings.Count(r.stderr, "whether there is room for successors is unknown: forbidden"), r.stderr)
		check.Is(t, 0, strings.Count(r.out, "room: ")+strings.Count(r.out, drainRoomNote), r.out)
	})
}

// untilSurger refuses every pod, and says for which time it decides.
type untilSurger struct{ startingSurger }

func (untilSurger) Decide(_ context.Context, _ kubeapi.Pod, _ []*kubeapi.PodDisruptionBudget, _, until time.Time) (surge.Decision, error) {
	if until.IsZero() {
		return surge.Decision{Verdict: surge.Refused, Detail: "no limit"}, nil
	}
	return surge.Decision{Verdict: surge.Refused, Detail: time.Until(until).Round(time.Second).String()}, nil
}

func TestPreviewDecidesWithTheTimeOfTheFlags(t *testing.T) {
	for flag, want := range map[string]string{"--force": "no limit", "--deadline=2m": "1m17s", "--timeout=2m": "1m19s"} {
		synctest.Test(t, func(t *testing.T) { // the grace of the pod and the lead of the eviction come off
			c := newFakeDrainCluster(t, "n")
			c.surger = untilSurger{}
			c.runPod("web", "n")
			r := c.runDrain(t.Context(), "n", "--dry-run=client", flag)
			check.Contains(t, r.out, "refused: "+want+"\n")
		})
	}
}

func TestStopTimeIsThatOfTheFlagElseOfTheEarliestNotice(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	n := &corev1.Node{}
	addNotice := func(id, kind, decision string) {
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, "cordon.slipway.dev/azure-"+id, fmt.Sprintf(`{"owner":"azure-%s","since":"2026-03-01T11:00:00Z",`+
			`"state":{"notice":{"ID":%q,"Source":"azure","Type":%q,"Status":"Scheduled"},"decision":{%s},"phase":"draining"}}`, id, id, kind, decision))
	}
	addNotice("e1", "Freeze", `"deadline":"2026-03-01T11:30:00Z"`)
	addNotice("e2", "Rebalance", `"action":"cordon"`)
	check.Is(t, stopTime{}, findStopTime(n, 0))
	addNotice("e3", "Reboot", `"forced":true,"deadline":"2026-03-01T12:09:00Z"`)
	addNotice("e4", "Preempt", `"forced":true,"deadline":"2026-03-01T12:00:00Z"`)
	got := findStopTime(n, 0)
	check.Is(t, at, got.limits.Deadline)
	check.Is(t, 2*time.Second, got.limits.Margin)
	check.Contains(t, got.describe(), "The instance stops at 2026-03-01T12:00:00Z (Preempt e4 of azure).")
	got = findStopTime(n, time.Hour)
	check.Is(t, true, got.notice == nil && time.Until(got.limits.Deadline) > 59*time.Minute)
	check.Contains(t, got.describe(), "slipway drain --surge --deadline 1h0m0s")
}

func TestI10DeadlineOfWhyIsChecked(t *testing.T) {
	file := saveTestCluster(t)
	for line, want := range map[string]string{
		"why node-b --deadline 1m --snapshot " + file: "--deadline: has no effect without --surge",
		"why node-b --surge --deadline -1s":           "--deadline: -1s: want 0 or more",
	} {
		_, err := runOffline(t, strings.Fields(line)...)
		check.ErrorContains(t, err, want)
	}
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
	fits := podSurge{"a", "shop", "web", &drain.SurgeReport{
		Decision: surge.Decision{Verdict: surge.Needed, Detail: "it is the last"}, Room: &drain.SuccessorRoom{Fits: true},
	}}
	note := stopTime{}.describe() + surgeModeNote + "\n"
	for want, all := range map[string][]podSurge{
		"": nil, "\nPOD       SUCCESSOR FIRST\nshop/web  refused: it is paused\n" + note: {one},
		"\nNODE  POD       SUCCESSOR FIRST\na     shop/web  refused: it is paused\nb     shop/web  refused: it is paused\n" + note: {one, other},
		"\nPOD       SUCCESSOR FIRST\nshop/web  needed: it is the last; room: another node\n" + note + roomNote + "\n":             {fits},
	} {
		var out bytes.Buffer
		check.NoError(t, printSurges(&out, all, stopTime{}))
		check.Is(t, want, out.String())
	}
}
