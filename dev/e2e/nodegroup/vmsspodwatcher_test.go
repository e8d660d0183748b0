package nodegroup_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

const vmssDelete = "Microsoft.Compute/virtualMachineScaleSets/delete/action"

// agentPool sets the label on the pool's nodes that the original tool identified them by, as AKS does.
func (f *fixture) agentPool(n int) {
	f.t.Helper()
	for i := range n {
		f.patchNode(i, `{"metadata":{"labels":{"agentpool":"`+f.name+`"}}}`)
	}
}

func (f *fixture) patchNode(i int, patch string) {
	f.t.Helper()
	_, err := f.Client().CoreV1().Nodes().Patch(f.ctx, f.node(i), types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	f.check(err)
}

// watcher starts the compatibility mode for the VMSS pod watcher. In addition to the tool's environment, it receives the
// address of the emulator.
func (f *fixture) watcher(env []string, flags ...string) *controlplane.Process {
	f.t.Helper()
	env = append([]string{
		"LABEL_KEY=" + work, "LABEL_VALUE=" + f.name, "NAMESPACE=" + f.name, "VMSS_RG=" + controlplane.ResourceGroup,
		"FOCUS_NODEPOOL=" + f.name,
	}, env...)
	args := append([]string{"vmss-pod-watcher"}, f.flags()...)
	return f.start("watcher-"+f.name, env, append(args, flags...)...)
}

// TestVMSSPodWatcherModeRetiresNodesWithoutPods ends a pod on one node and keeps a pod on the second node.
// The third node never has a pod. Every node has a placeholder pod. Azure throttles at first. Slipway restores what a
// crash left of the synchronisation.
func TestVMSSPodWatcherModeRetiresNodesWithoutPods(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "watch", 3)
	f.agentPool(3)
	f.check(f.ARM.AddAgentPool(azure.AgentPoolSpec{
		Cluster: testbed.ManagedClusterName, ResourceGroup: testbed.ManagedClusterGroup, Name: "fake", AutoScaling: true, Max: 6,
	}))
	f.check(f.ARM.ModifyAgentPool(testbed.ManagedClusterName, "fake", func(p *azure.AgentPool) {
		p.Tags = map[string]string{"slipway-cas-sync": "5 to 6"}
	}))
	f.check(f.ARM.InjectFaults(azure.ARMFault{
		Kind: azure.ARMThrottled, Times: 1, RetryAfter: time.Second, Action: vmssDelete, Resource: f.pool.ScaleSetName(),
	}))
	placeholder := workload.App{
		Namespace: f.name, Name: "placeholder", Replicas: 3, NodeSelector: map[string]string{"agentpool": f.name}, StopSeconds: "0.1",
		Annotations: map[string]string{"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
	}
	f.run(placeholder.Deployment(), f.app("ends", 0).Pod(), f.app("keeps-running", 1).Pod())
	p := f.watcher([]string{
		"COOLDOWN=1", "SCHEDULED_CHECK_FALG=true", "FAKENP_FLAG=true", "AKS_RG=" + testbed.ManagedClusterGroup,
		"AKS_NAME=" + testbed.ManagedClusterName, "FAKE_NODEPOOL=fake",
	})
	f.awaitGone(2) // this node never had a pod
	f.here(0, 1)
	f.finish("ends", "")
	f.awaitGone(0)
	f.here(1)
	f.check(testbed.PollUntil(f.ctx, "the maximum of the empty pool is restored", func() bool {
		pool, _ := f.ARM.AgentPool(testbed.ManagedClusterName, "fake")
		return pool.Max == 5 && len(pool.Tags) == 0
	}))
	throttled := slices.ContainsFunc(f.ARM.Requests(), func(r azure.ARMRequest) bool {
		return r.Action == vmssDelete && strings.Contains(r.Path, f.pool.ScaleSetName()) && r.Status == http.StatusTooManyRequests
	})
	if !throttled {
		t.Error("no deletion was throttled")
	}
	f.check(syscall.Kill(p.PID(), syscall.SIGTERM))
	f.check(testbed.PollUntil(f.ctx, "the process has ended", func() bool { return !p.IsAlive() }))
}

// finish ends a pod, as its kubelet would report. more adds fields to the status.
func (f *fixture) finish(name, more string) {
	f.t.Helper()
	status := map[string]any{"phase": corev1.PodSucceeded}
	if more != "" {
		f.check(json.Unmarshal([]byte(more), &status))
	}
	raw, err := json.Marshal(map[string]any{"status": status})
	f.check(err)
	_, err = f.Client().CoreV1().Pods(f.name).Patch(f.ctx, name, types.MergePatchType, raw, metav1.PatchOptions{}, "status")
	f.check(err)
}

// TestFaultPodEndDuringAnOutageWasMissed checks that this node is retired. A node that never had a
// pod stays, as without the tool's periodic check.
func TestFaultPodEndDuringAnOutageWasMissed(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "missed", 2)
	f.agentPool(2)
	f.run(f.app("job", 0).Pod())
	p := f.watcher([]string{"COOLDOWN=1s"})
	f.awaitNode(0, "known to have had a pod", func(n *corev1.Node) bool { return n.Annotations[used] == "true" })
	f.check(p.Kill())
	f.deletePod("job")
	f.check(p.Restart(f.ctx))
	f.awaitGone(0)
	f.here(1)
}

// TestFaultCooldownIgnoredPodEndDuringAnOutage checks that the cooldown starts at the pod's end. The
// node's annotation does not matter.
func TestFaultCooldownIgnoredPodEndDuringAnOutage(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "ended", 2)
	f.run(f.app("job", 0).Pod())
	ended := time.Now().Add(-time.Minute).UTC().Truncate(time.Second).Format(time.RFC3339)
	f.finish("job", fmt.Sprintf(`{"containerStatuses":[{"name":"app","image":"","imageID":"","ready":false,"restartCount":0,
		"state":{"terminated":{"exitCode":0,"finishedAt":%q}}}]}`, ended))
	ago := time.Now().Add(-2 * time.Hour).UTC().Format(time.RFC3339)
	f.group("ended", f.idle("1h", ""))
	p := f.manage()
	for i := range 2 {
		f.awaitNode(i, "idle", marked)
	}
	f.check(p.Kill())
	for i := range 2 {
		f.patchNode(i, `{"metadata":{"annotations":{"`+since+`":"`+ago+`"}}}`)
	}
	f.check(p.Restart(f.ctx))
	f.awaitGone(1)
	f.awaitNode(0, "idle since its pod ended", func(n *corev1.Node) bool {
		return n.Annotations[since] == ended && n.Annotations[used] == "true"
	})
	f.here(0)
}

// TestI8LastInstanceIsDeletedAfterARestart makes Azure refuse the deletion while the first
// process runs. The next process finds a pool without a node. A process without work is alive and ready.
func TestI8LastInstanceIsDeletedAfterARestart(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "last", 1)
	f.agentPool(1)
	f.check(f.ARM.InjectFaults(azure.ARMFault{Kind: azure.ARMThrottled, RetryAfter: time.Second, Action: vmssDelete, Resource: f.pool.ScaleSetName()}))
	address, err := controlplane.ReserveFreeAddress(f.ctx)
	f.check(err)
	p := f.watcher([]string{"COOLDOWN=1", "SCHEDULED_CHECK_FLAG=true"}, "--listen", address)
	f.awaitPhase(0, v1alpha1.NodeDeleted)
	f.check(p.Kill())
	f.ARM.ClearResourceFaults(f.pool.ScaleSetName())
	if _, there := f.ARM.VM(f.pool.ResourceName(0)); !there {
		t.Fatal("the instance was deleted before the process ended")
	}
	f.check(p.Restart(f.ctx))
	f.awaitGone(0)
	f.awaitPhase(0, v1alpha1.Succeeded)
	f.check(p.Kill())
	f.check(p.Restart(f.ctx))
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		f.check(testbed.PollUntil(f.ctx, path+" of a process without a node", func() bool { return f.answers("http://" + address + path) }))
	}
}

// answers reports whether a GET returns 200.
func (f *fixture) answers(url string) bool {
	f.t.Helper()
	r, err := http.NewRequestWithContext(f.ctx, http.MethodGet, url, nil)
	f.check(err)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return false
	}
	_ = answer.Body.Close() // read only
	return answer.StatusCode == http.StatusOK
}

// TestVMSSPodWatcherModeRetiresRequestedNode retires a node without a pod. The node has only the annotations of its group.
func TestVMSSPodWatcherModeRetiresRequestedNode(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "asked", 1)
	f.agentPool(1)
	f.watcher(nil)
	f.awaitNode(0, "labelled by the compatibility mode", func(n *corev1.Node) bool {
		return n.Annotations["nodegroup.slipway.dev/name"] == f.name && n.Annotations["nodegroup.slipway.dev/scope"] == "slipway.dev/agentpool="+f.name
	})
	f.slipway("retire", f.node(0), "--wait", "--timeout", testbed.TestTimeout.String())
	f.awaitGone(0)
}
