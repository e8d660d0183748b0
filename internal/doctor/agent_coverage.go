package doctor

import (
	"fmt"
	"maps"
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

func newNodeObject(n *corev1.Node) Object { return Object{Kind: "Node", Name: n.Name} }

// isVirtualNode reports whether a node is virtual, so that it has no instance.
func isVirtualNode(n *corev1.Node) bool { return fromcorev1.NodeFacts(n).Virtual }

func isNodeReady(n *corev1.Node) bool {
	return fromcorev1.NodeFacts(n).ReadyStatus == noderules.ReadyTrue
}

func isControlPlane(n *corev1.Node) bool { return fromcorev1.NodeFacts(n).ControlPlane != "" }

// checkAgentCoverage finds nodes on which no agent DaemonSet runs a pod. If labels of the user's choice exclude a node, it
// is a warning, because the user may want agents in some pools only. If agents run on no node at all, it is a problem,
// because the labels may have a typing error.
func checkAgentCoverage(f *Facts) []Finding {
	agents := f.partsOfKind(Agent)
	if len(agents) == 0 {
		return nil
	}
	coverNone := len(f.listAgentCoveredNodes()) == 0
	var found []Finding
	for _, n := range f.Nodes {
		if isVirtualNode(n) {
			continue
		}
		var reasons []string
		var nearest exclusion // of the DaemonSet that comes nearest to running on the node
		for _, p := range agents {
			if p.daemonSet == nil {
				continue
			}
			cause, reason := findExclusion(p.daemonSet, n)
			if cause == notExcluded {
				reasons = nil
				break
			}
			reasons = append(reasons, "DaemonSet "+p.namespace()+"/"+p.Object.Name+": "+reason)
			nearest = max(nearest, cause)
		}
		if len(reasons) == 0 {
			continue
		}
		finding := Finding{
			Severity: Problem, Object: newNodeObject(n),
			Message: "no agent can run on it (" + strings.Join(reasons, "; ") + "): nothing reads the notices for it",
			Remedy:  "let the DaemonSet tolerate every taint (operator: Exists) and select every node with a supported operating system",
		}
		switch {
		case nearest != excludedByLabels:
		case coverNone:
			finding.Remedy = "correct the nodeSelector or the node affinity of the DaemonSet, because it selects no node that exists now; none, if its pool is empty now"
		default:
			finding.Severity, finding.Remedy = Warning, "none, if this node needs no agent; otherwise change the nodeSelector or the node affinity of the DaemonSet"
		}
		found = append(found, finding)
	}
	return found
}

// exclusion is the cause that keeps the pods of a DaemonSet off a node. If several causes apply, the first one counts.
type exclusion int

const (
	notExcluded exclusion = iota
	// excludedByPlatform means that the DaemonSet is for another operating system or architecture.
	excludedByPlatform
	// excludedByLabels means that the DaemonSet is for nodes with other labels or names.
	excludedByLabels
	// excludedByFault means that the DaemonSet does not tolerate a taint, or has an invalid node affinity.
	excludedByFault
)

// canRunOn reports whether a DaemonSet can run a pod on a node.
func canRunOn(d *appsv1.DaemonSet, n *corev1.Node) bool {
	cause, _ := findExclusion(d, n)
	return cause == notExcluded
}

// findExclusion returns what keeps the pods of a DaemonSet off a node, and says it as a predicate.
func findExclusion(d *appsv1.DaemonSet, n *corev1.Node) (cause exclusion, reason string) {
	spec := &d.Spec.Template.Spec
	matches, err := nodeaffinity.NewRequiredNodeAffinity(spec.NodeSelector, spec.Affinity).Match(n)
	switch {
	case err != nil:
		return excludedByFault, "its node affinity is invalid: " + err.Error()
	case !matches:
		cause = excludedByPlatform
		if allowsPlatform(spec, n) {
			cause = excludedByLabels
		}
		return cause, "its nodeSelector or node affinity does not match" + formatUnmatchedLabels(spec.NodeSelector, n)
	}
	tolerations := slices.Concat(spec.Tolerations, daemonSetTolerations)
	if spec.HostNetwork {
		tolerations = append(tolerations, newToleration(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule))
	}
	taint, intolerable := schedulinghelpers.FindMatchingUntoleratedTaint(klog.Background(), n.Spec.Taints, tolerations,
		func(t *corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }, true)
	if intolerable {
		return excludedByFault, "it does not tolerate the taint " + taint.ToString()
	}
	return notExcluded, ""
}

// allowsPlatform reports whether a pod's nodeSelector and node affinity allow the operating system and architecture of a
// node. It ignores all other labels, and names.
func allowsPlatform(spec *corev1.PodSpec, n *corev1.Node) bool {
	isOther := func(label string) bool { return label != corev1.LabelOSStable && label != corev1.LabelArchStable }
	selector, affinity := maps.Clone(spec.NodeSelector), spec.Affinity.DeepCopy()
	maps.DeleteFunc(selector, func(label, _ string) bool { return isOther(label) })
	if affinity != nil && affinity.NodeAffinity != nil && affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		terms := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		for i := range terms {
			terms[i].MatchFields = nil
			terms[i].MatchExpressions = slices.DeleteFunc(terms[i].MatchExpressions, func(r corev1.NodeSelectorRequirement) bool { return isOther(r.Key) })
			if len(terms[i].MatchExpressions) == 0 {
				affinity = nil // one of the alternatives allows every platform; an empty term would match no node
				break
			}
		}
	}
	matches, _ := nodeaffinity.NewRequiredNodeAffinity(selector, affinity).Match(n)
	return matches
}

func formatUnmatchedLabels(selector map[string]string, n *corev1.Node) string {
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
	return ": missing " + strings.Join(lacks, ", ")
}

func newToleration(key string, effect corev1.TaintEffect) corev1.Toleration {
	return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: effect}
}

// daemonSetTolerations are the tolerations that the DaemonSet controller adds to every pod
// (https://kubernetes.io/docs/concepts/workloads/controllers/daemonset/#taints-and-tolerations).
var daemonSetTolerations = []corev1.Toleration{
	newToleration(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute),
	newToleration(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute),
	newToleration(corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule),
	newToleration(corev1.TaintNodeMemoryPressure, corev1.TaintEffectNoSchedule),
	newToleration(corev1.TaintNodePIDPressure, corev1.TaintEffectNoSchedule),
	newToleration(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule),
}

// agentPodsByNode returns the agent pods that have not finished, by node name.
func (f *Facts) agentPodsByNode() map[string][]*corev1.Pod {
	sets := map[Key]bool{}
	for _, p := range f.partsOfKind(Agent) {
		if p.daemonSet != nil {
			sets[Key{p.namespace(), p.Object.Name}] = true
		}
	}
	on := map[string][]*corev1.Pod{}
	for _, pod := range f.Pods {
		c := metav1.GetControllerOf(pod)
		if c != nil && c.Kind == "DaemonSet" && sets[Key{pod.Namespace, c.Name}] && !isFinished(pod) {
			on[pod.Spec.NodeName] = append(on[pod.Spec.NodeName], pod)
		}
	}
	return on
}

// listAgentCoveredNodes returns the nodes on which an agent DaemonSet can run a pod.
func (f *Facts) listAgentCoveredNodes() []*corev1.Node {
	var nodes []*corev1.Node
	for _, n := range f.Nodes {
		if isVirtualNode(n) {
			continue
		}
		for _, p := range f.partsOfKind(Agent) {
			if p.daemonSet != nil && canRunOn(p.daemonSet, n) {
				nodes = append(nodes, n)
				break
			}
		}
	}
	return nodes
}

// checkAgentRunning finds nodes on which an agent should run and no agent runs.
func checkAgentRunning(f *Facts) []Finding {
	var found []Finding
	guards := f.agentPodsByNode()
	for _, n := range f.listAgentCoveredNodes() {
		reason := findAgentProblem(guards[n.Name])
		if reason == "" {
			continue
		}
		found = append(found, Finding{
			Severity: Problem, Object: newNodeObject(n),
			Message: reason + ": nothing reads the notices for it",
			Remedy:  "kubectl describe the DaemonSet and its pod on the node; check the image, the free resources and the state of the node",
		})
	}
	return found
}

func findAgentProblem(pods []*corev1.Pod) string {
	if len(pods) == 0 {
		return "it has no agent pod, although the DaemonSet covers it"
	}
	for _, p := range pods {
		if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
			return ""
		}
	}
	return fmt.Sprintf("its agent pod is %s", strings.ToLower(string(pods[0].Status.Phase)))
}
