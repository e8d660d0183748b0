package doctor

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// knownTool describes another tool that removes or adds nodes, and how to recognize it.
type knownTool struct {
	name string
	// images are the names of its images, without registry and tag.
	images []string
	// workloads are the names of its Deployment or DaemonSet, for custom images.
	workloads []string
	// groups are its own API groups.
	groups []string
	// annotations are keys of its node annotations.
	annotations []string
	// taints are keys of the taints that it sets while it removes a node.
	taints []string
	// configMaps are ConfigMaps that it writes. They are the only sign of a tool in a managed control plane.
	configMaps []Key
	// findPlatformLabel identifies nodes of the platform that includes the tool. The tool has no other sign while it
	// is idle.
	findPlatformLabel func(*corev1.Node) (label string, ok bool)
	// overlapsWith is the part of Slipway that it conflicts with. Empty means any.
	overlapsWith PartKind
	// effect says what the tool does. remedy says what to do if both are installed.
	effect, remedy string
}

// knownTools lists the tools of https://github.com/Azure/AKS, https://github.com/kubernetes/autoscaler and others. The
// names come from the tools' manifests.
var knownTools = []knownTool{
	{
		name: "cluster-autoscaler", images: []string{"cluster-autoscaler", "cluster-autoscaler-amd64", "cluster-autoscaler-arm64"},
		workloads: []string{"cluster-autoscaler"}, configMaps: []Key{{"kube-system", "cluster-autoscaler-status"}}, overlapsWith: Manager,
		effect: "it also launches instances for pending pods and removes idle ones",
		remedy: "give each pool to only one of them: disable the autoscaler for the pools of NodeGroups, or set " +
			"clusterAutoscalerScaleDownDisabled: true in the NodeGroups and omit scaleUp",
	},
	{
		name: "Karpenter", images: []string{"karpenter"}, workloads: []string{"karpenter"},
		groups: []string{"karpenter.sh", "karpenter.azure.com", "karpenter.k8s.aws"}, overlapsWith: Manager,
		effect: "it launches and consolidates instances",
		remedy: "let no NodeGroup select nodes of a NodePool (label karpenter.sh/nodepool)",
	},
	{
		name: "kured", images: []string{"kured"}, workloads: []string{"kured"},
		annotations: []string{"weave.works/kured-reboot-in-progress"},
		effect:      "it cordons, drains and reboots nodes for updates, and ignores the disruption budgets of NodeGroups",
		remedy: "both can run: keep its lock (concurrency 1) and let the groups' disruptionBudgets allow one node " +
			"more than kured uses",
	},
	{
		name: "aks-node-termination-handler", images: []string{"aks-node-termination-handler"},
		workloads: []string{"aks-node-termination-handler"}, overlapsWith: Agent,
		effect: "it drains for the same Azure notices as the agent, ignores the deadline, and never uncordons",
		remedy: "remove it after the agent runs: slipway aks-node-termination-handler accepts its flags, and slipway migrate " +
			"translates them (docs/moving-from-aks-node-termination-handler.md)",
	},
	{
		name: "aws-node-termination-handler", images: []string{"aws-node-termination-handler"},
		workloads: []string{"aws-node-termination-handler"}, overlapsWith: Agent,
		effect: "it drains for the same notices of AWS as the agent, and drains for a scheduled event weeks early",
		remedy: "remove it after the agent runs: slipway aws-node-termination-handler accepts its flags, and slipway migrate " +
			"translates them (docs/moving-from-aws-node-termination-handler.md)",
	},
	{
		name: "mechanic", images: []string{"mechanic"}, workloads: []string{"mechanic"}, overlapsWith: Agent,
		effect: "it cordons and drains for the same Azure notices as the agent",
		remedy: "remove it after the agent runs: slipway mechanic accepts its configuration (docs/moving-from-mechanic.md); nodes " +
			"that it has cordoned have the label mechanic.cordoned",
	},
	{
		name: "azure-scheduledevents-manager", images: []string{"azure-scheduledevents-manager"},
		workloads: []string{"azure-scheduledevents-manager"}, overlapsWith: Agent,
		effect: "it drains for the same Azure notices as the agent, and acknowledges each notice for all its instances",
		remedy: "remove it: its acknowledgement starts the event before the agents on the other instances have drained",
	},
	{
		name: "draino", images: []string{"draino"}, workloads: []string{"draino"}, overlapsWith: Agent,
		effect: "it cordons and drains nodes for their conditions, and never uncordons",
		remedy: "configure the conditions in the agent (--condition, docs/agent.md) and remove it",
	},
	{
		name: "escalator", images: []string{"escalator"}, workloads: []string{"escalator"}, overlapsWith: Manager,
		effect: "it launches and removes instances by the utilization of the nodes",
		remedy: "give each pool to only one of them",
	},
	{
		name: "AKS node auto-drain", configMaps: []Key{{"kube-system", "remediator-config"}}, overlapsWith: Agent,
		taints: []string{"remediator.kubernetes.azure.com/unschedulable", "remediator.aks.microsoft.com/unschedulable"}, findPlatformLabel: findAKSLabel,
		effect: "AKS drains for Preempt and Redeploy events, and for Freeze if remediator-config enables it. While its taint is " +
			"on a node, the agent does not cordon or uncordon it",
		remedy: "none, unless pods are evicted for a Freeze that the agent must ignore; then remove Freeze from remediator-config",
	},
}

// listToolConfigMaps returns the ConfigMaps that show that a known tool is installed.
func listToolConfigMaps() []Key {
	var all []Key
	for i := range knownTools {
		all = append(all, knownTools[i].configMaps...)
	}
	return all
}

// checkOtherTools finds installed tools that do the same work as Slipway.
func checkOtherTools(f *Facts) []Finding {
	var found []Finding
	for i := range knownTools {
		r := &knownTools[i]
		for _, sign := range r.findSigns(f) {
			severity, message := f.toolSeverity(r), r.name+", by its "+sign.evidence+": "+r.effect
			if severity == Problem && f.runsApartFromAgents(sign.daemonSet) {
				severity, message = Warning, message+"; now it and the agents run on different nodes"
			}
			found = append(found, Finding{Severity: severity, Object: sign.object, Remedy: r.remedy, Message: message})
		}
	}
	return found
}

// toolSeverity returns how serious it is that a tool is installed. It returns Problem if the tool and Slipway act on
// the same nodes, wherever their pods run. It returns Warning if they may have separate pools, because the doctor cannot
// see that.
func (f *Facts) toolSeverity(r *knownTool) Severity {
	switch {
	case r.name == "AKS node auto-drain":
		return Note
	case r.overlapsWith == Agent && len(f.partsOfKind(Agent)) > 0:
		return Problem
	case r.overlapsWith == Manager && len(f.partsOfKind(Manager)) == 0, r.overlapsWith == Agent:
		return Note
	}
	return Warning
}

// runsApartFromAgents reports whether no node can run both a pod of a tool's DaemonSet and an agent. It returns false if
// the tool or an agent is not a DaemonSet, because it can then act on every node. It also returns false if no node can run
// an agent, because the agents do not select the nodes that they should.
func (f *Facts) runsApartFromAgents(tool *appsv1.DaemonSet) bool {
	if tool == nil || slices.ContainsFunc(f.partsOfKind(Agent), func(p Part) bool { return p.daemonSet == nil }) {
		return false
	}
	covered := f.listAgentCoveredNodes()
	return len(covered) > 0 && !slices.ContainsFunc(covered, func(n *corev1.Node) bool { return canRunOn(tool, n) })
}

type toolSign struct {
	object   Object
	evidence string
	// daemonSet is the object, if it is a DaemonSet.
	daemonSet *appsv1.DaemonSet
}

// findSigns returns the workloads of a tool. If the tool has no workload, it returns another sign, such as a ConfigMap,
// an API group, an annotation or a taint.
func (r *knownTool) findSigns(f *Facts) []toolSign {
	ours := map[Object]bool{}
	for _, p := range f.FindParts() {
		ours[p.Object] = true
	}
	var all []toolSign
	add := func(o Object, template *corev1.PodTemplateSpec, d *appsv1.DaemonSet) {
		if by := r.matchWorkload(o.Name, template); by != "" && !ours[o] {
			all = append(all, toolSign{o, by, d})
		}
	}
	for _, d := range f.DaemonSets {
		add(Object{"DaemonSet", d.Namespace, d.Name}, &d.Spec.Template, d)
	}
	for _, d := range f.Deployments {
		add(Object{"Deployment", d.Namespace, d.Name}, &d.Spec.Template, nil)
	}
	if len(all) > 0 {
		return all
	}
	for _, key := range r.configMaps {
		if f.ToolConfigMaps[key] {
			return []toolSign{{object: Object{"ConfigMap", key.Namespace, key.Name}, evidence: "ConfigMap"}}
		}
	}
	for _, group := range r.groups {
		if slices.Contains(f.APIGroups, group) {
			return []toolSign{{object: Object{Kind: "APIGroup", Name: group}, evidence: "API group"}}
		}
	}
	for _, n := range f.Nodes {
		for _, key := range r.annotations {
			if _, ok := n.Annotations[key]; ok {
				return []toolSign{{object: newNodeObject(n), evidence: "annotation " + key}}
			}
		}
		for _, taint := range n.Spec.Taints {
			if slices.Contains(r.taints, taint.Key) {
				return []toolSign{{object: newNodeObject(n), evidence: "taint " + taint.Key}}
			}
		}
	}
	return r.findPlatformSign(f)
}

// findPlatformSign returns a sign for the whole cluster if the platform itself includes the tool.
func (r *knownTool) findPlatformSign(f *Facts) []toolSign {
	if r.findPlatformLabel == nil {
		return nil
	}
	for _, n := range f.Nodes {
		if label, ok := r.findPlatformLabel(n); ok {
			return []toolSign{{evidence: "nodes' label " + label}}
		}
	}
	return nil
}

// findAKSLabel returns the label which shows that AKS manages the node. It returns false for a node without the
// label. AKS drains nodes for some notices in all clusters.
func findAKSLabel(n *corev1.Node) (string, bool) {
	const cluster = "kubernetes.azure.com/cluster"
	return cluster, isAzureNode(n) && n.Labels[cluster] != ""
}

func (r *knownTool) matchWorkload(name string, template *corev1.PodTemplateSpec) (evidence string) {
	for i := range template.Spec.Containers {
		if image := parseImageName(template.Spec.Containers[i].Image); slices.Contains(r.images, image) {
			return "image " + template.Spec.Containers[i].Image
		}
	}
	for _, known := range r.workloads {
		if name == known || strings.HasSuffix(name, "-"+known) {
			return "name"
		}
	}
	return ""
}

// checkNodesRemovedByOtherTools finds nodes that another tool is removing now.
func checkNodesRemovedByOtherTools(f *Facts) []Finding {
	var found []Finding
	for _, n := range f.Nodes {
		for _, who := range cordon.RemovingTools(toKubeapiNode(n)) {
			found = append(found, Finding{
				Severity: Note, Object: newNodeObject(n),
				Message: who + " is removing it: Slipway does not touch it and counts it as unavailable",
				Remedy:  "none, if it is removed soon; remove a stale taint with kubectl taint",
			})
		}
	}
	return found
}

// toKubeapiNode returns a Node of package kubeapi with the name, labels, annotations and taints of n.
func toKubeapiNode(n *corev1.Node) *kubeapi.Node {
	small := &kubeapi.Node{ObjectMeta: kubeapi.ObjectMeta{Name: n.Name, Labels: n.Labels, Annotations: n.Annotations}}
	for _, t := range n.Spec.Taints {
		small.Spec.Taints = append(small.Spec.Taints, kubeapi.Taint{Key: t.Key, Value: t.Value, Effect: string(t.Effect)})
	}
	return small
}
