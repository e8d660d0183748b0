package nodegroup

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// PodNodeField is the field of a Pod that the API server and the caches select by.
const PodNodeField = "spec.nodeName"

// Cluster is what all groups are judged by, read once.
type Cluster struct {
	Groups      []v1alpha1.NodeGroup
	Nodes       []corev1.Node
	Retirements []v1alpha1.NodeRetirement
	Claims      Claims
	Now         time.Time

	reader client.Reader
}

// ReadCluster reads nodes and retirements, from caches if need be. What it returns must not be changed.
func ReadCluster(ctx context.Context, reader client.Reader, groups []v1alpha1.NodeGroup) (*Cluster, error) {
	c := &Cluster{Groups: groups, Now: time.Now(), reader: reader}
	var nodes corev1.NodeList
	if err := reader.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("nodes: %w", err)
	}
	var retirements v1alpha1.NodeRetirementList
	if err := reader.List(ctx, &retirements); err != nil {
		return nil, fmt.Errorf("NodeRetirements: %w", err)
	}
	c.Nodes, c.Retirements = nodes.Items, retirements.Items
	c.Claims = Claim(groups, c.Nodes)
	return c, nil
}

// Quiet says for how long this process has known of no pod that keeps a node; see [Node].
type Quiet func(node string) time.Duration

// World reads what is decided on about one group, its pods included.
func (c *Cluster) World(ctx context.Context, g *v1alpha1.NodeGroup, notAccepted string, quiet Quiet) (World, error) {
	w := World{Group: g, NotAccepted: notAccepted, Now: c.Now}
	about := map[string][]v1alpha1.NodeRetirement{}
	for i := range c.Retirements {
		name := c.Retirements[i].Spec.NodeName
		about[name] = append(about[name], c.Retirements[i])
	}
	var own, others []corev1.Node
	for i := range c.Nodes {
		if c.Claims.Owner[c.Nodes[i].Name] != g.Name {
			others = append(others, c.Nodes[i])
			continue
		}
		own = append(own, c.Nodes[i])
		w.Nodes = append(w.Nodes, Node{Object: &c.Nodes[i], Quiet: -1, Retirements: about[c.Nodes[i].Name]})
	}
	rule, err := ruleOf(g)
	if err != nil || rule == nil || notAccepted != "" {
		return w, err
	}
	keepers, pending, err := c.pods(ctx, rule)
	if err != nil {
		return w, err
	}
	for i := range w.Nodes {
		n := &w.Nodes[i]
		n.Keepers = keepers[n.Object.Name]
		if quiet != nil {
			n.Quiet = quiet(n.Object.Name)
		}
	}
	if !rule.keepForPending || len(pending) == 0 {
		return w, nil
	}
	s := search{own: own, others: others, hosts: func(node string) ([]corev1.Pod, error) { return c.hosted(ctx, node) }}
	w.Waiting, err = s.first(pending)
	return w, err
}

// pods finds the pods that a rule selects: those on nodes, by node, and those that wait for one.
func (c *Cluster) pods(ctx context.Context, rule *idleRule) (keepers map[string][]string, pending []corev1.Pod, err error) {
	keepers = map[string][]string{}
	namespaces := rule.namespaces
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	for _, namespace := range namespaces {
		var list corev1.PodList
		if err := c.reader.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: rule.selector},
			client.UnsafeDisableDeepCopy); err != nil {
			return nil, nil, fmt.Errorf("pods that keep nodes: %w", err)
		}
		for i := range list.Items {
			p := &list.Items[i]
			switch {
			case !unfinished(p.Status.Phase) || !rule.selects(p.Namespace, p.Labels):
			case p.Spec.NodeName != "":
				keepers[p.Spec.NodeName] = append(keepers[p.Spec.NodeName], p.Namespace+"/"+p.Name)
			case p.DeletionTimestamp == nil:
				pending = append(pending, *p)
			}
		}
	}
	for _, names := range keepers {
		slices.Sort(names)
	}
	slices.SortFunc(pending, func(a, b corev1.Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return keepers, pending, nil
}

// hosted are the pods that hold room on a node.
func (c *Cluster) hosted(ctx context.Context, node string) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := c.reader.List(ctx, &list, client.MatchingFields{PodNodeField: node}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("pods on node %s: %w", node, err)
	}
	return list.Items, nil
}

// Forecast says what a manager would decide about a group, from its status and what is in the cluster.
func (c *Cluster) Forecast(ctx context.Context, g *v1alpha1.NodeGroup) ([]Decision, error) {
	w, err := c.World(ctx, g, c.NotAccepted(g), nil)
	if err != nil {
		return nil, err
	}
	return Decide(w)
}

// TrimPod is a cache's transform: it drops what neither the rules nor placement read of a Pod.
func TrimPod(o any) (any, error) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	spec := corev1.PodSpec{
		NodeName: p.Spec.NodeName, Overhead: p.Spec.Overhead, Resources: p.Spec.Resources, HostNetwork: p.Spec.HostNetwork,
		Containers: trimContainers(p.Spec.Containers), InitContainers: trimContainers(p.Spec.InitContainers),
	}
	if p.Spec.NodeName == "" { // where it may go is to be judged yet
		spec.NodeSelector, spec.Affinity, spec.Tolerations = p.Spec.NodeSelector, p.Spec.Affinity, p.Spec.Tolerations
		spec.TopologySpreadConstraints, spec.SchedulingGates = p.Spec.TopologySpreadConstraints, p.Spec.SchedulingGates
		spec.Volumes, spec.ResourceClaims, spec.SchedulerName = p.Spec.Volumes, p.Spec.ResourceClaims, p.Spec.SchedulerName
		spec.Priority, spec.OS = p.Spec.Priority, p.Spec.OS
	} else if a := p.Spec.Affinity; a != nil && a.PodAntiAffinity != nil { // it keeps others from its node
		spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution,
		}}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, Labels: p.Labels,
			CreationTimestamp: p.CreationTimestamp, DeletionTimestamp: p.DeletionTimestamp,
		},
		Spec:   spec,
		Status: corev1.PodStatus{Phase: p.Status.Phase},
	}, nil
}

func trimContainers(all []corev1.Container) []corev1.Container {
	var trimmed []corev1.Container
	for _, c := range all {
		kept := corev1.Container{Name: c.Name, Resources: c.Resources, RestartPolicy: c.RestartPolicy}
		for _, port := range c.Ports {
			if port.HostPort != 0 {
				kept.Ports = append(kept.Ports, port)
			}
		}
		trimmed = append(trimmed, kept)
	}
	return trimmed
}
