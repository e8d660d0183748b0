// Package planner plans on a snapshot.
//
// - PlanEvacuation: where would the pods of a node go?
// - SelectVictims: which nodes can be removed together?
// - PackPods: which new instances would run the pending pods?
// - Cluster.PlanLaunchesAndRemovals: PackPods, and then SelectVictims.
//
// Every answer contains all of its reasons.
package planner

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/saved"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// PlanOptions configures a plan.
type PlanOptions struct {
	// MaxRemovals is the largest number of nodes to remove. A negative number means no limit.
	MaxRemovals int
	// Policy says which nodes to remove first.
	Policy Policy
	// Rules are the rules for removed nodes. The plan adds the nodes that it reserves for pending pods.
	Rules Options
}

// Plan is the result of Cluster.PlanLaunchesAndRemovals.
type Plan struct {
	// Launch is the packing of the pending pods. It is nil if no pod is pending.
	Launch *Packing `json:"launch,omitempty"`
	// Remove is the nodes that can be removed with the pending pods placed.
	Remove *VictimSelection `json:"remove"`
}

// Cluster answers several requests about one cluster. It converts the objects only once. It is not safe for
// concurrent use.
type Cluster struct {
	snapshot  *snapshot.Snapshot
	templates []Template
	pending   map[placement.PodKey]*corev1.Pod
}

// NewCluster creates a Cluster from objects.
func NewCluster(o *saved.Objects) (*Cluster, error) {
	s, err := o.BuildSnapshot()
	if err != nil {
		return nil, err
	}
	return NewClusterFromSnapshot(s, o), nil
}

// NewClusterFromSnapshot creates a Cluster from a snapshot that the caller maintains, and its nodes and pods. It is valid until
// the snapshot or the objects change.
func NewClusterFromSnapshot(s *snapshot.Snapshot, o *saved.Objects) *Cluster {
	return &Cluster{snapshot: s, templates: DeriveTemplates(s, o), pending: findPendingPods(o.Pods)}
}

// PlanLaunchesAndRemovals plans launches and removals. Pending pods come first: they are placed on existing nodes where
// they fit, and these nodes are not removed. New instances have the templates of existing nodes; see DeriveTemplates.
func (c *Cluster) PlanLaunchesAndRemovals(options PlanOptions) (*Plan, error) {
	most := options.MaxRemovals
	if most < 0 {
		most = c.snapshot.Nodes.Len()
	}
	out := &Plan{}
	err := c.callWithPendingPlaced(options.Rules, func(launch *Packing, rules Options) (err error) {
		out.Launch = launch
		out.Remove, err = SelectVictims(c.snapshot, most, options.Policy, rules)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// PlanEvacuation plans the removal of one node under the same conditions as PlanLaunchesAndRemovals. The result has
// every reason against the removal. It ignores MaxRemovals.
func (c *Cluster) PlanEvacuation(name string, options PlanOptions) (out *Evacuation, err error) {
	err = c.callWithPendingPlaced(options.Rules, func(_ *Packing, rules Options) (err error) {
		out, err = PlanEvacuation(c.snapshot, name, options.Policy, rules)
		return err
	})
	return out, err
}

// JudgePendingPod explains why a pod is pending, and which template of existing nodes would help.
func (c *Cluster) JudgePendingPod(key placement.PodKey) (*PendingPod, error) {
	return JudgePendingPod(c.snapshot, key, c.templates)
}

// PlanFromObjects creates a Cluster and calls PlanLaunchesAndRemovals.
func PlanFromObjects(o *saved.Objects, options PlanOptions) (*Plan, error) {
	c, err := NewCluster(o)
	if err != nil {
		return nil, err
	}
	return c.PlanLaunchesAndRemovals(options)
}

// PlanEvacuationFromObjects creates a Cluster and calls PlanEvacuation.
func PlanEvacuationFromObjects(o *saved.Objects, name string, options PlanOptions) (*Evacuation, error) {
	c, err := NewCluster(o)
	if err != nil {
		return nil, err
	}
	return c.PlanEvacuation(name, options)
}

// JudgePendingPodFromObjects creates a Cluster and calls JudgePendingPod.
func JudgePendingPodFromObjects(o *saved.Objects, key placement.PodKey) (*PendingPod, error) {
	c, err := NewCluster(o)
	if err != nil {
		return nil, err
	}
	return c.JudgePendingPod(key)
}

// callWithPendingPlaced calls call with the pending pods placed where they fit, and with rules that keep their nodes. The
// packing is nil if no pod is pending.
func (c *Cluster) callWithPendingPlaced(rules Options, call func(*Packing, Options) error) (err error) {
	if len(c.pending) == 0 {
		return call(nil, rules)
	}
	launch, err := PackPods(c.snapshot, nil, c.templates, LeastWaste)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.restorePendingPods(launch)) }()
	rules.ReservedNodes, err = c.placePendingOnExistingNodes(launch)
	if err != nil {
		return err
	}
	return call(launch, rules)
}

// findPendingPods returns the unfinished pods without a node.
func findPendingPods(pods []*corev1.Pod) map[placement.PodKey]*corev1.Pod {
	found := map[placement.PodKey]*corev1.Pod{}
	for _, p := range pods {
		if p.Spec.NodeName == "" && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			found[placement.PodKey{Namespace: p.Namespace, Name: p.Name}] = p
		}
	}
	return found
}

// placePendingOnExistingNodes places the pending pods on existing nodes with room, and returns these nodes.
func (c *Cluster) placePendingOnExistingNodes(packing *Packing) (map[string]placement.PodKey, error) {
	launched := map[string]bool{}
	for _, m := range packing.Instances {
		launched[m.Name] = true
	}
	reserved := map[string]placement.PodKey{}
	for _, m := range packing.Moves {
		if launched[m.To] {
			continue
		}
		bound := c.pending[m.Pod].DeepCopy()
		bound.Spec.NodeName = m.To
		if err := c.snapshot.SetPod(bound); err != nil {
			return nil, fmt.Errorf("reserve room for pending pod %s: %w", m.Pod, err)
		}
		if _, ok := reserved[m.To]; !ok {
			reserved[m.To] = m.Pod
		}
	}
	return reserved, nil
}

// restorePendingPods undoes placePendingOnExistingNodes.
func (c *Cluster) restorePendingPods(packing *Packing) error {
	for _, m := range packing.Moves {
		if err := c.snapshot.SetPod(c.pending[m.Pod]); err != nil {
			return fmt.Errorf("release the room of pending pod %s: %w", m.Pod, err)
		}
	}
	return nil
}
