package planner

import (
	"time"

	"k8s.io/apimachinery/pkg/labels"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/placement"
)

// Options holds the rules and limits for removing nodes.
type Options struct {
	// Now is the time for evaluating durations in annotations.
	Now time.Time
	// PodRules says which pods may be evicted.
	PodRules podrules.Policy
	// AddPodFacts, if not nil, adds facts to a pod that blocks its node, from its namespace and labels.
	AddPodFacts func(f *podrules.Facts, namespace string, set labels.Set)
	// ExcludedNodes maps nodes that must stay to a reason, such as "machine is not evictable".
	ExcludedNodes map[string]string
	// IgnoredAnnotations maps nodes to the key of an annotation that does not protect them, because the caller is about to remove
	// it.
	IgnoredAnnotations map[string]string
	// ReservedNodes maps nodes that must stay to a pending pod that needs their capacity.
	ReservedNodes map[string]placement.PodKey
	// Groups are sets of nodes with size limits. A node in no group has no limits.
	Groups []Group
	// PDBUsage is what other removals charge to the PodDisruptionBudgets. A plan does not change it.
	PDBUsage PDBUsage
}

// Group is a set of nodes with size limits.
type Group struct {
	Name  string
	Nodes []string
	// MinSize is how many nodes must remain. Nodes that are already being removed do not count.
	MinSize int
	// MinPerZone is how many nodes must remain in each zone of the group.
	MinPerZone int
	// MaxUnavailable is how many nodes may be unavailable at one time. Nodes that are already being removed, cordoned
	// or not ready count. Nil means no limit.
	MaxUnavailable *int
}

// Refusal is a reason why a node cannot be removed.
type Refusal struct {
	// Rule is the name of the rule: "being-removed", "protected", "unmanaged", "disruption-budget", "no-room" …
	Rule string `json:"rule"`
	// Pod is the pod that the rule concerns, as namespace/name. It is empty if the rule concerns the node.
	Pod string `json:"pod,omitempty"`
	// Message says why the node cannot be removed.
	Message string `json:"message"`
	// Nodes counts the other nodes by their reasons, for a pod that fits nowhere.
	Nodes placement.ReasonCounts `json:"nodes,omitempty"`
	// Remedy says what would change the result. It is empty if nothing simple would.
	Remedy string `json:"remedy,omitempty"`
}

// String returns the refusal as one line.
func (r Refusal) String() string {
	text := r.Message
	if r.Pod != "" {
		text = "pod " + r.Pod + " " + text
	}
	if len(r.Nodes) > 0 {
		text += ": " + r.Nodes.String()
	}
	return text
}
