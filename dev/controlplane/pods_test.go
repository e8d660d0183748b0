package controlplane_test

import (
	"context"
	"errors"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/workload"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// podEnd is the observed end of a pod.
type podEnd struct {
	ending   controlplane.PodEnding
	exitCode int32
	duration time.Duration // from the first deletion to the removal of the object
}

// deletePod deletes a pod once per grace period, with a pause between the deletions, and watches its end.
func deletePod(t *testing.T, client kubernetes.Interface, namespace, name string, pause time.Duration, graces ...int64) podEnd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	pods := client.CoreV1().Pods(namespace)
	w, err := pods.Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String(),
	})
	must.NoError(t, err)
	defer w.Stop()
	begun := time.Now()
	next := time.NewTimer(0)
	defer next.Stop()
	result := podEnd{ending: controlplane.Running}
	for {
		select {
		case <-next.C:
			must.NoError(t, pods.Delete(ctx, name, *metav1.NewDeleteOptions(graces[0])))
			if graces = graces[1:]; len(graces) > 0 {
				next.Reset(pause)
			}
		case event, open := <-w.ResultChan():
			if !open {
				t.Fatalf("the watch of pod %s ended before the pod was removed", name)
			}
			pod := event.Object.(*corev1.Pod)
			result.ending = controlplane.DeterminePodEnding(pod)
			if result.ending != controlplane.Running {
				result.exitCode = pod.Status.ContainerStatuses[0].State.Terminated.ExitCode
			}
			if event.Type == watch.Deleted {
				result.duration = time.Since(begun)
				return result
			}
		}
	}
}

func TestPodStopsAsAnnotated(t *testing.T) {
	t.Parallel()
	c, node := createNamespaceAndNode(t, "stopping")
	const slack = 30 * time.Second // allowance for a busy machine; an idle one needs tens of milliseconds
	for name, test := range map[string]struct {
		stop   string
		graces []int64
		pause  time.Duration
		ending controlplane.PodEnding
		code   int32
		took   time.Duration
	}{
		"finishes-within-its-grace":           {"1.5", []int64{60}, 0, controlplane.Finished, 0, 1500 * time.Millisecond},
		"finishes-after-a-second-unless-told": {"", []int64{60}, 0, controlplane.Finished, 0, time.Second},
		"is-killed-at-the-end-of-grace":       {"60", []int64{2}, 0, controlplane.Killed, 137, 2 * time.Second},
		"never-stops-by-itself":               {controlplane.Never, []int64{1}, 0, controlplane.Killed, 137, time.Second},
		"vanishes-with-grace-0":               {"1", []int64{0}, 0, controlplane.Running, 0, 0},
		"vanishes-when-grace-becomes-0":       {"60", []int64{60, 0}, time.Second, controlplane.Running, 0, time.Second},
		"is-killed-when-grace-shortened":      {"60", []int64{90, 1}, time.Second, controlplane.Killed, 137, 2 * time.Second},
		// A shorter but sufficient grace period does not restart the stopping.
		"finishes-though-grace-shortened": {"8", []int64{90, 60}, time.Second, controlplane.Finished, 0, 8 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := workload.App{Namespace: "stopping", Name: name, Node: node, StopSeconds: test.stop, StartSeconds: "0"}.Pod()
			ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
			defer cancel()
			must.NoError(t, workload.CreateAndAwait(ctx, c.Client(), pod))
			got := deletePod(t, c.Client(), "stopping", name, test.pause, test.graces...)
			if got.ending != test.ending || got.exitCode != test.code {
				t.Errorf("the pod ended %s with exit code %d, want %s with %d", got.ending, got.exitCode, test.ending, test.code)
			}
			if got.duration < test.took || got.duration > test.took+slack {
				t.Errorf("the deletion took %s, want %s to %s", got.duration, test.took, test.took+slack)
			}
		})
	}
}

func TestReplacementPodOfSameNameKeepsRunning(t *testing.T) {
	t.Parallel()
	c, node := createNamespaceAndNode(t, "same-name")
	app := workload.App{Namespace: "same-name", Name: "db", Node: node, StopSeconds: "0.3", StartSeconds: "0"}
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	must.NoError(t, workload.CreateAndAwait(ctx, c.Client(), app.StatefulSet()))
	for range 5 {
		if got := deletePod(t, c.Client(), "same-name", "db-0", 0, 10); got.ending != controlplane.Finished {
			t.Errorf("db-0 ended %s, want %s", got.ending, controlplane.Finished)
		}
		eventually(t.Context(), t, "the replacement of db-0", func(ctx context.Context) error {
			pod, err := c.Client().CoreV1().Pods("same-name").Get(ctx, "db-0", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if pod.DeletionTimestamp != nil || controlplane.DeterminePodEnding(pod) != controlplane.Running {
				t.Errorf("the replacement was stopped too: %s, %+v", pod.DeletionTimestamp, pod.Status)
			}
			if pod.Status.Phase != corev1.PodRunning {
				return errors.New("the pod does not run")
			}
			return nil
		})
	}
}

func TestPoweredOffNodeIsSilentAndRecovers(t *testing.T) {
	t.Parallel()
	c := controlplane.StartForTest(t, controlplane.Options{
		NodeMonitorGracePeriod: 8 * time.Second,
		Nodes:                  []controlplane.NodeSpec{{Name: "off"}, {Name: "on"}},
		Flags: map[string][]string{
			// Leases are renewed every second, so that silence shows soon.
			controlplane.Kwok:              {"--node-lease-duration-seconds=4"},
			controlplane.ControllerManager: {"--node-monitor-period=500ms"},
		},
	})
	client := c.Client()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	stopping := workload.App{Name: "stopping", Node: "off", StopSeconds: "5"}.Pod()
	staying := workload.App{Name: "staying", Node: "off"}.Pod()
	must.NoError(t, workload.CreateAndAwait(ctx, client, stopping, staying))
	must.NoError(t, client.CoreV1().Pods("default").Delete(ctx, "stopping", *metav1.NewDeleteOptions(10)))
	eventually(t.Context(), t, "the stop time of the pod in its status", func(ctx context.Context) error {
		pod, err := client.CoreV1().Pods("default").Get(ctx, "stopping", metav1.GetOptions{})
		if err == nil && pod.Annotations["dev.slipway.dev/stop-ends"] == "" {
			return errors.New("the status has no stop time")
		}
		return err
	})
	must.NoError(t, c.PowerOff(ctx, "off"))
	awaitLeaseRenewal(ctx, t, client, "on") // by then kwok has seen the change and finished its writes
	last := getLease(ctx, t, client, "off")
	// If the power were on, the stopping pod would be gone after seven renewals of the other machine.
	for range 8 {
		awaitLeaseRenewal(ctx, t, client, "on")
	}
	if now := getLease(ctx, t, client, "off"); now.Spec.RenewTime.After(last.Spec.RenewTime.Add(500 * time.Millisecond)) {
		t.Errorf("the Lease of a machine without power was renewed at %s, after %s", now.Spec.RenewTime, last.Spec.RenewTime)
	}
	pod, err := client.CoreV1().Pods("default").Get(ctx, "stopping", metav1.GetOptions{})
	if err != nil {
		t.Fatalf("the pod that was stopping at power-off: %v", err)
	}
	if ending := controlplane.DeterminePodEnding(pod); ending != controlplane.Running {
		t.Errorf("the pod that was stopping at power-off has ended %s, want no change", ending)
	}
	eventually(t.Context(), t, "a node without heartbeat", func(ctx context.Context) error {
		return checkNodeReady(ctx, client, "off", corev1.ConditionUnknown)
	})
	eventually(t.Context(), t, "a pod on a node without heartbeat", func(ctx context.Context) error {
		return checkPodReady(ctx, client, "staying", corev1.ConditionFalse)
	})
	must.NoError(t, c.PowerOn(ctx, "off"))
	if err := checkNodeReady(ctx, client, "off", corev1.ConditionTrue); err != nil {
		t.Errorf("after the power came back: %v", err)
	}
	eventually(t.Context(), t, "a pod on a recovered node", func(ctx context.Context) error {
		return checkPodReady(ctx, client, "staying", corev1.ConditionTrue)
	})
	eventually(t.Context(), t, "the pod with a grace period that ended without power", func(ctx context.Context) error {
		if _, err := client.CoreV1().Pods("default").Get(ctx, "stopping", metav1.GetOptions{}); err == nil {
			return errors.New("the pod still exists")
		}
		return nil
	})
}

func getLease(ctx context.Context, t *testing.T, client kubernetes.Interface, node string) *coordinationv1.Lease {
	t.Helper()
	lease, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, node, metav1.GetOptions{})
	must.NoError(t, err)
	return lease
}

func awaitLeaseRenewal(ctx context.Context, t *testing.T, client kubernetes.Interface, node string) {
	t.Helper()
	before := getLease(ctx, t, client, node)
	eventually(ctx, t, "a renewal of the Lease of "+node, func(ctx context.Context) error {
		if !getLease(ctx, t, client, node).Spec.RenewTime.After(before.Spec.RenewTime.Time) {
			return errors.New("the Lease was not renewed")
		}
		return nil
	})
}

func checkNodeReady(ctx context.Context, client kubernetes.Interface, name string, want corev1.ConditionStatus) error {
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status != want {
			return errors.New("Ready is " + string(condition.Status) + ", want " + string(want))
		}
	}
	return nil
}

func checkPodReady(ctx context.Context, client kubernetes.Interface, name string, want corev1.ConditionStatus) error {
	pod, err := client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady && condition.Status != want {
			return errors.New("Ready is " + string(condition.Status) + ", want " + string(want))
		}
	}
	return nil
}
