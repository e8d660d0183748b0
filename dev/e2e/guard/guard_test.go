package guard_test

import (
	"encoding/json"
	"maps"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

// change is a node patch to try with an agent's token.
type change struct {
	subresources []string
	patch        string
	// refused contains the words of the refusal for the own node. Empty words mean that the change is allowed.
	refused string
}

var status = []string{"status"}

// withTaint returns a patch that adds a taint to the own node's taints.
func (f *fixture) withTaint(taint corev1.Taint) string {
	f.t.Helper()
	n, err := f.Client().CoreV1().Nodes().Get(f.ctx, f.node(own), metav1.GetOptions{})
	f.check(err)
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"taints": append(n.Spec.Taints, taint)}})
	f.check(err)
	return string(patch)
}

// changes returns the changes that agents make to their nodes, and changes that they never make.
func (f *fixture) changes() map[string]change {
	all := map[string]change{
		"cordon with a claim": {patch: cordoning},
		"uncordon":            {patch: `{"spec":{"unschedulable":null}}`},
		"phase label":         {patch: `{"metadata":{"labels":{"notice.slipway.dev/azure-1":"drained"}}}`},
		"label of mechanic":   {patch: `{"metadata":{"labels":{"mechanic.cordoned":"true"}}}`},
		"taint":               {patch: f.withTaint(corev1.Taint{Key: "slipway.dev/notice", Value: "preempt", Effect: "NoExecute"})},
		"taint of aks-node-termination-handler": {
			patch: f.withTaint(corev1.Taint{Key: "aks-node-termination-handler/preempt", Value: "1", Effect: "NoSchedule"}),
		},
		"taint of aws-node-termination-handler": {
			patch: f.withTaint(corev1.Taint{Key: "aws-node-termination-handler/spot-itn", Value: "1", Effect: "NoSchedule"}),
		},
		"label that excludes from load balancers": {
			patch: `{"metadata":{"labels":{"node.kubernetes.io/exclude-from-external-load-balancers":"aws-node-termination-handler"}}}`,
		},
		"taint that detaches volumes": {
			patch: f.withTaint(corev1.Taint{Key: "node.kubernetes.io/out-of-service", Value: "nodeshutdown", Effect: "NoExecute"}), refused: "changes no taints",
		},
		"lifecycle condition": {subresources: status, patch: drainCondition},
		"request to start a maintenance of GKE": {
			patch: `{"metadata":{"labels":{"cloud.google.com/perform-maintenance":"true"},"annotations":{"gke.slipway.dev/perform-maintenance":"now"}}}`,
		},
	}
	maps.Copy(all, f.foreignChanges())
	return all
}

// foreignChanges returns changes of a node that no part of Slipway makes.
func (f *fixture) foreignChanges() map[string]change {
	return map[string]change{
		"foreign label": {
			patch: `{"metadata":{"labels":{"example.com/team":"red"}}}`, refused: "changes no labels",
		},
		"foreign label removed": {
			patch: `{"metadata":{"labels":{"example.com/team":null}}}`, refused: "changes no labels",
		},
		"role label": {
			patch: `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`, refused: "changes no labels",
		},
		"label with a similar prefix": {
			patch: `{"metadata":{"labels":{"notslipway.dev/x":"y"}}}`, refused: "changes no labels",
		},
		"label with a similar suffix": {
			patch: `{"metadata":{"labels":{"x.mechanic.cordoned":"y"}}}`, refused: "changes no labels",
		},
		"foreign label by the status": {
			subresources: status, patch: `{"metadata":{"labels":{"example.com/team":"red"}}}`, refused: "changes no labels",
		},
		"maintenance label with another value": {
			patch: `{"metadata":{"labels":{"cloud.google.com/perform-maintenance":"false"}}}`, refused: "changes no labels",
		},
		"another label of GKE": {
			patch: `{"metadata":{"labels":{"cloud.google.com/perform-maintenance-x":"true"}}}`, refused: "changes no labels",
		},
		"state of GKE": {
			patch: `{"metadata":{"labels":{"cloud.google.com/active-node-maintenance":"ONGOING"}}}`, refused: "changes no labels",
		},
		"foreign annotation": {
			patch: `{"metadata":{"annotations":{"example.com/note":"Slipway's"}}}`, refused: "changes no annotations",
		},
		"foreign annotation removed": {
			patch: `{"metadata":{"annotations":{"example.com/note":null}}}`, refused: "changes no annotations",
		},
		"a new annotation": {
			patch: `{"metadata":{"annotations":{"example.com/new":"x"}}}`, refused: "changes no annotations",
		},
		"a finalizer": {
			patch: `{"metadata":{"finalizers":["slipway.dev/forever"]}}`, refused: "metadata but labels and annotations",
		},
		"an owner": {
			patch: `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n",` +
				`"uid":"27a5a6a4-4b35-4a76-8b0f-31e6e3a0d4a5"}]}}`,
			refused: "metadata but labels and annotations",
		},
		"foreign taint": {
			patch: f.withTaint(corev1.Taint{Key: "example.com/mine", Effect: "NoExecute"}), refused: "changes no taints",
		},
		"all taints removed": {
			patch: `{"spec":{"taints":null}}`, refused: "changes no taints",
		},
		"foreign taint with another value": {
			patch:   `{"spec":{"taints":[{"key":"example.com/team","value":"red","effect":"PreferNoSchedule"}]}}`,
			refused: "changes no taints",
		},
		"readiness": {
			subresources: status, patch: `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, refused: "changes no conditions",
		},
		"readiness removed": {
			subresources: status, patch: `{"status":{"conditions":[{"type":"Ready","$patch":"delete"}]}}`, refused: "changes no conditions",
		},
		"capacity": {
			subresources: status, patch: `{"status":{"allocatable":{"cpu":"0"}}}`, refused: "status but conditions",
		},
		"addresses": {
			subresources: status, patch: `{"status":{"addresses":[{"type":"InternalIP","address":"10.66.6.6"}]}}`,
			refused: "status but conditions",
		},
		"node information": {
			subresources: status, patch: `{"status":{"nodeInfo":{"kernelVersion":"0"}}}`, refused: "status but conditions",
		},
		"new status field": {
			subresources: status, patch: `{"status":{"volumesInUse":["x"]}}`, refused: "status but conditions",
		},
	}
}

// TestAgentTokenChangesOnlyItsOwnNode tries both kinds of node-bound tokens.
func TestAgentTokenChangesOnlyItsOwnNode(t *testing.T) {
	f := newFixture(t)
	was := f.marks()
	for kind, client := range map[string]attempter{
		"bound to the pod": {f, f.agent()}, "bound to the node": {f, f.as(controlplane.TokenOptions{Node: f.node(own)})},
	} {
		for name, c := range f.changes() {
			t.Run(kind+": "+name, func(t *testing.T) {
				client.expect(t, patchNode(f.node(own), c.patch, c.subresources...), c.refused)
				client.expect(t, patchNode(f.node(other), c.patch, c.subresources...), "changes no other node")
			})
		}
	}
	if diff := cmp.Diff(was, f.marks()); diff != "" {
		t.Errorf("the nodes have changed (-was +now):\n%s", diff)
	}
}

// TestI3AgentTokenRemovesOnlyItsOwnMaintenanceLabel changes the label for real, because the policy looks at the stored Node.
func TestI3AgentTokenRemovesOnlyItsOwnMaintenanceLabel(t *testing.T) {
	f := newFixture(t)
	agent := attempter{f, f.agent()}
	store := func(patch string) {
		_, err := f.Client().CoreV1().Nodes().Patch(f.ctx, f.node(own), types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		f.check(err)
	}
	const remove = `{"metadata":{"labels":{"cloud.google.com/perform-maintenance":null},"annotations":{"gke.slipway.dev/perform-maintenance":null}}}`
	defer store(remove)
	store(`{"metadata":{"labels":{"cloud.google.com/perform-maintenance":"true"}}}`)
	agent.expect(t, patchNode(f.node(own), remove), "changes no labels")
	store(`{"metadata":{"annotations":{"gke.slipway.dev/perform-maintenance":"now"}}}`)
	agent.expect(t, patchNode(f.node(own), remove), "")
}

// TestAgentTokenCreatesOnlyDrainSlotLeases protects the manager's Lease in the same namespace. With it, a stolen token
// could keep every manager from leading.
func TestAgentTokenCreatesOnlyDrainSlotLeases(t *testing.T) {
	f := newFixture(t)
	agent := attempter{f, f.agent()}
	for _, name := range []string{"slipway-drain-0", "slipway-drain-9", "slipway-drain-15"} {
		agent.expect(t, createLeaseOf(name, f.node(own), 30), "")
		agent.expect(t, createLeaseOf(name, "", 30), "")
		agent.expect(t, createLeaseOf(name, f.node(other), 30), "holds a drain slot for its own node alone")
		agent.expect(t, createLeaseOf(name, f.node(own), 121), "for 120 s at most")
		agent.expect(t, createLeaseOf(name, f.node(own), math.MaxInt32), "for 120 s at most")
	}
	for _, name := range []string{
		"slipway-manager", "slipway-cloudpool-builders-0", "slipway-drain-16", "slipway-drain-x", "slipway-drain-0-manager", "x-slipway-drain-0",
	} {
		agent.expect(t, createLease(name), "writes no Leases but those of drain slots")
	}
}

func TestAgentTokenDeletesOnlyPodsOfItsNode(t *testing.T) {
	f := newFixture(t)
	agent := attempter{f, f.agent()}
	here, there := f.pod(own, "here", nil), f.pod(other, "there", nil)
	waiting := workload.App{Namespace: namespace, Name: "waiting", NodeSelector: map[string]string{"example.com/nowhere": ""}}
	f.check(workload.Create(f.ctx, f.Client(), waiting.Pod()))
	agent.expect(t, deletePod("here", &here.UID), "")
	agent.expect(t, deletePodWithin("here", &here.UID, new(int64(1))), "")
	agent.expect(t, deletePodWithin("here", &here.UID, new(int64(0))), "leaves it no time to stop")
	agent.expect(t, deletePod("here", nil), "without its UID")
	for name, pod := range map[string]*corev1.Pod{"grace period of 0": f.pod(own, "no-grace", withoutGrace), "finished pod": f.finished("finished")} {
		t.Run(name, func(t *testing.T) { agent.expect(t, deletePod(pod.Name, &pod.UID), "") })
	}
	agent.expect(t, deletePod("there", &there.UID), "deletes no pods elsewhere")
	agent.expect(t, deletePod("waiting", nil), "deletes no pods elsewhere")
}

// TestAgentTokenSetsOnlyItsPodsDisruptionTarget checks the DisruptionTarget condition. It tells Jobs that a
// forced deletion is not a failure of the pod.
func TestAgentTokenSetsOnlyItsPodsDisruptionTarget(t *testing.T) {
	f := newFixture(t)
	agent := attempter{f, f.agent()}
	here := f.pod(own, "disrupted-here", withLabels(map[string]string{"example.com/team": "blue"}))
	f.pod(other, "disrupted-there", nil)
	agent.expect(t, patchPodStatus(here.Name, disrupted), "")
	agent.expect(t, patchPodStatus("disrupted-there", disrupted), "changes no pods elsewhere")
	for patch, words := range map[string]string{
		`{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`:        "no condition of a pod but DisruptionTarget",
		`{"status":{"conditions":[{"type":"Ready","$patch":"delete"}]}}`:       "no condition of a pod but DisruptionTarget",
		`{"status":{"conditions":[{"type":"example.com/x","status":"True"}]}}`: "no condition of a pod but DisruptionTarget",
		`{"status":{"phase":"Failed"}}`:                                        "nothing of a pod's status",
		`{"status":{"reason":"Evicted"}}`:                                      "nothing of a pod's status",
		`{"status":{"message":"no"}}`:                                          "nothing of a pod's status",
		`{"metadata":{"labels":{"example.com/team":"red"}}}`:                   "nothing of a pod's metadata",
		`{"metadata":{"annotations":{"example.com/new":"x"}}}`:                 "nothing of a pod's metadata",
	} {
		agent.expect(t, patchPodStatus(here.Name, patch), words)
	}
	attempter{f, f.as(controlplane.TokenOptions{})}.expect(t, patchPodStatus(here.Name, disrupted), unbound)
}

// TestAgentTokenEvictsOnlyAsPDBsAllow checks evictions with a stolen token. An Eviction does not name the
// pod's node, so no policy can bind it to the node. Only the PDBs limit the token.
func TestAgentTokenEvictsOnlyAsPDBsAllow(t *testing.T) {
	f := newFixture(t)
	agent := attempter{f, f.agent()}
	here := f.pod(own, "evicted", nil)
	agent.expect(t, evict(here.Name, &here.UID), "")
	agent.expect(t, evict(here.Name, nil), "without its UID")
	agent.expect(t, evictWithin(here.Name, &here.UID, new(int64(1))), "")
	agent.expect(t, evictWithin(here.Name, &here.UID, new(int64(0))), "leaves it no time to stop")

	labels := map[string]string{"example.com/guarded": "yes"}
	there := f.pod(other, "guarded", withLabels(labels))
	none := intstr.FromInt32(0)
	pdb := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "guarded"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: &none, Selector: &metav1.LabelSelector{MatchLabels: labels},
		},
	}
	f.check(workload.Create(f.ctx, f.Client(), pdb))
	f.check(testbed.PollUntil(f.ctx, "the PDB blocks the eviction", func() bool {
		return apierrors.IsTooManyRequests(evict(there.Name, &there.UID)(f.ctx, agent.client))
	}))
}

func TestAgentTokenWritesOnlyEventsOfItsNode(t *testing.T) {
	f := newFixture(t)
	agent := attempter{f, f.agent()}
	agent.expect(t, report("Node", f.node(own)), "")
	agent.expect(t, report("Node", f.node(other)), "reports of nothing else")
	agent.expect(t, report("Pod", f.node(own)), "reports of nothing else")
}

// TestAgentPoliciesDoNotConcernOthers checks that the policies apply only to agents.
func TestAgentPoliciesDoNotConcernOthers(t *testing.T) {
	f := newFixture(t)
	admin := attempter{f, f.Client()}
	for name, c := range f.changes() {
		t.Run(name, func(t *testing.T) {
			admin.expect(t, patchNode(f.node(own), c.patch, c.subresources...), "")
		})
	}
}

// TestPoliciesPassTheTypeCheck checks the type-check status of the policies. A policy that fails the type check still
// refuses, but only its status shows the reason.
func TestPoliciesPassTheTypeCheck(t *testing.T) {
	f := newFixture(t)
	f.part("manager")
	f.part("cloudpool")
	f.allowQueue()
	for _, name := range []string{
		"slipway-agent-node", "slipway-agent-pod", "slipway-agent-pod-status", "slipway-agent-eviction", "slipway-agent-eviction-request", "slipway-agent-event",
		"slipway-agent-lease", "slipway-manager-node", "slipway-manager-eviction-request", "slipway-manager-queue-pod", "slipway-manager-queue-pod-status", "slipway-manager-install-crds", "slipway-manager-bootstrap", "slipway-manager-launches",
		"slipway-cloudpool", "slipway-cloudpool-retirements", "slipway-cloudpool-native", "slipway-cloudpool-bootstrap", "slipway-cloudpool-launches",
	} {
		var p *admissionregistrationv1.ValidatingAdmissionPolicy
		f.check(testbed.PollUntil(f.ctx, name+" is checked", func() bool {
			var err error
			p, err = f.Client().AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(f.ctx, name, metav1.GetOptions{})
			return err == nil && p.Status.ObservedGeneration == p.Generation && p.Status.TypeChecking != nil
		}))
		for _, w := range p.Status.TypeChecking.ExpressionWarnings {
			t.Errorf("%s: %s: %s", name, w.FieldRef, w.Warning)
		}
	}
}

// marks returns the marks that a stolen token could change on the nodes.
func (f *fixture) marks() map[string]string {
	f.t.Helper()
	marks := map[string]string{}
	for _, i := range []int{own, other} {
		n, err := f.Client().CoreV1().Nodes().Get(f.ctx, f.node(i), metav1.GetOptions{})
		f.check(err)
		conditions := map[corev1.NodeConditionType]corev1.ConditionStatus{}
		for _, c := range n.Status.Conditions {
			conditions[c.Type] = c.Status
		}
		delete(n.Annotations, corev1.ObjectTTLAnnotationKey) // the TTL controller changes it at any time
		raw, err := json.Marshal([]any{n.Labels, n.Annotations, n.Finalizers, n.Spec, conditions, n.Status.Allocatable})
		f.check(err)
		marks[n.Name] = string(raw)
	}
	return marks
}
