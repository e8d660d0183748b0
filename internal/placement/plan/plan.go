// Package plan answers for a whole cluster at once what could be removed and what is missing: it asks placement for the
// machines that pending pods need and for the nodes that can go without standing in those pods' way.
package plan

import (
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

// New plans for a cluster. Pending pods come first: where they would fit on nodes that are there, the room is theirs
// and the nodes stay. Machines to launch are taken to be like those that are there; see Flavours.
func New(o *saved.Objects, options Options) (*Plan, error) {
	s, launch, rules, err := served(o, options.Rules)
	if err != nil {
		return nil, err
	}
	most := options.Max
	if most < 0 {
		most = s.Nodes()
	}
	remove, err := s.Victims(most, options.Policy, rules)
	if err != nil {
		return nil, err
	}
	return &Plan{Launch: launch, Remove: remove}, nil
}

// Node answers for one node by itself what New would, with everything that speaks against its removal. Max is not read.
func Node(o *saved.Objects, name string, options Options) (*placement.Evacuation, error) {
	s, _, rules, err := served(o, options.Rules)
	if err != nil {
		return nil, err
	}
	return s.Evacuate(name, options.Policy, rules)
}

// Pod answers why a pod is pending, and which machine, like those that are there, would take it.
func Pod(o *saved.Objects, key placement.PodKey) (*placement.Pending, error) {
	s, err := o.Snapshot()
	if err != nil {
		return nil, err
	}
	return s.Pending(key, Flavours(o))
}

// served is the cluster with the pending pods that fit on it in their places, and the rules that keep those. The packing
// is nil when no pod is pending.
func served(o *saved.Objects, rules placement.Options) (*placement.Snapshot, *placement.Packing, placement.Options, error) {
	s, err := o.Snapshot()
	if err != nil {
		return nil, nil, rules, err
	}
	pending := waiting(o.Pods)
	if len(pending) == 0 {
		return s, nil, rules, nil
	}
	launch, err := s.Pack(nil, Flavours(o), placement.LeastWaste)
	if err != nil {
		return nil, nil, rules, err
	}
	rules.Reserved, err = reserve(s, launch, pending)
	return s, launch, rules, err
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
func reserve(s *placement.Snapshot, packing *placement.Packing, pending map[placement.PodKey]*corev1.Pod,
) (map[string]placement.PodKey, error) {
	launched := map[string]bool{}
	for _, m := range packing.Machines {
		launched[m.Name] = true
	}
	reserved := map[string]placement.PodKey{}
	for _, m := range packing.Moves {
		if launched[m.To] {
			continue
		}
		bound := pending[m.Pod].DeepCopy()
		bound.Spec.NodeName = m.To
		if err := s.SetPod(bound); err != nil {
			return nil, fmt.Errorf("keep room for pod %s: %w", m.Pod, err)
		}
		if _, ok := reserved[m.To]; !ok {
			reserved[m.To] = m.Pod
		}
	}
	return reserved, nil
}
