package planner

import (
	"fmt"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// Pending answers why a pod is pending.
type Pending struct {
	Pod placement.PodKey `json:"pod"`
	// Node is where the pod is; empty while it is pending.
	Node string `json:"node,omitempty"`
	// Fits names the nodes that would take the pod; when there are any, it has only to wait for the scheduler.
	Fits []string `json:"fits,omitempty"`
	// Nodes counts all nodes that would not, by their reasons.
	Nodes placement.Tallies `json:"nodes,omitempty"`
	// Machines says, per flavour, whether a new machine would help: "fits", or the reasons why not.
	Machines map[string]string `json:"machines,omitempty"`
}

// JudgePending judges a pod on every node, and on a new machine of every flavour. The pod need not be pending: one that is
// placed is judged as if it were created anew beside itself.
func JudgePending(s *snapshot.Snapshot, key placement.PodKey, flavours []Flavour) (*Pending, error) {
	p := s.Pod(key)
	if p == nil {
		return nil, fmt.Errorf("pod %s is not in the snapshot", key)
	}
	out := &Pending{Pod: key, Node: p.NodeName}
	counts := reasonCounts{}
	for _, n := range s.Nodes.InOrder() {
		if n.Out {
			continue
		}
		if v := s.JudgeClass(p.Class, p.UID, n); v.Outcome == placement.Fits {
			out.Fits = append(out.Fits, n.Name())
		} else {
			counts.addVerdict(v)
		}
	}
	out.Nodes = counts.sortByCount()
	if err := validateFlavours(flavours); err != nil {
		return nil, err
	}
	plan := &packRun{planRun: newPlanRun(s, LeastPods, &Options{}), flavours: flavours, resourceLimits: map[*Allowance]*resourceLimit{}, scoreClass: (*packRun).scoreBySize}
	defer plan.close()
	plan.addOffers()
	out.Machines, _ = plan.explainOffers(p.Class)
	return out, nil
}
