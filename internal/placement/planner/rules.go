package planner

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/placement"
)

// Options says which nodes may go, and under which limits.
type Options struct {
	// Now is the time against which durations in annotations are held.
	Now time.Time
	// Pods says which pods may be evicted.
	Pods podrules.Policy
	// Mark, if set, adds to the facts about a pod that blocks its node what its namespace and labels mean to the caller.
	Mark func(f *podrules.Facts, namespace string, set labels.Set)
	// Excluded names nodes that must stay, each with the reason in words, such as "machine is not evictable".
	Excluded map[string]string
	// Lifted names nodes each with the key of an annotation that does not protect it: the caller is about to remove it.
	Lifted map[string]string
	// Reserved names nodes that must stay because a pending pod counts on their room.
	Reserved map[string]placement.PodKey
	// Groups are the sets of nodes with limits on their size. A node in no group has none.
	Groups []Group
}

// Group is a set of nodes whose size is limited.
type Group struct {
	Name  string
	Nodes []string
	// MinSize is how many nodes must remain, not counting those that are being removed already.
	MinSize int
	// MinPerZone is how many nodes must remain in each zone that the group has nodes in.
	MinPerZone int
	// MaxUnavailable is how many nodes may be missing at one time, counting those that are being removed, cordoned or
	// not ready already. Nil sets no limit.
	MaxUnavailable *int
}

// Refusal is why a node cannot go.
type Refusal struct {
	// Rule names the rule: "being-removed", "protected", "unmanaged", "disruption-budget", "no-room" …
	Rule string `json:"rule"`
	// Pod is the pod that the rule concerns, as namespace/name; empty when it is the node itself.
	Pod string `json:"pod,omitempty"`
	// Text says what is in the way.
	Text string `json:"text"`
	// Nodes counts, for a pod that fits nowhere, the other nodes by their reasons.
	Nodes placement.Tallies `json:"nodes,omitempty"`
	// Remedy says what would change the answer; empty when nothing simple would.
	Remedy string `json:"remedy,omitempty"`
}

// String is the refusal in one line.
func (r Refusal) String() string {
	text := r.Text
	if r.Pod != "" {
		text = "pod " + r.Pod + " " + text
	}
	if len(r.Nodes) > 0 {
		text += ": " + r.Nodes.String()
	}
	return text
}

func formatCount(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
