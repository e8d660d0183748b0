// Package plan answers for a whole cluster at once what could be removed and what is missing: it asks placement for the
// machines that pending pods need and for the nodes that can go without standing in those pods' way.
package plan

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/saved"
)

// Options says what to ask.
type Options struct {
	// Max is how many nodes are to go at most; a negative one stands for all.
	Max int
	// Policy is which nodes go first.
	Policy placement.Policy
	// Rules are the rules for the nodes that go. The plan adds to what they protect.
	Rules placement.Options
}

// Plan is the answer.
type Plan struct {
	// Launch is what the pending pods need; nil when none is pending.
	Launch *placement.Packing `json:"launch,omitempty"`
	// Remove is what can go with the pending pods served.
	Remove *placement.Selection `json:"remove"`
}

// Cluster is a cluster that can be asked again and again: what is made of its objects is made once. It is not safe for
// concurrent use.
type Cluster struct {
	snapshot *placement.Snapshot
	flavours []placement.Flavour
	pending  map[placement.PodKey]*corev1.Pod
}

// Of makes a cluster of its objects.
func Of(o *saved.Objects) (*Cluster, error) {
	s, err := o.Snapshot()
	if err != nil {
		return nil, err
	}
	return &Cluster{snapshot: s, flavours: Flavours(o), pending: waiting(o.Pods)}, nil
}

// Plan plans. Pending pods come first: where they would fit on nodes that are there, the room is theirs and the nodes
// stay. Machines to launch are taken to be like those that are there; see Flavours.
func (c *Cluster) Plan(options Options) (*Plan, error) {
	most := options.Max
	if most < 0 {
		most = c.snapshot.Nodes()
	}
	out := &Plan{}
	err := c.served(options.Rules, func(launch *placement.Packing, rules placement.Options) (err error) {
		out.Launch = launch
		out.Remove, err = c.snapshot.Victims(most, options.Policy, rules)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Node answers for one node by itself what Plan would, with everything that speaks against its removal. Max is not read.
func (c *Cluster) Node(name string, options Options) (out *placement.Evacuation, err error) {
	err = c.served(options.Rules, func(_ *placement.Packing, rules placement.Options) (err error) {
		out, err = c.snapshot.Evacuate(name, options.Policy, rules)
		return err
	})
	return out, err
}

// Pod answers why a pod is pending, and which machine, like those that are there, would take it.
func (c *Cluster) Pod(key placement.PodKey) (*placement.Pending, error) {
	return c.snapshot.Pending(key, c.flavours)
}

// New is Plan of a cluster that is asked once.
func New(o *saved.Objects, options Options) (*Plan, error) {
	c, err := Of(o)
	if err != nil {
		return nil, err
	}
	return c.Plan(options)
}

// Node is Node of a cluster that is asked once.
func Node(o *saved.Objects, name string, options Options) (*placement.Evacuation, error) {
	c, err := Of(o)
	if err != nil {
		return nil, err
	}
	return c.Node(name, options)
}

// Pod is Pod of a cluster that is asked once.
func Pod(o *saved.Objects, key placement.PodKey) (*placement.Pending, error) {
	c, err := Of(o)
	if err != nil {
		return nil, err
	}
	return c.Pod(key)
}

// served calls ask while the pending pods that fit are in their places, with the rules that keep those. The packing is
// nil when no pod is pending.
func (c *Cluster) served(rules placement.Options, ask func(*placement.Packing, placement.Options) error) (err error) {
	if len(c.pending) == 0 {
		return ask(nil, rules)
	}
	launch, err := c.snapshot.Pack(nil, c.flavours, placement.LeastWaste)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.release(launch)) }()
	rules.Reserved, err = c.reserve(launch)
	if err != nil {
		return err
	}
	return ask(launch, rules)
}

// waiting finds the pods that have no node yet.
func waiting(pods []*corev1.Pod) map[placement.PodKey]*corev1.Pod {
	found := map[placement.PodKey]*corev1.Pod{}
	for _, p := range pods {
		if p.Spec.NodeName == "" && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			found[placement.PodKey{Namespace: p.Namespace, Name: p.Name}] = p
		}
	}
	return found
}

// reserve puts the pending pods on the nodes that have room for them, and says which nodes those are.
func (c *Cluster) reserve(packing *placement.Packing) (map[string]placement.PodKey, error) {
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

// release takes back what reserve has done.
func (c *Cluster) release(packing *placement.Packing) error {
	for _, m := range packing.Moves {
		if err := c.snapshot.SetPod(c.pending[m.Pod]); err != nil {
			return fmt.Errorf("give back the room for pod %s: %w", m.Pod, err)
		}
	}
	return nil
}
