package planner

import (
	"fmt"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// PendingPod explains why a pod is pending.
type PendingPod struct {
	Pod placement.PodKey `json:"pod"`
	// Node is the node of the pod. It is empty while the pod is pending.
	Node string `json:"node,omitempty"`
	// FittingNodes lists the nodes that would accept the pod. If there are any, the pod only waits for the scheduler.
	FittingNodes []string `json:"fittingNodes,omitempty"`
	// Nodes counts the other nodes by their reasons.
	Nodes placement.ReasonCounts `json:"nodes,omitempty"`
	// Undecidable is true if it is not known whether one of the other nodes would accept the pod.
	Undecidable bool `json:"undecidable,omitempty"`
	// NewInstances says, by template, whether a new instance would help: "fits", or the reasons why not.
	NewInstances map[string]string `json:"newInstances,omitempty"`
}

// JudgePendingPod evaluates a pod on every node, and on a new instance of every template. A placed pod is evaluated as if
// a second copy were created. It fails if the pod is unknown.
func JudgePendingPod(s *snapshot.Snapshot, key placement.PodKey, templates []Template) (*PendingPod, error) {
	p := s.Pod(key)
	if p == nil {
		return nil, fmt.Errorf("pod %s is not in the snapshot", key)
	}
	out := &PendingPod{Pod: key, Node: p.NodeName}
	counts := reasonCounts{}
	for _, n := range s.Nodes.SortedByName() {
		if n.RemovedByPlan {
			continue
		}
		if v := s.JudgePodClass(p.Class, p.UID, n); v.Outcome == placement.Fits {
			out.FittingNodes = append(out.FittingNodes, n.Name())
		} else {
			counts.addVerdict(v)
			out.Undecidable = out.Undecidable || v.Outcome == placement.Undecidable
		}
	}
	out.Nodes = counts.sortByCount()
	if err := validateTemplates(templates); err != nil {
		return nil, err
	}
	plan := &packRun{planRun: beginPlanRun(s, LeastPods, &Options{}), templates: templates, resourceLimits: map[*LaunchLimit]*resourceLimit{}, scoreClass: (*packRun).scoreBySize}
	defer plan.close()
	plan.addTemplateOffers()
	out.NewInstances, _ = plan.explainOffers(p.Class)
	return out, nil
}
