package guard_test

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

const queueRights = "slipway-manager-queue"

// allowQueue applies the rights for the notices of a queue to the manager until the test ends. It returns the manager's token.
func (f *fixture) allowQueue() attempter {
	f.t.Helper()
	manager := attempter{f, f.part("manager")}
	f.check(f.ApplyManifests(f.ctx, "manager/queue/rbac.yaml", "manager/queue/admission.yaml", "manager/queue/flowcontrol.yaml"))
	f.check(f.AwaitPermissions(f.ctx, testbed.ManagerNamespace, "slipway-manager", queueRights))
	f.t.Cleanup(func() {
		f.check(f.Client().RbacV1().ClusterRoleBindings().Delete(context.WithoutCancel(f.ctx), queueRights, metav1.DeleteOptions{}))
	})
	return manager
}

// daemonPod returns the pod of a DaemonSet on the own node.
func (f *fixture) daemonPod() *corev1.Pod {
	f.t.Helper()
	app := workload.App{Namespace: namespace, Name: "queue-daemon", NodeSelector: map[string]string{corev1.LabelHostname: f.node(own)}}
	f.check(workload.CreateAndAwait(f.ctx, f.Client(), app.DaemonSet()))
	pods, err := f.Client().CoreV1().Pods(namespace).List(f.ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + f.node(own)})
	f.check(err)
	for _, pod := range pods.Items {
		if owner := metav1.GetControllerOf(&pod); owner != nil && owner.Name == app.Name {
			return &pod
		}
	}
	f.t.Fatalf("DaemonSet %s has no pod on %s", app.Name, f.node(own))
	return nil
}

func static(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }

func TestManagerTokenDeletesNoPodsWithoutQueueRights(t *testing.T) {
	f := newFixture(t)
	pod := f.pod(own, "no-queue", nil)
	manager := f.part("manager")
	for name, try := range map[string]attempt{"delete": deletePod(pod.Name, &pod.UID), "status": patchPodStatus(pod.Name, disrupted)} {
		if err := try(f.ctx, manager); !apierrors.IsForbidden(err) || strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
			t.Errorf("%s: %v, want RBAC to refuse it", name, err)
		}
	}
}

// TestQueueTokenDeletesOnlyAsDrainsDo covers every node: the process drains all nodes that get a notice.
func TestQueueTokenDeletesOnlyAsDrainsDo(t *testing.T) {
	f := newFixture(t)
	manager := f.allowQueue()
	here, there := f.pod(own, "queue-here", nil), f.pod(other, "queue-there", nil)
	daemon, mirror := f.daemonPod(), f.pod(own, "queue-static", static)
	waiting := workload.App{Namespace: namespace, Name: "queue-waiting", NodeSelector: map[string]string{"example.com/nowhere": ""}}.Pod()
	f.check(workload.Create(f.ctx, f.Client(), waiting))
	manager.await(t, map[string]attempt{"without its UID": deletePod(here.Name, nil)})
	for _, c := range []struct {
		name    string
		try     attempt
		refused string
	}{
		{"own grace period", deletePod(here.Name, &here.UID), ""},
		{"shorter grace period", deletePodWithin(there.Name, &there.UID, new(int64(1))), ""},
		{"grace period of 0", deletePodWithin(there.Name, &there.UID, new(int64(0))), "leaves it no time to stop"},
		{"without UID", deletePod(there.Name, nil), "without its UID"},
		{"daemon pod", deletePod(daemon.Name, &daemon.UID), "no pods of DaemonSets"},
		{"static pod", deletePod(mirror.Name, &mirror.UID), "no static pods"},
		{"waiting pod", deletePod(waiting.GetName(), nil), "but those on a node"},
	} {
		t.Run(c.name, func(t *testing.T) { manager.expect(t, c.try, c.refused) })
	}
	err := send(request{method: "DELETE", path: "/api/v1/namespaces/guard/pods"})(f.ctx, manager.client)
	if !apierrors.IsForbidden(err) || strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
		t.Errorf("deletion of all pods: %v, want RBAC to refuse it", err)
	}
}

func TestQueueTokenSetsOnlyDisruptionTarget(t *testing.T) {
	f := newFixture(t)
	manager := f.allowQueue()
	pod := f.pod(other, "queue-disrupted", withLabels(map[string]string{"example.com/team": "blue"}))
	manager.await(t, map[string]attempt{"nothing of a pod's metadata": patchPodStatus(pod.Name, `{"metadata":{"labels":{"example.com/team":"red"}}}`)})
	manager.expect(t, patchPodStatus(pod.Name, disrupted), "")
	for patch, words := range map[string]string{
		`{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`: "no condition of a pod but DisruptionTarget",
		`{"status":{"phase":"Failed"}}`:                                 "nothing of a pod's status",
		`{"metadata":{"finalizers":["example.com/x"]}}`:                 "nothing of a pod's metadata",
	} {
		manager.expect(t, patchPodStatus(pod.Name, patch), words)
	}
	if err := send(request{method: "PATCH", path: "/api/v1/namespaces/guard/pods/" + pod.Name, body: `{"metadata":{"labels":{"a":"b"}}}`})(f.ctx, manager.client); !apierrors.IsForbidden(err) {
		t.Errorf("patch of a pod: %v, want RBAC to refuse it", err)
	}
	manager.expect(t, report("Node", f.node(other)), "")
}

func TestQueueTokenChangesOnlySlipwayKeysOnNodes(t *testing.T) {
	f := newFixture(t)
	manager := f.allowQueue()
	manager.await(t, map[string]attempt{"changes no labels": patchNode(f.node(own), `{"metadata":{"labels":{"example.com/team":"red"}}}`)})
	for name, c := range f.foreignChanges() {
		t.Run(name, func(t *testing.T) { manager.expect(t, patchNode(f.node(other), c.patch, c.subresources...), c.refused) })
	}
	manager.expect(t, patchNode(f.node(other), cordoning), "")
	manager.expect(t, patchNode(f.node(other), drainCondition, "status"), "")
}
