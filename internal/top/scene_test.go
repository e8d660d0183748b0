package top

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/placement/planner"
)

// noon is the time of the scenes.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) time.Time       { return noon.Add(-d) }
func metaAgo(d time.Duration) metav1.Time { return metav1.NewTime(ago(d)) }

func node(name, group string, changes ...func(*corev1.Node)) corev1.Node {
	n := corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"pool": group}, Annotations: map[string]string{}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
	for _, change := range changes {
		change(&n)
	}
	return n
}

func annotated(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Annotations[key] = value }
}

func unschedulable(n *corev1.Node) { n.Spec.Unschedulable = true }

func byManager(name string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.ManagedFields = []metav1.ManagedFieldsEntry{
			{Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{}}`)},
			{Manager: name, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:unschedulable":{}}}`)},
		}
	}
}

func notReady(since time.Duration) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: metaAgo(since)}}
	}
}

// reported is what an agent writes on its node about a notice.
func reported(kind, status, phase string, due time.Duration) func(*corev1.Node) {
	return annotated("cordon.slipway.dev/azure-E1", fmt.Sprintf(`{"owner":"azure-E1","reason":"notice","since":%q,"cordon":"own",`+
		`"state":{"notice":{"ID":"E1","Source":"azure","Type":%q,"Status":%q,"Description":"Host is failing"},`+
		`"seen":{"first":"2026-03-01T11:59:00Z"},"decision":{"deadline":%q},"phase":%q}}`,
		ago(time.Minute).Format(time.RFC3339), kind, status, noon.Add(due).Format(time.RFC3339), phase))
}

// drainBlocked is the condition by which an agent tells how far a drain is that something blocks.
func drainBlocked(summary string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
			Type: "DrainInProgress", Status: corev1.ConditionTrue, Reason: "Slipway", Message: "azure Redeploy (E1): " + summary,
		})
	}
}

func retire(node string, changes ...func(*v1alpha1.NodeRetirement)) v1alpha1.NodeRetirement {
	rt := v1alpha1.NodeRetirement{
		ObjectMeta: metav1.ObjectMeta{Name: node + "-x2m4z", UID: "uid-rt-" + types.UID(node), CreationTimestamp: metaAgo(time.Minute)},
		Spec:       v1alpha1.NodeRetirementSpec{NodeName: node, Reason: v1alpha1.Requested, RequestedBy: "ann"},
	}
	for _, change := range changes {
		change(&rt)
	}
	return rt
}

func phase(p v1alpha1.Phase, message string) func(*v1alpha1.NodeRetirement) {
	return func(rt *v1alpha1.NodeRetirement) {
		rt.Status.Phase, rt.Status.Message = p, message
		rt.Status.Conditions = []metav1.Condition{{Type: v1alpha1.RetirementAdmitted, Status: metav1.ConditionTrue}}
	}
}

func inGroup(name string) func(*v1alpha1.NodeRetirement) {
	return func(rt *v1alpha1.NodeRetirement) {
		rt.Status.Captured = &v1alpha1.Captured{Group: name, NodeUID: types.UID("uid-" + rt.Spec.NodeName)}
	}
}

func drainOf(gone, stopping, waiting int32, obstacles string) func(*v1alpha1.NodeRetirement) {
	return func(rt *v1alpha1.NodeRetirement) {
		total := gone + stopping + waiting
		rt.Status.Drain = &v1alpha1.DrainProgress{
			Total: total, Gone: gone, Stopping: stopping, Waiting: waiting,
			Summary: fmt.Sprintf("%d of %d gone%s", gone, total, obstacles),
		}
	}
}

func reasons(all ...v1alpha1.RetirementReason) func(*v1alpha1.NodeRetirement) {
	return func(rt *v1alpha1.NodeRetirement) { rt.Status.Reasons = all }
}

func nodeDeleted(since time.Duration) func(*v1alpha1.NodeRetirement) {
	return func(rt *v1alpha1.NodeRetirement) {
		at := metaAgo(since)
		rt.Status.Times.NodeDeleted = &at
	}
}

func group(name string, most int32) v1alpha1.NodeGroup {
	return v1alpha1.NodeGroup{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metaAgo(time.Hour)},
		Spec: v1alpha1.NodeGroupSpec{
			NodeSelector: metav1.LabelSelector{MatchLabels: map[string]string{"pool": name}},
			Cloud:        v1alpha1.CloudGroup{Provider: "azure", Group: "aks-" + name + "-12345678-vmss"}, Minimum: 1, Maximum: &most,
		},
		Status: v1alpha1.NodeGroupStatus{Conditions: []metav1.Condition{{Type: v1alpha1.GroupAccepted, Status: metav1.ConditionTrue}}},
	}
}

func idle(node string, since, cooldown time.Duration, verdict nodegroup.Verdict, why ...nodegroup.Reason) nodegroup.Decision {
	began, until := ago(since), ago(since).Add(cooldown)
	return nodegroup.Decision{Node: node, Verdict: verdict, Reasons: why, IdleSince: &began, MayLeaveAt: &until}
}

func loadOf(cpu, of int64, gibi, ofGibi int64, pods int) planner.Load {
	return planner.Load{Pods: pods, CPU: cpu, AllocatableCPU: of, Memory: gibi << 30, AllocatableMemory: ofGibi << 30}
}

const pool = "aks-runners-12345678-vmss00000"

// scene is a cluster in which a bit of everything goes on.
func scene() Facts {
	runners, spot := group("runners", 10), group("spot", 6)
	runners.Status.Provisioning = &v1alpha1.ProvisioningStatus{
		Provisioning: 3,
		Launches: []v1alpha1.Launch{{ID: "1", Template: "Standard_D4s_v5", Instances: []v1alpha1.LaunchedInstance{{
			ProviderID: "azure:///subscriptions/s/virtualMachines/aks-runners-12345678-vmss_9", Since: metaAgo(72 * time.Second),
		}}}},
		BackOffs: []v1alpha1.BackOff{{Template: "Standard_D8s_v5", Reason: "NoQuota", Message: "32 of 32 cores are used", Until: metav1.NewTime(noon.Add(4 * time.Minute))}},
	}
	pdb := v1alpha1.RetirementReason{Code: "PodBlocked", Object: "pod shop/web-1", Message: "disruption-budget: The disruption budget web needs 2 healthy pods and has 2 currently"}
	f := Facts{
		Now: noon, Groups: []v1alpha1.NodeGroup{spot, runners},
		Nodes: []corev1.Node{
			node(pool+"0", "runners"), node(pool+"1", "runners"), node(pool+"2", "runners"), node(pool+"3", "runners"),
			node(pool+"4", "runners", annotated("slipway.dev/do-not-evict", "true")),
			node(pool+"5", "runners", unschedulable, byManager("kubectl-cordon")),
			node("spot-0", "spot", unschedulable, reported("Preempt", "Scheduled", "draining", 24*time.Second)),
			node("spot-1", "spot", notReady(90*time.Second)),
			node("spot-2", "spot", func(n *corev1.Node) {
				n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
			}),
			node("system-0", "system"),
		},
		Retirements: []v1alpha1.NodeRetirement{
			retire(pool+"2", phase(v1alpha1.Draining, "draining"), inGroup("runners"), drainOf(7, 3, 2, ", 3 stopping, 2 waiting (disruption-budget shop/web: 2)"), reasons(pdb)),
			retire(pool+"8", phase(v1alpha1.NodeDeleted, "the machine is being deleted"), inGroup("runners"), nodeDeleted(12*time.Second)),
			retire("spot-9", phase(v1alpha1.Succeeded, "done"), inGroup("spot")),
		},
		Idle: map[string]nodegroup.Decision{
			pool + "0": {Node: pool + "0", Verdict: nodegroup.Stays, Reasons: []nodegroup.Reason{{Rule: nodegroup.KeepingPod, Message: "pod ci/job-1 keeps it"}}},
			pool + "1": idle(pool+"1", 192*time.Second, 5*time.Minute, nodegroup.Waits, nodegroup.Reason{Rule: nodegroup.CoolingDown}),
			pool + "3": idle(pool+"3", 10*time.Minute, 5*time.Minute, nodegroup.Refused, nodegroup.Reason{Rule: nodegroup.Minimum, Message: "the group's minimum is 1, and it has no more nodes that stay"}),
		},
		Loads: map[string]planner.Load{
			pool + "0": loadOf(7500, 16000, 20, 64, 12), pool + "1": loadOf(150, 16000, 0, 64, 3), pool + "2": loadOf(4000, 16000, 48, 64, 5),
			pool + "3": loadOf(0, 16000, 0, 64, 0), pool + "4": loadOf(16000, 16000, 60, 64, 30), pool + "5": loadOf(2000, 16000, 8, 64, 4),
			"system-0": loadOf(1200, 3860, 5, 12, 14), "spot-0": loadOf(1900, 3860, 10, 12, 6), "spot-1": loadOf(100, 3860, 1, 12, 2), "spot-2": loadOf(100, 3860, 1, 12, 2),
		},
	}
	return f
}
