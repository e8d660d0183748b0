package orphans

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/drainability/fromcorev1"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
	"github.com/slipway-dev/slipway/internal/retirement/disruptionbudget"
)

// snapshot holds everything that one scan has read.
type snapshot struct {
	instances         []cloud.Instance // of the cluster, in a cloud with marks
	nodes             []Node
	nodeByName        map[string]*corev1.Node        // by name
	groupOfNode       map[string]string              // group by node
	groupByName       map[string]*v1alpha1.NodeGroup // by name
	groupByCloudGroup map[string]*v1alpha1.NodeGroup // by cloud group
	retiringNodes     map[string]bool                // nodes with an unfinished retirement
	handledInstances  map[string]bool                // instances of an unfinished retirement or an open launch
}

func (s *Controller) readSnapshot(ctx context.Context) (*snapshot, error) {
	groups, err := s.options.Groups.List(ctx)
	if err != nil {
		return nil, err
	}
	leaving, inHand, err := s.readUnfinishedRetirements(ctx)
	if err != nil {
		return nil, err
	}
	var fleet []cloud.Instance
	if s.marking != nil {
		if fleet, err = s.marking.ClusterInstances(ctx); err != nil {
			return nil, err
		}
	}
	nodes, summaries, err := s.readNodes(ctx) // after the instances, so that a Node that joined meanwhile is seen
	if err != nil {
		return nil, err
	}
	seen := &snapshot{
		instances: fleet, nodes: summaries, nodeByName: map[string]*corev1.Node{}, groupOfNode: nodegroup.AssignNodes(groups, nodes).OwnerByNode,
		groupByName: map[string]*v1alpha1.NodeGroup{}, groupByCloudGroup: map[string]*v1alpha1.NodeGroup{}, retiringNodes: leaving, handledInstances: inHand,
	}
	for i := range nodes {
		seen.nodeByName[nodes[i].Name] = &nodes[i]
	}
	for i := range groups {
		seen.groupByName[groups[i].Name] = &groups[i]
		if groups[i].Spec.Cloud.Provider == s.cloudName {
			seen.groupByCloudGroup[groups[i].Spec.Cloud.Group] = &groups[i]
			// The autoscaler watches the instances of its launches until they have joined, and deletes the others.
			if p := groups[i].Status.Provisioning; p != nil {
				for _, l := range p.Launches {
					for _, instance := range l.Instances {
						inHand[instance.ProviderID] = true
					}
				}
			}
		}
	}
	return seen, nil
}

// readUnfinishedRetirements reads the unfinished retirements of all managers, page by page. It returns the names of
// their Nodes, and the normalized provider IDs of their instances.
func (s *Controller) readUnfinishedRetirements(ctx context.Context) (retiringNodes, handledInstances map[string]bool, err error) {
	retiringNodes, handledInstances = map[string]bool{}, map[string]bool{}
	var page v1alpha1.NodeRetirementList
	for more := true; more; more = page.Continue != "" {
		o := &client.ListOptions{Limit: pageSize, Continue: page.Continue}
		page = v1alpha1.NodeRetirementList{}
		if err := s.options.LiveReader.List(ctx, &page, o); err != nil {
			return nil, nil, fmt.Errorf("NodeRetirements: %w", err)
		}
		for i := range page.Items {
			rt := &page.Items[i]
			if rt.Status.Phase.IsFinal() {
				continue
			}
			retiringNodes[rt.Spec.NodeName] = true
			switch id, err := s.instanceIDOf(rt); {
			case err == nil:
				handledInstances[id] = true
			case cloud.IsProviderUnavailable(err):
				return nil, nil, fmt.Errorf("NodeRetirement %s: %w", rt.Name, err)
			}
		}
	}
	return retiringNodes, handledInstances, nil
}

// instanceIDOf returns the normalized provider ID of a retirement's instance. An error means that the instance belongs
// to another cloud, unless it satisfies [cloud.IsProviderUnavailable].
func (s *Controller) instanceIDOf(rt *v1alpha1.NodeRetirement) (string, error) {
	id := rt.Spec.ProviderID
	if rt.Status.Captured != nil {
		id = rt.Status.Captured.ProviderID
	}
	if s.marking != nil {
		return s.marking.Normalize(id)
	}
	return s.unmarked.Normalize(id)
}

// isHandled reports whether an instance cannot be an orphan, because a retirement or a launch handles it, or because it
// may still join the cluster.
func (s *snapshot) isHandled(m cloud.Instance) bool {
	return s.handledInstances[m.ProviderID] || s.canStillJoin(m, time.Now())
}

// canStillJoin reports whether the join timeout of the instance's group has not passed yet.
func (s *snapshot) canStillJoin(m cloud.Instance, now time.Time) bool {
	g := s.groupByCloudGroup[m.Group]
	return g != nil && now.Before(m.Created.Add(plan.JoinTimeout(g)))
}

// readNodes reads all Nodes, page by page. It returns each Node twice: without the fields that no rule reads, and as
// input of a Finder.
func (s *Controller) readNodes(ctx context.Context) (nodes []corev1.Node, summaries []Node, err error) {
	var page corev1.NodeList
	for more := true; more; more = page.Continue != "" {
		o := &client.ListOptions{Limit: pageSize, Continue: page.Continue}
		page = corev1.NodeList{}
		if err := s.options.LiveReader.List(ctx, &page, o); err != nil {
			return nil, nil, fmt.Errorf("nodes: %w", err)
		}
		for i := range page.Items {
			n := &page.Items[i]
			summaries = append(summaries, Node{
				Name: n.Name, ProviderID: n.Spec.ProviderID, SystemUUID: n.Status.NodeInfo.SystemUUID, Ready: disruptionbudget.IsReady(n),
				Created: n.CreationTimestamp.Time, ControlPlane: fromcorev1.NodeFacts(n).ControlPlane != "",
			})
			nodes = append(nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, Labels: n.Labels}})
		}
	}
	return nodes, summaries, nil
}
