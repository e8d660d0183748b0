package doctor

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/slipway-dev/slipway/internal/drainability/fromcorev1"
	noderules "github.com/slipway-dev/slipway/internal/drainability/node"
)

func nodeObject(n *corev1.Node) Object { return Object{Kind: "Node", Name: n.Name} }

// machineless nodes have no machine that could be taken away.
func machineless(n *corev1.Node) bool { return fromcorev1.Node(n).Virtual }

func nodeReady(n *corev1.Node) bool { return fromcorev1.Node(n).Ready == noderules.True }

func controlPlane(n *corev1.Node) bool { return fromcorev1.Node(n).ControlPlane != "" }

// agentCoverage finds nodes that the agents' DaemonSets put no pod on.
func agentCoverage(f *Facts) []Finding {
	agents := f.installed(Agent)
	if len(agents) == 0 {
		return nil
	}
	var found []Finding
	for _, n := range f.Nodes {
		if machineless(n) {
			continue
		}
		var reasons []string
		for _, p := range agents {
			if p.daemonSet == nil {
				continue
			}
			because := keptOff(p.daemonSet, n)
			if because == "" {
				reasons = nil
				break
			}
			reasons = append(reasons, "DaemonSet "+p.namespace()+"/"+p.Object.Name+": "+because)
		}
		if len(reasons) == 0 {
			continue
		}
		found = append(found, Finding{
			Severity: Problem, Object: nodeObject(n),
			Message: "no agent can run on it (" + strings.Join(reasons, "; ") + "): nobody hears that its machine is to be taken away",
			Remedy:  "let the DaemonSet tolerate every taint (operator: Exists) and select every node that there is an image for",
		})
	}
	return found
}

// keptOff says why a DaemonSet has no pod on a node; empty when it may have one.
func keptOff(d *appsv1.DaemonSet, n *corev1.Node) string {
	spec := &d.Spec.Template.Spec
	matches, err := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: *spec}).Match(n)
	switch {
	case err != nil:
		return "its node affinity cannot be read: " + err.Error()
	case !matches:
		return "its nodeSelector or node affinity does not match" + unmatched(spec.NodeSelector, n)
	}
	tolerations := slices.Concat(spec.Tolerations, daemonTolerations)
	if spec.HostNetwork {
		tolerations = append(tolerations, tolerate(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule))
	}
	taint, intolerable := schedulinghelpers.FindMatchingUntoleratedTaint(klog.Background(), n.Spec.Taints, tolerations,
		func(t *corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }, true)
	if intolerable {
		return "it does not tolerate the taint " + taint.ToString()
	}
	return ""
}

func unmatched(selector map[string]string, n *corev1.Node) string {
	var lacks []string
	for k, v := range selector {
		if n.Labels[k] != v {
			lacks = append(lacks, k+"="+v)
		}
	}
	if len(lacks) == 0 {
		return ""
	}
	slices.Sort(lacks)
	return ": it wants " + strings.Join(lacks, ", ")
}

func tolerate(key string, effect corev1.TaintEffect) corev1.Toleration {
	return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: effect}
}

// daemonTolerations are those that the DaemonSet controller gives every pod of its own
// (https://kubernetes.io/docs/concepts/workloads/controllers/daemonset/#taints-and-tolerations).
var daemonTolerations = []corev1.Toleration{
	tolerate(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute),
	tolerate(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute),
	tolerate(corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule),
	tolerate(corev1.TaintNodeMemoryPressure, corev1.TaintEffectNoSchedule),
	tolerate(corev1.TaintNodePIDPressure, corev1.TaintEffectNoSchedule),
	tolerate(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule),
}

// guards are the agents' pods by node.
func (f *Facts) guards() map[string][]*corev1.Pod {
	sets := map[Key]bool{}
	for _, p := range f.installed(Agent) {
		if p.daemonSet != nil {
			sets[Key{p.namespace(), p.Object.Name}] = true
		}
	}
	on := map[string][]*corev1.Pod{}
	for _, pod := range f.Pods {
		c := metav1.GetControllerOf(pod)
		if c != nil && c.Kind == "DaemonSet" && sets[Key{pod.Namespace, c.Name}] && !finished(pod) {
			on[pod.Spec.NodeName] = append(on[pod.Spec.NodeName], pod)
		}
	}
	return on
}

// coverable are the nodes that an agent may run on.
func (f *Facts) coverable() []*corev1.Node {
	var nodes []*corev1.Node
	for _, n := range f.Nodes {
		if machineless(n) {
			continue
		}
		for _, p := range f.installed(Agent) {
			if p.daemonSet != nil && keptOff(p.daemonSet, n) == "" {
				nodes = append(nodes, n)
				break
			}
		}
	}
	return nodes
}

// agentDown finds nodes that an agent may run on and none does.
func agentDown(f *Facts) []Finding {
	var found []Finding
	guards := f.guards()
	for _, n := range f.coverable() {
		because := down(guards[n.Name])
		if because == "" {
			continue
		}
		found = append(found, Finding{
			Severity: Problem, Object: nodeObject(n),
			Message: because + ": nobody hears that its machine is to be taken away",
			Remedy:  "kubectl describe the DaemonSet and its pod on the node: the image, the room, and the node's own state are what to look for",
		})
	}
	return found
}

func down(pods []*corev1.Pod) string {
	if len(pods) == 0 {
		return "there is no agent's pod on it, though one may run there"
	}
	for _, p := range pods {
		if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
			return ""
		}
	}
	return fmt.Sprintf("the agent's pod on it is %s", strings.ToLower(string(pods[0].Status.Phase)))
}
