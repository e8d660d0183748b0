package planner

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/resource"

	"github.com/slipway-dev/slipway/internal/drainability/fromcorev1"
	"github.com/slipway-dev/slipway/internal/placement/saved"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// poolLabels are the node labels that name the node pool on the clouds that have one.
var poolLabels = [...]string{
	"kubernetes.azure.com/agentpool", "eks.amazonaws.com/nodegroup", "cloud.google.com/gke-nodepool", "karpenter.sh/nodepool",
}

// DeriveTemplates derives the instance types of a cluster from its nodes. Nodes of one pool and instance type form one
// template. It is conservative, so that a pod that fits it also fits a real instance: its node has only the common
// labels and taints and the smallest allocatable amounts, minus the largest requests of DaemonSet and static pods. All
// templates have the same cost. A pool without nodes is unknown. The snapshot has the CSI drivers of the nodes.
func DeriveTemplates(s *snapshot.Snapshot, o *saved.Objects) []Template {
	daemons := sumDaemonRequestsByNode(o.Pods)
	kinds := map[templateKey][]*corev1.Node{}
	for _, n := range o.Nodes {
		if fromcorev1.NodeFacts(n).ControlPlane == "" {
			kinds[newTemplateKey(n)] = append(kinds[newTemplateKey(n)], n)
		}
	}
	templates := make([]Template, 0, len(kinds))
	for _, k := range slices.SortedFunc(maps.Keys(kinds), templateKey.compare) {
		nodes := kinds[k]
		templates = append(templates, Template{Name: k.String(), Node: buildConservativeTemplate(nodes, daemons), Sibling: ChooseSibling(s, nodes), Cost: 1, Zones: listZonesIfAllZoned(nodes)})
	}
	return templates
}

// ChooseSibling returns the node that shows which CSI drivers another instance of the nodes' type will have. It is the
// node with the most drivers, and of these the oldest, and of these the first. A node lacks a driver while it starts, and
// while the pod of the driver does not run.
func ChooseSibling(s *snapshot.Snapshot, nodes []*corev1.Node) (name string) {
	drivers := func(n *corev1.Node) int {
		if known := s.Nodes.Lookup(n.Name); known != nil {
			return known.DriverCount()
		}
		return 0
	}
	return slices.MinFunc(nodes, func(a, b *corev1.Node) int {
		return cmp.Or(cmp.Compare(drivers(b), drivers(a)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time))
	}).Name
}

// TemplateName returns the name of the template that DeriveTemplates derives from a node. It returns "" for a node of the
// control plane.
func TemplateName(n *corev1.Node) string {
	if fromcorev1.NodeFacts(n).ControlPlane != "" {
		return ""
	}
	return newTemplateKey(n).String()
}

// templateKey identifies a template: pool and instance type, or the capacity if neither is known.
type templateKey struct{ pool, instanceType, capacity string }

func newTemplateKey(n *corev1.Node) templateKey {
	k := templateKey{instanceType: n.Labels[corev1.LabelInstanceTypeStable]}
	for _, label := range poolLabels {
		if k.pool = n.Labels[label]; k.pool != "" {
			break
		}
	}
	if k.pool == "" && k.instanceType == "" {
		allocatable := n.Status.Allocatable
		k.capacity = allocatable.Cpu().String() + "-cpu/" + allocatable.Memory().String()
	}
	return k
}

// compare orders keys field by field, so that the separator in the name does not matter.
func (k templateKey) compare(other templateKey) int {
	return cmp.Or(cmp.Compare(k.pool, other.pool), cmp.Compare(k.instanceType, other.instanceType),
		cmp.Compare(k.capacity, other.capacity))
}

func (k templateKey) String() string {
	parts := []string{k.pool, k.instanceType, k.capacity}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), "/")
}

// buildConservativeTemplate returns the smallest node that one more instance of the template would register.
func buildConservativeTemplate(nodes []*corev1.Node, daemonRequests map[string]corev1.ResourceList) *corev1.Node {
	first := nodes[0]
	out := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Labels: maps.Clone(first.Labels)},
		Status:     corev1.NodeStatus{DeclaredFeatures: first.Status.DeclaredFeatures},
	}
	for _, n := range nodes {
		maps.DeleteFunc(out.Labels, func(key, value string) bool { return n.Labels[key] != value })
	}
	for _, t := range first.Spec.Taints {
		if !isLifecycleTaint(t.Key) && slices.IndexFunc(nodes, func(n *corev1.Node) bool { return !hasTaint(n, t) }) < 0 {
			out.Spec.Taints = append(out.Spec.Taints, t)
		}
	}
	out.Status.Allocatable = minAllocatableAfterDaemons(nodes, daemonRequests)
	out.Status.Capacity = out.Status.Allocatable
	return out
}

// isLifecycleTaint reports whether a taint describes the state of a node and not its type.
func isLifecycleTaint(key string) bool {
	return strings.HasPrefix(key, "node.kubernetes.io/") || strings.HasPrefix(key, "node.cloudprovider.kubernetes.io/")
}

func hasTaint(n *corev1.Node, t corev1.Taint) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(other corev1.Taint) bool {
		return other.MatchTaint(&t) && other.Value == t.Value
	})
}

// minAllocatableAfterDaemons returns, per resource, the smallest allocatable amount of the nodes minus the requests of the
// DaemonSet and static pods on that node. It omits resources that one of the nodes does not have.
func minAllocatableAfterDaemons(nodes []*corev1.Node, daemonRequests map[string]corev1.ResourceList) corev1.ResourceList {
	var out corev1.ResourceList
	for _, n := range nodes {
		free := n.Status.Allocatable.DeepCopy()
		for name, taken := range daemonRequests[n.Name] {
			if has, ok := free[name]; ok {
				has.Sub(taken)
				free[name] = has
			}
		}
		if out == nil {
			out = free
		}
		for name, has := range out {
			if value, ok := free[name]; !ok {
				delete(out, name)
			} else if value.Cmp(has) < 0 {
				out[name] = value
			}
		}
	}
	return out
}

// sumDaemonRequestsByNode returns the requests of the DaemonSet and static pods per node, with their number as "pods".
func sumDaemonRequestsByNode(pods []*corev1.Pod) map[string]corev1.ResourceList {
	sums := map[string]corev1.ResourceList{}
	for _, p := range pods {
		owner := metav1.GetControllerOfNoCopy(p)
		_, isStatic := p.Annotations[corev1.MirrorPodAnnotationKey]
		if !isStatic && (owner == nil || owner.Kind != "DaemonSet") || p.Spec.NodeName == "" {
			continue
		}
		sum := sums[p.Spec.NodeName]
		if sum == nil {
			sum = corev1.ResourceList{}
			sums[p.Spec.NodeName] = sum
		}
		requests := resource.PodRequests(p, resource.PodResourcesOptions{})
		requests[corev1.ResourcePods] = *apiresource.NewQuantity(1, apiresource.DecimalSI)
		for name, value := range requests {
			total := sum[name]
			total.Add(value)
			sum[name] = total
		}
	}
	return sums
}

// listZonesIfAllZoned lists the zones of the nodes. It is empty if a node has no zone.
func listZonesIfAllZoned(nodes []*corev1.Node) []string {
	found := map[string]bool{}
	for _, n := range nodes {
		zone := n.Labels[corev1.LabelTopologyZone]
		if zone == "" {
			return nil
		}
		found[zone] = true
	}
	return slices.Sorted(maps.Keys(found))
}
