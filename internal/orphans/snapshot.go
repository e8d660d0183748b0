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
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
	"github.com/slipway-dev/slipway/internal/retirement"
	"github.com/slipway-dev/slipway/internal/retirement/budget"
)

// snapshot is what one look reads.
type snapshot struct {
	machines []cloud.Instance // of a cloud with marks: the cluster's
	nodes    []Node
	uid      map[string]*corev1.Node        // by name
	owner    map[string]string              // node to group
	byName   map[string]*v1alpha1.NodeGroup // groups
	byCloud  map[string]*v1alpha1.NodeGroup // by the name that the cloud has for it
	leaving  map[string]bool                // nodes with a retirement that is not over
	inHand   map[string]bool                // instances of one, or of an open launch
}

func (s *Controller) readSnapshot(ctx context.Context) (*snapshot, error) {
	groups, err := s.o.Groups.List(ctx)
	if err != nil {
		return nil, err
	}
	leaving, inHand, err := s.readRetirements(ctx)
	if err != nil {
		return nil, err
	}
	var machines []cloud.Instance
	if s.marking != nil {
		if machines, err = s.marking.Ours(ctx); err != nil {
			return nil, err
		}
	}
	nodes, known, err := s.readNodes(ctx) // after the machines: what has joined meanwhile is seen
	if err != nil {
		return nil, err
	}
	seen := &snapshot{
		machines: machines, nodes: known, uid: map[string]*corev1.Node{}, owner: nodegroup.Claim(groups, nodes).Owner,
		byName: map[string]*v1alpha1.NodeGroup{}, byCloud: map[string]*v1alpha1.NodeGroup{}, leaving: leaving, inHand: inHand,
	}
	for i := range nodes {
		seen.uid[nodes[i].Name] = &nodes[i]
	}
	for i := range groups {
		seen.byName[groups[i].Name] = &groups[i]
		if groups[i].Spec.Cloud.Provider == s.name {
			seen.byCloud[groups[i].Spec.Cloud.Group] = &groups[i]
			// The autoscaler follows the instances of its launches until they have joined, and deletes those that never do.
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

// readRetirements reads the retirements that are not over, of whichever manager, page by page: the names of their Nodes, and
// the IDs of their machines as the cloud spells them.
func (s *Controller) readRetirements(ctx context.Context) (leaving, inHand map[string]bool, err error) {
	leaving, inHand = map[string]bool{}, map[string]bool{}
	var page v1alpha1.NodeRetirementList
	for more := true; more; more = page.Continue != "" {
		o := &client.ListOptions{Limit: pageSize, Continue: page.Continue}
		page = v1alpha1.NodeRetirementList{}
		if err := s.o.Live.List(ctx, &page, o); err != nil {
			return nil, nil, fmt.Errorf("NodeRetirements: %w", err)
		}
		for i := range page.Items {
			rt := &page.Items[i]
			if rt.Status.Phase.Finished() {
				continue
			}
			leaving[rt.Spec.NodeName] = true
			switch id, err := s.machineOf(rt); {
			case err == nil:
				inHand[id] = true
			case cloud.IsUnanswered(err):
				return nil, nil, fmt.Errorf("NodeRetirement %s: %w", rt.Name, err)
			}
		}
	}
	return leaving, inHand, nil
}

// machineOf gives the ID of a retirement's machine as the cloud spells it. An error that is not [cloud.IsUnanswered] says that
// it is none of this cloud's.
func (s *Controller) machineOf(rt *v1alpha1.NodeRetirement) (string, error) {
	id := rt.Spec.ProviderID
	if rt.Status.Captured != nil {
		id = rt.Status.Captured.ProviderID
	}
	if s.marking != nil {
		return s.marking.Normalize(id)
	}
	return s.unmarked.Normalize(id)
}

// isSpared reports an instance that is no orphan: a retirement or a launch sees to it, or it may still join.
func (s *snapshot) isSpared(m cloud.Instance) bool {
	return s.inHand[m.ProviderID] || s.mayJoin(m, time.Now())
}

// mayJoin says whether a machine has still time to join, by what its group gives it.
func (s *snapshot) mayJoin(m cloud.Instance, now time.Time) bool {
	g := s.byCloud[m.Group]
	return g != nil && now.Before(m.Created.Add(plan.JoinTimeout(g)))
}

// readNodes reads all Nodes page by page, and keeps of each what is needed.
func (s *Controller) readNodes(ctx context.Context) (nodes []corev1.Node, known []Node, err error) {
	var page corev1.NodeList
	for more := true; more; more = page.Continue != "" {
		o := &client.ListOptions{Limit: pageSize, Continue: page.Continue}
		page = corev1.NodeList{}
		if err := s.o.Live.List(ctx, &page, o); err != nil {
			return nil, nil, fmt.Errorf("nodes: %w", err)
		}
		for i := range page.Items {
			n := &page.Items[i]
			known = append(known, Node{
				Name: n.Name, ProviderID: n.Spec.ProviderID, SystemUUID: n.Status.NodeInfo.SystemUUID, Ready: budget.Ready(n),
				Created: n.CreationTimestamp.Time, ControlPlane: retirement.IsControlPlane(n.Labels),
			})
			nodes = append(nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, Labels: n.Labels}})
		}
	}
	return nodes, known, nil
}
