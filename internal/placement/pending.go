package placement

import "fmt"

// Pending answers why a pod is pending.
type Pending struct {
	Pod PodKey `json:"pod"`
	// Node is where the pod is; empty while it is pending.
	Node string `json:"node,omitempty"`
	// Fits names the nodes that would take the pod; when there are any, it has only to wait for the scheduler.
	Fits []string `json:"fits,omitempty"`
	// Nodes counts all nodes that would not, by their reasons.
	Nodes Tallies `json:"nodes,omitempty"`
	// Machines says, per flavour, whether a new machine would help: "fits", or the reasons why not.
	Machines map[string]string `json:"machines,omitempty"`
}

// Pending judges a pod on every node, and on a new machine of every flavour. The pod need not be pending: one that is
// placed is judged as if it were created anew beside itself.
func (s *Snapshot) Pending(key PodKey, flavours []Flavour) (*Pending, error) {
	p, ok := s.pods[key]
	if !ok {
		return nil, fmt.Errorf("pod %s is not in the snapshot", key)
	}
	out := &Pending{Pod: key, Node: p.nodeName}
	counts := tallies{}
	for _, name := range sortedKeys(s.nodeByName) {
		n := s.nodeByName[name]
		if n.out {
			continue
		}
		if v := s.judge(p.class, n); v.Outcome == Fits {
			out.Fits = append(out.Fits, name)
		} else {
			counts.add(v)
		}
	}
	out.Nodes = counts.sorted()
	for i := range flavours {
		if flavours[i].Template == nil || flavours[i].Name == "" {
			return nil, fmt.Errorf("flavour %d %q has no name or no template", i, flavours[i].Name)
		}
	}
	plan := &packer{planner: s.newPlanner(LeastPods, &Options{}), flavours: flavours, purses: map[*Allowance]*purse{}, next: (*class).large}
	defer plan.close()
	plan.offer()
	out.Machines, _ = plan.reasons(p.class)
	return out, nil
}

// IsPending reports whether a pod is in the snapshot and on no node.
func (s *Snapshot) IsPending(key PodKey) bool {
	p, ok := s.pods[key]
	return ok && p.node == none && p.nodeName == ""
}
