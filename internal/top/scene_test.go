package top

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/placement/planner"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func timeAgo(d time.Duration) time.Time       { return noon.Add(-d) }
func metaTimeAgo(d time.Duration) metav1.Time { return metav1.NewTime(timeAgo(d)) }

func newNode(name, group string, changes ...func(*corev1.Node)) corev1.Node {
	n := corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"pool": group}, Annotations: map[string]string{}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
	for _, change := range changes {
		change(&n)
	}
	return n
}

func withAnnotation(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Annotations[key] = value }
}

func setUnschedulable(n *corev1.Node) { n.Spec.Unschedulable = true }

func withManager(name string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.ManagedFields = []metav1.ManagedFieldsEntry{
			{Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{}}`)},
			{Manager: name, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:unschedulable":{}}}`)},
		}
	}
}

func withNotReady(since time.Duration) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: metaTimeAgo(since)}}
	}
}

// withNotice adds a notice as the agent writes it to its node.
func withNotice(kind, status, phase string, due time.Duration) func(*corev1.Node) {
	return withAnnotation("cordon.slipway.dev/azure-E1", fmt.Sprintf(`{"owner":"azure-E1","reason":"notice","since":%q,"cordon":"own",`+
		`"state":{"notice":{"ID":"E1","Source":"azure","Type":%q,"Status":%q,"Description":"Host is failing"},`+
		`"seen":{"first":"2026-03-01T11:59:00Z"},"decision":{"deadline":%q},"phase":%q}}`,
		timeAgo(time.Minute).Format(time.RFC3339), kind, status, noon.Add(due).Format(time.RFC3339), phase))
}

// withDrainDelay adds to the notice what delays its drain, as the agent writes it.
func withDrainDelay(by string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		const key = "cordon.slipway.dev/azure-E1"
		n.Annotations[key] = strings.Replace(n.Annotations[key], `"phase"`, fmt.Sprintf(`"drainWaitsFor":%q,"phase"`, by), 1)
	}
}

// withBlockedDrain adds the condition of a blocked drain as the agent writes it.
func withBlockedDrain(summary string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
			Type: "DrainInProgress", Status: corev1.ConditionTrue, Reason: "Slipway", Message: "azure Redeploy (E1): " + summary,
		})
	}
}

func newRetirement(node string, changes ...func(*v1alpha1.NodeRetirement)) v1alpha1.NodeRetirement {
	rt := v1alpha1.NodeRetirement{
		ObjectMeta: metav1.ObjectMeta{Name: node + "-x2m4z", UID: "uid-rt-" + types.UID(node), CreationTimestamp: metaTimeAgo(time.Minute)},
		Spec:       v1alpha1.NodeRetirementSpec{NodeName: node, Reason: v1alpha1.Requested, RequestedBy: "ann"},
	}
	for _, change := range changes {
		change(&rt)
	}
	return rt
}

func withPhase(p v1alpha1.Phase, message string) func(*v1alpha1.NodeRetirement) {
	return func(rt *v1alpha1.NodeRetirement) {
		rt.Status.Phase, rt.Status.Message = p, message
		rt.Status.Conditions = []metav1.Condition{{Type: v1alpha1.RetirementAdmitted, Status: metav1.ConditionTrue}}
	}
}

func withGroup(name string) func(*v1alpha1.NodeRetirement) {
	return func(rt *v1alpha1.NodeRetirement) {
		rt.Status.Captured = &v1alpha1.Captured{Group: name, NodeUID: types.UID("uid-" + rt.Spec.NodeName)}
	}
}

func withDrain(gone, stopping, waiting int32, obstacles string) func(*v1alpha1.NodeRetirement) {
	return func(rt *v1alpha1.NodeRetirement) {
		total := gone + stopping + waiting
		rt.Status.Drain = &v1alpha1.DrainProgress{
			Total: total, Gone: gone, Stopping: stopping, Waiting: waiting,
			Summary: fmt.Sprintf("%d of %d gone%s", gone, total, obstacles),
		}
	}
}

func withReasons(all ...v1alpha1.RetirementReason) func(*v1alpha1.NodeRetirement) {
	return func(rt *v1alpha1.NodeRetirement) { rt.Status.Reasons = all }
}

func withNodeDeleted(since time.Duration) func(*v1alpha1.NodeRetirement) {
	return func(rt *v1alpha1.NodeRetirement) {
		at := metaTimeAgo(since)
		rt.Status.Times.NodeDeleted = &at
	}
}

func newGroup(name string, most int32) v1alpha1.NodeGroup {
	return v1alpha1.NodeGroup{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metaTimeAgo(time.Hour)},
		Spec: v1alpha1.NodeGroupSpec{
			NodeSelector: metav1.LabelSelector{MatchLabels: map[string]string{"pool": name}},
			Cloud:        v1alpha1.CloudGroup{Provider: "azure", Group: "aks-" + name + "-12345678-vmss"}, MinSize: 1, MaxSize: &most,
		},
		Status: v1alpha1.NodeGroupStatus{Conditions: []metav1.Condition{{Type: v1alpha1.GroupAccepted, Status: metav1.ConditionTrue}}},
	}
}

func newDecision(node string, since, cooldown time.Duration, verdict nodegroup.Verdict, why ...nodegroup.Reason) nodegroup.Decision {
	began, until := timeAgo(since), timeAgo(since).Add(cooldown)
	return nodegroup.Decision{Node: node, Verdict: verdict, Reasons: why, IdleSince: &began, RemovableAt: &until}
}

func newLoad(cpu, of int64, gibi, ofGibi int64, pods int) planner.Utilization {
	return planner.Utilization{Pods: pods, CPU: cpu, AllocatableCPU: of, Memory: gibi << 30, AllocatableMemory: ofGibi << 30}
}

const pool = "aks-runners-12345678-vmss00000"

// newSceneFacts returns a cluster with an example of every activity.
func newSceneFacts() Facts {
	runners, spot := newGroup("runners", 10), newGroup("spot", 6)
	runners.Status.Provisioning = &v1alpha1.ProvisioningStatus{
		Provisioning: 3,
		Launches: []v1alpha1.Launch{{ID: "1", Template: "Standard_D4s_v5", Instances: []v1alpha1.LaunchedInstance{{
			ProviderID: "azure:///subscriptions/s/virtualMachines/aks-runners-12345678-vmss_9", Since: metaTimeAgo(72 * time.Second),
		}}}},
		BackOffs: []v1alpha1.BackOff{{Template: "Standard_D8s_v5", Reason: "NoQuota", Message: "32 of 32 cores are used", Until: metav1.NewTime(noon.Add(4 * time.Minute))}},
	}
	pdb := v1alpha1.RetirementReason{Code: "PodBlocked", Object: "pod shop/web-1", Message: "disruption-budget: The disruption budget web needs 2 healthy pods and has 2 currently"}
	f := Facts{
		Now: noon, Groups: []v1alpha1.NodeGroup{spot, runners},
		Nodes: []corev1.Node{
			newNode(pool+"0", "runners"), newNode(pool+"1", "runners"), newNode(pool+"2", "runners"), newNode(pool+"3", "runners"),
			newNode(pool+"4", "runners", withAnnotation("slipway.dev/do-not-evict", "true")),
			newNode(pool+"5", "runners", setUnschedulable, withManager("kubectl-cordon")),
			newNode("spot-0", "spot", setUnschedulable, withNotice("Preempt", "Scheduled", "draining", 24*time.Second)),
			newNode("spot-1", "spot", withNotReady(90*time.Second)),
			newNode("spot-2", "spot", func(n *corev1.Node) {
				n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
			}),
			newNode("system-0", "system"),
		},
		Retirements: []v1alpha1.NodeRetirement{
			newRetirement(pool+"2", withPhase(v1alpha1.Draining, "draining"), withGroup("runners"), withDrain(7, 3, 2, ", 3 stopping, 2 waiting (disruption-budget shop/web: 2)"), withReasons(pdb)),
			newRetirement(pool+"8", withPhase(v1alpha1.NodeDeleted, "the machine is being deleted"), withGroup("runners"), withNodeDeleted(12*time.Second)),
			newRetirement("spot-9", withPhase(v1alpha1.Succeeded, "done"), withGroup("spot")),
		},
		Decisions: map[string]nodegroup.Decision{
			pool + "0": {Node: pool + "0", Verdict: nodegroup.VerdictKept, Reasons: []nodegroup.Reason{{Rule: nodegroup.KeepingPod, Message: "pod ci/job-1 keeps it"}}},
			pool + "1": newDecision(pool+"1", 192*time.Second, 5*time.Minute, nodegroup.VerdictCoolingDown, nodegroup.Reason{Rule: nodegroup.CoolingDown}),
			pool + "3": newDecision(pool+"3", 10*time.Minute, 5*time.Minute, nodegroup.VerdictBlocked, nodegroup.Reason{Rule: nodegroup.Minimum, Message: "the group's minimum is 1, and it has no more nodes that stay"}),
		},
		Loads: map[string]planner.Utilization{
			pool + "0": newLoad(7500, 16000, 20, 64, 12), pool + "1": newLoad(150, 16000, 0, 64, 3), pool + "2": newLoad(4000, 16000, 48, 64, 5),
			pool + "3": newLoad(0, 16000, 0, 64, 0), pool + "4": newLoad(16000, 16000, 60, 64, 30), pool + "5": newLoad(2000, 16000, 8, 64, 4),
			"system-0": newLoad(1200, 3860, 5, 12, 14), "spot-0": newLoad(1900, 3860, 10, 12, 6), "spot-1": newLoad(100, 3860, 1, 12, 2), "spot-2": newLoad(100, 3860, 1, 12, 2),
		},
	}
	for i := range f.Nodes {
		n := &f.Nodes[i]
		n.CreationTimestamp = metaTimeAgo(time.Duration(i*i+1) * time.Hour)
		n.Labels[corev1.LabelInstanceTypeStable], n.Labels[corev1.LabelTopologyZone] = "Standard_D16s_v5", fmt.Sprintf("westeurope-%d", i%3+1)
		if n.Labels["pool"] != "runners" {
			n.Labels[corev1.LabelInstanceTypeStable] = "Standard_D4s_v5"
		}
	}
	return f
}
