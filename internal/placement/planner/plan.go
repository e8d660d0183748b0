// Package planner answers questions about a snapshot.
//
//   - Evacuate: where would the pods of a node go?
//   - Victims: which nodes may go together?
//   - Pack: which new machines would take the pending pods?
//   - Cluster.Plan: Pack, and then Victims.
//
// Each answer has the whole trace of its reasons.
package planner

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/saved"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// PlanOptions says what to ask.
type PlanOptions struct {
	// Max is how many nodes are to go at most; a negative one stands for all.
	Max int
	// Policy is which nodes go first.
	Policy Policy
	// Rules are the rules for the nodes that go. The plan adds to what they protect.
	Rules Options
}

// Plan is the answer.
type Plan struct {
	// Launch is what the pending pods need; nil when none is pending.
	Launch *Packing `json:"launch,omitempty"`
	// Remove is what can go with the pending pods served.
	Remove *Selection `json:"remove"`
}

// Cluster is a cluster that can be asked again and again: what is made of its objects is made once. It is not safe for
// concurrent use.
type Cluster struct {
	snapshot *snapshot.Snapshot
	flavours []Flavour
	pending  map[placement.PodKey]*corev1.Pod
}

// NewCluster makes a cluster of its objects.
func NewCluster(o *saved.Objects) (*Cluster, error) {
	s, err := o.Snapshot()
	if err != nil {
		return nil, err
	}
	return &Cluster{snapshot: s, flavours: Flavours(o), pending: findPending(o.Pods)}, nil
}

// ClusterOf returns a cluster whose snapshot the caller keeps current; the objects are its nodes and pods. It holds for as
// long as neither changes.
func ClusterOf(s *snapshot.Snapshot, o *saved.Objects) *Cluster {
	return &Cluster{snapshot: s, flavours: Flavours(o), pending: findPending(o.Pods)}
}

// Plan plans. Pending pods come first: where they would fit on nodes that are there, the room is theirs and the nodes
// stay. Machines to launch are taken to be like those that are there; see Flavours.
func (c *Cluster) Plan(options PlanOptions) (*Plan, error) {
	most := options.Max
	if most < 0 {
		most = c.snapshot.Nodes.Len()
	}
	out := &Plan{}
	err := c.withPendingPlaced(options.Rules, func(launch *Packing, rules Options) (err error) {
		out.Launch = launch
		out.Remove, err = Victims(c.snapshot, most, options.Policy, rules)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Evacuate answers for one node by itself what Plan would, with everything that speaks against its removal. Max is not read.
func (c *Cluster) Evacuate(name string, options PlanOptions) (out *Evacuation, err error) {
	err = c.withPendingPlaced(options.Rules, func(_ *Packing, rules Options) (err error) {
		out, err = Evacuate(c.snapshot, name, options.Policy, rules)
		return err
	})
	return out, err
}

// JudgePending answers why a pod is pending, and which machine, like those that are there, would take it.
func (c *Cluster) JudgePending(key placement.PodKey) (*Pending, error) {
	return JudgePending(c.snapshot, key, c.flavours)
}

// NewPlan is Plan of a cluster that is asked once.
func NewPlan(o *saved.Objects, options PlanOptions) (*Plan, error) {
	c, err := NewCluster(o)
	if err != nil {
		return nil, err
	}
	return c.Plan(options)
}

// NewEvacuation is Evacuate of a cluster that is asked once.
func NewEvacuation(o *saved.Objects, name string, options PlanOptions) (*Evacuation, error) {
	c, err := NewCluster(o)
	if err != nil {
		return nil, err
	}
	return c.Evacuate(name, options)
}

// NewPending is JudgePending of a cluster that is asked once.
func NewPending(o *saved.Objects, key placement.PodKey) (*Pending, error) {
	c, err := NewCluster(o)
	if err != nil {
		return nil, err
	}
	return c.JudgePending(key)
}

// withPendingPlaced calls ask while the pending pods that fit are in their places, with the rules that keep those. The packing is
// nil when no pod is pending.
func (c *Cluster) withPendingPlaced(rules Options, ask func(*Packing, Options) error) (err error) {
	if len(c.pending) == 0 {
		return ask(nil, rules)
	}
	launch, err := Pack(c.snapshot, nil, c.flavours, LeastWaste)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.restorePending(launch)) }()
	rules.Reserved, err = c.placePending(launch)
	if err != nil {
		return err
	}
	return ask(launch, rules)
}

// findPending finds the pods that have no node yet.
func findPending(pods []*corev1.Pod) map[placement.PodKey]*corev1.Pod {
	found := map[placement.PodKey]*corev1.Pod{}
	for _, p := range pods {
		if p.Spec.NodeName == "" && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			found[placement.PodKey{Namespace: p.Namespace, Name: p.Name}] = p
		}
	}
	return found
}

// placePending puts the pending pods on the nodes that have room for them, and says which nodes those are.
func (c *Cluster) placePending(packing *Packing) (map[string]placement.PodKey, error) {
	launched := map[string]bool{}
	for _, m := range packing.Machines {
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
			return nil, fmt.Errorf("keep room for pod %s: %w", m.Pod, err)
		}
		if _, ok := reserved[m.To]; !ok {
			reserved[m.To] = m.Pod
		}
	}
	return reserved, nil
}

// restorePending takes back what reserve has done.
func (c *Cluster) restorePending(packing *Packing) error {
	for _, m := range packing.Moves {
		if err := c.snapshot.SetPod(c.pending[m.Pod]); err != nil {
			return fmt.Errorf("give back the room for pod %s: %w", m.Pod, err)
		}
	}
	return nil
}
