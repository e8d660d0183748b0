package azure

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// testCluster is a fake API server with one node per machine, and an emulator that watches it. The fake deletes objects at
// once, so graceful deletion is emulated by updates.
type testCluster struct {
	t        *testing.T
	client   *fake.Clientset
	emulator *Emulator
	machines *powerRecorder
}

const (
	node0 = "aks-spot-12345678-vmss000000"
	node1 = "aks-spot-12345678-vmss000001"
)

func azureNode(name, providerID string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: providerID}}
}

// uniformProviderID returns the provider ID of an instance in Azure's mixed letter case.
func uniformProviderID(instance int) string {
	return fmt.Sprintf("azure:///subscriptions/8ecadfc9-d1a3-4ea4-b844-0d9f87e4d7c8/resourceGroups/MC_Group/providers/"+
		"Microsoft.Compute/virtualMachineScaleSets/AKS-spot-12345678-vmss/virtualMachines/%d", instance)
}

func newCluster(t *testing.T) *testCluster {
	t.Helper()
	client := fake.NewClientset(azureNode(node0, uniformProviderID(0)), azureNode(node1, uniformProviderID(1)))
	log := slog.New(slog.DiscardHandler)
	nodes, err := WatchNodes(t.Context(), client, log)
	must.NoError(t, err)
	pods, err := WatchPods(t.Context(), client, nodes)
	must.NoError(t, err)
	c := &testCluster{t: t, client: client, machines: newPowerRecorder()}
	c.emulator = newEmulator(t, Options{Machines: nodes.NewMachines(c.machines), LedgerBuilder: pods, StartedAfterImpact: time.Hour})
	return c
}

// create creates a running pod on a node.
func (c *testCluster) create(name, node string, change func(*corev1.Pod)) {
	c.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.Now(),
			Annotations: map[string]string{StopSecondsAnnotation: "10"},
		},
		Spec: corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: new(int64(30))},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
			Name: "app", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		}}},
	}
	change(pod)
	if _, err := c.client.CoreV1().Pods("shop").Create(c.t.Context(), pod, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	synctest.Wait()
}

func (c *testCluster) update(name string, change func(*corev1.Pod)) {
	c.t.Helper()
	pods := c.client.CoreV1().Pods("shop")
	pod, err := pods.Get(c.t.Context(), name, metav1.GetOptions{})
	must.NoError(c.t, err)
	change(pod)
	if _, err := pods.Update(c.t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	synctest.Wait()
}

// deleteGracefully does what the API server does for a graceful deletion, and for a later one that shortens it.
func (c *testCluster) deleteGracefully(name string, grace int64) {
	c.t.Helper()
	c.update(name, func(pod *corev1.Pod) {
		began := time.Now()
		if pod.DeletionTimestamp != nil {
			began = pod.DeletionTimestamp.Add(-time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second)
		}
		pod.DeletionTimestamp = new(metav1.NewTime(began.Add(time.Duration(grace) * time.Second)))
		pod.DeletionGracePeriodSeconds = &grace
	})
}

func (c *testCluster) terminate(name string, code int32) {
	c.t.Helper()
	c.update(name, func(pod *corev1.Pod) {
		pod.Status.Phase = corev1.PodFailed
		pod.Status.ContainerStatuses[0].State = corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: code, FinishedAt: metav1.Now()},
		}
	})
}

func (c *testCluster) remove(name string) {
	c.t.Helper()
	must.NoError(c.t, c.client.CoreV1().Pods("shop").Delete(c.t.Context(), name, metav1.DeleteOptions{}))
	synctest.Wait()
}

func TestLedgerOfSpotNotice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		plain := func(*corev1.Pod) {}
		for _, name := range []string{"quick", "slow", "hurried", "forced", "forgotten"} {
			c.create(name, node0, plain)
		}
		c.create("agent", node0, func(pod *corev1.Pod) {
			pod.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Controller: new(true)}}
		})
		c.create("proxy", node0, func(pod *corev1.Pod) {
			pod.Annotations[corev1.MirrorPodAnnotationKey] = "x"
		})
		c.create("elsewhere", node1, plain)
		c.create("unbound", "", plain)
		passTime(time.Until(roundUpToSecond(time.Now()))) // the watches took a fraction of a second to start
		c.machines.began = time.Now()

		record := mustAnnounce(t, c.emulator, Announcement{Type: Preempt, Resources: []string{vm0}, Notice: time.Minute})
		c.deleteGracefully("quick", 30)
		c.deleteGracefully("slow", 30)
		c.deleteGracefully("hurried", 30)
		passTime(2 * time.Second)
		c.deleteGracefully("hurried", 5)
		c.update("unbound", func(pod *corev1.Pod) { pod.Spec.NodeName = node0 })
		passTime(3 * time.Second)
		c.terminate("hurried", 137)
		c.remove("forced")
		passTime(5 * time.Second)
		c.terminate("quick", 0)
		c.update("quick", func(pod *corev1.Pod) { pod.DeletionGracePeriodSeconds = new(int64(0)) }) // the kubelet's final deletion
		c.remove("quick")
		passTime(20 * time.Second)
		c.terminate("slow", 137)
		c.remove("slow")
		passTime(time.Minute) // the machine dies meanwhile
		c.remove("forgotten")

		ledger, ok := c.emulator.Ledger().Event(record.EventID)
		if !ok {
			t.Fatal("the ledger does not have the event")
		}
		type line struct {
			Outcome                Outcome
			Granted, First, Needed string
			Asked, Ended, Left     string
			Late                   bool
		}
		got := map[string]line{}
		for _, entry := range ledger.Pods {
			l := line{
				Outcome: entry.Outcome, Late: entry.Late, Needed: entry.StopSeconds,
				Granted: fmt.Sprint(entry.GrantedSeconds, " of ", entry.WantedSeconds),
				First:   fmt.Sprint(entry.FirstGrantedSeconds),
			}
			if !entry.DeletedAt.IsZero() {
				l.Asked = entry.DeletedAt.Sub(record.VisibleAt).String()
			}
			if !entry.EndedAt.IsZero() {
				l.Ended = entry.EndedAt.Sub(record.VisibleAt).String()
				l.Left = fmt.Sprint(*entry.LeftSeconds)
			}
			got[entry.Name] = l
		}
		want := map[string]line{
			"quick":     {OutcomeFinished, "30 of 30", "30", "10", "0s", "10s", "50", false},
			"slow":      {OutcomeSpentGrace, "30 of 30", "30", "10", "0s", "30s", "30", false},
			"hurried":   {OutcomeCutShort, "5 of 30", "30", "10", "0s", "5s", "55", false},
			"forced":    {OutcomeKilledAtOnce, "0 of 30", "0", "10", "", "5s", "55", false},
			"forgotten": {OutcomeLost, "0 of 30", "0", "10", "", "1m30s", "-30", false},
			"unbound":   {OutcomeLost, "0 of 30", "0", "10", "", "", "", true},
			"agent":     {OutcomeStayed, "0 of 30", "0", "10", "", "", "", false},
			"proxy":     {OutcomeStayed, "0 of 30", "0", "10", "", "", "", false},
		}
		check.Equal(t, want, got)
		check.Equal(t, []string{"1m0s " + node0 + " off"}, c.machines.recorded())
	})
}

func TestPodsOlderThanWatchAreNotLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "old", UID: "1", CreationTimestamp: metav1.Now()},
			Spec:       corev1.PodSpec{NodeName: node0},
		})
		created := time.Now()
		time.Sleep(time.Hour)
		pods, err := WatchPods(t.Context(), client, nil)
		must.NoError(t, err)
		got := pods.Pods()
		if len(got) != 1 || !got[0].BoundAt.Equal(created) || got[0].WantedSeconds != 30 {
			t.Errorf("got %+v, want it bound at %v with the default grace", got, created)
		}
	})
}

func TestPodEndMissedByWatch(t *testing.T) {
	w := &PodWatch{pods: map[types.UID]*Pod{}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "1"}, Spec: corev1.PodSpec{NodeName: node0},
	}
	w.recordPod(pod, false)
	w.recordRemoval(cache.DeletedFinalStateUnknown{Obj: pod})
	if got := w.Pods()[0]; ClassifyOutcome(got, time.Time{}) != OutcomeUnknown {
		t.Errorf("got %+v", got)
	}
}

func TestEndOfPodWithSeveralContainers(t *testing.T) {
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	exited := func(code int32) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}
	}
	type states []corev1.ContainerState
	const runs = corev1.PodRunning
	for name, tt := range map[string]struct {
		states  states
		phase   corev1.PodPhase
		deleted bool
		ended   bool
		code    *int32
	}{
		"all running":                {states{running, running}, runs, true, false, nil},
		"one exited":                 {states{exited(0), running}, runs, true, false, nil},
		"all exited":                 {states{exited(0), exited(0)}, runs, true, true, new(int32(0))},
		"all exited and restarting":  {states{exited(0), exited(0)}, runs, false, false, nil},
		"one was killed":             {states{exited(1), exited(137), exited(0)}, runs, true, true, new(int32(137))},
		"one failed":                 {states{exited(0), exited(3)}, corev1.PodFailed, false, true, new(int32(3))},
		"succeeded without statuses": {nil, corev1.PodSucceeded, false, true, new(int32(0))},
		"failed without statuses":    {nil, corev1.PodFailed, false, true, nil},
		"no statuses yet":            {nil, corev1.PodPending, true, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Status: corev1.PodStatus{Phase: tt.phase}}
			if tt.deleted {
				pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = new(metav1.Now()), new(int64(30))
			}
			for _, state := range tt.states {
				pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{State: state})
			}
			var p Pod
			p.updateUnlessEnded(pod, at(1))
			if diff := cmp.Diff(tt.code, p.ExitCode); diff != "" || p.EndedAt.IsZero() == tt.ended {
				t.Errorf("ended at %v; exit code (-want +got):\n%s", p.EndedAt, diff)
			}
		})
	}
}

func TestResourceOfProviderID(t *testing.T) {
	const prefix = "azure:///subscriptions/S/resourceGroups/G/providers/Microsoft.Compute/"
	for id, want := range map[string][2]string{
		prefix + "virtualMachineScaleSets/set/virtualMachines/10": {"set_10", "set"},
		prefix + "virtualMachines/flex_4f2a":                      {"flex_4f2a", ""},
		strings.ToUpper(prefix) + "virtualmachines/VM":            {"VM", ""},
		"aws:///eu-central-1a/i-0123456789abcdef0":                {},
		prefix + "virtualMachines/":                               {},
		prefix + "virtualMachines/a/b":                            {},
		"x" + prefix + "virtualMachines/a":                        {},
		"":                                                        {},
	} {
		resource, scaleSet, err := ParseProviderID(id)
		if got := [2]string{resource, scaleSet}; got != want || (err == nil) != (want != [2]string{}) {
			t.Errorf("%s: got %q, %v, want %q", id, got, err, want)
		}
	}
}

func TestNodesIgnoreLetterCase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(azureNode(node1, uniformProviderID(1)), azureNode("far", "aws:///eu-central-1a/i-0"),
			azureNode("new", ""))
		nodes, err := WatchNodes(t.Context(), client, slog.New(slog.DiscardHandler))
		must.NoError(t, err)
		if _, err := client.CoreV1().Nodes().Update(t.Context(), azureNode("new", uniformProviderID(10)),
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		must.NoError(t, client.CoreV1().Nodes().Delete(t.Context(), node1, metav1.DeleteOptions{}))
		synctest.Wait()
		// Machine 1 is remembered after its node was deleted, and not confused with 10.
		for resource, want := range map[string]string{vm1: node1, testSet + "_10": "new", vm0: "", "i-0": ""} {
			if got, ok := nodes.NodeOfEventResource(resource); got != want || ok != (want != "") {
				t.Errorf("%s is node %q, want %q", resource, got, want)
			}
		}
		check.Equal(t, []string{"AKS-spot-12345678-vmss"}, nodes.ScaleSets())
		power := newPowerRecorder()
		power.fail = map[string]error{"new": errors.New("stuck")}
		machines := nodes.NewMachines(power)
		if err := machines.PowerOn(t.Context(), vm1); err != nil {
			t.Error(err)
		}
		if err := machines.PowerOff(t.Context(), testSet+"_10"); !errors.Is(err, power.fail["new"]) {
			t.Errorf("got %v", err)
		}
		if err := machines.PowerOff(t.Context(), "nope_1"); err == nil {
			t.Error("an unknown machine was switched off")
		}
		check.Equal(t, []string{"0s " + node1 + " on"}, power.recorded())
	})
}

func TestWatchFailsWithoutFirstList(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("no answer")
	cancel(cause)
	if _, err := WatchNodes(ctx, fake.NewClientset(), slog.New(slog.DiscardHandler)); !errors.Is(err, cause) {
		t.Errorf("WatchNodes: %v", err)
	}
	if _, err := WatchPods(ctx, fake.NewClientset(), nil); !errors.Is(err, cause) {
		t.Errorf("WatchPods: %v", err)
	}
}
