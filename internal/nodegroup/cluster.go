package nodegroup

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/placement/live"
)

// Cluster is a snapshot of the Kubernetes cluster for the decisions on all groups.
type Cluster struct {
	Groups      []v1alpha1.NodeGroup
	Nodes       []corev1.Node
	Retirements []v1alpha1.NodeRetirement
	Assignment  Assignment
	Now         time.Time

	pods live.PodReader
}

// ReadCluster reads Nodes and NodeRetirements, possibly from caches. Pods are read later, and only for groups with a
// rule that needs them. The result must not be changed.
func ReadCluster(ctx context.Context, reader client.Reader, pods live.PodReader, groups []v1alpha1.NodeGroup) (*Cluster, error) {
	c := &Cluster{Groups: groups, Now: time.Now(), pods: pods}
	var nodes corev1.NodeList
	if err := reader.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	var retirements v1alpha1.NodeRetirementList
	if err := reader.List(ctx, &retirements); err != nil {
		return nil, err
	}
	c.Nodes, c.Retirements = nodes.Items, retirements.Items
	c.Assignment = AssignNodes(groups, c.Nodes)
	return c, nil
}

// QuietFunc returns how long this process has seen no pod that keeps the node from being idle; see [Node].
type QuietFunc func(node string) time.Duration

// NewGroupSnapshot returns the input of the decisions on one group without its nodes and pods. The cloud's minimum is the last
// known one, from the status of the group.
func (c *Cluster) NewGroupSnapshot(g *v1alpha1.NodeGroup, notAccepted string) GroupSnapshot {
	return GroupSnapshot{Group: g, NotAccepted: notAccepted, CloudMinSize: int(g.Status.CloudMinSize), Now: c.Now}
}

// ReadGroupSnapshot returns the input of the decisions on one group. It reads the pods that the group's rule needs.
func (c *Cluster) ReadGroupSnapshot(ctx context.Context, g *v1alpha1.NodeGroup, notAccepted string, timeSinceKeepingPod QuietFunc) (GroupSnapshot, error) {
	w := c.NewGroupSnapshot(g, notAccepted)
	about := c.retirementsByNode()
	for i := range c.Nodes {
		if name := c.Nodes[i].Name; c.Assignment.OwnerByNode[name] == g.Name {
			w.Nodes = append(w.Nodes, Node{Object: &c.Nodes[i], QuietFor: -1, Retirements: about[name]})
		}
	}
	if notAccepted != "" { // its rule may be invalid, and must not block other groups
		return w, nil
	}
	rule, err := newIdleRule(g)
	if err != nil || rule == nil {
		return w, err
	}
	keepingPods, pending, err := c.findNodeKeepingPods(ctx, rule)
	if err != nil {
		return w, err
	}
	for i := range w.Nodes {
		n := &w.Nodes[i]
		n.KeepingPods = keepingPods[n.Object.Name]
		if timeSinceKeepingPod != nil {
			n.QuietFor = timeSinceKeepingPod(n.Object.Name)
		}
	}
	if !rule.keepForPending || len(pending) == 0 {
		return w, nil
	}
	own, others := c.splitNodesByGroup(g)
	s := pendingPodSearch{own: own, others: others, podsOn: func(node string) ([]*corev1.Pod, error) { return c.podsOn(ctx, node) }}
	w.PendingPods, err = s.findFirstGroupOnlyPod(pending)
	return w, err
}

func (c *Cluster) retirementsByNode() map[string][]v1alpha1.NodeRetirement {
	about := map[string][]v1alpha1.NodeRetirement{}
	for i := range c.Retirements {
		name := c.Retirements[i].Spec.NodeName
		about[name] = append(about[name], c.Retirements[i])
	}
	return about
}

// ListNodesBeingRemoved returns the nodes that are being removed, also those of other managers' groups and of no group.
func (c *Cluster) ListNodesBeingRemoved() []*corev1.Node {
	var list []*corev1.Node
	about := c.retirementsByNode()
	for i := range c.Nodes {
		n := Node{Object: &c.Nodes[i], Retirements: about[c.Nodes[i].Name]}
		if n.toBudgetNode().BeingRemoved {
			list = append(list, n.Object)
		}
	}
	return list
}

func (c *Cluster) splitNodesByGroup(g *v1alpha1.NodeGroup) (own, others []corev1.Node) {
	for i := range c.Nodes {
		if c.Assignment.OwnerByNode[c.Nodes[i].Name] == g.Name {
			own = append(own, c.Nodes[i])
		} else {
			others = append(others, c.Nodes[i])
		}
	}
	return own, others
}

// findNodeKeepingPods returns the pods that keep nodes from being idle, by the rule: pods on a node by the node's name,
// and pods that are not scheduled.
func (c *Cluster) findNodeKeepingPods(ctx context.Context, rule *idleRule) (keepingByNode map[string]KeepingPods, pending []*corev1.Pod, err error) {
	keepingByNode = make(map[string]KeepingPods, len(c.Nodes))
	namespaces := rule.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	for _, namespace := range namespaces {
		pods, err := c.pods.ListSelected(ctx, namespace, rule.NodeKeepingPods)
		if err != nil {
			return nil, nil, fmt.Errorf("pods that keep nodes: %w", err)
		}
		for _, p := range pods {
			switch {
			case !isUnfinished(p.Status.Phase) || !rule.KeepsNode(p.Namespace, labels.Set(p.Labels)):
			case p.Spec.NodeName != "":
				keepingByNode[p.Spec.NodeName] = keepingByNode[p.Spec.NodeName].withPod(p)
			case p.DeletionTimestamp == nil:
				pending = append(pending, p)
			}
		}
	}
	slices.SortFunc(pending, func(a, b *corev1.Pod) int { // unschedulable pods first
		return cmp.Or(-compareBools(isUnschedulable(a), isUnschedulable(b)), strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name))
	})
	return keepingByNode, pending, nil
}

// podsOn returns the pods that take up resources of the node.
func (c *Cluster) podsOn(ctx context.Context, node string) ([]*corev1.Pod, error) {
	pods, err := c.pods.ListOnNode(ctx, node)
	if err != nil {
		return nil, fmt.Errorf("pods on node %s: %w", node, err)
	}
	return pods, nil
}

// PredictDecisionsByIdleRule returns the decisions that a manager would make on the nodes of a group. It uses only the
// group's status and the cluster.
func (c *Cluster) PredictDecisionsByIdleRule(ctx context.Context, g *v1alpha1.NodeGroup) ([]Decision, error) {
	w, err := c.ReadGroupSnapshot(ctx, g, c.WhyNotAccepted(g), nil)
	if err != nil {
		return nil, err
	}
	return DecideIdle(w)
}
