package planner

import (
	"fmt"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// Pending explains why a pod is pending.
type Pending struct {
	Pod placement.PodKey `json:"pod"`
	// Node is the node of the pod. It is empty while the pod is pending.
	Node string `json:"node,omitempty"`
	// Fits lists the nodes that would accept the pod. If there are any, the pod only waits for the scheduler.
	Fits []string `json:"fits,omitempty"`
	// Nodes counts the other nodes by their reasons.
	Nodes placement.Tallies `json:"nodes,omitempty"`
	// Machines says, by flavour, whether a new instance would help: "fits", or the reasons why not.
	Machines map[string]string `json:"machines,omitempty"`
}

// JudgePending evaluates a pod on every node, and on a new instance of every flavour. A placed pod is evaluated as if
// a second copy were created. It fails if the pod is unknown.
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
