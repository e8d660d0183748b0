package doctor

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// rival is another tool that takes nodes out of service, or brings them, and by what it is known.
type rival struct {
	name string
	// images are the last words of its images' names.
	images []string
	// workloads are what its Deployment or DaemonSet is called where the image is somebody's own.
	workloads []string
	// groups are API groups of its own.
	groups []string
	// annotations are keys, on nodes.
	annotations []string
	// taints are keys, on nodes, that it puts there while it takes one out of service.
	taints []string
	// marks are ConfigMaps that it leaves, the only sign of one that runs out of sight in a managed control plane.
	marks []Key
	// on tells the nodes of a platform that it is a part of, by their label; it leaves no other sign while it has nothing to do.
	on func(*corev1.Node) (label string, ok bool)
	// with is the part of Slipway that it is in the way of; any when empty.
	with PartKind
	// does what, and what to do about the two.
	does, remedy string
}

// rivals are the tools of https://github.com/Azure/AKS, https://github.com/kubernetes/autoscaler and the others named, as
// they name themselves in the manifests that they ship.
var rivals = []rival{
	{
		name: "cluster-autoscaler", images: []string{"cluster-autoscaler", "cluster-autoscaler-amd64", "cluster-autoscaler-arm64"},
		workloads: []string{"cluster-autoscaler"}, marks: []Key{{"kube-system", "cluster-autoscaler-status"}}, with: Manager,
		does: "it adds machines for pending pods and takes idle ones away, too",
		remedy: "give each pool to one of the two: switch the autoscaler off for the pools of NodeGroups, or set " +
			"clusterAutoscalerScaleDownDisabled: true in those and leave scaleUp out",
	},
	{
		name: "Karpenter", images: []string{"karpenter"}, workloads: []string{"karpenter"},
		groups: []string{"karpenter.sh", "karpenter.azure.com", "karpenter.k8s.aws"}, with: Manager,
		does:   "it makes and consolidates machines by itself",
		remedy: "let no NodeGroup select nodes of a NodePool (label karpenter.sh/nodepool)",
	},
	{
		name: "kured", images: []string{"kured"}, workloads: []string{"kured"},
		annotations: []string{"weave.works/kured-reboot-in-progress"},
		does:        "it cordons, drains and reboots nodes for updates, one by one, and counts no NodeGroup's budget",
		remedy: "the two can live together: leave its lock on (concurrency 1) and let the groups' disruptionBudgets allow one node " +
			"more than it takes",
	},
	{
		name: "aks-node-termination-handler", images: []string{"aks-node-termination-handler"},
		workloads: []string{"aks-node-termination-handler"}, with: Agent,
		does: "it drains for the same notices of Azure as the agent, past its deadline and without taking the cordon back",
		remedy: "remove it once the agent runs: slipway aks-node-termination-handler takes its flags, and slipway migrate " +
			"translates them (docs/moving-from-aks-node-termination-handler.md)",
	},
	{
		name: "mechanic", images: []string{"mechanic"}, workloads: []string{"mechanic"}, with: Agent,
		does: "it cordons and drains for the same notices of Azure as the agent",
		remedy: "remove it once the agent runs: slipway mechanic takes its configuration (docs/moving-from-mechanic.md); nodes " +
			"that it has cordoned carry the label mechanic.cordoned",
	},
	{
		name: "azure-scheduledevents-manager", images: []string{"azure-scheduledevents-manager"},
		workloads: []string{"azure-scheduledevents-manager"}, with: Agent,
		does:   "it drains for the same notices of Azure as the agent, and tells Azure to begin for every machine of a notice",
		remedy: "remove it: a notice that it acknowledges begins before the agents on the other machines have drained",
	},
	{
		name: "draino", images: []string{"draino"}, workloads: []string{"draino"}, with: Agent,
		does:   "it cordons and drains nodes for their conditions, and gives none back",
		remedy: "name the conditions to the agent (--condition, docs/agent.md) and remove it",
	},
	{
		name: "escalator", images: []string{"escalator"}, workloads: []string{"escalator"}, with: Manager,
		does:   "it adds machines and takes them away by how full the nodes are",
		remedy: "give each pool to one of the two",
	},
	{
		name: "AKS node auto-drain", marks: []Key{{"kube-system", "remediator-config"}}, with: Agent,
		taints: []string{"remediator.kubernetes.azure.com/unschedulable", "remediator.aks.microsoft.com/unschedulable"}, on: onAKS,
		does: "AKS drains for Preempt and Redeploy by itself (and for Freeze where remediator-config says so). While its taint is " +
			"on a node, the agent leaves the cordon to it",
		remedy: "nothing, unless pods are evicted for a Freeze that the agent was told to ignore: then take Freeze out of remediator-config",
	},
}

// marks are the ConfigMaps to look for.
func marks() []Key {
	var all []Key
	for i := range rivals {
		all = append(all, rivals[i].marks...)
	}
	return all
}

// otherTool finds tools whose work overlaps with Slipway's.
func otherTool(f *Facts) []Finding {
	var found []Finding
	for i := range rivals {
		r := &rivals[i]
		for _, sign := range r.signs(f) {
			found = append(found, Finding{
				Severity: f.gravity(r), Object: sign.object, Remedy: r.remedy, Message: r.name + ", by its " + sign.by + ": " + r.does,
			})
		}
	}
	return found
}

// gravity of a tool: two that would do the same thing on the same node will fight once both are there; of two that may
// each have pools of their own it cannot be told.
func (f *Facts) gravity(r *rival) Severity {
	switch {
	case r.name == "AKS node auto-drain":
		return Note
	case r.with == Agent && len(f.installed(Agent)) > 0:
		return Problem
	case r.with == Manager && len(f.installed(Manager)) == 0, r.with == Agent:
		return Note
	}
	return Warning
}

type sign struct {
	object Object
	by     string
}

// signs of a tool: its workloads, where there are any, and else what it has left.
func (r *rival) signs(f *Facts) []sign {
	ours := map[Object]bool{}
	for _, p := range f.Parts() {
		ours[p.Object] = true
	}
	var all []sign
	add := func(o Object, template *corev1.PodTemplateSpec) {
		if by := r.runsIn(o.Name, template); by != "" && !ours[o] {
			all = append(all, sign{o, by})
		}
	}
	for _, d := range f.DaemonSets {
		add(Object{"DaemonSet", d.Namespace, d.Name}, &d.Spec.Template)
	}
	for _, d := range f.Deployments {
		add(Object{"Deployment", d.Namespace, d.Name}, &d.Spec.Template)
	}
	if len(all) > 0 {
		return all
	}
	for _, key := range r.marks {
		if f.Marks[key] {
			return []sign{{Object{"ConfigMap", key.Namespace, key.Name}, "ConfigMap"}}
		}
	}
	for _, group := range r.groups {
		if slices.Contains(f.Groups, group) {
			return []sign{{Object{Kind: "APIGroup", Name: group}, "API group"}}
		}
	}
	for _, n := range f.Nodes {
		for _, key := range r.annotations {
			if _, ok := n.Annotations[key]; ok {
				return []sign{{nodeObject(n), "annotation " + key}}
			}
		}
		for _, taint := range n.Spec.Taints {
			if slices.Contains(r.taints, taint.Key) {
				return []sign{{nodeObject(n), "taint " + taint.Key}}
			}
		}
	}
	return r.home(f)
}

// home is the platform that the tool is a part of: one sign for the whole cluster.
func (r *rival) home(f *Facts) []sign {
	if r.on == nil {
		return nil
	}
	for _, n := range f.Nodes {
		if label, ok := r.on(n); ok {
			return []sign{{Object{}, "nodes' label " + label}}
		}
	}
	return nil
}

// onAKS tells the nodes of AKS, which drains for some notices in all its clusters.
func onAKS(n *corev1.Node) (string, bool) {
	const cluster = "kubernetes.azure.com/cluster"
	return cluster, onAzure(n) && n.Labels[cluster] != ""
}

func (r *rival) runsIn(name string, template *corev1.PodTemplateSpec) string {
	for i := range template.Spec.Containers {
		if image := imageName(template.Spec.Containers[i].Image); slices.Contains(r.images, image) {
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

// otherToolAtWork finds nodes that another tool is taking away at this moment.
func otherToolAtWork(f *Facts) []Finding {
	var found []Finding
	for _, n := range f.Nodes {
		for _, who := range cordon.Others(asRead(n)) {
			found = append(found, Finding{
				Severity: Note, Object: nodeObject(n),
				Message: who + " is taking it out of service: Slipway leaves it alone and counts it as unavailable",
				Remedy:  "nothing, if it goes soon; a taint that its tool has forgotten is taken off with kubectl taint",
			})
		}
	}
	return found
}

// asRead is a node in the terms of those who act on nodes, as far as marks go.
func asRead(n *corev1.Node) *kubeapi.Node {
	small := &kubeapi.Node{ObjectMeta: kubeapi.ObjectMeta{Name: n.Name, Labels: n.Labels, Annotations: n.Annotations}}
	for _, t := range n.Spec.Taints {
		small.Spec.Taints = append(small.Spec.Taints, kubeapi.Taint{Key: t.Key, Value: t.Value, Effect: string(t.Effect)})
	}
	return small
}
